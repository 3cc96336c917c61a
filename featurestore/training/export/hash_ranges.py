"""Hash ranges with common leading bits, and the number of rows in each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featurestore.plugins.engine import Accumulator
from featurestore.training.export.hash_columns import (
    GROUP,
    HASH,
    HASH_COLUMNS,
    Int64s,
    UInt64s,
    from_sortable,
    groups_and_hashes,
    to_sortable,
)

Bools = npt.NDArray[np.bool_]

HASH_BITS = 64
_ROWS = "rows"
_COUNTS = HASH_COLUMNS.append(pa.field(_ROWS, pa.int64()))
_MAX_LOOSE_TABLES, _MAX_LOOSE_ROWS = 256, 1 << 20


@dataclass(frozen=True)
class RangeCounts:
    """The number of rows of hash ranges, identified by their first hash, in ascending order.

    Empty ranges may be missing.
    """

    starts: UInt64s
    rows: Int64s

    @classmethod
    def of_histogram(cls, histogram: Int64s) -> RangeCounts:
        """Return the counts of a histogram by leading bits."""
        bits = len(histogram).bit_length() - 1
        bins = np.arange(len(histogram), dtype=np.uint64)
        return cls(bins << np.uint64(HASH_BITS - bits), histogram)


@dataclass(frozen=True)
class HashRanges:
    """Ranges of the hashes that share their leading ``bits``, by group: sorted first hashes."""

    bits: int
    starts: Mapping[int, UInt64s]

    @cached_property
    def all_starts(self) -> UInt64s:
        """The first hashes of all groups' ranges, sorted, each once."""
        return np.unique(np.concatenate(list(self.starts.values())))

    @cached_property
    def _groups(self) -> Int64s:
        return np.array(sorted(self.starts), dtype=np.int64)

    @cached_property
    def _pairs(self) -> Int64s:
        """The (group, range) pairs as numbers: group index * number of starts + start index."""
        pairs = []
        for index, group in enumerate(self._groups.tolist()):
            numbers = np.searchsorted(self.all_starts, self.starts[group])
            pairs.append(index * len(self.all_starts) + numbers)
        return np.concatenate(pairs)

    def rows_inside(self, groups: Int64s, hashes: UInt64s) -> Int64s:
        """Return the indexes of the rows in a range of their group."""
        starts = first_hashes(hashes, self.bits)
        numbers, is_known = _positions(self.all_starts, starts)
        rows = np.flatnonzero(is_known)
        indexes, is_known = _positions(self._groups, groups[rows])
        rows = rows[is_known]
        pairs = indexes[is_known] * len(self.all_starts) + numbers[rows]
        _, is_known = _positions(self._pairs, pairs)
        return rows[is_known]


@dataclass(frozen=True)
class RowsInRanges:
    """Filters the rows in some ranges and truncates their hashes to the leading ``bits``."""

    ranges: HashRanges
    bits: int

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return hash and group of the matching rows."""
        groups, hashes = groups_and_hashes(batch)
        rows = self.ranges.rows_inside(groups, hashes)
        starts = first_hashes(hashes[rows], self.bits)
        columns = [pa.array(to_sortable(starts)), pa.array(groups[rows].astype(np.int64))]
        return pa.RecordBatch.from_arrays(columns, schema=HASH_COLUMNS)


@dataclass
class LooseCounts:
    """Rows by hash and group: the sums so far, and tables that are not added yet."""

    sums: pa.Table = field(default_factory=_COUNTS.empty_table)
    loose: list[pa.Table] = field(default_factory=list)
    loose_rows: int = 0

    def add(self, table: pa.Table) -> None:
        """Append a table; sum all tables once many are pending."""
        self.loose.append(table)
        self.loose_rows += table.num_rows
        many_rows = self.loose_rows > max(_MAX_LOOSE_ROWS, self.sums.num_rows)
        if many_rows or len(self.loose) > _MAX_LOOSE_TABLES:
            self.sums = self.total()
            self.loose, self.loose_rows = [], 0

    def total(self) -> pa.Table:
        """Return all sums, ordered by group and hash."""
        tables = pa.concat_tables([self.sums, *self.loose])
        if not tables.num_rows:
            return tables
        # Sorted instead of grouped: Arrow's group_by is slow for numbers whose last bits are all 0.
        in_order = tables.sort_by([(GROUP, "ascending"), (HASH, "ascending")])
        hashes, groups, rows = (in_order[name].to_numpy() for name in _COUNTS.names)
        changes = (groups[1:] != groups[:-1]) | (hashes[1:] != hashes[:-1])
        firsts = np.flatnonzero(np.concatenate(([True], changes)))
        columns = [hashes[firsts], groups[firsts], np.add.reduceat(rows, firsts)]
        return pa.table(columns, schema=_COUNTS)


@dataclass(frozen=True)
class RangeAccumulator(Accumulator[LooseCounts, dict[int, RangeCounts]]):
    """Counts the rows in some ranges by group and the leading bits of their hash."""

    rows: RowsInRanges

    def start(self) -> LooseCounts:
        """Return no counts."""
        return LooseCounts()

    def update(self, state: LooseCounts, batch: pa.RecordBatch) -> LooseCounts:
        """Count the rows of a batch."""
        inside = pa.table(self.rows(batch))
        if inside.num_rows:
            ones = np.ones(inside.num_rows, dtype=np.int64)
            state.add(inside.append_column(_ROWS, pa.array(ones)))
        return state

    def merge(self, state: LooseCounts, other_state: LooseCounts) -> LooseCounts:
        """Add the counts of two states."""
        total = other_state.total()
        if total.num_rows:
            state.add(total)
        return state

    def finish(self, state: LooseCounts) -> dict[int, RangeCounts]:
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
    """Return for each hash the first hash with the same leading bits."""
    mask = (1 << HASH_BITS) - (1 << (HASH_BITS - bits))
    return hashes & np.uint64(mask)


def _positions(sorted_values: npt.NDArray[Any], values: npt.NDArray[Any]) -> tuple[Int64s, Bools]:
    """Return the positions of values in sorted ones, and whether each was present."""
    positions = np.searchsorted(sorted_values, values)
    positions[positions == len(sorted_values)] = 0
    return positions, sorted_values[positions] == values
