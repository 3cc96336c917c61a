"""Which rows count for which labels: positions on one axis of keys and times.

Rows and labels are sorted by key, then time. A row counts for the labels of its key from the moment
on at which it has happened and is known, until it has left the window or a later version of it is
known. So a row covers one range of labels, and where nothing waits to be known, a label covers one
range of rows; either can be turned into the other by counting.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

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


@dataclass(frozen=True)
class Window:
    """The rows that count for each label.

    Label ``j`` sees the first ``entered[j]`` rows in the order ``entering`` without the first
    ``left[j]`` in the order ``leaving``; None stands for the order of the rows.
    """

    rows: int
    entered: Integers
    left: Integers
    entering: Integers | None = None
    leaving: Integers | None = None

    @property
    def labels(self) -> int:
        """How many labels there are."""
        return len(self.entered)

    @cached_property
    def covered(self) -> tuple[Integers, Integers]:
        """For each row the labels that see it: from the first number on, below the second."""
        begin = self._labels_before(self.entered, self.entering)
        end = self._labels_before(self.left, self.leaving)
        return begin, np.maximum(begin, end)

    def _labels_before(self, passed: Integers, order: Integers | None) -> Integers:
        """Return for each row how many labels come before it passes."""
        waiting = np.cumsum(np.bincount(passed, minlength=self.rows + 1))[: self.rows]
        if order is None:
            return waiting
        found = np.empty(self.rows, np.int64)
        found[order] = waiting
        return found

    def totals(self, values: Integers) -> Integers:
        """Return the sum of the values of the rows that each label sees."""
        entered, left = values, values
        if self.entering is not None and self.leaving is not None:
            entered, left = values[self.entering], values[self.leaving]
        gone = _prefix(left)
        come = gone
        if entered is not left:
            come = _prefix(entered)
        return come[self.entered] - gone[self.left]

    def counts(self, present: Flags) -> Integers:
        """Return how many of the flagged rows each label sees."""
        return self.totals(present.astype(np.int64))

    def extremes(
        self, codes: Integers, present: Flags, choose: Callable[..., Integers], *, neutral: int
    ) -> Integers:
        """Return the greatest or smallest code among the flagged rows that each label sees.

        A row's range of labels is the union of two ranges whose length is one power of two. Ranges
        of one length are entered where they begin; from the longest on, what is known of a range is
        handed to its two halves.

        Args:
            codes: A number for each row.
            present: The rows that count at all.
            choose: ``np.maximum`` or ``np.minimum``.
            neutral: What a label gets that sees no such row.
        """
        begin, end = self.covered
        rows = np.flatnonzero(present & (begin < end))
        found = np.full(self.labels, neutral, np.int64)
        if not len(rows):
            return found
        begin, end, codes = begin[rows], end[rows], codes[rows]
        level = np.frexp((end - begin).astype(np.float64))[1].astype(np.int8) - 1
        order = np.argsort(level, kind="stable")
        stops = np.cumsum(np.bincount(level))
        for number in range(len(stops) - 1, -1, -1):
            start = 0
            if number > 0:
                start = stops[number - 1]
            mine = order[start : stops[number]]
            choose.at(found, begin[mine], codes[mine])  # type: ignore[attr-defined]
            choose.at(found, end[mine] - (1 << number), codes[mine])  # type: ignore[attr-defined]
            if number > 0:
                half = 1 << (number - 1)
                lower = found.copy()
                choose(lower[half:], found[:-half], out=lower[half:])
                found = lower
        return found

    def distinct(self, groups: Integers, present: Flags) -> Integers:
        """Return how many different groups are among the flagged rows that each label sees.

        The ranges of the rows of one group are cut where they overlap, so that each label lies in
        one of them at most; then they are counted.

        Args:
            groups: What is the same, as a number; rows of different keys never share one.
            present: The rows that count at all.
        """
        begin, end = self.covered
        rows = np.flatnonzero(present & (begin < end))
        group, begin, end = groups[rows], begin[rows], end[rows]
        order = np.lexsort((begin, group))
        group, begin, end = group[order], begin[order], end[order]
        width = self.labels + 1
        furthest = np.maximum.accumulate(group * width + end)
        reached = np.zeros(len(rows), np.int64)
        reached[1:] = np.maximum(furthest[:-1] - group[1:] * width, 0)
        begin = np.maximum(begin, reached)
        fresh = begin < end
        change = np.bincount(begin[fresh], minlength=width)
        change -= np.bincount(end[fresh], minlength=width)
        return np.cumsum(change)[: self.labels]

    def newest(self, present: Flags, n: int) -> Integers:
        """Return the numbers of the last ``n`` flagged rows that each label sees.

        Shape (labels, n), the newest last; -1 fills the front where there are fewer. Each label
        walks back through the rows of its key, past those that are not known yet or replaced.
        """
        rows = np.flatnonzero(present)
        numbers = np.cumsum(present) - 1
        begin, end = self.covered
        begin, end = begin[rows], end[rows]
        place = self.extremes(numbers, present, np.maximum, neutral=-1)
        oldest = self.extremes(numbers, present, np.minimum, neutral=len(rows))
        found = np.full((self.labels, n), -1, np.int64)
        free = np.full(self.labels, n, np.int64)
        walking = np.flatnonzero(place >= 0)
        while len(walking):
            at = place[walking]
            seen = (begin[at] <= walking) & (walking < end[at])
            hit = walking[seen]
            free[hit] -= 1
            found[hit, free[hit]] = rows[place[hit]]
            place[walking] -= 1
            goes_on = (free[walking] > 0) & (place[walking] >= oldest[walking])
            walking = walking[goes_on]
        return found


def _prefix(values: Integers) -> Integers:
    """Return the sums of the first 0, 1, 2, ... values."""
    sums = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=sums[1:])
    return sums


def window_of(
    rows: Rows, labels: Labels, *, keys: int, over: int | None, offset: int = 0
) -> Window:
    """Return which rows lie in ``(t - offset - over, t - offset]`` and are known at ``t``.

    Args:
        rows: The rows of a chunk.
        labels: The labels of the same chunk.
        keys: How many keys there are; keys are numbers below it.
        over: The window's length in microseconds; None has no beginning.
        offset: How long before the label the window ends, in microseconds.

    Raises:
        TooLong: The chunk has to be cut.
    """
    if rows.known is None and rows.replaced is None:
        axis = Axis(rows.key, rows.event, keys=keys)
        newest = labels.time - offset
        entered = axis.before(labels.key, newest + 1)
        if over is None:
            oldest = np.full(len(newest), np.iinfo(np.int64).min // 2)
        else:
            oldest = newest - over
        return Window(len(rows.key), entered, axis.before(labels.key, oldest + 1))
    axis = Axis(labels.key, labels.time, keys=keys)
    start = rows.event + offset
    if rows.known is not None:
        start = np.maximum(start, rows.known)
    stop = np.full(len(rows.key), NEVER // 2)
    if over is not None:
        stop = rows.event + offset + over
    if rows.replaced is not None:
        stop = np.minimum(stop, rows.replaced)
    begin = axis.before(rows.key, start)
    end = np.maximum(axis.before(rows.key, stop), begin)
    return _window_of_ranges(begin, end, labels=len(labels.key))


def _window_of_ranges(begin: Integers, end: Integers, *, labels: int) -> Window:
    return Window(
        rows=len(begin),
        entered=np.cumsum(np.bincount(begin, minlength=labels + 1))[:labels],
        left=np.cumsum(np.bincount(end, minlength=labels + 1))[:labels],
        entering=np.argsort(begin, kind="stable"),
        leaving=np.argsort(end, kind="stable"),
    )
