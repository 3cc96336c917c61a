"""Ranges of rows and labels: which rows are in the windows of which labels.

Rows and labels are sorted by key, then time. A row counts for the labels of its key once its event
time has passed and it is available, until it leaves the window or a later version is available. So
a row covers a contiguous range of labels. Without delayed availability, a label also covers a
contiguous range of rows; each can be computed from the other by counting.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from featurestore.aggregates.column_codes import Integers
from featurestore.aggregates.windows import LabelRangeWindow, RowRangeWindow, Window

# Maximum position on an axis; chunks are split so that they do not exceed it.
_MAX_POSITION = 1 << 62
NEVER = np.int64(np.iinfo(np.int64).max)


class AxisOverflow(Exception):
    """The concatenated time ranges of a chunk's keys exceed 62 bits."""


class Axis:
    """Maps sorted (key, time) pairs to integers: the time ranges of all keys are concatenated.

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
        # Each key has a position before its first time and one after its last, for times outside.
        lengths = last - first + 3
        if lengths.astype(np.float64).sum() >= _MAX_POSITION:
            raise AxisOverflow
        self._first, self._last = first, last
        self._base = np.cumsum(lengths) - lengths + 1 - first
        self._positions = time + self._base[key]

    def count_before(self, key: Integers, time: Integers) -> Integers:
        """Return the number of pairs before each (key, time), including those of lower keys."""
        within = np.minimum(np.maximum(time, self._first[key]), self._last[key] + 1)
        return np.searchsorted(self._positions, within + self._base[key], side="left")


@dataclass(frozen=True)
class Rows:
    """Rows of complete keys, sorted by key, event time, created time and tie hash.

    ``available`` is the time from which a row may be used, None if that is the event time.
    ``replaced`` is the time from which a later version of the event is used instead, ``NEVER``
    without a later version, and None if no row has one.
    """

    key: Integers
    event: Integers
    available: Integers | None = None
    replaced: Integers | None = None

    def slice_keys(self, rows: slice, *, first_key: int) -> Rows:
        """Return a slice of the rows, with keys relative to ``first_key``."""
        available, replaced = self.available, self.replaced
        if available is not None:
            available = available[rows]
        if replaced is not None:
            replaced = replaced[rows]
        return Rows(self.key[rows] - first_key, self.event[rows], available, replaced)


@dataclass(frozen=True)
class Labels:
    """Labels of the same keys, sorted by key and time, without nulls."""

    key: Integers
    time: Integers


class Timeline:
    """The rows and labels of a chunk on one axis.

    Raises:
        AxisOverflow: The chunk has to be split.
    """

    def __init__(self, rows: Rows, labels: Labels, *, keys: int) -> None:
        self._rows, self._labels = rows, labels
        self._has_delays = rows.available is not None or rows.replaced is not None
        if self._has_delays:
            self._axis = Axis(labels.key, labels.time, keys=keys)
        else:
            self._axis = Axis(rows.key, rows.event, keys=keys)
        self._starts: dict[int, Integers] = {}

    def window(self, *, over: int | None, offset: int = 0) -> Window:
        """Return the window of rows in ``(t - offset - over, t - offset]`` available at ``t``.

        Args:
            over: The length of the window in microseconds; None for an unbounded one.
            offset: The time from the end of the window to the label, in microseconds.
        """
        if self._has_delays:
            return self._label_ranges(over, offset)
        entered = self._starts.get(offset)
        newest = self._labels.time - offset
        if entered is None:
            entered = self._axis.count_before(self._labels.key, newest + 1)
            self._starts[offset] = entered
        if over is None:
            oldest = np.full(len(newest), np.iinfo(np.int64).min // 2)
        else:
            oldest = newest - over
        departed = self._axis.count_before(self._labels.key, oldest + 1)
        return RowRangeWindow(entered, departed, rows=len(self._rows.key))

    def _label_ranges(self, over: int | None, offset: int) -> Window:
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
        end = np.maximum(self._axis.count_before(rows.key, stop), begin)
        return LabelRangeWindow(begin, end, labels=len(self._labels.key))
