"""Reference windows of a window, and the comparison of a feature between them.

The baseline is one profile (a training dataset, a version) or the mixture of the profiles of
several windows. The baseline windows, or windows of the same period, show how much windows of this
source vary without a change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import Protocol

import numpy as np

from featurestore.model.monitor_report import BinShares, Subject
from featurestore.model.statistics import Value
from featurestore.monitoring.distances import (
    Floats,
    MeasuredDistance,
    Shares,
    has_common_change,
    measure_categories,
    measure_points,
    measure_shares,
)
from featurestore.monitoring.profile import FeatureProfile, Profile

# Minimum number of reference windows for a comparison.
MIN_HISTORY = 3
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

    members: Sequence[FeatureProfile]
    reference_windows: Sequence[FeatureProfile]
    now: FeatureProfile
    groups: Sequence[int] = ()

    @property
    def rows(self) -> float:
        """The number of values in the baseline's distribution."""
        return float(sum(member.sampled for member in self.members))


@dataclass(frozen=True)
class MeasuredDistances:
    """The distances of one or several consecutive windows from their baseline, by measure.

    ``common`` contains the measures by which each window has at least half of the joint change.
    """

    distances: Mapping[str, MeasuredDistance]
    shares: BinShares
    common: frozenset[str]


def measure_distances(chain: Sequence[ComparedProfiles]) -> MeasuredDistances | None:
    """Measure the distances of the mixture of windows from the mixture of their baselines.

    The reference windows are those of the last window. Return None without data to compare.
    """
    if not chain or any(not profiles.now.comparable or profiles.rows == 0 for profiles in chain):
        return None
    if chain[-1].now.value_kind == "number":
        return _measure_numbers(chain)
    values = _frequent_values(chain)
    binned = _bin_chain(chain, partial(_bin_values, frequent=values))
    if binned is None:
        return None
    distances = measure_shares(binned.mixture)
    if chain[-1].now.value_kind == "boolean":
        distances.append(measure_categories("ks", binned.mixture))
    elif has_few_values(chain):
        distances.append(measure_categories("tv", binned.mixture))
    common = frozenset(distance.measure for distance in distances if binned.is_common)
    labels = (*map(str, values), "others")
    return _to_measured(chain, distances, binned, labels, common)


def _measure_numbers(chain: Sequence[ComparedProfiles]) -> MeasuredDistances | None:
    """Measure the distances of a numeric feature, with bins between the baseline's deciles."""
    grid = _pooled_quantiles(_unique_members(chain))
    if grid is None:
        return None
    # A frequent value is several deciles at once, which would give empty bins.
    edges = np.unique(np.interp(_DECILES, _GRID, grid))
    points = np.unique(grid)

    def to_bins(profile: FeatureProfile) -> Floats | None:
        if profile.cumulative is None:
            return None
        return np.diff(np.concatenate(([0.0], profile.up_to(edges), [1.0])))

    def to_points(profile: FeatureProfile) -> Floats | None:
        return None if profile.cumulative is None else profile.up_to(points)

    binned, evaluated = _bin_chain(chain, to_bins), _bin_chain(chain, to_points)
    if binned is None or evaluated is None:
        return None
    distances = [*measure_shares(binned.mixture), measure_points(evaluated.mixture)]
    chains = {"psi": binned, "js": binned, "ks": evaluated}
    # Codes can be replaced within their range, which hardly changes the distribution function.
    if has_few_values(chain):
        values = _frequent_values(chain)
        categories = _bin_chain(chain, partial(_bin_values, frequent=values))
        if categories is not None:
            distances.append(measure_categories("tv", categories.mixture))
            chains["tv"] = categories
    common = frozenset(measure for measure, compared in chains.items() if compared.is_common)
    return _to_measured(chain, distances, binned, _ranges(edges), common)


def _to_measured(
    chain: Sequence[ComparedProfiles],
    distances: Sequence[MeasuredDistance],
    binned: _BinnedChain,
    labels: Sequence[str],
    common: frozenset[str],
) -> MeasuredDistances:
    shares = BinShares(
        chain[-1].now.name,
        tuple(labels),
        tuple(np.round(binned.mixture.before[0], 5).tolist()),
        tuple(np.round(binned.mixture.now[0], 5).tolist()),
    )
    return MeasuredDistances({distance.measure: distance for distance in distances}, shares, common)


def _frequent_values(chain: Sequence[ComparedProfiles]) -> list[Value]:
    """Return the most frequent values of the baselines, the most frequent first."""
    counts = _sum_value_counts(_unique_members(chain))
    # Ties are broken by the value, so that a repeated check has the same bins.
    return sorted(counts, key=lambda value: (-counts[value], str(value)))[:_MAX_VALUES]


@dataclass(frozen=True)
class _BinnedWindows:
    """The shares and numbers of rows of windows, one row per window with a distribution."""

    shares: Floats
    rows: Floats
    index: Sequence[int]

    @property
    def total(self) -> float:
        """The number of rows of all windows."""
        return float(self.rows.sum())

    @property
    def mixture(self) -> Floats:
        """The shares of all rows together."""
        return np.asarray(self.rows @ self.shares / self.total)


@dataclass(frozen=True)
class _BinnedChain:
    """The compared shares of each window of a chain, and of their mixture.

    The first row of ``mixture`` is the mixture, the others are the reference windows.
    """

    windows: Shares
    mixture: Shares

    @property
    def is_common(self) -> bool:
        """Whether each window of the chain has at least half of the joint change."""
        return has_common_change(self.windows)


ToShares = Callable[[FeatureProfile], Floats | None]


def _bin_chain(chain: Sequence[ComparedProfiles], to_shares: ToShares) -> _BinnedChain | None:
    """Compute the shares of windows, their baselines and their reference windows."""
    # All windows that are compared with an anchor share its members.
    baselines = {id(profiles.members): profiles.members for profiles in chain}
    binned_baselines = {key: _bin_windows(members, to_shares) for key, members in baselines.items()}
    before = [binned_baselines[id(profiles.members)] for profiles in chain]
    now = [_bin_windows([profiles.now], to_shares) for profiles in chain]
    if any(binned is None for binned in (*before, *now)):
        return None
    windows = Shares(
        np.vstack([binned.mixture for binned in before if binned is not None]),
        np.vstack([binned.mixture for binned in now if binned is not None]),
        np.array([binned.total for binned in before if binned is not None]),
        np.array([binned.total for binned in now if binned is not None]),
    )
    reference = _compare_reference(without_chain(chain), to_shares, windows)
    weights = windows.rows_now / windows.rows_now.sum()
    mixture = Shares(
        np.vstack((weights @ windows.before, reference.before)),
        np.vstack((weights @ windows.now, reference.now)),
        # Baselines of consecutive windows overlap, so their rows cannot be added.
        np.append(windows.rows_before.max(), reference.rows_before),
        np.append(windows.rows_now.sum(), reference.rows_now),
    )
    return _BinnedChain(windows, mixture)


def _bin_windows(profiles: Sequence[FeatureProfile], to_shares: ToShares) -> _BinnedWindows | None:
    """Compute the shares of windows; None if no window has a distribution."""
    # Profiles without a distribution are skipped; ``index`` assigns the others to their groups.
    shares = {
        number: window_shares
        for number, profile in enumerate(profiles)
        if (window_shares := to_shares(profile)) is not None
    }
    if not shares:
        return None
    rows = np.array([float(profiles[number].sampled) for number in shares])
    return _BinnedWindows(np.vstack(list(shares.values())), rows, list(shares))


def _compare_reference(profiles: ComparedProfiles, to_shares: ToShares, windows: Shares) -> Shares:
    """Return the shares of reference windows, and of the baseline or the rest of their group."""
    binned = _bin_windows(profiles.reference_windows, to_shares)
    if binned is None:
        width = windows.before.shape[1]
        return Shares(np.empty((0, width)), np.empty((0, width)), np.empty(0), np.empty(0))
    if not profiles.groups:
        before = np.tile(windows.before[-1], (len(binned.rows), 1))
        rows_before = np.full(len(binned.rows), windows.rows_before[-1])
        return Shares(before, binned.shares, rows_before, binned.rows)
    group_ids = np.array(profiles.groups)[list(binned.index)]
    # A window is compared with the other windows of its group; with itself in the mixture, its
    # distance would be too small.
    is_same_group = (group_ids[:, np.newaxis] == group_ids) & ~np.eye(len(group_ids), dtype=bool)
    # A window without others in its group has no distance.
    has_peers = (is_same_group @ binned.rows) > 0
    shares, rows = binned.shares[has_peers], binned.rows[has_peers]
    weights = is_same_group[np.ix_(has_peers, has_peers)] * rows
    rows_before = weights.sum(axis=1)
    return Shares(weights @ shares / rows_before[:, np.newaxis], shares, rows_before, rows)


def _bin_values(profile: FeatureProfile, frequent: Sequence[Value]) -> Floats | None:
    """Return the shares of frequent values, followed by the share of all others."""
    if not profile.sampled:
        return None
    counts = dict(profile.values)
    shares = np.array([counts.get(value, 0) / profile.sampled for value in frequent])
    return np.append(shares, max(1.0 - shares.sum(), 0.0))


def without_chain(chain: Sequence[ComparedProfiles]) -> ComparedProfiles:
    """Return the last profiles of a chain without reference windows that are in the chain itself.

    A change of the first window would otherwise count as usual variation of the source.
    """
    last = chain[-1]
    compared = {id(profiles.now) for profiles in chain}
    index = [
        number for number, window in enumerate(last.reference_windows) if id(window) not in compared
    ]
    return replace(
        last,
        reference_windows=[last.reference_windows[number] for number in index],
        groups=[last.groups[number] for number in index] if last.groups else (),
    )


def _unique_members(chain: Sequence[ComparedProfiles]) -> list[FeatureProfile]:
    """Return the baseline profiles of all windows; consecutive windows may share some."""
    return list(
        {
            id(member): member for window_profiles in chain for member in window_profiles.members
        }.values()
    )


def count_baseline_values(chain: Sequence[ComparedProfiles]) -> dict[Value, int] | None:
    """Return the counts of all baseline values of a chain, or None if they are incomplete."""
    members = [member for member in _unique_members(chain) if member.sampled]
    # Only the most frequent values are known, so any other value may have occurred, too.
    if not all(member.complete for member in members):
        return None
    return _sum_value_counts(members) or None


def _sum_value_counts(members: Sequence[FeatureProfile]) -> dict[Value, int]:
    counts: dict[Value, int] = {}
    for member in members:
        for value, count in member.values:
            counts[value] = counts.get(value, 0) + count
    return counts


def has_few_values(chain: Sequence[ComparedProfiles]) -> bool:
    """Return whether the values of a feature are categories: all are known, and at most 50."""
    counts = count_baseline_values(chain)
    if counts is None or not all(profiles.now.complete for profiles in chain):
        return False
    return len(counts) <= _MAX_VALUES


def _pooled_quantiles(members: Sequence[FeatureProfile]) -> Floats | None:
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


def _ranges(edges: Floats) -> list[str]:
    if not len(edges):
        return ["all"]
    inner = [f"{low:.4g} to {high:.4g}" for low, high in pairwise(edges.tolist())]
    return [f"up to {edges[0]:.4g}", *inner, f"above {edges[-1]:.4g}"]
