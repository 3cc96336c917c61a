"""Missing values of a feature: in one window, and in consecutive windows together.

A share of missing values depends on few rows, so that a doubled share can be within the noise of one
window. Consecutive windows together have more rows and less noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import numpy as np

from featurestore.model.monitor_report import Finding
from featurestore.monitoring import bounds
from featurestore.monitoring.profile import Profile

# The smallest relevant change of the share of missing values.
_MIN_CHANGE = 0.005


@dataclass(frozen=True)
class MissingCount:
    """Number of missing values and of rows; fractional for expected counts."""

    missing: float
    rows: float

    @property
    def share(self) -> float:
        """The share of rows without a value."""
        return self.missing / max(self.rows, 1.0)


@dataclass(frozen=True)
class MissingValues:
    """Missing values of a feature in a window, its baseline and its reference windows.

    ``min_change`` is the smallest relevant change, ``alpha`` the significance level of one window,
    ``joint_alpha`` that of consecutive windows together. ``excess`` has the missing values of
    reference windows above the median of their group, by their age relative to this window.
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
        """The difference of the share from the baseline's."""
        return self.now.share - self.before.share

    @property
    def finding(self) -> Finding:
        """The finding of this window alone."""
        baseline = bounds.baseline_limit([abs(each.share) for each in self.excess.values()])
        low, high = _share_bounds(self.now, self.before, max(self.min_change, baseline), self.alpha)
        share = self.now.share
        out = not low <= share <= high
        return Finding("nulls", self.feature, "null_share", round(share, 6), low, high, out)


def missing_values_of(
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
        now: The window.
        members: The profiles of the baseline.
        reference_windows: Windows of its period.
        groups: The group of each reference window; empty: all are compared with the baseline.
        threshold: The configured change.
        alphas: The significance levels of one window, and of consecutive windows together.
    """
    before = _sum_counts(
        [_missing_count(each, feature) for each in members if feature in each.columns]
    )
    min_change = max(min(threshold, before.share / 2), _MIN_CHANGE)
    excess = _excess(feature, now, reference_windows, groups, before.share)
    return MissingValues(feature, _missing_count(now, feature), before, min_change, *alphas, excess)


def is_jointly_out_of_bounds(chain: Sequence[MissingValues]) -> bool:
    """Return True if consecutive windows together have a changed share of missing values.

    All changes must have the same direction and be at least half of the smallest relevant change and
    a quarter of the largest change, so that one window cannot decide alone. Together they must
    exceed the smallest relevant change, the range by chance, and the changes of equally many
    consecutive reference windows.
    """
    directions = {np.sign(each.change) for each in chain}
    largest = max(abs(each.change) for each in chain)
    small_changes = [
        each for each in chain if abs(each.change) < max(each.min_change / 2, largest / 4)
    ]
    if len(directions) > 1 or small_changes:
        return False
    now = _sum_counts([each.now for each in chain])
    expected = sum(each.before.share * each.now.rows for each in chain) / max(now.rows, 1.0)
    # Baselines of consecutive windows overlap, so their rows are not added up.
    rows = max(each.before.rows for each in chain)
    baseline_excess = _joint_excess(chain)
    min_change = max(each.min_change for each in chain)
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
    """Return the range of the share of a window, by a width and by chance."""
    minimum, maximum = bounds.chance_count(before.missing, before.rows, now.rows, alpha)
    rows = max(now.rows, 1.0)
    low = min(before.share - width, minimum / rows)
    high = max(before.share + width, maximum / rows)
    return max(low, 0.0), min(high, 1.0)


def _joint_excess(chain: Sequence[MissingValues]) -> list[float]:
    """Return the excess shares of equally many consecutive reference windows."""
    ages = [age for age in chain[-1].excess if all(age in each.excess for each in chain)]
    sums = [_sum_counts([each.excess[age] for each in chain]) for age in ages]
    return [abs(each.share) for each in sums]


def _excess(
    feature: str,
    now: Profile,
    reference_windows: Sequence[Profile],
    groups: Sequence[int],
    before: float,
) -> dict[timedelta, MissingCount]:
    shares: dict[int, list[float]] = {}
    window_counts = []
    for index, each in enumerate(reference_windows):
        if feature in each.columns and each.window is not None and now.window is not None:
            group = groups[index] if groups else 0
            missing_count = _missing_count(each, feature)
            shares.setdefault(group, []).append(missing_count.share)
            window_counts.append((now.window.start - each.window.start, group, missing_count))
    excess = {}
    for age, group, missing_count in window_counts:
        middle = before
        if groups:
            middle = float(np.median(shares[group]))
        excess[age] = MissingCount(
            missing_count.missing - middle * missing_count.rows, missing_count.rows
        )
    return excess


def _missing_count(profile: Profile, feature: str) -> MissingCount:
    column = profile.columns[feature]
    return MissingCount(float(column.missing), float(column.rows + column.missing))


def _sum_counts(counts: Sequence[MissingCount]) -> MissingCount:
    missing = rows = 0.0
    for each in counts:
        missing += each.missing
        rows += each.rows
    return MissingCount(missing, rows)
