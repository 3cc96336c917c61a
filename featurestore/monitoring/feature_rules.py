"""Rules for features: distribution distances, new and lost values, values outside of the range.

A change of few rows can be noise in a single window. Consecutive windows together have more rows
and therefore less noise, so a change is also out of bounds if the windows together show it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from featurestore.model.finding import Finding
from featurestore.model.monitor import MonitorSpec
from featurestore.model.monitor_report import BinShares
from featurestore.model.statistics import Value
from featurestore.monitoring import bounds
from featurestore.monitoring import comparison as monitoring_comparison
from featurestore.monitoring.comparison import ComparedProfiles, Comparison, ReferenceWindows
from featurestore.monitoring.distances import MeasuredDistance
from featurestore.monitoring.profile import FeatureProfile, Profile

# A lost value is reported if at least this many rows of the window were expected to have it.
_EXPECTED_ROWS = 10


@dataclass(frozen=True)
class ComparedFeature:
    """A feature in a window and its baseline, and how they are compared.

    ``thresholds`` are the smallest relevant changes by measure. ``alpha`` is the significance level
    for one window, ``joint_alpha`` for consecutive windows together.
    """

    profiles: ComparedProfiles
    thresholds: Mapping[str, float]
    alpha: float
    joint_alpha: float

    def is_relevant(self, finding: Finding) -> bool:
        """Return whether the value of a finding exceeds the smallest relevant change."""
        return finding.value is not None and finding.value > self.thresholds[finding.measure]

    def compare(self) -> tuple[list[Finding], BinShares | None]:
        """Compare the distribution: distances, new and lost values, values outside the range."""
        profiles, thresholds = self.profiles, self.thresholds
        if profiles.now.rows + profiles.now.missing == 0:
            return [], None
        findings: list[Finding] = []
        shares = None
        measured = monitoring_comparison.measure_distances([profiles])
        if measured is not None:
            shares = measured.shares
            findings += [
                _check_distance(distance, profiles.now.name, thresholds, distance.limit(self.alpha))
                for measure, distance in measured.distances.items()
                if measure in thresholds
            ]
        if "out_of_range" in thresholds:
            findings += _find_out_of_range(thresholds["out_of_range"], profiles, self.alpha)
        if "new_values" in thresholds:
            findings += _find_new_values(thresholds["new_values"], [profiles], self.alpha)
        if "gone_values" in thresholds:
            findings += _find_lost_values(thresholds["gone_values"], profiles)
        return findings, shares


def compare_jointly(chain: Sequence[ComparedFeature]) -> list[Finding]:
    """Return the changes of a feature in consecutive windows together that are out of bounds.

    Each window must have at least half of the joint change, so that one extreme window cannot
    decide alone.
    """
    last = chain[-1]
    profiles = [feature.profiles for feature in chain]
    findings = []
    measured = monitoring_comparison.measure_distances(profiles)
    if measured is not None:
        findings += [
            _check_distance(
                distance,
                last.profiles.now.name,
                last.thresholds,
                distance.limit(last.joint_alpha, heavy_tails=True),
            )
            for measure, distance in measured.distances.items()
            if measure in last.thresholds and measure in measured.common
        ]
    if "new_values" in last.thresholds:
        findings += _find_new_values(last.thresholds["new_values"], profiles, last.joint_alpha)
    return [finding for finding in findings if finding.out]


def _check_distance(
    distance: MeasuredDistance, feature: str, thresholds: Mapping[str, float], limit: float
) -> Finding:
    """Compare a distance with its threshold and its limit by chance and variation."""
    measure, value = distance.measure, distance.value
    high = min(max(thresholds[measure], limit), bounds.MAX_DISTANCES[measure])
    return Finding("drift", feature, measure, round(value, 6), None, high, value > high)


def _find_out_of_range(threshold: float, profiles: ComparedProfiles, alpha: float) -> list[Finding]:
    """Return the share of numbers outside the range of the baseline.

    A few extreme values hardly move the deciles, on which the distances are based.
    """
    shares = _shares_out_of_range(profiles)
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


def _shares_out_of_range(profiles: ComparedProfiles) -> tuple[float, list[float]] | None:
    """Return the share of numbers outside the baseline's range, and the same of reference windows.

    A reference window with a group is compared with the range of the other windows of its group.
    Return None without numbers to compare.
    """
    baseline_range = _value_range(profiles.members)
    if profiles.now.cumulative is None or baseline_range is None:
        return None
    ranges = [_value_range([window]) for window in profiles.reference_windows]
    reference_shares = []
    for number, window in enumerate(profiles.reference_windows):
        other_range: tuple[float, float] | None = baseline_range
        if profiles.groups:
            group = profiles.groups[number]
            other_range = _join_ranges(
                [
                    value_range
                    for index, value_range in enumerate(ranges)
                    if profiles.groups[index] == group and index != number
                ]
            )
        if other_range is not None and ranges[number] is not None:
            reference_shares.append(_share_outside(window, other_range))
    return _share_outside(profiles.now, baseline_range), reference_shares


def _value_range(profiles: Sequence[FeatureProfile]) -> tuple[float, float] | None:
    """Return the smallest and the largest number of profiles, or None without numbers."""
    distributions = [profile.cumulative for profile in profiles]
    return _join_ranges(
        [
            (distribution.points[0], distribution.points[-1])
            for distribution in distributions
            if distribution is not None
        ]
    )


def _join_ranges(ranges: Sequence[tuple[float, float] | None]) -> tuple[float, float] | None:
    value_ranges = [value_range for value_range in ranges if value_range is not None]
    if not value_ranges:
        return None
    return min(low for low, _ in value_ranges), max(high for _, high in value_ranges)


def _share_outside(profile: FeatureProfile, value_range: tuple[float, float]) -> float:
    low, high = value_range
    # Numbers equal to the minimum are inside of the range.
    below, up_to_high = profile.up_to(np.array([np.nextafter(low, -np.inf), high]))
    return float(below + 1.0 - up_to_high)


def _find_new_values(
    threshold: float, chain: Sequence[ComparedProfiles], alpha: float
) -> list[Finding]:
    """Return the share of rows with values that never occur in a complete baseline.

    With several windows, each must have at least half of their joint share.
    """
    now = chain[-1].now
    baseline_counts = monitoring_comparison.count_baseline_values(chain)
    is_category = now.value_kind in ("text", "boolean") or monitoring_comparison.has_few_values(
        chain
    )
    if baseline_counts is None or not is_category:
        return []
    new_counts = [
        {value: count for value, count in profiles.now.values if value not in baseline_counts}
        for profiles in chain
    ]
    rows = [float(max(profiles.now.sampled, 1)) for profiles in chain]
    new_rows = [sum(counts.values()) for counts in new_counts]
    share = sum(new_rows) / sum(rows)
    by_chance = bounds.chance_unseen(list(baseline_counts.values()), sum(rows), alpha)
    reference_shares = _new_value_shares(
        monitoring_comparison.without_chain(chain), baseline_counts
    )
    high = min(
        max(
            threshold,
            by_chance,
            bounds.baseline_limit(reference_shares),
            # In a source with new values every day, such as dates, all windows have such a share.
            bounds.heavy_tail_limit(reference_shares),
        ),
        1.0,
    )
    smallest = min(count / total for count, total in zip(new_rows, rows, strict=True))
    out = share > high and smallest >= share / 2
    text = ""
    if out:
        values = ", ".join(map(str, list(new_counts[-1])[:5]))
        text = f"{now.name}: new values in {share:.1%} of rows: {values}"
    return [Finding("values", now.name, "new_values", round(share, 6), None, high, out, text=text)]


def _new_value_shares(profiles: ComparedProfiles, baseline: Collection[Value]) -> list[float]:
    """Return the share of new values of each reference window.

    A reference window with a group is compared with the other windows of its group, else with the
    ``baseline``. Windows whose values are not all known are skipped.
    """
    windows = [window for window in profiles.reference_windows if window.sampled]
    groups = [0] * len(windows)
    if profiles.groups:
        pairs = zip(profiles.reference_windows, profiles.groups, strict=True)
        groups = [group for window, group in pairs if window.sampled]
    counts = Counter(
        (group, value)
        for window, group in zip(windows, groups, strict=True)
        for value, _ in window.values
    )
    # Without peers, all values of a window would be new.
    peers = Counter(groups)
    return [
        sum(
            count
            for value, count in window.values
            if (counts[group, value] == 1 if profiles.groups else value not in baseline)
        )
        / window.sampled
        for window, group in zip(windows, groups, strict=True)
        if window.complete and (peers[group] > 1 or not profiles.groups)
    ]


def _find_lost_values(threshold: float, profiles: ComparedProfiles) -> list[Finding]:
    """Return the baseline share of the most frequent value that is missing in the window."""
    baseline_counts = monitoring_comparison.count_baseline_values([profiles])
    if (
        baseline_counts is None
        or not profiles.now.complete
        or profiles.now.value_kind not in ("text", "boolean")
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


def select_profiles(name: str, now: Profile, reference: ReferenceWindows) -> ComparedProfiles:
    """Select the profiles of a feature that have the same kind as in the window."""
    column_kind = now.columns[name].value_kind

    def has(profile: Profile) -> bool:
        return name in profile.columns and profile.columns[name].value_kind == column_kind

    members = [profile.columns[name] for profile in reference.members if has(profile)]
    reference_windows = [
        profile.columns[name] for profile in reference.reference_windows if has(profile)
    ]
    pairs = zip(reference.reference_windows, reference.groups, strict=False)
    groups = [group for profile, group in pairs if has(profile)]
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
            member.columns[name] for member in reference.members if name in member.columns
        ]
        if any(
            baseline_column.value_kind == column.value_kind for baseline_column in baseline_columns
        ):
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
    names = select_compared_features(watched, now, comparison.reference())
    alpha = bounds.alpha_of(len(names), 1)
    for name in names:
        anchor = comparison.anchor(("feature", name))
        if anchor is None or not monitoring_comparison.has_enough_windows(anchor.reference):
            continue
        moving = comparison.reference(("feature", name))
        before = select_profiles(name, now, anchor.reference)
        after = select_profiles(name, now, moving)
        members = [member for member in after.members if member.comparable]
        measured = monitoring_comparison.measure_distances(
            [replace(before, now=member) for member in members]
        )
        if measured is None:
            continue
        # The mean of several windows varies less than a single window.
        variation = len(members) ** -0.5
        for measure, distance in measured.distances.items():
            if measure not in watched.drift:
                continue
            limit = distance.limit(alpha, variation=variation)
            finding = _check_distance(distance, name, watched.drift, limit)
            text = ""
            if finding.out:
                text = (
                    f"{name}: the moving baseline has drifted from its anchor of "
                    f"{anchor.start:%Y-%m-%d} to {anchor.end:%Y-%m-%d}; {finding.measured_text}"
                )
            findings.append(replace(finding, kind="anchor", text=text))
    return findings
