"""Monitor rules: compare the profile of a window with its reference windows.

Each rule is a function of profiles and thresholds that returns findings with their bounds.
``confirm_findings`` decides which findings are alarms, based on ``confirm`` consecutive windows.

A metric is out of bounds if it exceeds both the range of its reference windows and the sampling
error for its number of rows, or if it exceeds its configured limits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeVar

import numpy as np

from featurestore.model.finding import Finding, FindingKind
from featurestore.model.monitor import Limits, MonitorSpec
from featurestore.model.monitor_report import BinShares
from featurestore.monitoring import bounds
from featurestore.monitoring.comparison import (
    MIN_HISTORY,
    Comparison,
    ReferenceWindows,
    has_enough_windows,
)
from featurestore.monitoring.feature_rules import (
    ComparedFeature,
    compare_jointly,
    compare_with_anchors,
    select_compared_features,
    select_profiles,
)
from featurestore.monitoring.missing_values import (
    MissingValues,
    is_jointly_out_of_bounds,
    missing_values,
)
from featurestore.monitoring.profile import Profile, chance_mean, merge_estimates

# Findings of these kinds are alarms without confirmation by a second window.
_IMMEDIATE_KINDS: tuple[FindingKind, ...] = ("freshness", "schema")


@dataclass(frozen=True)
class RuleResult:
    """The findings of one window, the shares to plot, and its data by feature for joint tests."""

    findings: tuple[Finding, ...]
    learning: bool
    shares: tuple[BinShares, ...] = field(default=())
    missing: Mapping[str, MissingValues] = field(default_factory=dict)
    features: Mapping[str, ComparedFeature] = field(default_factory=dict)


def evaluate_rules(watched: MonitorSpec, now: Profile, comparison: Comparison) -> RuleResult:
    """Evaluate all rules on a window."""
    findings: list[Finding] = []
    shares: list[BinShares] = []
    features: dict[str, ComparedFeature] = {}
    missing: dict[str, MissingValues] = {}
    default_reference = comparison.reference()
    learning = not has_enough_windows(default_reference)
    if watched.drift and now.rows:
        names = select_compared_features(watched, now, default_reference)
        # Each feature has its own reference, without the windows in which it was out of bounds.
        for name in names:
            reference = comparison.reference(("feature", name))
            if not has_enough_windows(reference):
                learning = True
                continue
            features[name] = ComparedFeature(
                select_profiles(name, now, reference),
                watched.drift,
                alpha=bounds.alpha_of(len(names), watched.confirm),
                joint_alpha=bounds.alpha_of(len(names), 1),
            )
            feature_findings, feature_shares = features[name].compare()
            findings += feature_findings
            if feature_shares is not None:
                shares.append(feature_shares)
        missing = missing_values(watched, now, comparison)
        findings += [excess.finding for excess in missing.values()]
        findings += compare_with_anchors(watched, now, comparison)
    if watched.volume is not None:
        finding = check_volume(watched.volume, now, comparison.reference(("volume", "")))
        learning = learning or finding is None
        if finding is not None:
            findings.append(finding)
    if watched.schema and default_reference.members and default_reference.members[0].types:
        findings.append(schema(default_reference.members[0].types, now.types))
    findings += check_metrics_in_bounds(
        watched, now, lambda name: comparison.reference(("metric", name)).reference_windows
    )
    return RuleResult(tuple(findings), learning, tuple(shares), missing, features)


def confirm_findings(
    results: Sequence[RuleResult], confirm: int, *, are_disjoint: bool = True
) -> tuple[Finding, ...]:
    """Return the findings of the last of several consecutive windows, with confirmed alarms marked.

    Args:
        results: The results of the windows in order; only the last ``confirm`` are used.
        confirm: The number of consecutive windows that must be out of bounds.
        are_disjoint: Whether the windows do not overlap, so that their counts can be added.
    """
    earlier = results[-confirm:-1]
    has_enough = len(earlier) == confirm - 1
    joint_findings = {}
    if has_enough and are_disjoint and confirm > 1:
        joint_findings = _find_joint_changes(results[-confirm:])
    earlier_keys = [
        {finding.key for finding in result.findings if finding.out} for result in earlier
    ]
    findings = []
    for finding in results[-1].findings:
        is_immediate = finding.kind in _IMMEDIATE_KINDS or (
            finding.kind == "volume" and finding.value == 0
        )
        repeated = has_enough and all(finding.key in keys for keys in earlier_keys)
        if finding.key in joint_findings and not (finding.out and repeated):
            finding, repeated = joint_findings[finding.key], True
        findings.append(replace(finding, alarm=finding.out and (is_immediate or repeated)))
    return tuple(findings)


def _find_joint_changes(results: Sequence[RuleResult]) -> dict[tuple[str, str, str], Finding]:
    """Return the findings of the last window that are out of bounds over all windows together."""
    joint_findings = {}
    # Distances are convex: that of several windows together is at most their largest one.
    relevant = {
        finding.subject
        for result in results
        for finding in result.findings
        if finding.kind in ("drift", "values")
        and result.features[finding.subject].is_relevant(finding)
    }
    changes = {
        name: {change.measure: change for change in compare_jointly(chain)}
        for name, chain in _chains([result.features for result in results])
        if name in relevant
    }
    missing = dict(_chains([result.missing for result in results]))
    for finding in results[-1].findings:
        text = ""
        words = f"over {len(results)} windows combined"
        if finding.kind == "nulls" and finding.subject in missing:
            if is_jointly_out_of_bounds(missing[finding.subject]):
                text = (
                    f"{finding.subject}: missing values changed {words}; share "
                    f"{finding.format(finding.value)} in this window, {finding.bounds_text}"
                )
        elif finding.kind in ("drift", "values"):
            change = changes.get(finding.subject, {}).get(finding.measure)
            if change is not None:
                text = f"{finding.subject}: {change.statement} {words}; {change.measured_text}"
        if text:
            joint_findings[finding.key] = replace(finding, out=True, text=text)
    return joint_findings


Compared = TypeVar("Compared")


def _chains(windows: Sequence[Mapping[str, Compared]]) -> Iterator[tuple[str, list[Compared]]]:
    """Yield the data of each feature that all windows have."""
    for name in windows[-1]:
        if all(name in window for window in windows):
            yield name, [window[name] for window in windows]


def check_volume(
    ratio_bounds: tuple[float, float], now: Profile, reference: ReferenceWindows
) -> Finding | None:
    """Compare the number of rows with the median at the same time of the week.

    Return None if the history is too short, except for the first empty window, which is out of
    bounds.
    """
    row_counts = [profile.rows for profile in reference.same_weektime]
    if len(row_counts) < MIN_HISTORY:
        before = [profile.rows for profile in reference.history]
        if now.rows or not before or min(before) == 0:
            return None
        return Finding(
            "volume", "", "rows", 0.0, 1.0, None, True, text="rows: no rows in this window"
        )
    median = float(np.median(row_counts))
    # A source that is usually empty at this time has no ratio to its median.
    if median == 0:
        return Finding("volume", "", "rows", float(now.rows), None, None)
    low, high = _volume_bounds(ratio_bounds, row_counts, median)
    out = not low * median <= now.rows <= high * median
    text = ""
    if out:
        word = "fewer" if now.rows < median else "more"
        text = f"rows: {word} than usual; {now.rows:,} rows, usually {median:,.0f}"
    return Finding(
        "volume", "", "rows", float(now.rows), low * median, high * median, out, text=text
    )


def _volume_bounds(
    ratio_bounds: tuple[float, float], row_counts: Sequence[int], median: float
) -> tuple[float, float]:
    """Return the bounds of the ratio, widened by counting noise and baseline variation."""
    # A count varies by about its square root.
    noise = 4 / math.sqrt(median)
    # The logarithm of an empty window would be infinite.
    ratios = np.log(np.maximum(row_counts, 0.5) / median)
    # For a normal distribution, 1.4826 median absolute deviations are one standard deviation.
    deviation = 2.5 * 1.4826 * float(np.median(np.abs(ratios)))
    width = max(noise, deviation)
    low = min(ratio_bounds[0], math.exp(-width))
    if noise >= 1:  # with so few rows an empty window is plausible
        low = 0.0
    return low, max(ratio_bounds[1], math.exp(width))


def check_freshness(max_age: timedelta, age: timedelta | None, *, subject: str) -> Finding:
    """Compare the age of the latest event time or commit with its limit.

    A future time counts as age zero. ``age`` is None if there is no event time or commit.
    """
    high = max_age.total_seconds()
    if age is None:
        return Finding(
            "freshness", subject, "age", None, None, high, True, text=f"{subject}: missing"
        )
    seconds = max(age.total_seconds(), 0.0)
    return Finding("freshness", subject, "age", seconds, None, high, seconds > high)


def newest_age(profiles: Sequence[Profile], timestamp: datetime) -> timedelta | None:
    """Return the age of the latest event time in the profiles at a timestamp, or None."""
    times = [profile.newest for profile in profiles if profile.newest is not None]
    if not times:
        return None
    return timestamp - max(times)


def schema(before: Mapping[str, str], now: Mapping[str, str]) -> Finding:
    """Compare columns and their types between two schemas."""
    changes = [f"{name} ({now[name]}) was added" for name in now if name not in before]
    for name, type_name in before.items():
        if name not in now:
            changes.append(f"{name} ({type_name}) was removed")
        elif now[name] != type_name:
            changes.append(f"{name} changed from {type_name} to {now[name]}")
    text = ""
    if changes:
        text = f"columns: {'; '.join(changes)}"
    return Finding(
        "schema", "", "columns", float(len(changes)), None, 0.0, bool(changes), text=text
    )


def check_metrics_in_bounds(
    watched: MonitorSpec, now: Profile, windows_for: Callable[[str], Sequence[Profile]]
) -> list[Finding]:
    """Compare metrics with their limits, or with the range of the baseline.

    ``windows_for`` returns the reference windows of a metric.
    """
    names = watched.metric_names
    alpha = bounds.alpha_of(len(names), watched.confirm)
    findings = []
    for name in names:
        value = now.metrics.get(name)
        reference_windows = _exclude_recent(windows_for(name), now, watched.confirm)
        low, high = _metric_range(name, now, reference_windows, alpha)
        if name in watched.limits:
            limits = watched.limits[name]
            if watched.model is None or name in watched.metrics:
                low, high = limits  # a property of these rows, not an estimate
            else:
                low, high = _widen_limits(name, limits, now, reference_windows, alpha)
        out = value is not None and not (
            (low is None or value >= low) and (high is None or value <= high)
        )
        if value is not None:
            value = float(f"{value:.9g}")
        findings.append(Finding("metric", name, "value", value, low, high, out))
    return findings


def _exclude_recent(
    reference_windows: Sequence[Profile], now: Profile, confirm: int
) -> list[Profile]:
    """Exclude the most recent windows, so that a change is not compared with itself."""
    if now.window is None:
        return list(reference_windows)
    width = now.window.end - now.window.start
    cutoff = now.window.start - (confirm - 1) * width
    return [
        reference_window
        for reference_window in reference_windows
        if reference_window.window is None or reference_window.window.end <= cutoff
    ]


def _metric_range(
    name: str, now: Profile, reference_windows: Sequence[Profile], alpha: float
) -> Limits:
    """Return the expected range of a metric, from reference windows and sampling error."""
    values = []
    for reference_window in reference_windows:
        value = reference_window.metrics.get(name)
        if reference_window.rows and value is not None:
            values.append(value)
    baseline = bounds.baseline_range(values)
    if baseline is None:
        return None, None
    chance = _chance_range(name, now, reference_windows, alpha)
    if chance is None:
        return baseline
    return min(baseline[0], chance[0]), max(baseline[1], chance[1])


def _widen_limits(
    name: str, limits: Limits, now: Profile, reference_windows: Sequence[Profile], alpha: float
) -> Limits:
    """Widen the limits of an estimate by its sampling error."""
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
    """Return the range of a mean within sampling error, or None for other metrics."""
    current = now.estimates.get(name)
    if current is None:
        return None
    # Without earlier windows, the variance is estimated from the window's own rows.
    earlier = (
        merge_estimates(
            [
                reference_window.estimates[name]
                for reference_window in reference_windows
                if name in reference_window.estimates
            ]
        )
        or current
    )
    if earlier.merge != "mean" or not earlier.rows:
        return None
    return chance_mean(earlier, current.rows, alpha)
