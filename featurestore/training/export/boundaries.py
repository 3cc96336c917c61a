"""Exactly equal shards without a global sort: ranks in hash order become boundaries between shards.

One pass counts the hashes of each group in bins of their leading bits. A second pass looks only
into the bins where a boundary falls, and holds the hashes there with their counts. The boundary at
rank r is then the pair (hash, offset): it lies before the ``offset``-th of the rows that have this
hash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featurestore.plugins.engine import Accumulator
from featurestore.training.export.hash_columns import groups_and_hashes

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]
Histograms = dict[int, Int64s]
HashSums = dict[int, int]
Bin = tuple[int, int]
BinCounts = tuple[UInt64s, Int64s]

_MOST_PARTS = 256


@dataclass(frozen=True)
class Boundary:
    """A position in hash order: before the ``offset``-th row (from 0) of those with this hash."""

    hash: int
    offset: int


@dataclass(frozen=True)
class HistogramAccumulator(Accumulator[Histograms, Histograms]):
    """Counts the rows of each group by the leading ``bits`` of their hash.

    ``{group: counts of 2**bits bins}``.
    """

    bits: int

    def start(self) -> Histograms:
        """Return no counts."""
        return {}

    def update(self, state: Histograms, batch: pa.RecordBatch) -> Histograms:
        """Count the rows of a batch."""
        groups, hashes = groups_and_hashes(batch)
        bins = bins_of(hashes, self.bits)
        counted = {}
        for group in np.unique(groups).tolist():
            counted[group] = np.bincount(bins[groups == group], minlength=1 << self.bits)
        return self.merge(state, counted)

    def merge(self, left: Histograms, right: Histograms) -> Histograms:
        """Add the counts of two states."""
        for group, counts in right.items():
            if group in left:
                left[group] = left[group] + counts
            else:
                left[group] = counts
        return left

    def finish(self, state: Histograms) -> Histograms:
        """Return the counts."""
        return state


@dataclass(frozen=True)
class HashSumAccumulator(Accumulator[HashSums, HashSums]):
    """Adds up the hashes of each group modulo 2**64.

    A fingerprint of its rows, whatever their order.
    """

    def start(self) -> HashSums:
        """Return no sums."""
        return {}

    def update(self, state: HashSums, batch: pa.RecordBatch) -> HashSums:
        """Add the hashes of a batch."""
        groups, hashes = groups_and_hashes(batch)
        sums = {}
        for group in np.unique(groups).tolist():
            sums[group] = int(hashes[groups == group].sum(dtype=np.uint64))
        return self.merge(state, sums)

    def merge(self, left: HashSums, right: HashSums) -> HashSums:
        """Add the sums of two states."""
        for group, total in right.items():
            left[group] = (left.get(group, 0) + total) % 2**64
        return left

    def finish(self, state: HashSums) -> HashSums:
        """Return the sums."""
        return state


@dataclass
class BinHashes:
    """The hashes of one bin with their counts, put together whenever there are many parts."""

    hashes: list[UInt64s] = field(default_factory=list)
    counts: list[Int64s] = field(default_factory=list)

    def add(self, hashes: UInt64s, counts: Int64s) -> None:
        """Add hashes with counts."""
        self.hashes.append(hashes)
        self.counts.append(counts)
        if len(self.hashes) > _MOST_PARTS:
            unique, summed = self.unique()
            self.hashes, self.counts = [unique], [summed]

    def unique(self) -> BinCounts:
        """Return the sorted unique hashes and their counts."""
        unique, inverse = np.unique(np.concatenate(self.hashes), return_inverse=True)
        summed = np.zeros(len(unique), dtype=np.int64)
        np.add.at(summed, inverse.reshape(-1), np.concatenate(self.counts))
        return unique, summed


@dataclass(frozen=True)
class BinAccumulator(Accumulator[dict[Bin, BinHashes], dict[Bin, BinCounts]]):
    """Holds the hashes in chosen bins with their counts; ``bins`` are pairs of group and number."""

    bits: int
    bins: frozenset[Bin]

    def start(self) -> dict[Bin, BinHashes]:
        """Return no hashes."""
        return {}

    def update(self, state: dict[Bin, BinHashes], batch: pa.RecordBatch) -> dict[Bin, BinHashes]:
        """Add the hashes of a batch that lie in a chosen bin."""
        groups, hashes = groups_and_hashes(batch)
        bins = bins_of(hashes, self.bits)
        wanted = np.isin(bins, [number for _, number in self.bins])
        if not wanted.any():
            return state
        groups, hashes, bins = groups[wanted], hashes[wanted], bins[wanted]
        order = np.lexsort((bins, groups))
        groups, hashes, bins = groups[order], hashes[order], bins[order]
        changes = (groups[1:] != groups[:-1]) | (bins[1:] != bins[:-1])
        starts = np.flatnonzero(np.concatenate(([True], changes)))
        stops = np.append(starts[1:], len(groups))
        for start, stop in zip(starts, stops, strict=True):
            key = (int(groups[start]), int(bins[start]))
            if key in self.bins:
                unique, counts = np.unique(hashes[start:stop], return_counts=True)
                state.setdefault(key, BinHashes()).add(unique, counts)
        return state

    def merge(
        self, left: dict[Bin, BinHashes], right: dict[Bin, BinHashes]
    ) -> dict[Bin, BinHashes]:
        """Put both together."""
        for key, found in right.items():
            left.setdefault(key, BinHashes()).add(*found.unique())
        return left

    def finish(self, state: dict[Bin, BinHashes]) -> dict[Bin, BinCounts]:
        """Return the sorted unique hashes of each bin with their counts."""
        counts = {}
        for key, found in state.items():
            counts[key] = found.unique()
        return counts


def bins_of(hashes: UInt64s, bits: int) -> Int64s:
    """Return the bin of each hash: its leading bits."""
    return (hashes >> np.uint64(64 - bits)).astype(np.int64)


def bins_of_ranks(
    histograms: Mapping[int, Int64s], ranks: Mapping[int, Sequence[int]]
) -> frozenset[Bin]:
    """Return the bins in which the rows of some ranks (0 < rank < rows of the group) lie."""
    bins = set()
    for group, wanted in ranks.items():
        for rank in wanted:
            number, _ = _bin_of_rank(histograms[group], rank)
            bins.add((group, number))
    return frozenset(bins)


def boundaries_at_ranks(
    histograms: Mapping[int, Int64s],
    bins: Mapping[Bin, BinCounts],
    ranks: Mapping[int, Sequence[int]],
) -> dict[int, list[Boundary]]:
    """Return the boundary before the row of each rank, per group.

    ``bins`` is what ``BinAccumulator`` gave.
    """
    result: dict[int, list[Boundary]] = {}
    for group, wanted in ranks.items():
        result[group] = []
        for rank in wanted:
            number, rank_in_bin = _bin_of_rank(histograms[group], rank)
            hashes, counts = bins[group, number]
            ends = np.cumsum(counts)
            index = int(np.searchsorted(ends, rank_in_bin, side="right"))
            offset = rank_in_bin - int(ends[index] - counts[index])
            result[group].append(Boundary(int(hashes[index]), offset))
    return result


def equal_sizes(rows: int, shards: int) -> list[int]:
    """Return the rows of each shard: they differ by at most one, larger ones first.

    >>> equal_sizes(10, 4)
    [3, 3, 2, 2]
    """
    size, larger = divmod(rows, shards)
    return [size + 1] * larger + [size] * (shards - larger)


def _bin_of_rank(histogram: Int64s, rank: int) -> tuple[int, int]:
    """Return the bin that holds the row of this rank, and its rank inside the bin."""
    ends = np.cumsum(histogram)
    number = int(np.searchsorted(ends, rank, side="right"))
    return number, rank - int(ends[number] - histogram[number])
