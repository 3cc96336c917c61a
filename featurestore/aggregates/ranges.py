"""Which rows count for which labels: positions on one axis of keys and times.

Rows and labels are sorted by key, then time. A row counts for the labels of its key from the moment
on at which it has happened and is known, until it has left the window or a later version of it is
known. So a row covers one range of labels, and where nothing waits to be known, a label covers one
range of rows; either can be turned into the other by counting.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from featurestore.aggregates.arrays import Integers
from featurestore.aggregates.windows import Window, WindowOfLabels, WindowOfRows

# Positions beyond this do not fit; chunks are cut before.
_MOST = 1 << 62
NEVER = np.int64(np.iinfo(np.int64).max)


class TooLong(Exception):
    """The times of a chunk's keys, laid end to end, do not fit 62 bits."""


class Axis:
    """Sorted (key, time) pairs as single integers: the times of each key after those of the last.

    >>> axis = Axis(np.array([0, 0, 2]), np.array([10, 20, 5]), keys=3)
    >>> axis.before(np.array([0, 0, 1, 2, 2]), np.array([10, 11, 99, 5, 6])).tolist()
    [0, 1, 2, 2, 3]
    """

    def __init__(self, key: Integers, time: Integers, *, keys: int) -> None:
        counts = np.bincount(key, minlength=keys)
        stops = np.cumsum(counts)
        starts = stops - counts
        used = counts > 0
        first, last = np.zeros(keys, np.int64), np.zeros(keys, np.int64)
        first[used] = time[starts[used]]
        last[used] = time[stops[used] - 1]
        # One place before the first time of a key and one after its last, for what lies outside.
        lengths = last - first + 3
        if lengths.astype(np.float64).sum() >= _MOST:
            raise TooLong
        self._first, self._last = first, last
        self._base = np.cumsum(lengths) - lengths + 1 - first
        self._positions = time + self._base[key]

    def before(self, key: Integers, time: Integers) -> Integers:
        """Return how many pairs lie before each (key, time): those of lower keys among them."""
        within = np.minimum(np.maximum(time, self._first[key]), self._last[key] + 1)
        return np.searchsorted(self._positions, within + self._base[key], side="left")


@dataclass(frozen=True)
class Rows:
    """Rows of whole keys, sorted by key, event time, created time and tie hash.

    ``known`` is the time from which a row may be used, None where that is its event time;
    ``replaced`` the time from which a later version of the same event is used instead, ``NEVER``
    where there is none, and None where no row has another version.
    """

    key: Integers
    event: Integers
    known: Integers | None = None
    replaced: Integers | None = None

    def part(self, rows: slice, *, first_key: int) -> Rows:
        """Return some of the rows, with keys counted from ``first_key`` on."""
        known, replaced = self.known, self.replaced
        if known is not None:
            known = known[rows]
        if replaced is not None:
            replaced = replaced[rows]
        return Rows(self.key[rows] - first_key, self.event[rows], known, replaced)


@dataclass(frozen=True)
class Labels:
    """Labels of the same keys, sorted by key and time; neither is null."""

    key: Integers
    time: Integers


class Timeline:
    """The rows and labels of a chunk on one axis.

    Raises:
        TooLong: The chunk has to be cut.
    """

    def __init__(self, rows: Rows, labels: Labels, *, keys: int) -> None:
        self._rows, self._labels = rows, labels
        self._waits = rows.known is not None or rows.replaced is not None
        if self._waits:
            self._axis = Axis(labels.key, labels.time, keys=keys)
        else:
            self._axis = Axis(rows.key, rows.event, keys=keys)
        self._begun: dict[int, Integers] = {}

    def window(self, *, over: int | None, offset: int = 0) -> Window:
        """Return which rows lie in ``(t - offset - over, t - offset]`` and are known at ``t``.

        Args:
            over: The window's length in microseconds; None has no beginning.
            offset: How long before the label the window ends, in microseconds.
        """
        if self._waits:
            return self._of_labels(over, offset)
        entered = self._begun.get(offset)
        newest = self._labels.time - offset
        if entered is None:
            entered = self._axis.before(self._labels.key, newest + 1)
            self._begun[offset] = entered
        if over is None:
            oldest = np.full(len(newest), np.iinfo(np.int64).min // 2)
        else:
            oldest = newest - over
        left = self._axis.before(self._labels.key, oldest + 1)
        return WindowOfRows(entered, left, rows=len(self._rows.key))

    def _of_labels(self, over: int | None, offset: int) -> Window:
        rows = self._rows
        begin = self._begun.get(offset)
        if begin is None:
            start = rows.event + offset
            if rows.known is not None:
                start = np.maximum(start, rows.known)
            begin = self._axis.before(rows.key, start)
            self._begun[offset] = begin
        stop = np.full(len(rows.key), NEVER // 2)
        if over is not None:
            stop = rows.event + offset + over
        if rows.replaced is not None:
            stop = np.minimum(stop, rows.replaced)
        end = np.maximum(self._axis.before(rows.key, stop), begin)
        return WindowOfLabels(begin, end, labels=len(self._labels.key))
