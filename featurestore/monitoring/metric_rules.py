"""Rules of metrics: custom metrics of a group's rows, and the quality of a model.

A metric is out of bounds if it exceeds the range of its reference windows and the range by chance of
its number of rows, or if it exceeds its configured limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from featurestore.model.monitor import Limits, MonitorSpec
from featurestore.model.monitor_report import Finding
from featurestore.monitoring import bounds
from featurestore.monitoring.estimates import chance_mean, merge_estimates
from featurestore.monitoring.profile import Profile


def metric_findings(
    watched: MonitorSpec, now: Profile, windows_for: Callable[[str], Sequence[Profile]]
) -> list[Finding]:
    """Return the metrics with their limits, or with the range of the baseline.

    ``windows_for`` returns the reference windows of a metric.
    """
    names = watched.metric_names
    alpha = bounds.alpha_of(len(names), watched.confirm)
    findings = []
    for name in names:
        value = now.metrics.get(name)
        reference_windows = _without_recent(windows_for(name), now, watched.confirm)
        low, high = _metric_range(name, now, reference_windows, alpha)
        if name in watched.limits:
            limits = watched.limits[name]
            if watched.model is None or name in watched.metrics:
                low, high = limits  # a property of these rows, not an estimate
            else:
                low, high = _widened(name, limits, now, reference_windows, alpha)
        out = value is not None and not _within(value, low, high)
        if value is not None:
            value = float(f"{value:.9g}")
        findings.append(Finding("metric", name, "value", value, low, high, out))
    return findings


def _without_recent(
    reference_windows: Sequence[Profile], now: Profile, confirm: int
) -> list[Profile]:
    """Return windows without the latest ones, so that a change is not compared with itself."""
    if now.window is None:
        return list(reference_windows)
    width = now.window.end - now.window.start
    cutoff = now.window.start - (confirm - 1) * width
    return [each for each in reference_windows if each.window is None or each.window.end <= cutoff]


def _metric_range(
    name: str, now: Profile, reference_windows: Sequence[Profile], alpha: float
) -> Limits:
    """Return the range of a metric, by its reference windows and by chance."""
    values = []
    for each in reference_windows:
        value = each.metrics.get(name)
        if each.rows and value is not None:
            values.append(value)
    baseline = bounds.baseline_range(values)
    if baseline is None:
        return None, None
    chance = _chance_range(name, now, reference_windows, alpha)
    if chance is None:
        return baseline
    return min(baseline[0], chance[0]), max(baseline[1], chance[1])


def _widened(
    name: str, limits: Limits, now: Profile, reference_windows: Sequence[Profile], alpha: float
) -> Limits:
    """Return the limits of an estimate, widened by its sampling error."""
    chance = _chance_range(name, now, reference_windows, alpha)
    low, high = limits
    if chance is None:
        return limits
    middle = (chance[0] + chance[1]) / 2
    if low is not None:
        low -= middle - chance[0]
    if high is not None:
        high += chance[1] - middle
    return low, high


def _chance_range(
    name: str, now: Profile, reference_windows: Sequence[Profile], alpha: float
) -> tuple[float, float] | None:
    """Return the range of a mean by chance, if nothing changed."""
    current = now.estimates.get(name)
    if current is None:
        return None
    # Without earlier windows, the window's own rows give the variance.
    earlier = (
        merge_estimates(
            [each.estimates[name] for each in reference_windows if name in each.estimates]
        )
        or current
    )
    if earlier.merge != "mean" or not earlier.rows:
        return None
    return chance_mean(earlier, current.rows, alpha)


def _within(value: float, low: float | None, high: float | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)
