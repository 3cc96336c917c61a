"""What labels see of the rows of a chunk: sums over the rows of each, their extremes, the newest.

A row counts for one range of labels, and where nothing waits to be known, a label sees one range of
rows; ``ranges`` finds them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property

import numpy as np

from featurestore.aggregates.arrays import Flags, Integers


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
