"""Exactly equal shards without a global sort: ranks in hash order become hashes.

One pass counts the hashes of each group in bins of their leading bits. A second pass looks only into the
bins where a cut falls and keeps the hashes there with their counts. The cut at rank r is then the pair
(hash, offset): it lies before the ``offset``-th of the rows that have this hash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featurestore.plugins.engine import Accumulator

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

HASH = "__fs_hash"
GROUP = "__fs_group"
SHARD = "__fs_shard"


def to_sortable(hashes: UInt64s) -> Int64s:
    """Return hashes as signed integers of the same order, which every engine can sort."""
    flipped: Int64s = (hashes ^ np.uint64(1 << 63)).view(np.int64)
    return flipped


def from_sortable(values: Int64s) -> UInt64s:
    """Return the hashes that ``to_sortable`` was given."""
    return values.view(np.uint64) ^ np.uint64(1 << 63)


@dataclass(frozen=True)
class Cut:
    """A place in hash order: before the ``offset``-th row (from 0) of those with this hash."""

    hash: int
    offset: int


Counts = dict[int, Int64s]


@dataclass(frozen=True)
class CountAccumulator(Accumulator[Counts, Counts]):
    """Counts rows per group and bin of leading hash bits; state: ``{group: counts of 2**bits bins}``."""

    bits: int

    def start(self) -> Counts:
        """Return no counts."""
        return {}

    def update(self, state: Counts, batch: pa.RecordBatch) -> Counts:
        """Count the rows of a batch."""
        groups, hashes = columns_of(batch)
        bins = (hashes >> np.uint64(64 - self.bits)).astype(np.int64)
        for group in np.unique(groups):
            counted = np.bincount(bins[groups == group], minlength=1 << self.bits)
            state[int(group)] = state[int(group)] + counted if int(group) in state else counted
        return state

    def merge(self, left: Counts, right: Counts) -> Counts:
        """Add the counts of two states."""
        for group, counts in right.items():
            left[group] = left[group] + counts if group in left else counts
        return left

    def finish(self, state: Counts) -> Counts:
        """Return the counts."""
        return state


Sums = dict[int, int]


@dataclass(frozen=True)
class SumAccumulator(Accumulator[Sums, Sums]):
    """Adds up the hashes of each group modulo 2**64: a fingerprint of its rows, whatever their order."""

    def start(self) -> Sums:
        """Return no sums."""
        return {}

    def update(self, state: Sums, batch: pa.RecordBatch) -> Sums:
        """Add the hashes of a batch."""
        groups, hashes = columns_of(batch)
        for group in np.unique(groups).tolist():
            state[group] = (
                state.get(group, 0) + int(hashes[groups == group].sum(dtype=np.uint64))
            ) % 2**64
        return state

    def merge(self, left: Sums, right: Sums) -> Sums:
        """Add the sums of two states."""
        for group, total in right.items():
            left[group] = (left.get(group, 0) + total) % 2**64
        return left

    def finish(self, state: Sums) -> Sums:
        """Return the sums."""
        return state


@dataclass
class Found:
    """Hashes of one bin with their counts, kept sorted and unique whenever they grow large."""

    hashes: list[UInt64s] = field(default_factory=list)
    counts: list[Int64s] = field(default_factory=list)

    def put(self, hashes: UInt64s, counts: Int64s) -> None:
        """Add hashes with counts."""
        self.hashes.append(hashes)
        self.counts.append(counts)
        if len(self.hashes) > 256:
            unique, summed = self.collapsed()
            self.hashes, self.counts = [unique], [summed]

    def collapsed(self) -> tuple[UInt64s, Int64s]:
        """Return the sorted unique hashes and their counts."""
        unique, inverse = np.unique(np.concatenate(self.hashes), return_inverse=True)
        summed = np.zeros(len(unique), dtype=np.int64)
        np.add.at(summed, inverse.reshape(-1), np.concatenate(self.counts))
        return unique, summed


HashCounts = tuple[UInt64s, Int64s]
Refined = dict[tuple[int, int], Found]


@dataclass(frozen=True)
class RefineAccumulator(Accumulator[Refined, dict[tuple[int, int], HashCounts]]):
    """Keeps the hashes in chosen bins with their counts; ``bins`` are (group, bin) pairs."""

    bits: int
    bins: frozenset[tuple[int, int]]

    def start(self) -> Refined:
        """Return nothing found."""
        return {}

    def update(self, state: Refined, batch: pa.RecordBatch) -> Refined:
        """Keep the hashes of a batch that lie in a chosen bin."""
        groups, hashes = columns_of(batch)
        bins = (hashes >> np.uint64(64 - self.bits)).astype(np.int64)
        wanted = np.isin(bins, [each for _, each in self.bins])
        if not wanted.any():
            return state
        groups, hashes, bins = groups[wanted], hashes[wanted], bins[wanted]
        order = np.lexsort((bins, groups))
        groups, hashes, bins = groups[order], hashes[order], bins[order]
        starts = np.flatnonzero(np.r_[True, (groups[1:] != groups[:-1]) | (bins[1:] != bins[:-1])])
        for start, stop in zip(starts, np.r_[starts[1:], len(groups)], strict=True):
            place = (int(groups[start]), int(bins[start]))
            if place in self.bins:
                state.setdefault(place, Found()).put(
                    *np.unique(hashes[start:stop], return_counts=True)
                )
        return state

    def merge(self, left: Refined, right: Refined) -> Refined:
        """Put both together."""
        for place, found in right.items():
            left.setdefault(place, Found()).put(*found.collapsed())
        return left

    def finish(self, state: Refined) -> dict[tuple[int, int], HashCounts]:
        """Return the sorted unique hashes of each bin with their counts."""
        return {bin_: found.collapsed() for bin_, found in state.items()}


def bins_of_ranks(
    counts: Mapping[int, Int64s], ranks: Mapping[int, Sequence[int]]
) -> frozenset[tuple[int, int]]:
    """Return the (group, bin) pairs in which the cuts at ``ranks`` (0 < rank < rows of the group) fall."""
    return frozenset(
        (group, _bin(counts[group], rank)[0]) for group, wanted in ranks.items() for rank in wanted
    )


def cuts_at_ranks(
    counts: Mapping[int, Int64s],
    refined: Mapping[tuple[int, int], HashCounts],
    ranks: Mapping[int, Sequence[int]],
) -> dict[int, list[Cut]]:
    """Return the cut before each rank, per group."""
    result: dict[int, list[Cut]] = {}
    for group, wanted in ranks.items():
        cuts = []
        for rank in wanted:
            number, inside = _bin(counts[group], rank)
            hashes, numbers = refined[group, number]
            ends = np.cumsum(numbers)
            index = int(np.searchsorted(ends, inside, side="right"))
            cuts.append(Cut(int(hashes[index]), int(inside - (ends[index] - numbers[index]))))
        result[group] = cuts
    return result


def equal_sizes(rows: int, shards: int) -> list[int]:
    """Return the rows of each shard: they differ by at most one, larger ones first.

    >>> equal_sizes(10, 4)
    [3, 3, 2, 2]
    """
    return [rows // shards + (index < rows % shards) for index in range(shards)]


def columns_of(batch: pa.RecordBatch) -> tuple[Int64s, UInt64s]:
    """Return groups and hashes of a staged batch."""
    groups = batch.column(batch.schema.get_field_index(GROUP)).to_numpy(zero_copy_only=False)
    hashes = batch.column(batch.schema.get_field_index(HASH)).to_numpy(zero_copy_only=False)
    return groups, from_sortable(np.ascontiguousarray(hashes))


def _bin(counts: Int64s, rank: int) -> tuple[int, int]:
    """Return the bin that holds the row of this rank, and its rank inside the bin."""
    ends = np.cumsum(counts)
    number = int(np.searchsorted(ends, rank, side="right"))
    return number, int(rank - (ends[number] - counts[number]))
