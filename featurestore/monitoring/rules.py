"""Monitor rules: compare the profile of a window with its reference windows.

Each rule is a function of profiles and thresholds, and returns findings with their bounds.
``confirm_findings`` decides which findings are alarms (``confirm`` consecutive windows).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

import numpy as np

from featurestore.model.monitor import MonitorSpec
from featurestore.model.monitor_report import BinShares, Finding, FindingKind, Subject
from featurestore.model.times import format_duration
from featurestore.monitoring import bounds
from featurestore.monitoring.comparison import (
    ComparedProfiles,
    MeasuredDistances,
    measure_distances,
    measure_mixture,
)
from featurestore.monitoring.metric_rules import metric_findings
from featurestore.monitoring.missing import (
    MissingValues,
    is_jointly_out_of_bounds,
    missing_values_of,
)
from featurestore.monitoring.profile import ColumnProfile, Profile

# Minimum number of windows with which a window is compared.
_MIN_HISTORY = 3
# A value is reported as lost if this many rows of the window were expected to have it.
_EXPECTED_ROWS = 10
# Findings of these kinds are alarms without a second window.
_IMMEDIATE_KINDS: tuple[FindingKind, ...] = ("freshness", "schema")


@dataclass(frozen=True)
class ReferenceWindows:
    """The profiles with which a window is compared.

    ``members`` are the profiles of the baseline, oldest first; a complete rolling baseline has
    ``expected`` of them. ``reference_windows`` are windows of its period, with their ``groups`` for a
    rolling baseline. ``same_weektime`` are earlier windows at the same time of the week, ``history``
    all earlier windows since the first row.
    """

    members: Sequence[Profile] = ()
    reference_windows: Sequence[Profile] = ()
    groups: Sequence[int] = ()
    expected: int = 1
    same_weektime: Sequence[Profile] = ()
    history: Sequence[Profile] = ()


@dataclass(frozen=True)
class Anchor:
    """A moving baseline as of the period ``[start, end)``."""

    start: datetime
    end: datetime
    reference: ReferenceWindows


class Comparison(Protocol):
    """Provides the reference windows of each subject of a window."""

    def reference(self, subject: Subject | None = None) -> ReferenceWindows:
        """Return the reference of a subject; None: that of subjects never out of bounds."""

    def anchor(self, subject: Subject) -> Anchor | None:
        """Return the anchor of the subject's moving baseline, or None."""


@dataclass(frozen=True)
class FixedReference:
    """The same reference for every subject, without an anchor."""

    comparison: ReferenceWindows

    def reference(self, subject: Subject | None = None) -> ReferenceWindows:
        """Return the reference windows."""
        return self.comparison

    def anchor(self, subject: Subject) -> Anchor | None:
        """Return None."""
        return None


@dataclass(frozen=True)
class RuleResult:
    """The findings of one window, the shares to draw, and the missing values by feature."""

    findings: tuple[Finding, ...]
    learning: bool
    shares: tuple[BinShares, ...] = field(default=())
    missing: Mapping[str, MissingValues] = field(default_factory=dict)


def evaluate_rules(watched: MonitorSpec, now: Profile, comparison: Comparison) -> RuleResult:
    """Evaluate all rules on a window."""
    findings: list[Finding] = []
    shares: list[BinShares] = []
    missing: dict[str, MissingValues] = {}
    default_reference = comparison.reference()
    learning = not _has_enough_windows(default_reference)
    if watched.drift and now.rows:
        names = _compared_features(watched, now, default_reference)
        alpha = bounds.alpha_of(len(names), watched.confirm)
        for name in names:
            reference = comparison.reference(("feature", name))
            if not _has_enough_windows(reference):
                learning = True
                continue
            feature_findings, feature_shares = distribution(watched, name, now, reference, alpha)
            findings += feature_findings
            shares += feature_shares
        missing = _missing_values(watched, now, comparison)
        findings += [each.finding for each in missing.values()]
        findings += _anchor_findings(watched, now, comparison)
    if watched.volume is not None:
        finding = volume(watched.volume, now, comparison.reference(("volume", "")))
        learning = learning or finding is None
        if finding is not None:
            findings.append(finding)
    if watched.schema and default_reference.members and default_reference.members[0].types:
        findings.append(schema(default_reference.members[0].types, now.types))
    findings += metric_findings(
        watched, now, lambda name: comparison.reference(("metric", name)).reference_windows
    )
    return RuleResult(tuple(findings), learning, tuple(shares), missing)


def confirm_findings(
    results: Sequence[RuleResult], confirm: int, *, are_disjoint: bool = True
) -> tuple[Finding, ...]:
    """Return the findings of the last of consecutive windows, marking confirmed alarms.

    Args:
        results: The results of the windows in order; the last ``confirm`` of them count.
        confirm: Number of consecutive windows that must be out of bounds.
        are_disjoint: Whether the windows do not overlap, so that their counts can be added.
    """
    earlier_keys = [_keys_out_of_bounds(each) for each in results[-confirm:-1]]
    findings = []
    for finding in results[-1].findings:
        is_immediate = finding.kind in _IMMEDIATE_KINDS or (
            finding.kind == "volume" and finding.value == 0
        )
        has_enough = len(earlier_keys) == confirm - 1
        repeated = has_enough and all(finding.key in keys for keys in earlier_keys)
        if (
            finding.kind == "nulls"
            and has_enough
            and are_disjoint
            and not (finding.out and repeated)
        ):
            joint_finding = _joint_finding(finding, results[-confirm:])
            repeated = joint_finding is not None
            finding = joint_finding or finding
        findings.append(replace(finding, alarm=finding.out and (is_immediate or repeated)))
    return tuple(findings)


def _keys_out_of_bounds(result: RuleResult) -> set[tuple[str, str, str]]:
    return {finding.key for finding in result.findings if finding.out}


def _joint_finding(finding: Finding, results: Sequence[RuleResult]) -> Finding | None:
    """Return a finding on missing values as out of bounds if windows jointly are."""
    chain = []
    for each in results:
        if finding.subject not in each.missing:
            return None
        chain.append(each.missing[finding.subject])
    if len(chain) > 1 and is_jointly_out_of_bounds(chain):
        text = f"{finding} alone, but out of bounds in {len(chain)} windows together"
        return replace(finding, out=True, text=text)
    return None


# -- distributions --------------------------------------------------------------------------------


def distribution(
    watched: MonitorSpec, name: str, now: Profile, reference: ReferenceWindows, alpha: float
) -> tuple[list[Finding], list[BinShares]]:
    """Return the findings of a feature: distances, new values and lost values."""
    profiles = _compared_profiles(name, now, reference)
    if profiles.now.rows + profiles.now.missing == 0:
        return [], []
    findings: list[Finding] = []
    shares: list[BinShares] = []
    measured = measure_distances(profiles)
    if measured is not None:
        findings += _drift(watched.drift, profiles, measured, alpha)
        if measured.shares is not None:
            shares.append(measured.shares)
    if "new_values" in watched.drift:
        findings += _new_values(watched.drift["new_values"], profiles)
    if "gone_values" in watched.drift:
        findings += _gone_values(watched.drift["gone_values"], profiles)
    return findings, shares


def _missing_values(
    watched: MonitorSpec, now: Profile, comparison: Comparison
) -> dict[str, MissingValues]:
    """Return the missing values of each feature."""
    if "null_share" not in watched.drift:
        return {}
    names = _compared_features(watched, now, comparison.reference())
    alphas = bounds.alpha_of(len(names), watched.confirm), bounds.alpha_of(len(names), 1)
    missing = {}
    for name in names:
        column = now.columns[name]
        reference = comparison.reference(("feature", name))
        if column.rows + column.missing and _has_enough_windows(reference):
            missing[name] = missing_values_of(
                name,
                now,
                members=reference.members,
                reference_windows=reference.reference_windows,
                groups=reference.groups,
                threshold=watched.drift["null_share"],
                alphas=alphas,
            )
    return missing


def _compared_features(
    watched: MonitorSpec, now: Profile, reference: ReferenceWindows
) -> list[str]:
    """Return the watched features that exist in the window and in the baseline."""
    names = []
    for name, column in now.columns.items():
        if watched.features is not None and name not in watched.features:
            continue
        baseline_columns = [
            each.columns[name] for each in reference.members if name in each.columns
        ]
        if any(each.kind == column.kind for each in baseline_columns):
            names.append(name)
    return names


def _compared_profiles(name: str, now: Profile, reference: ReferenceWindows) -> ComparedProfiles:
    kind = now.columns[name].kind

    def has(profile: Profile) -> bool:
        return name in profile.columns and profile.columns[name].kind == kind

    members = [each.columns[name] for each in reference.members if has(each)]
    reference_windows = [each.columns[name] for each in reference.reference_windows if has(each)]
    pairs = zip(reference.reference_windows, reference.groups, strict=False)
    groups = [group for each, group in pairs if has(each)]
    return ComparedProfiles(members, reference_windows, now.columns[name], groups)


def _drift(
    thresholds: Mapping[str, float],
    profiles: ComparedProfiles,
    measured: MeasuredDistances,
    alpha: float,
) -> list[Finding]:
    before, after = profiles.rows, float(profiles.now.sampled)
    values = {"psi": measured.psi, "ks": measured.ks, "js": measured.js}
    by_chance = {
        "psi": bounds.chance_psi(measured.bins, before, after, alpha),
        "ks": bounds.chance_ks(before, after, alpha),
        "js": bounds.chance_js(measured.bins, before, after, alpha),
    }
    findings = []
    for name, value in values.items():
        if name not in thresholds or value is None:
            continue
        high = max(
            thresholds[name],
            by_chance[name],
            bounds.baseline_limit(measured.baseline_distances[name]),
        )
        high = min(high, bounds.MAX_DISTANCES[name])
        findings.append(
            Finding("drift", profiles.now.name, name, round(value, 6), None, high, value > high)
        )
    return findings


def _anchor_findings(watched: MonitorSpec, now: Profile, comparison: Comparison) -> list[Finding]:
    """Return the drift of each feature's moving baseline from its anchor.

    Slow drift moves the baseline along, so that no window differs from its predecessors. The mixture
    of the baseline is compared, so that a single window has little weight.
    """
    findings = []
    for name in _compared_features(watched, now, comparison.reference()):
        anchor = comparison.anchor(("feature", name))
        if anchor is None or not _has_enough_windows(anchor.reference):
            continue
        moving = comparison.reference(("feature", name))
        before = _compared_profiles(name, now, anchor.reference)
        after = _compared_profiles(name, now, moving)
        measured = measure_mixture(before, after.members)
        if measured is None:
            continue
        values = {"psi": measured.psi, "ks": measured.ks, "js": measured.js}
        for measure_name, value in values.items():
            if measure_name in watched.drift and value is not None:
                # The mean of several windows varies less than a window does.
                baseline = (
                    bounds.baseline_limit(measured.baseline_distances[measure_name])
                    / len(after.members) ** 0.5
                )
                high = max(watched.drift[measure_name], baseline)
                findings.append(_anchor_finding(name, measure_name, value, high, anchor))
    return findings


def _anchor_finding(
    name: str, measure_name: str, value: float, high: float, anchor: Anchor
) -> Finding:
    out = value > high
    text = ""
    if out:
        text = (
            f"{name}: the moving baseline has drifted from its anchor of {anchor.start:%Y-%m-%d} "
            f"to {anchor.end:%Y-%m-%d}; {measure_name} {value:.3g}, limit {high:.3g}"
        )
    return Finding("anchor", name, measure_name, round(value, 6), None, high, out, text=text)


def _new_values(threshold: float, profiles: ComparedProfiles) -> list[Finding]:
    """Return the share of rows with values that a complete baseline does not have."""
    baseline_counts = _value_counts(profiles.members)
    if baseline_counts is None or profiles.now.kind not in ("text", "boolean"):
        return []
    rows = 0
    new_values: list[str] = []
    for value, count in profiles.now.values:
        if value not in baseline_counts:
            rows += count
            new_values.append(str(value))
    share = rows / max(profiles.now.sampled, 1)
    high = max(
        threshold, bounds.chance_unseen(list(baseline_counts.values()), float(profiles.now.sampled))
    )
    text = ""
    if share > high:
        text = (
            f"{profiles.now.name}: new values in {share:.1%} of rows: {', '.join(new_values[:5])}"
        )
    name = profiles.now.name
    return [
        Finding("values", name, "new_values", round(share, 6), None, high, share > high, text=text)
    ]


def _gone_values(threshold: float, profiles: ComparedProfiles) -> list[Finding]:
    """Return the baseline's share of the most frequent value that the window lacks."""
    baseline_counts = _value_counts(profiles.members)
    if (
        baseline_counts is None
        or not profiles.now.complete
        or profiles.now.kind not in ("text", "boolean")
    ):
        return []
    window_counts = dict(profiles.now.values)
    lost = [value for value in baseline_counts if value not in window_counts]
    lost_shares = {value: baseline_counts[value] / max(profiles.rows, 1) for value in lost}
    share = max(lost_shares.values(), default=0.0)
    high = max(threshold, _EXPECTED_ROWS / max(profiles.now.sampled, 1))
    text = ""
    if share > high:
        names = sorted(lost_shares, key=lambda value: -lost_shares[value])[:5]
        text = f"{profiles.now.name}: lost values {', '.join(map(str, names))}, before in {share:.1%} of rows"
    name = profiles.now.name
    return [
        Finding("values", name, "gone_values", round(share, 6), None, high, share > high, text=text)
    ]


def _value_counts(members: Sequence[ColumnProfile]) -> dict[object, int] | None:
    counts: dict[object, int] = {}
    for each in members:
        if not each.sampled:
            continue
        if not each.complete:
            return None
        for value, count in each.values:
            counts[value] = counts.get(value, 0) + count
    return counts or None


# -- volume, freshness, schema --------------------------------------------------------------------


def volume(
    ratio_bounds: tuple[float, float], now: Profile, reference: ReferenceWindows
) -> Finding | None:
    """Compare the number of rows with the median at the same time of the week.

    Return None for too short a history, except for the first empty window, which is out of bounds.
    """
    row_counts = [each.rows for each in reference.same_weektime]
    if len(row_counts) < _MIN_HISTORY:
        before = [each.rows for each in reference.history]
        if now.rows or not before or min(before) == 0:
            return None
        return Finding("volume", "", "rows", 0.0, 1.0, None, True, text="no rows")
    median = float(np.median(row_counts))
    if median == 0:
        return Finding("volume", "", "rows", float(now.rows), None, None)
    low, high = _volume_bounds(ratio_bounds, row_counts, median)
    out = not low * median <= now.rows <= high * median
    text = ""
    if out:
        text = f"{now.rows:,} rows, usually {median:,.0f}"
    return Finding(
        "volume", "", "rows", float(now.rows), low * median, high * median, out, text=text
    )


def _volume_bounds(
    ratio_bounds: tuple[float, float], row_counts: Sequence[int], median: float
) -> tuple[float, float]:
    """Return the bounds of the ratio, widened by counting noise and baseline variation."""
    noise = 4 / math.sqrt(median)
    ratios = np.log(np.maximum(row_counts, 0.5) / median)
    deviation = 2.5 * 1.4826 * float(np.median(np.abs(ratios)))
    width = max(noise, deviation)
    low = min(ratio_bounds[0], math.exp(-width))
    if noise >= 1:  # with so few rows an empty window is plausible
        low = 0.0
    return low, max(ratio_bounds[1], math.exp(width))


def freshness(max_age: timedelta, age: timedelta | None, *, subject: str) -> Finding:
    """Compare the age of the latest event time or commit with its limit.

    A time in the future counts as age zero. ``age`` None: there is no event time or commit.
    """
    high = max_age.total_seconds()
    if age is None:
        return Finding(
            "freshness", subject, "age", None, None, high, True, text=f"{subject}: missing"
        )
    seconds = max(age.total_seconds(), 0.0)
    text = ""
    if seconds > high:
        age_text = format_duration(timedelta(seconds=round(seconds)))
        text = f"{subject} is {age_text} old, the limit is {format_duration(max_age)}"
    return Finding("freshness", subject, "age", seconds, None, high, seconds > high, text=text)


def schema(before: Mapping[str, str], now: Mapping[str, str]) -> Finding:
    """Compare the columns and their types."""
    changes = [f"{name} ({now[name]}) was added" for name in now if name not in before]
    for name, kind in before.items():
        if name not in now:
            changes.append(f"{name} ({kind}) was removed")
        elif now[name] != kind:
            changes.append(f"{name} changed from {kind} to {now[name]}")
    text = ""
    if changes:
        text = f"columns: {'; '.join(changes)}"
    return Finding(
        "schema", "", "columns", float(len(changes)), None, 0.0, bool(changes), text=text
    )


def _has_enough_windows(reference: ReferenceWindows) -> bool:
    """Return True if the baseline has enough windows: half of those of a rolling one."""
    with_rows = [each for each in reference.members if each.rows]
    return len(with_rows) >= min(max(_MIN_HISTORY, reference.expected / 2), reference.expected)


def newest_age(profiles: Sequence[Profile], timestamp: datetime) -> timedelta | None:
    """Return the age of the latest event time of profiles at a timestamp, or None."""
    times = [each.newest for each in profiles if each.newest is not None]
    if not times:
        return None
    return timestamp - max(times)
