"""Exactly equal shards without a global sort: ranks in hash order become boundaries between shards.

One pass counts the hashes of each group by their leading bits. The next pass reads only the hash
ranges that contain a boundary and counts by more bits: all bits, or, if the ranges contain too many
hashes, as many bits as keep the number of counts small, followed by another pass. The result for
rank r is a pair (hash, offset): the boundary before the ``offset``-th row with this hash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from featurestore.plugins.engine import Accumulator
from featurestore.training.export.hash_columns import Int64s, UInt64s, groups_and_hashes
from featurestore.training.export.hash_ranges import HASH_BITS, HashRanges, RangeCounts

Histograms = dict[int, Int64s]
HashSums = dict[int, int]


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
        bins = (hashes >> np.uint64(HASH_BITS - self.bits)).astype(np.int64)
        for group in np.unique(groups).tolist():
            if group not in state:
                state[group] = np.zeros(1 << self.bits, dtype=np.int64)
            np.add.at(state[group], bins[groups == group], 1)
        return state

    def merge(self, state: Histograms, other_state: Histograms) -> Histograms:
        """Add the counts of two states."""
        for group, counts in other_state.items():
            if group in state:
                state[group] = state[group] + counts
            else:
                state[group] = counts
        return state

    def finish(self, state: Histograms) -> Histograms:
        """Return the counts."""
        return state


@dataclass(frozen=True)
class HashSumAccumulator(Accumulator[HashSums, HashSums]):
    """Sums the hashes of each group modulo 2**64: a fingerprint that ignores the order of rows."""

    def start(self) -> HashSums:
        """Return no sums."""
        return {}

    def update(self, state: HashSums, batch: pa.RecordBatch) -> HashSums:
        """Add the hashes of a batch."""
        groups, hashes = groups_and_hashes(batch)
        sums = {
            group: int(hashes[groups == group].sum(dtype=np.uint64))
            for group in np.unique(groups).tolist()
        }
        return self.merge(state, sums)

    def merge(self, state: HashSums, other_state: HashSums) -> HashSums:
        """Add the sums of two states."""
        for group, total in other_state.items():
            state[group] = (state.get(group, 0) + total) % 2**64
        return state

    def finish(self, state: HashSums) -> HashSums:
        """Return the sums."""
        return state


@dataclass(frozen=True)
class RankedRanges:
    """The hash ranges that contain some ranks.

    For each rank: the first hash of its range, the rank inside the range, the rows of the range.
    """

    starts: UInt64s
    ranks: Int64s
    rows: Int64s

    def narrowed(self, counts: RangeCounts) -> RankedRanges:
        """Return the counted subranges that contain the ranks."""
        ends = np.cumsum(counts.rows)
        first = np.searchsorted(counts.starts, self.starts)
        ranks = ends[first] - counts.rows[first] + self.ranks
        indexes = np.searchsorted(ends, ranks, side="right")
        rows = counts.rows[indexes]
        return RankedRanges(counts.starts[indexes], ranks - ends[indexes] + rows, rows)


@dataclass(frozen=True)
class BoundarySearch:
    """Searches the boundaries at some ranks in ever narrower hash ranges.

    ``ranked_ranges`` are the ranges of each group's ranks; their hashes share their leading
    ``bits``. At 64 bits a range is a single hash and the search ends.
    """

    bits: int
    ranked_ranges: Mapping[int, RankedRanges]

    @classmethod
    def among(
        cls, histograms: Mapping[int, Int64s], ranks: Mapping[int, Sequence[int]], *, bits: int
    ) -> BoundarySearch:
        """Return the search after the first pass, which counted by leading bits.

        Ranks satisfy ``0 < rank < rows of the group``.
        """
        ranked_ranges = {}
        for group, group_ranks in ranks.items():
            if not group_ranks:
                continue
            rows = np.full(len(group_ranks), histograms[group].sum())
            everything = RankedRanges(
                np.zeros(len(group_ranks), dtype=np.uint64),
                np.array(group_ranks, dtype=np.int64),
                rows,
            )
            ranked_ranges[group] = everything.narrowed(RangeCounts.of_histogram(histograms[group]))
        return cls(bits, ranked_ranges)

    @property
    def is_over(self) -> bool:
        """Whether all boundaries are known."""
        return self.bits == HASH_BITS or not self.ranked_ranges

    @property
    def ranges(self) -> HashRanges:
        """The ranges to read in the next pass."""
        starts = {group: np.unique(ranked.starts) for group, ranked in self.ranked_ranges.items()}
        return HashRanges(self.bits, starts)

    def next_bits(self, max_counts: int) -> int:
        """Return the bits of the next pass, so that it returns at most ``max_counts`` counts.

        All 64 bits if the ranges have no more rows than that; at least one bit more than now.
        """
        range_count, rows = 0, 0
        for group_ranges in self.ranked_ranges.values():
            _, first = np.unique(group_ranges.starts, return_index=True)
            range_count += len(first)
            rows += int(group_ranges.rows[first].sum())
        if rows <= max_counts:
            return HASH_BITS
        extra_bits = (max_counts // range_count).bit_length() - 1
        return min(self.bits + max(extra_bits, 1), HASH_BITS)

    def narrowed(self, counts: Mapping[int, RangeCounts], bits: int) -> BoundarySearch:
        """Return the search after a pass that counted the rows of its ranges by more bits."""
        ranked_ranges = {
            group: ranges.narrowed(counts[group]) for group, ranges in self.ranked_ranges.items()
        }
        return BoundarySearch(bits, ranked_ranges)

    def boundaries(self) -> dict[int, list[Boundary]]:
        """Return the boundary at each rank, per group, after the search has ended."""
        result = {}
        for group, ranges in self.ranked_ranges.items():
            positions = zip(ranges.starts.tolist(), ranges.ranks.tolist(), strict=True)
            result[group] = [Boundary(start, rank) for start, rank in positions]
        return result


def equal_sizes(rows: int, shards: int) -> list[int]:
    """Return the number of rows of each shard: they differ by at most one, larger ones first.

    >>> equal_sizes(10, 4)
    [3, 3, 2, 2]
    """
    size, larger = divmod(rows, shards)
    return [size + 1] * larger + [size] * (shards - larger)
