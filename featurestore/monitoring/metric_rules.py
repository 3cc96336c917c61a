"""The rules of metrics: custom ones of a group's rows, and what is measured of a model.

A metric is out of bounds when it is beyond what windows of its time differ by, and beyond what chance
makes of so few rows; or beyond the limits that it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from featurestore.model.monitor import Limits, Watched
from featurestore.model.monitor_report import Finding
from featurestore.monitoring import bounds
from featurestore.monitoring.estimates import chance_mean, merged
from featurestore.monitoring.profile import Profile


def metrics(
    watched: Watched, now: Profile, others_of: Callable[[str], Sequence[Profile]]
) -> list[Finding]:
    """Return the metrics with their limits, or with the range that is usual.

    ``others_of`` returns the windows that a metric is compared with.
    """
    names = watched.metric_names
    alpha = bounds.alpha_of(len(names), watched.confirm)
    found = []
    for name in names:
        value = now.metrics.get(name)
        others = _settled(others_of(name), now, watched.confirm)
        low, high = _usual_metric(name, now, others, alpha)
        if name in watched.limits:
            limits = watched.limits[name]
            if watched.model is None or name in watched.metrics:
                low, high = limits  # a property of these rows, not an estimate
            else:
                low, high = _widened(name, limits, now, others, alpha)
        out = value is not None and not _within(value, low, high)
        if value is not None:
            value = float(f"{value:.9g}")
        found.append(Finding("metric", name, "value", value, low, high, out))
    return found


def _settled(others: Sequence[Profile], now: Profile, confirm: int) -> list[Profile]:
    """Return windows without those right before: a change is not confirmed against itself."""
    if now.window is None:
        return list(others)
    width = now.window.end - now.window.start
    first = now.window.start - (confirm - 1) * width
    return [each for each in others if each.window is None or each.window.end <= first]


def _usual_metric(name: str, now: Profile, others: Sequence[Profile], alpha: float) -> Limits:
    """Return between which bounds a metric stays: by the windows of its time, and by chance."""
    values = []
    for each in others:
        value = each.metrics.get(name)
        if each.rows and value is not None:
            values.append(value)
    usual = bounds.usual_range(values)
    if usual is None:
        return None, None
    chance = _chance_of_metric(name, now, others, alpha)
    if chance is None:
        return usual
    return min(usual[0], chance[0]), max(usual[1], chance[1])


def _widened(
    name: str, limits: Limits, now: Profile, others: Sequence[Profile], alpha: float
) -> Limits:
    """Return limits of an estimate with what chance makes of so few rows beyond each of them."""
    chance = _chance_of_metric(name, now, others, alpha)
    low, high = limits
    if chance is None:
        return limits
    middle = (chance[0] + chance[1]) / 2
    if low is not None:
        low -= middle - chance[0]
    if high is not None:
        high += chance[1] - middle
    return low, high


def _chance_of_metric(
    name: str, now: Profile, others: Sequence[Profile], alpha: float
) -> tuple[float, float] | None:
    """Return between which bounds a mean of so many rows stays where nothing changed."""
    here = now.estimates.get(name)
    if here is None:
        return None
    # Without anything before the window its own rows say how far they are apart.
    before = merged([each.estimates[name] for each in others if name in each.estimates]) or here
    if before.merge != "mean" or not before.rows:
        return None
    return chance_mean(before, here.rows, alpha)


def _within(value: float, low: float | None, high: float | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)
