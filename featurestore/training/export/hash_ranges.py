"""Ranges of hashes that share their leading bits, and how many rows lie in each."""

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
_MOST_LOOSE_TABLES, _MOST_LOOSE_ROWS = 256, 1 << 20


@dataclass(frozen=True)
class RangeCounts:
    """The rows of hash ranges, in their order. A range is known by its first hash.

    Those without rows may be left out.
    """

    starts: UInt64s
    rows: Int64s

    @classmethod
    def of_histogram(cls, histogram: Int64s) -> RangeCounts:
        """Return the counts of a histogram, whose bins are the leading bits."""
        bits = len(histogram).bit_length() - 1
        bins = np.arange(len(histogram), dtype=np.uint64)
        return cls(bins << np.uint64(HASH_BITS - bits), histogram)


@dataclass(frozen=True)
class HashRanges:
    """Ranges of the hashes that share their leading ``bits``, by group: sorted first hashes."""

    bits: int
    starts: Mapping[int, UInt64s]

    @cached_property
    def of_any_group(self) -> UInt64s:
        """The first hashes of all groups' ranges, sorted, each once."""
        return np.unique(np.concatenate(list(self.starts.values())))

    @cached_property
    def _groups(self) -> Int64s:
        return np.array(sorted(self.starts), dtype=np.int64)

    @cached_property
    def _pairs(self) -> Int64s:
        """The ranges of each group as numbers: of the group times all first hashes, of the hash."""
        pairs = []
        for index, group in enumerate(self._groups.tolist()):
            numbers = np.searchsorted(self.of_any_group, self.starts[group])
            pairs.append(index * len(self.of_any_group) + numbers)
        return np.concatenate(pairs)

    def rows_inside(self, groups: Int64s, hashes: UInt64s) -> Int64s:
        """Return which rows lie in a range of their group."""
        starts = first_hashes(hashes, self.bits)
        numbers, found = _positions(self.of_any_group, starts)
        rows = np.flatnonzero(found)
        indexes, found = _positions(self._groups, groups[rows])
        rows = rows[found]
        pairs = indexes[found] * len(self.of_any_group) + numbers[rows]
        _, found = _positions(self._pairs, pairs)
        return rows[found]


@dataclass(frozen=True)
class RowsInRanges:
    """Leaves the rows that lie in some ranges, and of each hash its leading ``bits``."""

    ranges: HashRanges
    bits: int

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return hash and group of the rows that are left."""
        groups, hashes = groups_and_hashes(batch)
        rows = self.ranges.rows_inside(groups, hashes)
        starts = first_hashes(hashes[rows], self.bits)
        columns = [pa.array(to_sortable(starts)), pa.array(groups[rows].astype(np.int64))]
        return pa.RecordBatch.from_arrays(columns, schema=HASH_COLUMNS)


@dataclass
class LooseCounts:
    """Rows by hash and group: the sums so far, and tables that are not added to them yet."""

    sums: pa.Table = field(default_factory=_COUNTS.empty_table)
    loose: list[pa.Table] = field(default_factory=list)
    loose_rows: int = 0

    def add(self, table: pa.Table) -> None:
        """Take a table; add up all where many wait."""
        self.loose.append(table)
        self.loose_rows += table.num_rows
        many_rows = self.loose_rows > max(_MOST_LOOSE_ROWS, self.sums.num_rows)
        if many_rows or len(self.loose) > _MOST_LOOSE_TABLES:
            self.sums = self.total()
            self.loose, self.loose_rows = [], 0

    def total(self) -> pa.Table:
        """Return the sums of all, in the order of group and hash."""
        tables = pa.concat_tables([self.sums, *self.loose])
        if not tables.num_rows:
            return tables
        # Sorted, not grouped by Arrow, which takes long for numbers whose last bits are all 0.
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

    def merge(self, left: LooseCounts, right: LooseCounts) -> LooseCounts:
        """Add the counts of two states."""
        total = right.total()
        if total.num_rows:
            left.add(total)
        return left

    def finish(self, state: LooseCounts) -> dict[int, RangeCounts]:
        """Return the counts of each group."""
        total = state.total()
        groups, first_rows = np.unique(total[GROUP].to_numpy(), return_index=True)
        hashes, rows = from_sortable(total[HASH].to_numpy()), total[_ROWS].to_numpy()
        ends = np.append(first_rows[1:], len(hashes))
        counts = {}
        for group, first, end in zip(groups.tolist(), first_rows, ends, strict=True):
            counts[group] = RangeCounts(hashes[first:end], rows[first:end])
        return counts


def first_hashes(hashes: UInt64s, bits: int) -> UInt64s:
    """Return the first hash that has the same leading bits, of each hash."""
    mask = (1 << HASH_BITS) - (1 << (HASH_BITS - bits))
    return hashes & np.uint64(mask)


def _positions(known: npt.NDArray[Any], values: npt.NDArray[Any]) -> tuple[Int64s, Bools]:
    """Return where sorted values are that are known, and which are."""
    positions = np.searchsorted(known, values)
    positions[positions == len(known)] = 0
    return positions, known[positions] == values
