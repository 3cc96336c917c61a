"""A sorted stream of rows and labels, cut into parts that are worth a call of the kernel.

A part ends where a group does. A group that is too large for that is cut where its time changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featurestore.aggregates.arrays import Flags

# Columns of the stream. Of a row ``MOMENT`` is twice its time in microseconds, of a label one more,
# so that labels come after the rows of their moment; that of a label without a time is null.
GROUP, MOMENT, KNOWN, TIE = "__fs_group", "__fs_moment", "__fs_known", "__fs_tie"
CHUNK_ROWS = 60_000
# A group with so many rows and labels is cut into parts of fewer.
GROUP_ROWS, PART_ROWS = 1_000_000, 250_000


@dataclass(frozen=True)
class Part:
    """Some rows of the stream: whole groups, or a part of one.

    Attributes:
        rows: The rows and labels.
        begins: Whether the part begins where a group does.
        ends: Whether it ends where a group does.
    """

    rows: pa.Table
    begins: bool = True
    ends: bool = True

    @property
    def is_whole(self) -> bool:
        """Whether no group goes beyond the part."""
        return self.begins and self.ends


def parts_of(batches: Iterator[pa.RecordBatch]) -> Iterator[Part]:
    """Yield the parts of a stream, in its order."""
    held: list[pa.RecordBatch] = []
    # How many rows are held, where the last group of them begins, and whether the first goes on.
    rows = last = 0
    goes_on = False
    for batch in batches:
        if not batch.num_rows:
            continue
        first = _first_of_last_group(batch)
        if first > 0 or _begins_group(held, batch):
            last = rows + first
        held.append(batch)
        rows += batch.num_rows
        if last >= CHUNK_ROWS or (last > 0 and (goes_on or rows - last >= GROUP_ROWS)):
            table = pa.Table.from_batches(held)
            yield from _ended(table.slice(0, last), goes_on)
            held, goes_on = table.slice(last).to_batches(), False
            rows, last = rows - last, 0
        if last == 0 and rows >= (PART_ROWS if goes_on else GROUP_ROWS):
            table = pa.Table.from_batches(held)
            start = 0
            for stop in _changes_of_time(table):
                yield Part(table.slice(start, stop - start), begins=not goes_on, ends=False)
                start, goes_on = stop, True
            held, rows = table.slice(start).to_batches(), rows - start
    if held:
        yield from _ended(pa.Table.from_batches(held), goes_on)


def _ended(table: pa.Table, goes_on: bool) -> Iterator[Part]:
    """Yield rows that end where a group does; what ends a cut group is a part of its own."""
    if not goes_on:
        yield Part(table)
        return
    changes = np.flatnonzero(differs(table.column(GROUP).combine_chunks()))
    end = int(changes[1]) if len(changes) > 1 else table.num_rows
    yield Part(table.slice(0, end), begins=False)
    if end < table.num_rows:
        yield Part(table.slice(end))


def _changes_of_time(table: pa.Table) -> list[int]:
    """Return places at which another time begins, where possible with a part's rows between."""
    moments = table.column(MOMENT).combine_chunks()
    changes = np.flatnonzero(differs(pc.shift_right(moments, 1)))[1:]
    places, start = [], 0
    while table.num_rows - start >= PART_ROWS:
        nearest = int(np.searchsorted(changes, start + PART_ROWS, side="right")) - 1
        if nearest < 0 or changes[nearest] <= start:
            nearest += 1
        if nearest == len(changes):
            break
        start = int(changes[nearest])
        places.append(start)
    return places


def _first_of_last_group(batch: pa.RecordBatch) -> int:
    """Return where the last group of a batch begins; 0 where it may have begun before."""
    changes = np.flatnonzero(differs(batch.column(GROUP)))
    return int(changes[-1])


def _begins_group(held: Sequence[pa.RecordBatch], batch: pa.RecordBatch) -> bool:
    if not held:
        return False
    previous = held[-1].column(GROUP)
    return bool(previous[len(previous) - 1] != batch.column(GROUP)[0])


def differs(column: pa.Array) -> Flags:
    """Return where a value differs from the one before it; the first does.

    >>> differs(pa.array([1, 1, None, None, 2])).tolist()
    [True, False, True, False, True]
    """
    found = np.ones(len(column), bool)
    if len(column) > 1:
        before, after = column.slice(0, len(column) - 1), column.slice(1)
        unequal = pc.fill_null(pc.not_equal(before, after), False)
        if column.null_count:
            unequal = pc.or_(unequal, pc.xor(before.is_null(), after.is_null()))
        found[1:] = np.asarray(unequal.to_numpy(zero_copy_only=False), bool)
    return found
