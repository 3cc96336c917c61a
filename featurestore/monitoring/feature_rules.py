"""Rules for features: distribution distances, new and lost values, missing values.

A share of missing values may depend on few rows, so that even a doubled share can be noise in a
single window. Consecutive windows together have more rows and therefore less noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import numpy as np

from featurestore.model.finding import Finding
from featurestore.model.monitor import MonitorSpec
from featurestore.model.monitor_report import BinShares
from featurestore.monitoring import bounds
from featurestore.monitoring.comparison import (
    Anchor,
    ComparedProfiles,
    Comparison,
    MeasuredDistances,
    ReferenceWindows,
    has_enough_windows,
    measure_distances,
    measure_mixture,
    shares_out_of_range,
)
from featurestore.monitoring.profile import ColumnProfile, Profile

# A lost value is reported if at least this many rows of the window were expected to have it.
_EXPECTED_ROWS = 10
# Smallest relevant change in the share of missing values.
_MIN_CHANGE = 0.005


def compare_distribution(
    watched: MonitorSpec, name: str, now: Profile, reference: ReferenceWindows, alpha: float
) -> tuple[list[Finding], list[BinShares]]:
    """Compare the distribution of a feature: distances, new values and lost values."""
    profiles = _compared_profiles(name, now, reference)
    if profiles.now.rows + profiles.now.missing == 0:
        return [], []
    findings: list[Finding] = []
    shares: list[BinShares] = []
    measured = measure_distances(profiles)
    if measured is not None:
        findings += _compare_distances(watched.drift, profiles, measured, alpha)
        if measured.shares is not None:
            shares.append(measured.shares)
    if "out_of_range" in watched.drift:
        findings += _find_out_of_range(watched.drift["out_of_range"], profiles, alpha)
    if "new_values" in watched.drift:
        findings += _find_new_values(watched.drift["new_values"], profiles)
    if "gone_values" in watched.drift:
        findings += _find_lost_values(watched.drift["gone_values"], profiles)
    return findings, shares


def _compare_distances(
    thresholds: Mapping[str, float],
    profiles: ComparedProfiles,
    measured: MeasuredDistances,
    alpha: float,
) -> list[Finding]:
    """Compare each configured distance with the widest of its three limits."""
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


def _find_out_of_range(threshold: float, profiles: ComparedProfiles, alpha: float) -> list[Finding]:
    """Return the share of numbers outside the range of the baseline.

    A few extreme values hardly move the deciles, on which the distances are based.
    """
    shares = shares_out_of_range(profiles)
    if shares is None:
        return []
    share, reference_shares = shares
    after = float(profiles.now.sampled)
    # Of unchanged rows, two are expected outside of the range of as many rows.
    _, by_chance = bounds.chance_count(2.0, profiles.rows, after, alpha)
    high = max(
        threshold,
        by_chance / max(after, 1.0),
        bounds.baseline_limit(reference_shares),
        # In a source whose level changes every day, few windows have a large share outside.
        bounds.heavy_tail_limit(reference_shares),
    )
    high = min(high, 1.0)
    text = ""
    if share > high:
        text = f"{profiles.now.name}: {share:.1%} of values are outside the baseline's range"
    name = profiles.now.name
    return [
        Finding(
            "values", name, "out_of_range", round(share, 6), None, high, share > high, text=text
        )
    ]


def _find_new_values(threshold: float, profiles: ComparedProfiles) -> list[Finding]:
    """Return the share of rows with values that never occur in a complete baseline."""
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


def _find_lost_values(threshold: float, profiles: ComparedProfiles) -> list[Finding]:
    """Return the baseline share of the most frequent value that is missing in the window."""
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
    # A rare value may be missing in a small window by chance.
    high = max(threshold, _EXPECTED_ROWS / max(profiles.now.sampled, 1))
    text = ""
    if share > high:
        names = sorted(lost_shares, key=lambda value: -lost_shares[value])[:5]
        text = (
            f"{profiles.now.name}: lost values {', '.join(map(str, names))}, previously in up to "
            f"{share:.1%} of rows"
        )
    name = profiles.now.name
    return [
        Finding("values", name, "gone_values", round(share, 6), None, high, share > high, text=text)
    ]


def _value_counts(members: Sequence[ColumnProfile]) -> dict[object, int] | None:
    """Return the counts of all baseline values, or None if they are incomplete."""
    counts: dict[object, int] = {}
    for member in members:
        if not member.sampled:
            continue
        # Only the most frequent values are known, so any other value may have occurred, too.
        if not member.complete:
            return None
        for value, count in member.values:
            counts[value] = counts.get(value, 0) + count
    return counts or None


def _compared_profiles(name: str, now: Profile, reference: ReferenceWindows) -> ComparedProfiles:
    """Select the profiles of a feature that have the same kind as in the window."""
    kind = now.columns[name].kind

    def has(profile: Profile) -> bool:
        return name in profile.columns and profile.columns[name].kind == kind

    members = [each.columns[name] for each in reference.members if has(each)]
    reference_windows = [each.columns[name] for each in reference.reference_windows if has(each)]
    pairs = zip(reference.reference_windows, reference.groups, strict=False)
    groups = [group for each, group in pairs if has(each)]
    return ComparedProfiles(members, reference_windows, now.columns[name], groups)


def select_compared_features(
    watched: MonitorSpec, now: Profile, reference: ReferenceWindows
) -> list[str]:
    """Return the monitored features that exist in both the window and the baseline."""
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


def compare_with_anchors(
    watched: MonitorSpec, now: Profile, comparison: Comparison
) -> list[Finding]:
    """Measure the drift of each feature's moving baseline from its anchor.

    Slow drift moves the baseline along, so that no window differs from its predecessors. The
    baseline windows are compared as a mixture, so that a single window has little weight.
    """
    findings = []
    for name in select_compared_features(watched, now, comparison.reference()):
        anchor = comparison.anchor(("feature", name))
        if anchor is None or not has_enough_windows(anchor.reference):
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
                # The mean of several windows varies less than a single window.
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
            f"to {anchor.end:%Y-%m-%d}; {measure_name.upper()} {value:.3g}, limit {high:.3g}"
        )
    return Finding("anchor", name, measure_name, round(value, 6), None, high, out, text=text)


def missing_values(
    watched: MonitorSpec, now: Profile, comparison: Comparison
) -> dict[str, MissingValues]:
    """Return the missing values of each monitored feature."""
    if "null_share" not in watched.drift:
        return {}
    names = select_compared_features(watched, now, comparison.reference())
    # Consecutive windows together are one test, so they need the level of an alarm of one window.
    alphas = bounds.alpha_of(len(names), watched.confirm), bounds.alpha_of(len(names), 1)
    missing = {}
    for name in names:
        column = now.columns[name]
        reference = comparison.reference(("feature", name))
        if column.rows + column.missing and has_enough_windows(reference):
            missing[name] = _count_feature_missing_values(
                name,
                now,
                members=reference.members,
                reference_windows=reference.reference_windows,
                groups=reference.groups,
                threshold=watched.drift["null_share"],
                alphas=alphas,
            )
    return missing


def _count_feature_missing_values(
    feature: str,
    now: Profile,
    *,
    members: Sequence[Profile],
    reference_windows: Sequence[Profile],
    groups: Sequence[int],
    threshold: float,
    alphas: tuple[float, float],
) -> MissingValues:
    """Return the missing values of a feature in a window, its baseline and reference windows.

    Args:
        feature: The name of the feature.
        now: The profile of the window.
        members: The baseline profiles.
        reference_windows: Windows of the baseline's period.
        groups: The group of each reference window; if empty, all are compared with the baseline.
        threshold: The configured change.
        alphas: The significance levels for one window, and for consecutive windows together.
    """
    before = _sum_counts(
        [_missing_count(member, feature) for member in members if feature in member.columns]
    )
    # A small share can change by less than the threshold and still be halved or doubled.
    min_change = max(min(threshold, before.share / 2), _MIN_CHANGE)
    excess = _excess_missing_counts(feature, now, reference_windows, groups, before.share)
    return MissingValues(feature, _missing_count(now, feature), before, min_change, *alphas, excess)


@dataclass(frozen=True)
class MissingCount:
    """The number of missing values and of rows; fractional for expected counts."""

    missing: float
    rows: float

    @property
    def share(self) -> float:
        """The share of rows without a value."""
        return self.missing / max(self.rows, 1.0)


@dataclass(frozen=True)
class MissingValues:
    """Missing values of a feature in a window, its baseline and its reference windows.

    ``min_change`` is the smallest relevant change. ``alpha`` is the significance level for one
    window, ``joint_alpha`` for consecutive windows together. ``excess`` contains the missing values
    of reference windows above the median of their group, by age relative to this window.
    """

    feature: str
    now: MissingCount
    before: MissingCount
    min_change: float
    alpha: float
    joint_alpha: float
    excess: Mapping[timedelta, MissingCount] = field(default_factory=dict)

    @property
    def change(self) -> float:
        """The difference between the window's share and the baseline's share."""
        return self.now.share - self.before.share

    @property
    def finding(self) -> Finding:
        """The finding for this window alone."""
        baseline = bounds.baseline_limit([abs(each.share) for each in self.excess.values()])
        low, high = _share_bounds(self.now, self.before, max(self.min_change, baseline), self.alpha)
        share = self.now.share
        out = not low <= share <= high
        return Finding("nulls", self.feature, "null_share", round(share, 6), low, high, out)


def is_jointly_out_of_bounds(chain: Sequence[MissingValues]) -> bool:
    """Return True if consecutive windows together have a changed share of missing values.

    All changes must have the same direction and be at least half of the smallest relevant change
    and a quarter of the largest change, so that a single window cannot decide alone. Together they
    must exceed the smallest relevant change, the sampling error, and the changes in the same number
    of consecutive reference windows.
    """
    directions = {np.sign(missing.change) for missing in chain}
    largest = max(abs(missing.change) for missing in chain)
    small_changes = [
        missing
        for missing in chain
        if abs(missing.change) < max(missing.min_change / 2, largest / 4)
    ]
    if len(directions) > 1 or small_changes:
        return False
    now = _sum_counts([missing.now for missing in chain])
    expected = sum(missing.before.share * missing.now.rows for missing in chain) / max(
        now.rows, 1.0
    )
    # Baselines of consecutive windows overlap, so their rows cannot be added.
    rows = max(missing.before.rows for missing in chain)
    ages = [age for age in chain[-1].excess if all(age in missing.excess for missing in chain)]
    sums = [_sum_counts([missing.excess[age] for missing in chain]) for age in ages]
    baseline_excess = [abs(missing.share) for missing in sums]
    min_change = max(missing.min_change for missing in chain)
    width = max(
        min_change, bounds.baseline_limit(baseline_excess), bounds.heavy_tail_limit(baseline_excess)
    )
    low, high = _share_bounds(
        now, MissingCount(expected * rows, rows), width, chain[-1].joint_alpha
    )
    return not low <= now.share <= high


def _share_bounds(
    now: MissingCount, before: MissingCount, width: float, alpha: float
) -> tuple[float, float]:
    """Return the bounds of a window's share, by a fixed width and by sampling error."""
    minimum, maximum = bounds.chance_count(before.missing, before.rows, now.rows, alpha)
    rows = max(now.rows, 1.0)
    low = min(before.share - width, minimum / rows)
    high = max(before.share + width, maximum / rows)
    return max(low, 0.0), min(high, 1.0)


def _excess_missing_counts(
    feature: str,
    now: Profile,
    reference_windows: Sequence[Profile],
    groups: Sequence[int],
    before: float,
) -> dict[timedelta, MissingCount]:
    """Return the missing values of reference windows above what is expected, by age."""
    shares: dict[int, list[float]] = {}
    window_counts = []
    for index, reference_window in enumerate(reference_windows):
        if (
            feature in reference_window.columns
            and reference_window.window is not None
            and now.window is not None
        ):
            group = groups[index] if groups else 0
            missing_count = _missing_count(reference_window, feature)
            shares.setdefault(group, []).append(missing_count.share)
            window_counts.append(
                (now.window.start - reference_window.window.start, group, missing_count)
            )
    excess = {}
    medians = {group: float(np.median(group_shares)) for group, group_shares in shares.items()}
    for age, group, missing_count in window_counts:
        # The baseline of a weekday does not apply to the other days, so these are compared with
        # their own median.
        middle = before
        if groups:
            middle = medians[group]
        excess[age] = MissingCount(
            missing_count.missing - middle * missing_count.rows, missing_count.rows
        )
    return excess


def _missing_count(profile: Profile, feature: str) -> MissingCount:
    column = profile.columns[feature]
    return MissingCount(float(column.missing), float(column.rows + column.missing))


def _sum_counts(counts: Sequence[MissingCount]) -> MissingCount:
    missing = rows = 0.0
    for count in counts:
        missing += count.missing
        rows += count.rows
    return MissingCount(missing, rows)
