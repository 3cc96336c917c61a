"""Missing values of features: their shares in one window, and in consecutive windows together.

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
from featurestore.monitoring import bounds
from featurestore.monitoring.comparison import Comparison, has_enough_windows
from featurestore.monitoring.feature_rules import select_compared_features
from featurestore.monitoring.profile import Profile

# Smallest relevant change in the share of missing values.
_MIN_CHANGE = 0.005


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
        baseline = bounds.baseline_limit([abs(excess.share) for excess in self.excess.values()])
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
