"""The sorted stream of rows and labels: its blocks, which are kernel inputs, and its events.

A block ends at the end of a group. Groups that are too large are split where the time changes. An
event is a row with the time at which a later version replaces it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featurestore.aggregates.arrays import Flags, Integers, combined_codes, to_flags, to_integers
from featurestore.aggregates.chunk import NEVER, Aggregate, KeyRows, Labels, Totals
from featurestore.aggregates.kernel import aggregate
from featurestore.errors import InvalidArgument

_MIN_INT64 = np.iinfo(np.int64).min
# Columns of the stream. ``STREAM_TIME`` is twice the time of a row in microseconds, plus one for a
# label, so that labels follow the rows of the same time; it is null for labels without a time.
GROUP, STREAM_TIME, AVAILABLE, TIE = "__fs_group", "__fs_moment", "__fs_known", "__fs_tie"
# Measured: smaller blocks spend more time between calls of numpy, larger ones exceed the cache.
CHUNK_ROWS = 120_000
# Groups with at least this many rows and labels are split into smaller blocks.
GROUP_ROWS, BLOCK_ROWS = 1_000_000, 250_000


@dataclass(frozen=True)
class StreamBlock:
    """A block of the stream: complete groups, or a section of one group.

    Attributes:
        rows: The rows and labels.
        begins: Whether the block starts at the start of a group.
        ends: Whether the block ends at the end of a group.
    """

    rows: pa.Table
    begins: bool = True
    ends: bool = True

    @property
    def is_complete(self) -> bool:
        """Whether all groups in the block are complete."""
        return self.begins and self.ends


def split_stream(batches: Iterator[pa.RecordBatch]) -> Iterator[StreamBlock]:
    """Split a stream into blocks, in order."""
    buffered: list[pa.RecordBatch] = []
    # The buffered rows, the start of their last group, and whether their first group is continued.
    rows = last_group_start = 0
    is_continued = False
    for batch in batches:
        if not batch.num_rows:
            continue
        # The start of the last group in the batch; 0 if it may continue the previous batch.
        first = int(np.flatnonzero(value_changes(batch.column(GROUP)))[-1])
        if first > 0 or _begins_group(buffered, batch):
            last_group_start = rows + first
        buffered.append(batch)
        rows += batch.num_rows
        if last_group_start >= CHUNK_ROWS or (
            last_group_start > 0 and (is_continued or rows - last_group_start >= GROUP_ROWS)
        ):
            table = pa.Table.from_batches(buffered)
            yield from _complete_groups(table.slice(0, last_group_start), is_continued)
            buffered, is_continued = table.slice(last_group_start).to_batches(), False
            rows, last_group_start = rows - last_group_start, 0
        if last_group_start == 0 and rows >= (BLOCK_ROWS if is_continued else GROUP_ROWS):
            table = pa.Table.from_batches(buffered)
            start = 0
            # All versions of an event have one time, so a split where the time changes keeps them
            # in one block.
            for stop in _find_time_changes(table):
                yield StreamBlock(
                    table.slice(start, stop - start), begins=not is_continued, ends=False
                )
                start, is_continued = stop, True
            buffered, rows = table.slice(start).to_batches(), rows - start
    if buffered:
        yield from _complete_groups(pa.Table.from_batches(buffered), is_continued)


def _complete_groups(table: pa.Table, is_continued: bool) -> Iterator[StreamBlock]:
    """Yield blocks that end with a group; the end of a split group is a separate block."""
    if not is_continued:
        yield StreamBlock(table)
        return
    changes = np.flatnonzero(value_changes(table.column(GROUP).combine_chunks()))
    end = int(changes[1]) if len(changes) > 1 else table.num_rows
    # The rest of a split group needs its state, so it is not combined with complete groups.
    yield StreamBlock(table.slice(0, end), begins=False)
    if end < table.num_rows:
        yield StreamBlock(table.slice(end))


def _find_time_changes(table: pa.Table) -> list[int]:
    """Return positions where the time changes, about ``BLOCK_ROWS`` apart."""
    times = table.column(STREAM_TIME).combine_chunks()
    changes = np.flatnonzero(value_changes(pc.shift_right(times, 1)))[1:]
    positions, start = [], 0
    while table.num_rows - start >= BLOCK_ROWS:
        nearest = int(np.searchsorted(changes, start + BLOCK_ROWS, side="right")) - 1
        # Without a change within the block size, the block extends to the next change.
        if nearest < 0 or changes[nearest] <= start:
            nearest += 1
        if nearest == len(changes):
            break
        start = int(changes[nearest])
        positions.append(start)
    return positions


def _begins_group(buffered: Sequence[pa.RecordBatch], batch: pa.RecordBatch) -> bool:
    if not buffered:
        return False
    previous = buffered[-1].column(GROUP)
    return bool(previous[len(previous) - 1] != batch.column(GROUP)[0])


def value_changes(column: pa.Array) -> Flags:
    """Return which values differ from the preceding value; the first value always differs.

    >>> value_changes(pa.array([1, 1, None, None, 2])).tolist()
    [True, False, True, False, True]
    """
    flags = np.ones(len(column), bool)
    if len(column) > 1:
        previous, current = column.slice(0, len(column) - 1), column.slice(1)
        unequal = pc.fill_null(pc.not_equal(previous, current), False)
        # not_equal is null if a value is null. A change between null and a value counts; null after
        # null does not.
        if column.null_count:
            unequal = pc.or_(unequal, pc.xor(previous.is_null(), current.is_null()))
        flags[1:] = np.asarray(unequal.to_numpy(zero_copy_only=False), bool)
    return flags


@dataclass(frozen=True)
class NumberedBlock:
    """The rows and labels of a block, with numbers for their keys.

    Attributes:
        table: The rows and labels, as in the stream.
        key: The key number of each row and label; -1 for null keys.
        keys: The number of keys.
        time: The time of each row and label, 0 if it is null.
        has_time: Whether the time is not null.
        is_label: Which positions of the table are labels.
        row_numbers: The positions of the rows.
        label_numbers: The positions of the labels with a key and a time, by key and time.
    """

    table: pa.Table
    key: Integers
    keys: int
    time: Integers
    has_time: Flags
    is_label: Flags
    row_numbers: Integers
    label_numbers: Integers


@dataclass(frozen=True)
class StreamEvents:
    """Rows of a table that at least one label may include: keys, times and table positions."""

    rows: KeyRows
    table: pa.Table
    positions: Integers

    def select(self, mask: Flags) -> StreamEvents:
        """Select events by a mask."""
        rows = self.rows
        available, replaced = rows.available, rows.replaced
        if available is not None:
            available = available[mask]
        if replaced is not None:
            replaced = replaced[mask]
        selected = KeyRows(rows.key[mask], rows.event[mask], available, replaced)
        return StreamEvents(selected, self.table, self.positions[mask])

    def column(self, name: str) -> pa.Array:
        """Return a column of the events."""
        values = self.table.column(name)
        if not self._is_table:
            values = values.take(pa.array(self.positions))
        return values.combine_chunks()

    def to_table(self) -> pa.Table:
        """Return the events as a table."""
        return self.table if self._is_table else self.table.take(pa.array(self.positions))

    @cached_property
    def _is_table(self) -> bool:
        """Whether the events are all rows of the table, in order, so that no copy is needed."""
        return np.array_equal(self.positions, np.arange(self.table.num_rows))


@dataclass(frozen=True)
class AggregateRequest:
    """Aggregates over the rows of a group; see the attributes of ``WindowFeatures``."""

    members: int
    filters_created_time: bool
    rejects_ties: bool
    aggregates: tuple[Aggregate, ...]
    conditions: int
    group: str

    def events(
        self, table: pa.Table, key: Integers, time: Integers, rows: Integers
    ) -> StreamEvents:
        """Return the rows that any label may include, in the order that the kernel requires.

        Args:
            table: KeyRows of the stream.
            key: The key number of each row.
            time: The event time of each row.
            rows: The positions of the rows to use.
        """
        # A row without created time never becomes available.
        if self.filters_created_time:
            is_available = to_flags(table.column(AVAILABLE).is_valid())
            rows = rows[is_available[rows]]
        row_key, row_time = key[rows], time[rows]
        available = _column_or_zeros(table, AVAILABLE)[rows]
        # The engine has sorted by group and time. Only ties and colliding keys need another sort.
        if not is_sorted(row_key, row_time, strictly=True):
            tie = _column_or_zeros(table, TIE)[rows]
            order = np.lexsort((tie, available, row_time, row_key))
            rows, available = rows[order], available[order]
            row_key, row_time = row_key[order], row_time[order]
        replaced = self._replacement_times(table, row_key, row_time, available, rows)
        if replaced is not None:
            # Rows that no label can include are removed before their values are read.
            current = replaced > _MIN_INT64
            rows, replaced, available = rows[current], replaced[current], available[current]
            row_key, row_time = row_key[current], row_time[current]
            # If no version replaces another later, the kernel can use its faster row ranges.
            if not (replaced < NEVER).any():
                replaced = None
        available_times = available if self.filters_created_time else None
        return StreamEvents(KeyRows(row_key, row_time, available_times, replaced), table, rows)

    def aggregate(
        self,
        events: StreamEvents,
        labels: Labels,
        *,
        keys: int,
        aggregates: Sequence[Aggregate],
        carried: Mapping[tuple[int, int | None], Totals] | None = None,
    ) -> list[pa.Array]:
        """Compute some of the aggregates for labels."""
        values, conditions = self.columns(events)
        return aggregate(
            events.rows,
            labels,
            keys=keys,
            columns=values,
            aggregates=aggregates,
            conditions=conditions,
            base_totals=carried,
        )

    def columns(self, events: StreamEvents) -> tuple[list[pa.Array], list[pa.Array]]:
        """Return the value columns and the condition columns of events."""
        count = 1 + max([aggregate.values for aggregate in self.aggregates], default=-1)
        values = [events.column(f"v{number}") for number in range(count)]
        return values, [events.column(f"w{number}") for number in range(self.conditions)]

    def _replacement_times(
        self, table: pa.Table, key: Integers, time: Integers, available: Integers, rows: Integers
    ) -> Integers | None:
        """Return the time at which a later version replaces each row; None without versions.

        The minimum integer marks a row that is never included, because its successor is available
        as early as the row itself.
        """
        is_same = (key[1:] == key[:-1]) & (time[1:] == time[:-1])
        if not is_same.any():
            return None
        is_tied = np.append(is_same, False) | np.append(False, is_same)
        # Equal times are rare, so only tied rows are encoded and sorted.
        tied = np.flatnonzero(is_tied)
        columns = [table.column(f"m{number}") for number in range(self.members)]
        member = combined_codes(
            [column.take(pa.array(rows[tied])) for column in columns], len(tied)
        )
        # Sort versions of the same event next to each other, in the order of their availability.
        order = np.lexsort((np.arange(len(tied)), member, time[tied], key[tied]))
        tied, member = tied[order], member[order]
        is_version = (
            (key[tied[1:]] == key[tied[:-1]])
            & (time[tied[1:]] == time[tied[:-1]])
            & (member[1:] == member[:-1])
        )
        if not is_version.any():
            return None
        if self.rejects_ties:
            raise InvalidArgument(
                f"Feature group {self.group!r} has several rows with the same key and event time. "
                "They may be different events or versions of one event.",
                hint="add a column that identifies events to primary_key, or declare created_time",
            )
        replaced = np.full(len(rows), NEVER)
        earlier = tied[:-1][is_version]
        later = tied[1:][is_version]
        if self.filters_created_time:
            start = np.maximum(available[earlier], time[earlier])
            next_start = np.maximum(available[later], time[later])
            replaced[earlier] = np.where(next_start > start, next_start, _MIN_INT64)
        else:
            replaced[earlier] = _MIN_INT64
        return replaced


def is_sorted(key: Integers, time: Integers, *, strictly: bool = False) -> bool:
    """Return True if pairs of key and time are ascending; ``strictly`` excludes equal pairs."""
    is_same_key = key[1:] == key[:-1]
    is_later = time[1:] > time[:-1]
    if not strictly:
        is_later |= time[1:] == time[:-1]
    return bool(np.all((key[1:] > key[:-1]) | (is_same_key & is_later)))


def _column_or_zeros(table: pa.Table, name: str) -> Integers:
    if name not in table.column_names:
        return np.zeros(table.num_rows, np.int64)
    return to_integers(table.column(name))
