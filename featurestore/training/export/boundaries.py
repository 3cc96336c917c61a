"""Shard boundaries for equal shards, computed without a global sort.

A boundary is a rank in hash order. The first pass counts the hashes of each group by their leading
bits. The next pass reads only hash ranges that contain a boundary and counts by more bits. It uses
all bits unless the ranges contain too many hashes. In that case, it uses as many bits as the limit
on the number of counts allows, and another pass follows. The result for rank r is a pair
(hash, offset): the boundary before the ``offset``-th row with this hash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featurestore.plugins.engine import Accumulator

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]
HASH = "__fs_hash"
GROUP = "__fs_group"
HASH_COLUMNS = pa.schema([(HASH, pa.int64()), (GROUP, pa.int64())])
# Spark has no unsigned integers. Flipping the highest bit keeps the order of hashes in signed ones.
_SIGN = np.uint64(1 << 63)
Bools = npt.NDArray[np.bool_]
HASH_BITS = 64
_ROWS = "rows"
_COUNTS = HASH_COLUMNS.append(pa.field(_ROWS, pa.int64()))
# Merging sorts all counts, so tables are collected first. The limits bound the memory and the
# sorts.
_MAX_LOOSE_TABLES, _MAX_LOOSE_ROWS = 256, 1 << 20
Histograms = dict[int, Int64s]
HashSums = dict[int, int]


def to_sortable(hashes: UInt64s) -> Int64s:
    """Convert hashes to signed integers in the same order, which every engine can sort."""
    flipped: Int64s = (hashes ^ _SIGN).view(np.int64)
    return flipped


def from_sortable(values: Int64s) -> UInt64s:
    """Invert ``to_sortable``."""
    return values.view(np.uint64) ^ _SIGN


def row_hashes(batch: pa.RecordBatch) -> UInt64s:
    """Return the row hashes of a hashed batch."""
    column = batch.column(batch.schema.get_field_index(HASH))
    return from_sortable(np.ascontiguousarray(column.to_numpy(zero_copy_only=False)))


def groups_and_hashes(batch: pa.RecordBatch) -> tuple[Int64s, UInt64s]:
    """Return the groups and row hashes of a hashed batch."""
    column = batch.column(batch.schema.get_field_index(GROUP))
    return column.to_numpy(zero_copy_only=False), row_hashes(batch)


@dataclass(frozen=True)
class RangeCounts:
    """The row counts of hash ranges, which are identified by their first hash, in ascending order.

    Empty ranges may be missing.
    """

    starts: UInt64s
    rows: Int64s

    @classmethod
    def from_histogram(cls, histogram: Int64s) -> RangeCounts:
        """Convert a histogram over leading bits to range counts."""
        bits = len(histogram).bit_length() - 1
        bins = np.arange(len(histogram), dtype=np.uint64)
        return cls(bins << np.uint64(HASH_BITS - bits), histogram)


@dataclass(frozen=True)
class HashRanges:
    """Hash ranges by group, as sorted first hashes; hashes of a range share leading ``bits``."""

    bits: int
    starts: Mapping[int, UInt64s]

    @cached_property
    def all_starts(self) -> UInt64s:
        """The sorted distinct first hashes of the ranges of all groups."""
        return np.unique(np.concatenate(list(self.starts.values())))

    @cached_property
    def _groups(self) -> Int64s:
        return np.array(sorted(self.starts), dtype=np.int64)

    @cached_property
    def _pairs(self) -> Int64s:
        """The (group, range) pairs, encoded as group index * number of starts + start index."""
        pairs = []
        for index, group in enumerate(self._groups.tolist()):
            numbers = np.searchsorted(self.all_starts, self.starts[group])
            pairs.append(index * len(self.all_starts) + numbers)
        return np.concatenate(pairs)

    def find_rows_inside(self, groups: Int64s, hashes: UInt64s) -> Int64s:
        """Return the indices of the rows whose hash is in a range of their group."""
        starts = first_hashes(hashes, self.bits)
        numbers, is_known = _find_positions(self.all_starts, starts)
        rows = np.flatnonzero(is_known)
        indexes, is_known = _find_positions(self._groups, groups[rows])
        rows = rows[is_known]
        # A pair encodes both numbers in one integer, so that one binary search tests both.
        pairs = indexes[is_known] * len(self.all_starts) + numbers[rows]
        _, is_known = _find_positions(self._pairs, pairs)
        return rows[is_known]


@dataclass(frozen=True)
class RowsInRanges:
    """A function that selects the rows in hash ranges and truncates hashes to leading ``bits``."""

    ranges: HashRanges
    bits: int

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the hash and group of each matching row."""
        groups, hashes = groups_and_hashes(batch)
        rows = self.ranges.find_rows_inside(groups, hashes)
        starts = first_hashes(hashes[rows], self.bits)
        columns = [pa.array(to_sortable(starts)), pa.array(groups[rows].astype(np.int64))]
        return pa.RecordBatch.from_arrays(columns, schema=HASH_COLUMNS)


@dataclass
class PendingCounts:
    """Row counts by hash and group: merged counts, and tables that are not merged yet."""

    sums: pa.Table = field(default_factory=_COUNTS.empty_table)
    loose: list[pa.Table] = field(default_factory=list)
    loose_rows: int = 0

    def add(self, table: pa.Table) -> None:
        """Append a table of counts; merge all tables once many are pending."""
        self.loose.append(table)
        self.loose_rows += table.num_rows
        # Waiting for as many loose rows as merged ones amortizes the cost of sorting the merged
        # ones.
        many_rows = self.loose_rows > max(_MAX_LOOSE_ROWS, self.sums.num_rows)
        if many_rows or len(self.loose) > _MAX_LOOSE_TABLES:
            self.sums = self.total()
            self.loose, self.loose_rows = [], 0

    def total(self) -> pa.Table:
        """Return the merged counts, ordered by group and hash."""
        tables = pa.concat_tables([self.sums, *self.loose])
        if not tables.num_rows:
            return tables
        # Sort instead of grouping, since Arrow's group_by is slow for numbers whose low bits are 0.
        in_order = tables.sort_by([(GROUP, "ascending"), (HASH, "ascending")])
        hashes, groups, rows = (in_order[name].to_numpy() for name in _COUNTS.names)
        changes = (groups[1:] != groups[:-1]) | (hashes[1:] != hashes[:-1])
        firsts = np.flatnonzero(np.concatenate(([True], changes)))
        columns = [hashes[firsts], groups[firsts], np.add.reduceat(rows, firsts)]
        return pa.table(columns, schema=_COUNTS)


@dataclass(frozen=True)
class RangeAccumulator(Accumulator[PendingCounts, dict[int, RangeCounts]]):
    """An accumulator that counts the rows in hash ranges by group and leading hash bits."""

    rows: RowsInRanges

    def start(self) -> PendingCounts:
        """Return empty counts."""
        return PendingCounts()

    def update(self, state: PendingCounts, batch: pa.RecordBatch) -> PendingCounts:
        """Count the rows of a batch."""
        inside = pa.table(self.rows(batch))
        if inside.num_rows:
            ones = np.ones(inside.num_rows, dtype=np.int64)
            state.add(inside.append_column(_ROWS, pa.array(ones)))
        return state

    def merge(self, state: PendingCounts, other_state: PendingCounts) -> PendingCounts:
        """Add the counts of two states."""
        total = other_state.total()
        if total.num_rows:
            state.add(total)
        return state

    def finish(self, state: PendingCounts) -> dict[int, RangeCounts]:
        """Return the counts of each group."""
        total = state.total()
        groups, first_rows = np.unique(total[GROUP].to_numpy(), return_index=True)
        hashes, rows = from_sortable(total[HASH].to_numpy()), total[_ROWS].to_numpy()
        ends = np.append(first_rows[1:], len(hashes))
        counts = {
            group: RangeCounts(hashes[first:end], rows[first:end])
            for group, first, end in zip(groups.tolist(), first_rows, ends, strict=True)
        }
        return counts


def first_hashes(hashes: UInt64s, bits: int) -> UInt64s:
    """Return the first hash with the same leading bits as each hash."""
    mask = (1 << HASH_BITS) - (1 << (HASH_BITS - bits))
    return hashes & np.uint64(mask)


def _find_positions(
    sorted_values: npt.NDArray[Any], values: npt.NDArray[Any]
) -> tuple[Int64s, Bools]:
    """Return the position of each value in a sorted array, and whether the array contains it."""
    positions = np.searchsorted(sorted_values, values)
    # searchsorted returns the length for values beyond the end; any valid index serves, since the
    # comparison decides.
    positions[positions == len(sorted_values)] = 0
    return positions, sorted_values[positions] == values


@dataclass(frozen=True)
class Boundary:
    """A position in hash order: before the ``offset``-th row (from 0) with this hash."""

    hash: int
    offset: int


@dataclass(frozen=True)
class HistogramAccumulator(Accumulator[Histograms, Histograms]):
    """An accumulator that counts the rows of each group by the leading ``bits`` of their hash.

    The result is ``{group: counts of 2**bits bins}``.
    """

    bits: int

    def start(self) -> Histograms:
        """Return empty counts."""
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
    """An accumulator that sums the hashes of each group modulo 2**64.

    The sum is a fingerprint that does not depend on the order of the rows.
    """

    def start(self) -> HashSums:
        """Return empty sums."""
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
    """The hash ranges that contain the requested ranks.

    For each rank, it has the first hash of the range, the rank within the range, and the number of
    rows in the range.
    """

    starts: UInt64s
    ranks: Int64s
    rows: Int64s

    def narrow(self, counts: RangeCounts) -> RankedRanges:
        """Return the subranges that contain the ranks, after a pass has counted them."""
        ends = np.cumsum(counts.rows)
        first = np.searchsorted(counts.starts, self.starts)
        # ``counts`` covers the ranges of all ranks, so a rank within a range becomes a rank over
        # all counted rows.
        ranks = ends[first] - counts.rows[first] + self.ranks
        indexes = np.searchsorted(ends, ranks, side="right")
        rows = counts.rows[indexes]
        return RankedRanges(counts.starts[indexes], ranks - ends[indexes] + rows, rows)


@dataclass(frozen=True)
class BoundarySearch:
    """A search for the boundaries at given ranks, which narrows hash ranges in each pass.

    ``ranked_ranges`` are the ranges that contain the ranks of each group. The hashes of a range
    share their leading ``bits``. At 64 bits, a range is a single hash and the search is complete.
    """

    bits: int
    ranked_ranges: Mapping[int, RankedRanges]

    @classmethod
    def from_histograms(
        cls, histograms: Mapping[int, Int64s], ranks: Mapping[int, Sequence[int]], *, bits: int
    ) -> BoundarySearch:
        """Start a search from the histograms that the first pass counted by leading bits.

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
            ranked_ranges[group] = everything.narrow(RangeCounts.from_histogram(histograms[group]))
        return cls(bits, ranked_ranges)

    @property
    def is_complete(self) -> bool:
        """Whether all boundaries are known."""
        return self.bits == HASH_BITS or not self.ranked_ranges

    @property
    def ranges(self) -> HashRanges:
        """The ranges to read in the next pass."""
        starts = {group: np.unique(ranked.starts) for group, ranked in self.ranked_ranges.items()}
        return HashRanges(self.bits, starts)

    def next_bits(self, max_counts: int) -> int:
        """Return the number of bits for the next pass, so that it returns at most ``max_counts``.

        It is 64 if the ranges have at most ``max_counts`` rows. It increases by at least one bit in
        each pass.
        """
        range_count, rows = 0, 0
        for group_ranges in self.ranked_ranges.values():
            _, first = np.unique(group_ranges.starts, return_index=True)
            range_count += len(first)
            rows += int(group_ranges.rows[first].sum())
        # Ranges with few rows are counted by all 64 bits at once: the number of counts is at most
        # the number of rows.
        if rows <= max_counts:
            return HASH_BITS
        # Each additional bit can double the number of counts of a range.
        extra_bits = (max_counts // range_count).bit_length() - 1
        return min(self.bits + max(extra_bits, 1), HASH_BITS)

    def narrow(self, counts: Mapping[int, RangeCounts], bits: int) -> BoundarySearch:
        """Continue the search after a pass that counted the rows of the ranges by more bits."""
        ranked_ranges = {
            group: ranges.narrow(counts[group]) for group, ranges in self.ranked_ranges.items()
        }
        return BoundarySearch(bits, ranked_ranges)

    def boundaries(self) -> dict[int, list[Boundary]]:
        """Return the boundaries at the ranks of each group; the search must be complete."""
        result = {}
        for group, ranges in self.ranked_ranges.items():
            positions = zip(ranges.starts.tolist(), ranges.ranks.tolist(), strict=True)
            result[group] = [Boundary(start, rank) for start, rank in positions]
        return result


def equal_sizes(rows: int, shards: int) -> list[int]:
    """Divide rows into shards whose sizes differ by at most one, with larger shards first.

    >>> equal_sizes(10, 4)
    [3, 3, 2, 2]
    """
    size, larger = divmod(rows, shards)
    return [size + 1] * larger + [size] * (shards - larger)
