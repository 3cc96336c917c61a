"""Reference windows of a window, and the comparison of a feature between them.

The baseline is one profile (a training dataset, a version) or the mixture of the profiles of
several windows. The baseline windows, or windows of the same period, show how much windows of this
source vary without a change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from featurestore.model.monitor_report import BinShares, Subject
from featurestore.model.statistics import Value
from featurestore.monitoring.profile import ColumnProfile, Profile

# Minimum number of reference windows for a comparison.
MIN_HISTORY = 3
Floats = NDArray[np.float64]
# Added to the row count of every bin, because the logarithm of an empty bin is infinite.
_PSEUDO_COUNT = 0.5


def population_stability(
    before: Floats, now: Floats, rows: tuple[Floats | float, Floats | float]
) -> Floats:
    """Return the population stability index: the sum of (q - p) ln(q / p).

    >>> half = np.array([0.5, 0.5])
    >>> float(population_stability(half, half, (100, 100)))
    0.0
    """
    p, q = _smooth_shares(before, rows[0]), _smooth_shares(now, rows[1])
    return np.asarray(((q - p) * np.log(q / p)).sum(axis=-1))


def jensen_shannon(before: Floats, now: Floats) -> Floats:
    """Return the Jensen-Shannon distance: the root of the divergence in bits, from 0 to 1.

    >>> float(jensen_shannon(np.array([1.0, 0.0]), np.array([0.0, 1.0])))
    1.0
    """
    middle = (before + now) / 2
    divergence = (_relative_entropy(before, middle) + _relative_entropy(now, middle)) / 2
    # Rounding can make the divergence of equal distributions negative.
    return np.asarray(np.sqrt(np.clip(divergence, 0.0, 1.0)))


def kolmogorov_smirnov(before: Floats, now: Floats) -> Floats:
    """Return the largest difference between two distribution functions at the same points.

    >>> float(kolmogorov_smirnov(np.array([0.25, 1.0]), np.array([0.75, 1.0])))
    0.5
    """
    return np.asarray(np.abs(before - now).max(axis=-1, initial=0.0))


def _smooth_shares(shares: Floats, rows: Floats | float) -> Floats:
    row_counts = np.asarray(rows)[..., np.newaxis]
    bins = shares.shape[-1]
    return np.asarray((shares * row_counts + _PSEUDO_COUNT) / (row_counts + _PSEUDO_COUNT * bins))


def _relative_entropy(p: Floats, q: Floats) -> Floats:
    p, q = np.broadcast_arrays(p, q)
    # By convention, 0 log 0 is 0.
    ratio = np.divide(p, q, out=np.ones(p.shape), where=p > 0)
    return np.asarray((p * np.log2(ratio)).sum(axis=-1))


# Probabilities of the pooled quantiles, and of the edges of the ten bins for numbers.
_GRID = np.linspace(0.0, 1.0, 101)
_DECILES = np.linspace(0.0, 1.0, 11)[1:-1]
# Each of the most frequent values has its own bin; all other values share one bin.
_MAX_VALUES = 50


@dataclass(frozen=True)
class ReferenceWindows:
    """The profiles with which a window is compared.

    ``members`` contains the baseline profiles, oldest first; a complete rolling baseline has
    ``expected`` members. ``reference_windows`` contains windows of the same period, with their
    ``groups`` for a rolling baseline. ``same_weektime`` contains earlier windows at the same time
    of the week, and ``history`` all earlier windows since the first row.
    """

    members: Sequence[Profile] = ()
    reference_windows: Sequence[Profile] = ()
    groups: Sequence[int] = ()
    expected: int = 1
    same_weektime: Sequence[Profile] = ()
    history: Sequence[Profile] = ()


@dataclass(frozen=True)
class Anchor:
    """A moving baseline as of an earlier period ``[start, end)``."""

    start: datetime
    end: datetime
    reference: ReferenceWindows


class Comparison(Protocol):
    """Provides the reference windows for each subject of a window."""

    def reference(self, subject: Subject | None = None) -> ReferenceWindows:
        """Return the reference of a subject; None: for subjects that were never out of bounds."""

    def anchor(self, subject: Subject) -> Anchor | None:
        """Return the anchor of the subject's moving baseline, or None."""


@dataclass(frozen=True)
class FixedReference:
    """The same reference windows for every subject, without an anchor."""

    comparison: ReferenceWindows

    def reference(self, subject: Subject | None = None) -> ReferenceWindows:
        """Return the common reference windows."""
        return self.comparison

    def anchor(self, subject: Subject) -> Anchor | None:
        """Return None: a fixed reference has no anchor."""
        return None


def has_enough_windows(reference: ReferenceWindows) -> bool:
    """Return True if the baseline has enough windows: at least half of a rolling baseline."""
    with_rows = [member for member in reference.members if member.rows]
    return len(with_rows) >= min(max(MIN_HISTORY, reference.expected / 2), reference.expected)


@dataclass(frozen=True)
class ComparedProfiles:
    """The profiles of one feature in a window, its baseline and its reference windows.

    ``members`` contains the baseline profiles, ``reference_windows`` windows of the same period.
    For a rolling baseline, ``groups`` contains the group of each reference window (its weekday),
    and windows are compared within their group. Without groups, each reference window is compared
    with the baseline.
    """

    members: Sequence[ColumnProfile]
    reference_windows: Sequence[ColumnProfile]
    now: ColumnProfile
    groups: Sequence[int] = ()

    @property
    def rows(self) -> float:
        """The number of values in the baseline's distribution."""
        return float(sum(member.sampled for member in self.members))


@dataclass(frozen=True)
class MeasuredDistances:
    """Distances of a window and of the baseline windows, by measure."""

    bins: int
    psi: float
    js: float
    ks: float | None
    baseline_distances: dict[str, Floats] = field(default_factory=dict)
    shares: BinShares | None = None


def measure_distances(profiles: ComparedProfiles) -> MeasuredDistances | None:
    """Measure the distances of a window from its baseline; None without data to compare."""
    if not profiles.now.comparable or profiles.rows == 0:
        return None
    if profiles.now.kind == "number":
        return _measure_numbers(profiles)
    return _measure_values(profiles)


def measure_mixture(
    profiles: ComparedProfiles, later: Sequence[ColumnProfile]
) -> MeasuredDistances | None:
    """Measure the distances of the mixture of later windows from a baseline.

    Return None without data to compare. ``profiles.now`` only determines the kind of the feature.
    """
    if not profiles.now.comparable or profiles.rows == 0:
        return None
    if profiles.now.kind == "number":
        return _measure_numbers(profiles, later)
    return _measure_values(profiles, later)


def shares_out_of_range(profiles: ComparedProfiles) -> tuple[float, list[float]] | None:
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


def _value_range(profiles: Sequence[ColumnProfile]) -> tuple[float, float] | None:
    """Return the smallest and the largest number of profiles, or None without numbers."""
    distributions = [profile.cumulative for profile in profiles]
    return _join_ranges(
        [(each.points[0], each.points[-1]) for each in distributions if each is not None]
    )


def _join_ranges(ranges: Sequence[tuple[float, float] | None]) -> tuple[float, float] | None:
    value_ranges = [each for each in ranges if each is not None]
    if not value_ranges:
        return None
    return min(low for low, _ in value_ranges), max(high for _, high in value_ranges)


def _share_outside(profile: ColumnProfile, value_range: tuple[float, float]) -> float:
    low, high = value_range
    # Numbers equal to the minimum are inside of the range.
    below, up_to_high = profile.up_to(np.array([np.nextafter(low, -np.inf), high]))
    return float(below + 1.0 - up_to_high)


@dataclass(frozen=True)
class _BinnedProfiles:
    """Bin shares and distribution function values, one row per profile."""

    shares: Floats
    points: Floats
    rows: Floats
    index: Sequence[int] = ()


def _measure_numbers(
    profiles: ComparedProfiles, later: Sequence[ColumnProfile] | None = None
) -> MeasuredDistances | None:
    """Measure the distances of a numeric feature, with bins between the baseline's deciles."""
    grid = _pooled_quantiles(profiles.members)
    if grid is None:
        return None
    # A frequent value is several deciles at once, which would give empty bins.
    edges = np.unique(np.interp(_DECILES, _GRID, grid))
    points = np.unique(grid)
    members = _bin_numbers(profiles.members, edges, points)
    reference_windows = _bin_numbers(profiles.reference_windows, edges, points)
    now = _bin_numbers([profiles.now] if later is None else later, edges, points)
    return _compute_distances(profiles, members, reference_windows, now, labels=_ranges(edges))


def _bin_numbers(
    profiles: Sequence[ColumnProfile], edges: Floats, points: Floats
) -> _BinnedProfiles:
    """Return the shares of the bins, and the distribution functions at the points."""
    shares, cumulative_points, rows, index = [], [], [], []
    all_points = np.concatenate((edges, points))
    for number, profile in enumerate(profiles):
        # Profiles without a distribution are skipped; ``index`` assigns the others to their groups.
        if profile.cumulative is None:
            continue
        index.append(number)
        cumulative_shares = profile.up_to(all_points)
        steps = np.concatenate(([0.0], cumulative_shares[: len(edges)], [1.0]))
        shares.append(steps[1:] - steps[:-1])
        cumulative_points.append(cumulative_shares[len(edges) :])
        rows.append(float(profile.sampled))
    sizes = np.array(rows)
    return _BinnedProfiles(
        _stack_rows(shares, len(edges) + 1),
        _stack_rows(cumulative_points, len(points)),
        sizes,
        index,
    )


def _measure_values(
    profiles: ComparedProfiles, later: Sequence[ColumnProfile] | None = None
) -> MeasuredDistances | None:
    """Measure the distances of a feature by the shares of its most frequent values."""
    value_counts: dict[Value, int] = {}
    for member in profiles.members:
        for value, count in member.values:
            value_counts[value] = value_counts.get(value, 0) + count
    # Ties are broken by the value, so that a repeated check has the same bins.
    frequent = sorted(value_counts, key=lambda value: (-value_counts[value], str(value)))[
        :_MAX_VALUES
    ]
    members = _bin_values(profiles.members, frequent)
    reference_windows = _bin_values(profiles.reference_windows, frequent)
    now = _bin_values([profiles.now] if later is None else later, frequent)
    return _compute_distances(
        profiles, members, reference_windows, now, labels=[*map(str, frequent), "others"]
    )


def _bin_values(profiles: Sequence[ColumnProfile], frequent: Sequence[Value]) -> _BinnedProfiles:
    shares, rows, index = [], [], []
    for number, profile in enumerate(profiles):
        if not profile.sampled:
            continue
        index.append(number)
        counts = dict(profile.values)
        frequent_shares = np.array([counts.get(value, 0) / profile.sampled for value in frequent])
        shares.append(np.append(frequent_shares, max(1.0 - frequent_shares.sum(), 0.0)))
        rows.append(float(profile.sampled))
    no_points = np.empty((len(rows), 0))
    return _BinnedProfiles(_stack_rows(shares, len(frequent) + 1), no_points, np.array(rows), index)


def _compute_distances(
    profiles: ComparedProfiles,
    members: _BinnedProfiles,
    reference_windows: _BinnedProfiles,
    now: _BinnedProfiles,
    *,
    labels: Sequence[str],
) -> MeasuredDistances | None:
    """Compute all distances from binned distributions; None without rows to compare."""
    if not len(members.rows) or not len(now.rows):
        return None
    before, total = _mix_distributions(members)
    after, rows_now = _mix_distributions(now)
    ks = None
    if members.points.shape[1]:
        ks = float(kolmogorov_smirnov(before.points, after.points))
    sizes = (total, rows_now)
    return MeasuredDistances(
        bins=members.shares.shape[1],
        psi=float(population_stability(before.shares, after.shares, sizes)),
        js=float(jensen_shannon(before.shares, after.shares)),
        ks=ks,
        baseline_distances=_baseline_distances(before, reference_windows, total, profiles.groups),
        shares=BinShares(
            profiles.now.name,
            tuple(labels),
            tuple(np.round(before.shares, 5).tolist()),
            tuple(np.round(after.shares, 5).tolist()),
        ),
    )


def _mix_distributions(windows: _BinnedProfiles) -> tuple[_BinnedProfiles, float]:
    """Return the mixture of the windows' distributions, and their total number of rows."""
    total = float(windows.rows.sum())
    shares = windows.rows @ windows.shares / total
    return _BinnedProfiles(shares, windows.rows @ windows.points / total, windows.rows), total


def _baseline_distances(
    before: _BinnedProfiles, reference_windows: _BinnedProfiles, total: float, groups: Sequence[int]
) -> dict[str, Floats]:
    """Return the distances of reference windows from the baseline, or from their own group."""
    other_rows = np.full(len(reference_windows.rows), total)
    shares, points = before.shares, before.points
    if groups:
        group_ids = np.array(groups)[list(reference_windows.index)]
        # A window is compared with the other windows of its group; with itself in the mixture, its
        # distance would be too small.
        is_same_group = (group_ids[:, np.newaxis] == group_ids) & ~np.eye(
            len(group_ids), dtype=bool
        )
        # A window without others in its group has no distance.
        has_peers = (is_same_group @ reference_windows.rows) > 0
        reference_windows = _BinnedProfiles(
            reference_windows.shares[has_peers],
            reference_windows.points[has_peers],
            reference_windows.rows[has_peers],
        )
        weights = is_same_group[np.ix_(has_peers, has_peers)] * reference_windows.rows
        other_rows = weights.sum(axis=1)
        shares = weights @ reference_windows.shares / other_rows[:, np.newaxis]
        points = weights @ reference_windows.points / other_rows[:, np.newaxis]
    sizes = (other_rows, reference_windows.rows)
    return {
        "psi": population_stability(shares, reference_windows.shares, sizes),
        "js": jensen_shannon(shares, reference_windows.shares),
        "ks": kolmogorov_smirnov(points, reference_windows.points),
    }


def _pooled_quantiles(members: Sequence[ColumnProfile]) -> Floats | None:
    """Return 101 quantiles of the mixture of distributions."""
    points, weights = [], []
    for member in members:
        cumulative = member.cumulative
        if cumulative is None:
            continue
        points.append(cumulative.points)
        # Each quantile represents the shares up to the middles to its neighbors.
        middles = (cumulative.left + cumulative.right) / 2
        bounds = np.concatenate(([0.0], (middles[1:] + middles[:-1]) / 2, [1.0]))
        weights.append(np.diff(bounds) * member.sampled)
    if not points:
        return None
    values, rows = np.concatenate(points), np.concatenate(weights)
    order = np.argsort(values, kind="stable")
    values, rows = values[order], rows[order]
    positions = np.cumsum(rows) - rows / 2
    index = np.searchsorted(positions, _GRID * rows.sum())
    return np.asarray(values[np.minimum(index, len(values) - 1)])


def _stack_rows(rows: Sequence[Floats], width: int) -> Floats:
    if not rows:
        return np.empty((0, width))
    return np.vstack(rows)


def _ranges(edges: Floats) -> list[str]:
    if not len(edges):
        return ["all"]
    inner = [f"{low:.4g} to {high:.4g}" for low, high in pairwise(edges.tolist())]
    return [f"up to {edges[0]:.4g}", *inner, f"above {edges[-1]:.4g}"]
