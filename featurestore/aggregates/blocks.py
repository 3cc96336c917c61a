"""Splits the sorted stream of rows and labels into blocks, each the input of one kernel call.

A block ends at the end of a group. Groups that are too large are split where the time changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featurestore.aggregates.column_codes import Flags

# Columns of the stream. Of a row ``MOMENT`` is twice its time in microseconds, of a label one more,
# so that labels come after the rows of their moment; that of a label without a time is null.
GROUP, STREAM_TIME, AVAILABLE, TIE = "__fs_group", "__fs_moment", "__fs_known", "__fs_tie"
CHUNK_ROWS = 60_000
# A group with this many rows and labels is split into smaller blocks.
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
        """Whether all groups of the block are complete."""
        return self.begins and self.ends


def split_stream(batches: Iterator[pa.RecordBatch]) -> Iterator[StreamBlock]:
    """Yield the blocks of a stream, in order."""
    buffered: list[pa.RecordBatch] = []
    # The buffered rows, the start of their last group, and whether their first group is continued.
    rows = last_group_start = 0
    is_continued = False
    for batch in batches:
        if not batch.num_rows:
            continue
        first = _first_of_last_group(batch)
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
            for stop in _time_changes(table):
                yield StreamBlock(
                    table.slice(start, stop - start), begins=not is_continued, ends=False
                )
                start, is_continued = stop, True
            buffered, rows = table.slice(start).to_batches(), rows - start
    if buffered:
        yield from _complete_groups(pa.Table.from_batches(buffered), is_continued)


def _complete_groups(table: pa.Table, is_continued: bool) -> Iterator[StreamBlock]:
    """Yield blocks of rows that end with a group; the end of a split group is a separate block."""
    if not is_continued:
        yield StreamBlock(table)
        return
    changes = np.flatnonzero(value_changes(table.column(GROUP).combine_chunks()))
    end = int(changes[1]) if len(changes) > 1 else table.num_rows
    yield StreamBlock(table.slice(0, end), begins=False)
    if end < table.num_rows:
        yield StreamBlock(table.slice(end))


def _time_changes(table: pa.Table) -> list[int]:
    """Return positions where the time changes, about ``BLOCK_ROWS`` apart."""
    times = table.column(STREAM_TIME).combine_chunks()
    changes = np.flatnonzero(value_changes(pc.shift_right(times, 1)))[1:]
    positions, start = [], 0
    while table.num_rows - start >= BLOCK_ROWS:
        nearest = int(np.searchsorted(changes, start + BLOCK_ROWS, side="right")) - 1
        if nearest < 0 or changes[nearest] <= start:
            nearest += 1
        if nearest == len(changes):
            break
        start = int(changes[nearest])
        positions.append(start)
    return positions


def _first_of_last_group(batch: pa.RecordBatch) -> int:
    """Return the start of the last group of a batch; 0 if it may continue the previous batch."""
    changes = np.flatnonzero(value_changes(batch.column(GROUP)))
    return int(changes[-1])


def _begins_group(buffered: Sequence[pa.RecordBatch], batch: pa.RecordBatch) -> bool:
    if not buffered:
        return False
    previous = buffered[-1].column(GROUP)
    return bool(previous[len(previous) - 1] != batch.column(GROUP)[0])


def value_changes(column: pa.Array) -> Flags:
    """Return which values differ from the previous value; the first one does.

    >>> value_changes(pa.array([1, 1, None, None, 2])).tolist()
    [True, False, True, False, True]
    """
    flags = np.ones(len(column), bool)
    if len(column) > 1:
        previous, current = column.slice(0, len(column) - 1), column.slice(1)
        unequal = pc.fill_null(pc.not_equal(previous, current), False)
        if column.null_count:
            unequal = pc.or_(unequal, pc.xor(previous.is_null(), current.is_null()))
        flags[1:] = np.asarray(unequal.to_numpy(zero_copy_only=False), bool)
    return flags
