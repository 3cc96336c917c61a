"""A group that is too large to be held: part after part, with what later labels need of the rows.

``docs/window-aggregates.md`` says which rows are carried from part to part and why that is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from featurestore.aggregates.arrays import Flags, Integers
from featurestore.aggregates.chunk import Aggregate, Totals
from featurestore.aggregates.column_codes import codes_of, flags_of, integers_of
from featurestore.aggregates.events import Events, Question
from featurestore.aggregates.parts import MOMENT
from featurestore.aggregates.ranges import NEVER, Labels, Rows
from featurestore.aggregates.summaries import PICKING, rows_that_answer, totals_of

Condition = tuple[int, int | None]


@dataclass(frozen=True)
class Segment:
    """Rows of one key that have settled: all are known, and none is replaced any more.

    Attributes:
        first: The least event time.
        last: The greatest.
        rows: Themselves; None where every window sees all of them or none from now on.
        picked: Those that answer for all where values are picked.
        totals: What all of them add where values are summed, by column and condition.
    """

    first: int
    last: int
    rows: pa.Table | None
    picked: pa.Table
    totals: dict[Condition, Totals]

    def is_inside(self, each: Aggregate, first: int, last: int) -> bool:
        """Tell whether an aggregate counts every row for all labels between two times."""
        ended = self.last <= first - each.offset
        return ended and (each.over is None or self.first > last - each.offset - each.over)

    def is_outside(self, each: Aggregate, first: int) -> bool:
        """Tell whether an aggregate counts no row for labels from a time on."""
        return each.over is not None and self.last <= first - each.offset - each.over


@dataclass
class _Key:
    """What is carried of one key."""

    segments: list[Segment] = field(default_factory=list)
    # Rows of which a later label may see what the labels before it do not.
    unsettled: pa.Table | None = None


class CutGroup:
    """Answers the parts of one group, in their order.

    Args:
        question: What is asked.
        keys: The names of the key columns.
    """

    def __init__(self, question: Question, keys: Sequence[str]) -> None:
        self._question = question
        self._names = list(keys)
        self._seen: pa.Table | None = None
        self._keys: list[_Key] = []
        self._reach = _reach(question.aggregates)

    def answers(
        self, part: pa.Table, key: Integers, time: Integers, rows: Integers, asked: Integers
    ) -> list[pa.Array]:
        """Return the answers for the labels of a part, in the order of their keys and times.

        Args:
            part: Rows and labels of the stream.
            key: A number for the key of each; -1 where it is null.
            time: Their times.
            rows: Which of them are rows.
            asked: Which of them are labels with a key and a time, by key and time.
        """
        narrow = part.select([name for name in part.column_names if name[0] not in "kc"])
        has_time = flags_of(part.column(MOMENT).is_valid())
        found: list[list[pa.Array]] = []
        for number, state in self._states(part, key):
            mine = rows[key[rows] == number]
            times = time[asked[key[asked] == number]]
            given = narrow.take(pa.array(mine))
            if len(times):
                found.append(self._of_key(state, given, times))
            if len(mine):
                self._absorb(state, given, int(time[has_time].max()))
        nothing = self._kernel(
            [narrow.slice(0, 0)], np.zeros(1, np.int64), self._question.aggregates, {}
        )
        answers = []
        for place, empty in enumerate(nothing):
            answers.append(pa.concat_arrays([*[each[place] for each in found], empty]))
        return answers

    def _states(self, part: pa.Table, key: Integers) -> list[tuple[int, _Key]]:
        """Return the numbers of the keys of a part, in their order, with what is carried."""
        numbers, firsts = np.unique(key, return_index=True)
        firsts, numbers = firsts[numbers >= 0], numbers[numbers >= 0]
        mine = part.select(self._names).take(pa.array(firsts))
        known = mine.slice(0, 0) if self._seen is None else self._seen
        both = pa.concat_tables([known, mine])
        codes = codes_of(both.columns, both.num_rows)
        places = {int(code): place for place, code in enumerate(codes[: known.num_rows])}
        fresh, found = [], []
        for place, number in enumerate(numbers):
            code = int(codes[known.num_rows + place])
            if code not in places:
                places[code] = len(self._keys)
                self._keys.append(_Key())
                fresh.append(place)
            found.append((int(number), self._keys[places[code]]))
        self._seen = pa.concat_tables([known, mine.take(pa.array(fresh, pa.int64()))])
        return found

    def _of_key(self, state: _Key, given: pa.Table, times: Integers) -> list[pa.Array]:
        """Return the answers for labels of one key, of whose rows some are given now."""
        tables = [given]
        if state.unsettled is not None:
            tables.append(state.unsettled)
        aggregates = self._question.aggregates
        if not state.segments:
            return self._kernel(tables, times, aggregates, {})
        found: dict[int, pa.Array] = {}
        for numbers in self._by_road():
            mine = [aggregates[number] for number in numbers]
            answers = self._of_window(state.segments, tables, times, mine)
            found.update(zip(numbers, answers, strict=True))
        return [found[number] for number in range(len(aggregates))]

    def _by_road(self) -> list[list[int]]:
        """Return the numbers of aggregates over one window, those that pick values apart."""
        roads: dict[tuple[int | None, int, bool], list[int]] = {}
        for number, each in enumerate(self._question.aggregates):
            road = (each.over, each.offset, each.function in PICKING)
            roads.setdefault(road, []).append(number)
        return list(roads.values())

    def _of_window(
        self,
        segments: Sequence[Segment],
        tables: Sequence[pa.Table],
        times: Integers,
        aggregates: Sequence[Aggregate],
    ) -> list[pa.Array]:
        """Return the answers of aggregates over one window."""
        window, first, last = aggregates[0], int(times.min()), int(times.max())
        looked_at = list(tables)
        totals: dict[Condition, Totals] = {}
        for segment in segments:
            if segment.is_outside(window, first):
                continue
            if not segment.is_inside(window, first, last):
                assert segment.rows is not None
                looked_at.append(segment.rows)
            elif window.function in PICKING:
                looked_at.append(segment.picked)
            else:
                totals = _plus(totals, segment.totals)
        return self._kernel(looked_at, times, aggregates, totals)

    def _kernel(
        self,
        tables: Sequence[pa.Table],
        times: Integers,
        aggregates: Sequence[Aggregate],
        totals: dict[Condition, Totals],
    ) -> list[pa.Array]:
        """Return what some aggregates answer for labels of one key."""
        events = self._events(pa.concat_tables(tables))
        labels = Labels(np.zeros(len(times), np.int64), times)
        return self._question.answers(events, labels, keys=1, aggregates=aggregates, carried=totals)

    def _events(self, table: pa.Table) -> Events:
        every = np.arange(table.num_rows)
        time = integers_of(table.column(MOMENT)) >> 1
        return self._question.events(table, np.zeros(len(every), np.int64), time, every)

    # ---- what is carried

    def _absorb(self, state: _Key, given: pa.Table, end: int) -> None:
        """Carry rows of one key; the next labels come after a time."""
        waiting = []
        for table in (state.unsettled, given):
            if table is None:
                continue
            events = self._events(table)
            settled, gone = _settled(events, end)
            if settled.any():
                state.segments.append(self._segment(events.of(settled)))
            if not (settled | gone).all():
                waiting.append(table.take(pa.array(events.positions[~(settled | gone)])))
        state.unsettled = pa.concat_tables(waiting) if waiting else None
        passed = [each for each in state.segments if each.last + self._reach <= end]
        needed = [each for each in state.segments if each.last + self._reach > end]
        if passed:
            state.segments = [*self._merged(passed), *needed]

    def _segment(self, events: Events) -> Segment:
        values, conditions = self._question.columns(events)
        summing: dict[Condition, list[Aggregate]] = {}
        for each in self._question.aggregates:
            if each.function not in PICKING:
                summing.setdefault((each.values, each.condition), []).append(each)
        alone = Rows(events.rows.key, events.rows.event)
        totals = {}
        for condition, aggregates in summing.items():
            totals[condition] = totals_of(
                alone, columns=values, conditions=conditions, aggregates=aggregates
            )
        times = events.rows.event
        picked = self._picked(events, self._question.aggregates)
        rows = events.table.take(pa.array(events.positions))
        return Segment(int(times[0]), int(times[-1]), rows, picked, totals)

    def _picked(self, events: Events, aggregates: Sequence[Aggregate]) -> pa.Table:
        """Return the rows that answer for all events where values are picked."""
        picking = [each for each in aggregates if each.function in PICKING]
        values, conditions = self._question.columns(events)
        numbers = rows_that_answer(values, conditions, picking)
        return events.table.take(pa.array(events.positions[numbers]))

    def _merged(self, passed: Sequence[Segment]) -> list[Segment]:
        """Return one segment for all that only windows without a beginning count from now on."""
        endless = [each for each in self._question.aggregates if each.over is None]
        if not endless:
            return []
        if len(passed) == 1 and passed[0].rows is None:
            return list(passed)
        events = self._events(pa.concat_tables([each.picked for each in passed]))
        totals: dict[Condition, Totals] = {}
        for each in passed:
            totals = _plus(totals, each.totals)
        first = min(each.first for each in passed)
        last = max(each.last for each in passed)
        return [Segment(first, last, None, self._picked(events, endless), totals)]


def _settled(events: Events, end: int) -> tuple[Flags, Flags]:
    """Return which events count for all labels after a time alike, and which for none."""
    rows = events.rows
    settled = np.ones(len(rows.event), bool)
    gone = np.zeros(len(rows.event), bool)
    if rows.known is not None:
        settled &= rows.known <= end
    if rows.replaced is not None:
        settled &= rows.replaced == NEVER
        gone = rows.replaced <= end
    return settled, gone


def _plus(one: dict[Condition, Totals], other: dict[Condition, Totals]) -> dict[Condition, Totals]:
    found = dict(one)
    for condition, totals in other.items():
        found[condition] = found.get(condition, Totals()).plus(totals)
    return found


def _reach(aggregates: Sequence[Aggregate]) -> int:
    """Return how long after a row the last window begins to end: then none has a part of it."""
    reach = 0
    for each in aggregates:
        reach = max(reach, each.offset + (each.over or 0))
    return reach
