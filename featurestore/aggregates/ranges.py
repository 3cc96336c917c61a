"""Which rows count for which labels: positions on one axis of keys and times.

Rows and labels are sorted by key, then time. A row counts for the labels of its key from the moment
on at which it has happened and is known, until it has left the window or a later version of it is
known. So a row covers one range of labels, and where nothing waits to be known, a label covers one
range of rows; either can be turned into the other by counting.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
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


class Summands:
    """A number for each row, whose sums several windows share."""

    def __init__(self, values: Integers) -> None:
        self.values = values
        self._passed: dict[int, tuple[Integers, Integers]] = {}

    @cached_property
    def prefix(self) -> Integers:
        """The sums of the first 0, 1, 2, ... rows."""
        sums = np.zeros(len(self.values) + 1, np.int64)
        np.cumsum(self.values, out=sums[1:])
        return sums

    def passed(self, places: Integers, *, labels: int) -> Integers:
        """Return for each label the sum of the rows whose place is not beyond it."""
        held = self._passed.get(id(places))
        if held is None:
            sums = np.zeros(labels + 1, np.int64)
            np.add.at(sums, places, self.values)
            # The places are held, too, so that no others get their identity.
            held = (places, np.cumsum(sums)[:labels])
            self._passed[id(places)] = held
        return held[1]


class Window(ABC):
    """The rows that count for each label, and what functions ask of them."""

    labels: int
    # Whether rows are seen first in their own order.
    begins_in_order = False

    @property
    @abstractmethod
    def covered(self) -> tuple[Integers, Integers]:
        """For each row the labels that see it: from the first number on, below the second."""

    @abstractmethod
    def totals(self, summands: Summands) -> Integers:
        """Return the sum of the numbers of the rows that each label sees."""

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
        order = np.argsort(group, kind="stable")
        if not self.begins_in_order:
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


class WindowOfRows(Window):
    """Where nothing waits: label ``j`` sees the rows from ``left[j]`` on, below ``entered[j]``."""

    begins_in_order = True

    def __init__(self, entered: Integers, left: Integers, *, rows: int) -> None:
        self.labels = len(entered)
        self._rows = rows
        self._entered, self._left = entered, left

    @cached_property
    def covered(self) -> tuple[Integers, Integers]:
        """For each row the labels that see it: from the first number on, below the second."""
        return self._labels_before(self._entered), self._labels_before(self._left)

    def _labels_before(self, passed: Integers) -> Integers:
        """Return for each row how many labels come before it passes."""
        return np.cumsum(np.bincount(passed, minlength=self._rows + 1))[: self._rows]

    def totals(self, summands: Summands) -> Integers:
        """Return the sum of the numbers of the rows that each label sees."""
        return summands.prefix[self._entered] - summands.prefix[self._left]

    def extremes(
        self, codes: Integers, present: Flags, choose: Callable[..., Integers], *, neutral: int
    ) -> Integers:
        """Return the greatest or smallest code among the flagged rows that each label sees.

        What a label sees is the union of two runs of rows whose length is one power of two. The
        extremes of all runs of one length come from those of half the length.
        """
        found = np.full(self.labels, neutral, np.int64)
        lengths = self._entered - self._left
        seeing = np.flatnonzero(lengths > 0)
        level = np.frexp(lengths[seeing].astype(np.float64))[1].astype(np.int8) - 1
        seeing = seeing[np.argsort(level, kind="stable")]
        first, last = self._left[seeing], self._entered[seeing]
        runs = codes if present.all() else np.where(present, codes, neutral)
        start = 0
        for number, stop in enumerate(np.cumsum(np.bincount(level)).tolist()):
            if number > 0:
                half = 1 << (number - 1)
                runs = choose(runs[:-half], runs[half:])
            if stop > start:
                ends = runs[last[start:stop] - (1 << number)]
                found[seeing[start:stop]] = choose(runs[first[start:stop]], ends)
            start = stop
        return found


class WindowOfLabels(Window):
    """Where rows wait or are replaced: each is seen by a range of labels."""

    def __init__(self, begin: Integers, end: Integers, *, labels: int) -> None:
        self.labels = labels
        self._begin, self._end = begin, end

    @property
    def covered(self) -> tuple[Integers, Integers]:
        """For each row the labels that see it: from the first number on, below the second."""
        return self._begin, self._end

    def totals(self, summands: Summands) -> Integers:
        """Return the sum of the numbers of the rows that each label sees."""
        come = summands.passed(self._begin, labels=self.labels)
        return come - summands.passed(self._end, labels=self.labels)


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
