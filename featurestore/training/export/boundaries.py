"""Exactly equal shards without a global sort: ranks in hash order become boundaries between shards.

One pass counts the hashes of each group by their leading bits. The next looks only into the ranges
of hashes where a boundary falls and counts more bits: all of them, or, where too many hashes lie
there, so many as give few counts, and then another pass follows. The boundary at rank r is at last
the pair (hash, offset): it lies before the ``offset``-th of the rows that have this hash.
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


@dataclass(frozen=True)
class RankedRanges:
    """Where the rows of some ranks lie: of each rank its range, its rank in it, the range's rows.

    A range is known by its first hash.
    """

    starts: UInt64s
    ranks: Int64s
    rows: Int64s

    def narrowed(self, counts: RangeCounts) -> RankedRanges:
        """Return the ranges among those counted, which are parts of the ranges here."""
        ends = np.cumsum(counts.rows)
        first = np.searchsorted(counts.starts, self.starts)
        ranks = ends[first] - counts.rows[first] + self.ranks
        found = np.searchsorted(ends, ranks, side="right")
        rows = counts.rows[found]
        return RankedRanges(counts.starts[found], ranks - ends[found] + rows, rows)


@dataclass(frozen=True)
class BoundarySearch:
    """Looks for the boundaries before the rows of some ranks, in ever narrower ranges of hashes.

    ``found`` are the ranges of each group's ranks, which share their leading ``bits``; at 64 bits
    they are single hashes, and the search is over.
    """

    bits: int
    found: Mapping[int, RankedRanges]

    @classmethod
    def among(
        cls, histograms: Mapping[int, Int64s], ranks: Mapping[int, Sequence[int]], *, bits: int
    ) -> BoundarySearch:
        """Return the search behind the first pass, which counted by leading bits.

        Ranks are ``0 < rank < rows of the group``.
        """
        found = {}
        for group, wanted in ranks.items():
            if not wanted:
                continue
            rows = np.full(len(wanted), histograms[group].sum())
            everything = RankedRanges(
                np.zeros(len(wanted), dtype=np.uint64), np.array(wanted, dtype=np.int64), rows
            )
            found[group] = everything.narrowed(RangeCounts.of_histogram(histograms[group]))
        return cls(bits, found)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to look for."""
        return self.bits == HASH_BITS or not self.found

    @property
    def ranges(self) -> HashRanges:
        """The ranges to look into."""
        starts = {group: np.unique(found.starts) for group, found in self.found.items()}
        return HashRanges(self.bits, starts)

    def next_bits(self, most: int) -> int:
        """Return by how many bits the next pass counts, so that at most ``most`` counts come back.

        That is all bits where the ranges have so few rows. One more it is in any case.
        """
        ranges, rows = 0, 0
        for found in self.found.values():
            _, first = np.unique(found.starts, return_index=True)
            ranges += len(first)
            rows += int(found.rows[first].sum())
        if rows <= most:
            return HASH_BITS
        more = (most // ranges).bit_length() - 1
        return min(self.bits + max(more, 1), HASH_BITS)

    def narrowed(self, counts: Mapping[int, RangeCounts], bits: int) -> BoundarySearch:
        """Return the search behind a pass that counted the rows of its ranges by more bits."""
        found = {}
        for group, ranges in self.found.items():
            found[group] = ranges.narrowed(counts[group])
        return BoundarySearch(bits, found)

    def boundaries(self) -> dict[int, list[Boundary]]:
        """Return the boundary before the row of each rank, per group, once the search is over."""
        result = {}
        for group, found in self.found.items():
            places = zip(found.starts.tolist(), found.ranks.tolist(), strict=True)
            result[group] = [Boundary(start, rank) for start, rank in places]
        return result


def equal_sizes(rows: int, shards: int) -> list[int]:
    """Return the rows of each shard: they differ by at most one, larger ones first.

    >>> equal_sizes(10, 4)
    [3, 3, 2, 2]
    """
    size, larger = divmod(rows, shards)
    return [size + 1] * larger + [size] * (shards - larger)
