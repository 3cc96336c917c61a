"""Incremental aggregation of groups that exceed memory, block by block.

Between blocks, only the state that later labels need is retained: totals for sums and counts, and a
sufficient subset of the rows for functions that select values. ``docs/window-aggregates.md``
explains which rows are sufficient, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.aggregates import sums as aggregates_sums
from featurestore.aggregates.arrays import Flags, Integers, combined_codes, to_integers
from featurestore.aggregates.chunk import NEVER, Aggregate, Chunk, KeyRows, Labels, Timeline, Totals
from featurestore.aggregates.counts import count_values, encode_value_groups, sort_codes
from featurestore.aggregates.stream import (
    STREAM_TIME,
    AggregateRequest,
    NumberedBlock,
    StreamEvents,
)

# A label time after all rows.
_LABEL_TIME = int(np.iinfo(np.int64).max) // 4
Condition = tuple[int, int | None]


@dataclass(frozen=True)
class Segment:
    """Settled rows of one key: all are available, and none will be replaced by a later version.

    Attributes:
        first: The minimum event time.
        last: The maximum event time.
        rows: The rows; None if each later window contains either all or none of them.
        summarize: Returns the summary of the rows.
    """

    first: int
    last: int
    rows: pa.Table | None
    summarize: Callable[[], Summary]

    @cached_property
    def summary(self) -> Summary:
        """The state that replaces the rows in windows that contain every row."""
        # Many segments leave the longest window before any window contains all their rows.
        return self.summarize()

    def is_inside(self, aggregate: Aggregate, first: int, last: int) -> bool:
        """Return True if all rows are in the windows of all labels between two times."""
        ended = self.last <= first - aggregate.offset
        return ended and (
            aggregate.over is None or self.first > last - aggregate.offset - aggregate.over
        )

    def is_outside(self, aggregate: Aggregate, first: int) -> bool:
        """Return True if no row is in the window of a label at or after a time."""
        return aggregate.over is not None and self.last <= first - aggregate.offset - aggregate.over


@dataclass(frozen=True)
class Summary:
    """The state of rows that are in a window completely.

    Attributes:
        selected_rows: The rows that suffice for functions that select values.
        totals: The totals of all rows for functions that sum, by column and condition.
    """

    selected_rows: pa.Table
    totals: dict[Condition, Totals]


@dataclass
class _KeyState:
    """The retained state of one key."""

    segments: list[Segment] = field(default_factory=list)
    # Rows that may become available or be replaced for later labels.
    unsettled_rows: pa.Table | None = None


@dataclass
class _KernelRun:
    """Aggregates that one run of the kernel computes, from the rows of some segments."""

    aggregates: list[int] = field(default_factory=list)
    segments: set[int] = field(default_factory=set)


class IncrementalGroup:
    """Incremental aggregation of the blocks of one group, in order.

    Args:
        request: The aggregates and the rules of the group.
        keys: The names of the key columns.
    """

    def __init__(self, request: AggregateRequest, keys: Sequence[str]) -> None:
        self._request = request
        self._key_names = list(keys)
        self._seen_keys: pa.Table | None = None
        self._key_states: list[_KeyState] = []
        # Maximum time for which a bounded window may contain a row.
        extents = [aggregate.offset + (aggregate.over or 0) for aggregate in request.aggregates]
        self._window_extent = max(extents, default=0)

    def add_block(self, block: NumberedBlock) -> Callable[[], list[pa.Array]]:
        """Add the rows of a block; return the function that aggregates its labels.

        Blocks are added in order. The functions may run later, in any order and in any thread. Their
        result is ordered by key and time.
        """
        table = block.table.select(
            [name for name in block.table.column_names if name[0] not in "kc"]
        )
        row_keys, label_keys = block.key[block.row_numbers], block.key[block.label_numbers]
        aggregate_keys: list[Callable[[], list[pa.Array]]] = []
        for key_number, state in self._states(block.table, block.key):
            key_rows = block.row_numbers[row_keys == key_number]
            times = block.time[block.label_numbers[label_keys == key_number]]
            new_rows = table.take(pa.array(key_rows))
            # The labels use the segments of earlier blocks, so the list is copied before the new
            # rows become a segment.
            if len(times):
                tables = [new_rows]
                if state.unsettled_rows is not None:
                    tables.insert(0, state.unsettled_rows)
                segments = list(state.segments)
                aggregate_keys.append(partial(self._aggregate_key, segments, tables, times))
            if len(key_rows):
                # Blocks are split where the time changes, so all later labels are after the last
                # time of this one.
                self._absorb(state, new_rows, int(block.time[block.has_time].max()))
        # The value of a label without key or time, which the caller expects last.
        aggregates = self._request.aggregates
        aggregate_keys.append(
            partial(self._run_kernel, [table.slice(0, 0)], np.zeros(1, np.int64), aggregates, {})
        )

        def aggregate_labels() -> list[pa.Array]:
            arrays_by_key = [compute() for compute in aggregate_keys]
            return list(map(pa.concat_arrays, zip(*arrays_by_key, strict=True)))

        return aggregate_labels

    def _states(self, block: pa.Table, keys: Integers) -> list[tuple[int, _KeyState]]:
        """Return the key numbers of a block, in order, with the state of each key."""
        numbers, first_rows = np.unique(keys, return_index=True)
        first_rows, numbers = first_rows[numbers >= 0], numbers[numbers >= 0]
        block_keys = block.select(self._key_names).take(pa.array(first_rows))
        seen_keys = block_keys.slice(0, 0) if self._seen_keys is None else self._seen_keys
        all_keys = pa.concat_tables([seen_keys, block_keys])
        # Different keys may share the hash of a group. Keys are compared by their values across
        # blocks.
        codes = combined_codes(all_keys.columns, all_keys.num_rows)
        state_numbers = {
            int(code): position for position, code in enumerate(codes[: seen_keys.num_rows])
        }
        new_positions, states = [], []
        for position, key_number in enumerate(numbers):
            code = int(codes[seen_keys.num_rows + position])
            if code not in state_numbers:
                state_numbers[code] = len(self._key_states)
                self._key_states.append(_KeyState())
                new_positions.append(position)
            states.append((int(key_number), self._key_states[state_numbers[code]]))
        self._seen_keys = pa.concat_tables(
            [seen_keys, block_keys.take(pa.array(new_positions, pa.int64()))]
        )
        return states

    def _aggregate_key(
        self, segments: Sequence[Segment], tables: Sequence[pa.Table], times: Integers
    ) -> list[pa.Array]:
        """Aggregate the labels of one key, from its segments and its other rows."""
        aggregates = self._request.aggregates
        arrays_by_number: dict[int, pa.Array] = {}
        for inside, run in self._kernel_runs(segments, int(times.min()), int(times.max())):
            run_aggregates = [aggregates[number] for number in run.aggregates]
            segment_rows = {number: segments[number].rows for number in run.segments}
            totals: dict[Condition, Totals] = {}
            for number in inside:
                summary = segments[number].summary
                if run_aggregates[0].function in SELECTING:
                    segment_rows[number] = summary.selected_rows
                else:
                    totals = _add_totals(totals, summary.totals)
            # Segments are in the order of time, so their rows rarely need another sort.
            ordered_rows = [segment_rows[number] for number in sorted(segment_rows)]
            arrays = self._run_kernel([*ordered_rows, *tables], times, run_aggregates, totals)
            arrays_by_number.update(zip(run.aggregates, arrays, strict=True))
        return [arrays_by_number[number] for number in range(len(aggregates))]

    def _kernel_runs(
        self, segments: Sequence[Segment], first: int, last: int
    ) -> list[tuple[tuple[int, ...], _KernelRun]]:
        """Return the kernel runs for labels between two times, each with its segments inside.

        The kernel shares intermediate results between the aggregates of a run. Windows with the
        same segments inside can share a run: further rows that are outside a window do not change
        its result. If there are segments inside, functions that select values need their selected
        rows, which must not be summed again, so these functions have a run of their own.
        """
        runs: dict[tuple[tuple[int, ...], bool], _KernelRun] = {}
        for aggregate_number, aggregate in enumerate(self._request.aggregates):
            inside, cut = [], []
            for number, segment in enumerate(segments):
                if segment.is_inside(aggregate, first, last):
                    inside.append(number)
                elif not segment.is_outside(aggregate, first):
                    # A window bound is inside the segment, so labels include different parts of
                    # its rows.
                    assert segment.rows is not None
                    cut.append(number)
            key = (tuple(inside), bool(inside) and aggregate.function in SELECTING)
            run = runs.setdefault(key, _KernelRun())
            run.aggregates.append(aggregate_number)
            run.segments.update(cut)
        return [(inside, run) for (inside, _), run in runs.items()]

    def _run_kernel(
        self,
        tables: Sequence[pa.Table],
        times: Integers,
        aggregates: Sequence[Aggregate],
        totals: dict[Condition, Totals],
    ) -> list[pa.Array]:
        """Run the kernel for the labels of one key."""
        events = self._to_events(pa.concat_tables(tables))
        labels = Labels(np.zeros(len(times), np.int64), times)
        return self._request.aggregate(
            events, labels, keys=1, aggregates=aggregates, carried=totals
        )

    def _to_events(self, table: pa.Table) -> StreamEvents:
        row_numbers = np.arange(table.num_rows)
        # STREAM_TIME is twice the time, plus one for labels.
        time = to_integers(table.column(STREAM_TIME)) >> 1
        return self._request.events(table, np.zeros(len(row_numbers), np.int64), time, row_numbers)

    def _absorb(self, state: _KeyState, new_rows: pa.Table, end: int) -> None:
        """Add new rows to the state of a key; all later labels are after ``end``."""
        unsettled_tables = []
        for table in (state.unsettled_rows, new_rows):
            if table is None:
                continue
            events = self._to_events(table)
            settled, dropped = _find_settled(events, end)
            if settled.any():
                state.segments.append(self._to_segment(events.select(settled)))
            if not (settled | dropped).all():
                unsettled_tables.append(events.select(~(settled | dropped)).to_table())
        state.unsettled_rows = pa.concat_tables(unsettled_tables) if unsettled_tables else None
        expired = [
            segment for segment in state.segments if segment.last + self._window_extent <= end
        ]
        current = [
            segment for segment in state.segments if segment.last + self._window_extent > end
        ]
        if expired:
            state.segments = [*self._merge_expired(expired), *current]

    def _to_segment(self, events: StreamEvents) -> Segment:
        """Convert settled events to a segment."""
        times, rows = events.rows.event, events.to_table()
        return Segment(int(times[0]), int(times[-1]), rows, partial(self._summarize, rows))

    def _summarize(self, rows: pa.Table) -> Summary:
        """Return the totals and the selected rows of settled rows."""
        events = self._to_events(rows)
        values, conditions = self._request.columns(events)
        summed: dict[Condition, list[Aggregate]] = {}
        for aggregate in self._request.aggregates:
            if aggregate.function not in SELECTING:
                summed.setdefault((aggregate.values, aggregate.condition), []).append(aggregate)
        # Settled rows are available to all later labels, so only their event times matter.
        rows_alone = KeyRows(events.rows.key, events.rows.event)
        totals = {}
        for condition, aggregates in summed.items():
            totals[condition] = sum_totals(
                rows_alone, columns=values, conditions=conditions, aggregates=aggregates
            )
        return Summary(self._select_rows(events, self._request.aggregates), totals)

    def _select_rows(self, events: StreamEvents, aggregates: Sequence[Aggregate]) -> pa.Table:
        """Return the rows that suffice for functions that select values."""
        selecting = [aggregate for aggregate in aggregates if aggregate.function in SELECTING]
        values, conditions = self._request.columns(events)
        numbers = select_rows(values, conditions, selecting)
        return events.table.take(pa.array(events.positions[numbers]))

    def _merge_expired(self, expired: Sequence[Segment]) -> list[Segment]:
        """Merge segments that only unbounded windows can still contain."""
        unbounded = [aggregate for aggregate in self._request.aggregates if aggregate.over is None]
        if not unbounded:
            return []
        # A merged segment without rows has nothing left to reduce.
        if len(expired) == 1 and expired[0].rows is None:
            return list(expired)
        events = self._to_events(
            pa.concat_tables([segment.summary.selected_rows for segment in expired])
        )
        totals: dict[Condition, Totals] = {}
        for segment in expired:
            totals = _add_totals(totals, segment.summary.totals)
        first = min(segment.first for segment in expired)
        last = max(segment.last for segment in expired)
        summary = Summary(self._select_rows(events, unbounded), totals)
        return [Segment(first, last, None, lambda: summary)]


def _find_settled(events: StreamEvents, end: int) -> tuple[Flags, Flags]:
    """Return which events all labels after a time include, and which events no label includes."""
    rows = events.rows
    settled = np.ones(len(rows.event), bool)
    dropped = np.zeros(len(rows.event), bool)
    if rows.available is not None:
        settled &= rows.available <= end
    if rows.replaced is not None:
        # A row with a later version stays unsettled until that version replaces it.
        settled &= rows.replaced == NEVER
        dropped = rows.replaced <= end
    return settled, dropped


def _add_totals(
    first: dict[Condition, Totals], second: dict[Condition, Totals]
) -> dict[Condition, Totals]:
    merged = dict(first)
    for condition, totals in second.items():
        merged[condition] = merged.get(condition, Totals()).plus(totals)
    return merged


def sum_totals(
    rows: KeyRows,
    *,
    columns: Sequence[pa.Array],
    conditions: Sequence[pa.Array],
    aggregates: Sequence[Aggregate],
) -> Totals:
    """Compute the totals of one key's rows, for aggregates over the same column and condition.

    >>> rows = KeyRows(np.array([0, 0]), np.array([1, 5]))
    >>> sum_totals(rows, columns=[pa.array([1.5, 2.0])], conditions=[],
    ...           aggregates=[Aggregate("mean", 0, over=5)])
    Totals(count=2, sums={'doubles': Fraction(7, 2)}, positive_infinities=0, negative_infinities=0,
    nans=0)
    """
    # A single label whose window contains all rows.
    last_label = Labels(np.zeros(1, np.int64), np.array([_LABEL_TIME]))
    chunk = Chunk(Timeline(rows, last_label, keys=1), rows, columns, conditions)
    totals = Totals()
    for windowed in aggregates:
        unwindowed = replace(windowed, over=None, offset=0)
        dtype = columns[unwindowed.values].type
        is_integer = not pat.is_floating(dtype)
        sums: dict[str, Fraction] = {}
        if unwindowed.function in ("sum", "mean") and is_integer:
            total = aggregates_sums.sum_limbs(
                chunk, unwindowed, "integers", aggregates_sums.integers_to_limbs
            )
            sums["integers"] = total.as_fraction(0)
        elif unwindowed.function != "count":
            sums["doubles"] = aggregates_sums.sum_limbs(
                chunk, unwindowed, "doubles", aggregates_sums.doubles_to_limbs
            ).as_fraction(0)
        if unwindowed.function in ("std", "var"):
            sums["squares"] = aggregates_sums.sum_limbs(
                chunk, unwindowed, "squares", aggregates_sums.squares_to_limbs
            ).as_fraction(0)
        non_finite = [0, 0, 0]
        if unwindowed.function != "count" and not is_integer:
            non_finite = [
                int(counts[0]) for counts in aggregates_sums.non_finite_counts(chunk, unwindowed)
            ]
        count = int(count_values(chunk, unwindowed)[0])
        # Aggregates of one column have equal counts, except 0 where a function needs none.
        totals = Totals(
            count, {**totals.sums, **sums}, *map(max, non_finite, totals.non_finite_counts)
        )
    return totals


def select_rows(
    columns: Sequence[pa.Array], conditions: Sequence[pa.Array], aggregates: Sequence[Aggregate]
) -> Integers:
    """Return the numbers of a subset of rows that gives the same results as all rows.

    The rows have a single key and are in order; the functions select values.

    >>> select_rows([pa.array([3, 1, 1, 2])], [],
    ...                  [Aggregate("max", 0, over=5), Aggregate("last", 0, over=5)]).tolist()
    [0, 3]
    """
    count = len(columns[0])
    rows = KeyRows(np.zeros(count, np.int64), np.arange(count))
    no_labels = Labels(np.zeros(0, np.int64), np.zeros(0, np.int64))
    chunk = Chunk(Timeline(rows, no_labels, keys=1), rows, columns, conditions)
    selected = [np.zeros(0, np.int64)]
    for aggregate in aggregates:
        present = np.flatnonzero(chunk.present(aggregate))
        if len(present):
            selected.append(present[_SELECTORS[aggregate.function](chunk, aggregate, present)])
    return np.unique(np.concatenate(selected))


def _select_extreme(chunk: Chunk, aggregate: Aggregate, present: Integers) -> Integers:
    order = sort_codes(chunk, aggregate)
    choose = np.argmax if aggregate.function == "max" else np.argmin
    return np.array([choose(order[present])])


def _select_distinct(chunk: Chunk, aggregate: Aggregate, present: Integers) -> Integers:
    groups = chunk.cache_per_column(
        aggregate, "groups", lambda: encode_value_groups(chunk, aggregate)
    )
    return np.unique(groups[present], return_index=True)[1].astype(np.int64)


def _select_first_or_last(chunk: Chunk, aggregate: Aggregate, present: Integers) -> Integers:
    """Return the first row, or the last rows."""
    count = len(present)
    if aggregate.function == "first":
        return np.zeros(1, np.int64)
    return np.arange(max(count - max(aggregate.n, 1), 0), count)


_SELECTORS: dict[str, Callable[[Chunk, Aggregate, Integers], Integers]] = {
    "all": _select_distinct,
    "any": _select_distinct,
    "count_distinct": _select_distinct,
    "first": _select_first_or_last,
    "last": _select_first_or_last,
    "last_n": _select_first_or_last,
    "max": _select_extreme,
    "min": _select_extreme,
}
# Functions whose result depends only on the selected rows.
SELECTING = frozenset(_SELECTORS)
