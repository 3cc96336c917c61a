"""The rows of a group that are visible at a time, for the aggregates of the leak check.

A row is visible from the time at which it is known until a later version of its event is known. Rows
are sorted once, and sums over visible rows are exact integers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from itertools import accumulate
from math import isqrt
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from featurestore.hashing import tie_hash
from featurestore.model.plan import WindowJoin
from featurestore.retrieval.label_samples import NEVER, Ints, KeyValues, to_microseconds

_ALWAYS = np.iinfo(np.int64).max
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class VisibleRows:
    """The rows ``first`` to ``last`` of a group that are visible at a time; ``index`` selects them."""

    first: int
    last: int
    time: int
    index: slice | Ints


_EMPTY = VisibleRows(0, 0, NEVER, slice(0, 0))
Add: TypeAlias = Callable[[VisibleRows], int]


@dataclass(frozen=True)
class SortedEvents:
    """The rows of a group that are visible at some time, sorted by key, event time and version.

    ``positions`` are their numbers in the table. ``known`` and ``replaced`` are the times from and
    until which each row is visible. ``ranges`` are the sorted rows of each key. ``is_settled`` is
    True if every row is visible from its event time on.
    """

    positions: Ints
    event: list[int]
    known: Ints
    replaced: Ints
    ranges: Mapping[KeyValues, tuple[int, int]]
    is_settled: bool

    def find_window(
        self, key: KeyValues, time: int | None, *, over: timedelta | None, offset: timedelta
    ) -> VisibleRows:
        """Return the rows of a key in ``(time - offset - over, time - offset]`` visible at a time."""
        # A label with a null key matches no rows, as in a join.
        if time is None or None in key or key not in self.ranges:
            return _EMPTY
        start, stop = self.ranges[key]
        end = time - offset // _MICROSECOND
        first = start
        if over is not None:
            first = bisect_right(self.event, end - over // _MICROSECOND, start, stop)
        last = bisect_right(self.event, min(end, time), start, stop)
        if last <= first:
            return _EMPTY
        index: slice | Ints = slice(first, last)
        if not self.is_settled:
            is_visible = (self.known[first:last] <= time) & (time < self.replaced[first:last])
            index = first + np.flatnonzero(is_visible)
        return VisibleRows(first, last, time, index)

    def adder(self, numbers: Sequence[int]) -> Add:
        """Return a function that adds the numbers of the visible rows of windows, without rounding.

        It accepts windows in ascending order of their times only.
        """
        if not self.is_settled:
            return _VisibleSums(numbers, *self.changes).add
        prefixes = list(accumulate(numbers, initial=0))
        return lambda window: prefixes[window.last] - prefixes[window.first]

    @cached_property
    def changes(self) -> tuple[list[int], list[int], int]:
        """The times at which rows become visible or are replaced, and these rows, in this order.

        The third value is the number of rows; numbers from there on are rows that are replaced.
        """
        times = np.concatenate([self.known, self.replaced])
        rows = np.argsort(times, kind="stable")
        return times[rows].tolist(), rows.tolist(), len(self.known)


class _VisibleSums:
    """Sums over the visible rows of ranges, at ascending times.

    The sums of blocks are updated at each change, so that a sum takes the root of the rows.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        change_times: Sequence[int],
        change_rows: Sequence[int],
        row_count: int,
    ) -> None:
        self._numbers = numbers
        self._times = change_times
        self._rows = change_rows
        self._row_count = row_count
        self._position = 0
        self._size = isqrt(row_count) + 1
        self._visible = [0] * row_count
        self._blocks = [0] * (row_count // self._size + 1)

    def add(self, window: VisibleRows) -> int:
        """Return the sum of the visible rows of a window."""
        if window.first == window.last:
            return 0
        self._advance(window.time)
        first_block, last_block = -(-window.first // self._size), window.last // self._size
        if first_block >= last_block:
            return sum(self._visible[window.first : window.last])
        return (
            sum(self._visible[window.first : first_block * self._size])
            + sum(self._blocks[first_block:last_block])
            + sum(self._visible[last_block * self._size : window.last])
        )

    def _advance(self, time: int) -> None:
        """Apply the changes up to a time."""
        end = bisect_right(self._times, time, self._position)
        for row in self._rows[self._position : end]:
            is_replaced = row >= self._row_count
            if is_replaced:
                row -= self._row_count
            number = self._numbers[row]
            if number:
                self._visible[row] = 0 if is_replaced else number
                self._blocks[row // self._size] += -number if is_replaced else number
        self._position = max(self._position, end)


def sort_events(join: WindowJoin, rows: pa.Table) -> SortedEvents:
    """Sort the rows of a group, and compute from and until which time each is visible."""
    event = to_microseconds(rows.column(join.event_time))
    created = event
    if join.created_time is not None:
        created = to_microseconds(rows.column(join.created_time))
    key_codes, codes_by_key = _codes(rows, [column for _, column in join.on])
    member_codes, _ = _codes(rows, join.members)
    ties = np.zeros(0, np.uint64)
    if rows.num_rows:
        ties = np.asarray(tie_hash(rows))
    known = np.maximum(event, created)
    # The last key of lexsort is the primary one. Consecutive rows are versions of one event.
    by_version = np.lexsort((ties, created, member_codes, event, key_codes))
    has_times = (event != NEVER) & (created != NEVER)
    by_version = by_version[has_times[by_version]]
    is_same_event = np.ones(max(len(by_version) - 1, 0), np.bool_)
    for codes in (key_codes, event, member_codes):
        is_same_event &= codes[by_version[:-1]] == codes[by_version[1:]]
    replaced = np.full(rows.num_rows, _ALWAYS)
    replaced[by_version[:-1][is_same_event]] = known[by_version[1:][is_same_event]]
    order = np.lexsort((ties, created, event, key_codes))
    order = order[has_times[order] & (known[order] < replaced[order])]
    starts = np.searchsorted(key_codes[order], np.arange(len(codes_by_key) + 1)).tolist()
    return SortedEvents(
        positions=order,
        event=event[order].tolist(),
        known=known[order],
        replaced=replaced[order],
        ranges={key: (starts[code], starts[code + 1]) for key, code in codes_by_key.items()},
        is_settled=bool(
            (known[order] == event[order]).all() and (replaced[order] == _ALWAYS).all()
        ),
    )


def _codes(rows: pa.Table, columns: Sequence[str]) -> tuple[Ints, dict[KeyValues, int]]:
    """Return the code of each row, and the codes of the distinct values of the columns."""
    codes: dict[KeyValues, int] = {}
    if not columns:
        return np.zeros(rows.num_rows, np.int64), codes
    values = zip(*[rows.column(name).to_pylist() for name in columns], strict=True)
    row_codes = [codes.setdefault(value, len(codes)) for value in values]
    return np.array(row_codes, np.int64), codes
