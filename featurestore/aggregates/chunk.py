"""A chunk of complete keys: its rows and labels, and the rows in each label's window.

Rows and labels are sorted by key, then time. A row is included in the labels of its key once its
event time has passed and it is available, until it leaves the window or a later version is
available. Each row is therefore included in a contiguous range of labels. Unless availability is
delayed, each label also includes a contiguous range of rows; each range can be computed from the
other by counting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featurestore.aggregates.arrays import (
    Flags,
    Integers,
    LabelRangeWindow,
    LabelWindows,
    RowRangeWindow,
    to_flags,
)

# Maximum position on an axis; larger chunks are split.
_MAX_POSITION = 1 << 62
NEVER = np.int64(np.iinfo(np.int64).max)
Function = Literal[
    "sum", "count", "mean", "min", "max", "std", "var", "first", "last",
    "count_distinct", "any", "all", "last_n",
]  # fmt: skip


@dataclass(frozen=True)
class Aggregate:
    """One aggregate function over one window of a chunk.

    ``values`` and ``condition`` are indices of the columns passed to ``aggregate``. The window is
    ``(t - offset - over, t - offset]`` in microseconds, unbounded if ``over`` is None. ``n`` is the
    number of values for ``last_n``.
    """

    function: Function
    values: int
    over: int | None
    offset: int = 0
    condition: int | None = None
    n: int = 0


@dataclass(frozen=True)
class Totals:
    """Sums and counts of rows that are in the windows of all labels of a chunk.

    ``sums`` contains exact sums: of the values, as "integers" or "doubles", and of their
    "squares". NaN and infinities are excluded from the sums and counted separately.
    """

    count: int = 0
    sums: Mapping[str, Fraction] = field(default_factory=dict)
    positive_infinities: int = 0
    negative_infinities: int = 0
    nans: int = 0

    @property
    def non_finite_counts(self) -> tuple[int, int, int]:
        """The numbers of positive infinities, negative infinities and NaN."""
        return self.positive_infinities, self.negative_infinities, self.nans

    @property
    def non_finite_count(self) -> int:
        """The number of values that are NaN or infinite."""
        return sum(self.non_finite_counts)

    def plus(self, second: Totals) -> Totals:
        """Add the totals of other rows."""
        # Fractions, because these totals are added before the only rounding of a sum.
        sums = dict(self.sums)
        for name, total in second.sums.items():
            sums[name] = sums.get(name, Fraction(0)) + total
        return Totals(
            self.count + second.count,
            sums,
            self.positive_infinities + second.positive_infinities,
            self.negative_infinities + second.negative_infinities,
            self.nans + second.nans,
        )


_NO_TOTALS = Totals()


@dataclass
class Chunk:
    """Rows and labels of complete keys, with a cache of intermediate results."""

    timeline: Timeline
    rows: KeyRows
    columns: Sequence[pa.Array]
    conditions: Sequence[pa.Array]
    base_totals: Mapping[tuple[int, int | None], Totals] = field(default_factory=dict)
    windows: dict[tuple[int | None, int], LabelWindows] = field(default_factory=dict)
    cache: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def totals(self, aggregate: Aggregate) -> Totals:
        """Return the totals of rows outside the chunk that are in every label's window."""
        return self.base_totals.get((aggregate.values, aggregate.condition), _NO_TOTALS)

    def window(self, aggregate: Aggregate) -> LabelWindows:
        """Return the window of an aggregate; aggregates over the same window share it."""
        key = (aggregate.over, aggregate.offset)
        if key not in self.windows:
            self.windows[key] = self.timeline.window(over=key[0], offset=key[1])
        return self.windows[key]

    def cache_per_window(self, aggregate: Aggregate, name: str, compute: Callable[[], Any]) -> Any:
        """Compute a result once for all functions over the same column, condition and window."""
        key = (name, aggregate.values, aggregate.condition, aggregate.over, aggregate.offset)
        if key not in self.cache:
            self.cache[key] = compute()
        return self.cache[key]

    def cache_per_column(self, aggregate: Aggregate, name: str, compute: Callable[[], Any]) -> Any:
        """Compute a result once for all aggregates over the same column and condition."""
        key = (name, aggregate.values, aggregate.condition)
        if key not in self.cache:
            self.cache[key] = compute()
        return self.cache[key]

    def present(self, aggregate: Aggregate) -> Flags:
        """Return which rows have a value and satisfy the condition."""
        flags: Flags = self.cache_per_column(
            aggregate, "present", lambda: self._find_present(aggregate)
        )
        return flags

    def _find_present(self, aggregate: Aggregate) -> Flags:
        flags = to_flags(self.columns[aggregate.values].is_valid())
        if aggregate.condition is not None:
            condition = self.conditions[aggregate.condition]
            # A condition that is null is not satisfied, as in SQL.
            flags = flags & to_flags(pc.fill_null(condition, False))
        return flags


@dataclass(frozen=True)
class KeyRows:
    """Rows of complete keys, sorted by key, event time, created time and tie hash.

    ``available`` is the time from which a row may be used; None means its event time. ``replaced``
    is the time from which a later version of the event is used instead: ``NEVER`` for a row without
    a later version, and None if no row has one.
    """

    key: Integers
    event: Integers
    available: Integers | None = None
    replaced: Integers | None = None

    def slice_keys(self, rows: slice, *, first_key: int) -> KeyRows:
        """Return a slice of the rows, with key numbers relative to ``first_key``."""
        available, replaced = self.available, self.replaced
        if available is not None:
            available = available[rows]
        if replaced is not None:
            replaced = replaced[rows]
        return KeyRows(self.key[rows] - first_key, self.event[rows], available, replaced)


@dataclass(frozen=True)
class Labels:
    """Labels of the same keys, sorted by key and time, without nulls."""

    key: Integers
    time: Integers


class Timeline:
    """The rows and labels of a chunk on a common axis.

    Raises:
        AxisOverflow: The chunk must be split.
    """

    def __init__(self, rows: KeyRows, labels: Labels, *, keys: int) -> None:
        self._rows, self._labels = rows, labels
        self._has_delays = rows.available is not None or rows.replaced is not None
        # With delays, windows are ranges of labels, so the labels form the axis; otherwise the rows
        # do.
        if self._has_delays:
            self._axis = Axis(labels.key, labels.time, keys=keys)
        else:
            self._axis = Axis(rows.key, rows.event, keys=keys)
        self._starts: dict[int, Integers] = {}

    def window(self, *, over: int | None, offset: int = 0) -> LabelWindows:
        """Return the window of rows in ``(t - offset - over, t - offset]`` available at ``t``.

        Args:
            over: The length of the window in microseconds; None for an unbounded window.
            offset: The time from the end of the window to the label, in microseconds.
        """
        if self._has_delays:
            return self._label_ranges(over, offset)
        # The start depends on the offset only; windows of all lengths share it.
        entered = self._starts.get(offset)
        newest = self._labels.time - offset
        if entered is None:
            entered = self._axis.count_before(self._labels.key, newest + 1)
            self._starts[offset] = entered
        if over is None:
            # Before any row. Half the minimum leaves room for the additions below.
            oldest = np.full(len(newest), np.iinfo(np.int64).min // 2)
        else:
            oldest = newest - over
        departed = self._axis.count_before(self._labels.key, oldest + 1)
        return RowRangeWindow(entered, departed, rows=len(self._rows.key))

    def _label_ranges(self, over: int | None, offset: int) -> LabelWindows:
        """Return the window as the range of labels that include each row."""
        rows = self._rows
        begin = self._starts.get(offset)
        if begin is None:
            start = rows.event + offset
            if rows.available is not None:
                start = np.maximum(start, rows.available)
            begin = self._axis.count_before(rows.key, start)
            self._starts[offset] = begin
        stop = np.full(len(rows.key), NEVER // 2)
        if over is not None:
            stop = rows.event + offset + over
        if rows.replaced is not None:
            stop = np.minimum(stop, rows.replaced)
        # A row can be replaced before it enters the window; its range is empty then.
        end = np.maximum(self._axis.count_before(rows.key, stop), begin)
        return LabelRangeWindow(begin, end, labels=len(self._labels.key))


class Axis:
    """Maps sorted (key, time) pairs to integers, by concatenating the time ranges of all keys.

    >>> axis = Axis(np.array([0, 0, 2]), np.array([10, 20, 5]), keys=3)
    >>> axis.count_before(np.array([0, 0, 1, 2, 2]), np.array([10, 11, 99, 5, 6])).tolist()
    [0, 1, 2, 2, 3]
    """

    def __init__(self, key: Integers, time: Integers, *, keys: int) -> None:
        counts = np.bincount(key, minlength=keys)
        stops = np.cumsum(counts)
        starts = stops - counts
        is_used = counts > 0
        first, last = np.zeros(keys, np.int64), np.zeros(keys, np.int64)
        first[is_used] = time[starts[is_used]]
        last[is_used] = time[stops[is_used] - 1]
        # Each key has extra positions before its first time and after its last time, for other
        # times.
        lengths = last - first + 3
        # Summed as doubles, because the sum of integers could overflow before the comparison.
        if lengths.astype(np.float64).sum() >= _MAX_POSITION:
            raise AxisOverflow
        self._first, self._last = first, last
        self._base = np.cumsum(lengths) - lengths + 1 - first
        self._positions = time + self._base[key]

    def count_before(self, key: Integers, time: Integers) -> Integers:
        """Return the number of pairs before each (key, time), including pairs with lower keys."""
        within = np.minimum(np.maximum(time, self._first[key]), self._last[key] + 1)
        # One binary search serves the pairs of all keys.
        return np.searchsorted(self._positions, within + self._base[key], side="left")


class AxisOverflow(Exception):
    """The concatenated time ranges of a chunk's keys exceed 62 bits."""
