"""Window features over one sorted stream of rows and labels.

An engine puts the rows of a group and the labels into one stream, sorted by a hash of their keys
and by time, and this module turns it into labels with their features: it gathers whole keys until a
chunk is worth a call of the kernel. Engines may use any hash, since only keys that are equal meet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from featurestore.aggregates.kernel import Aggregate, aggregate
from featurestore.aggregates.ranges import NEVER, Flags, Integers, Labels, Rows
from featurestore.errors import InvalidArgument

# Columns of the stream. Of a row ``MOMENT`` is twice its time in microseconds, of a label one more,
# so that labels come after the rows of their moment; that of a label without a time is null.
GROUP, MOMENT, KNOWN, TIE = "__fs_group", "__fs_moment", "__fs_known", "__fs_tie"
_CHUNK_ROWS = 250_000


@dataclass(frozen=True)
class WindowFeatures:
    """Computes window features from a sorted stream; runs where the rows are.

    The stream's columns are ``GROUP``, ``MOMENT``, ``KNOWN`` and ``TIE`` where they are needed,
    then ``k0, k1, ...`` (keys), ``m0, ...`` (what else tells events of one moment apart),
    ``v0, ...`` (values), ``w0, ...`` (conditions), and ``c0, ...`` (the label's columns).

    Attributes:
        schema: Of the result: the label's columns, then one for each aggregate.
        keys: How many key columns there are; 0 where ``GROUP`` is the key itself.
        members: How many columns ``m`` there are; a row with another one's keys, members and event
            time is a version of the same event.
        waits: Whether a row counts only from the time ``KNOWN`` on.
        refuses_ties: Whether two rows of one key and event time are an error: nothing tells whether
            they are two events.
        aggregates: What is asked for; ``values`` and ``condition`` number the columns.
        fills: What stands for null in each result.
        conditions: How many conditions there are.
        group: The group's name, for messages.
    """

    schema: pa.Schema
    keys: int
    members: int
    waits: bool
    refuses_ties: bool
    aggregates: tuple[Aggregate, ...]
    fills: tuple[object, ...]
    conditions: int
    group: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the labels with their features, key by key."""
        for chunk in _whole_groups(batches):
            yield from self._answered(chunk).to_batches()

    def in_threads(
        self, batches: Iterator[pa.RecordBatch], *, threads: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the same; chunks are computed beside each other, one for each thread."""
        if threads <= 1:
            yield from self(batches)
            return
        waiting: deque[Future[pa.Table]] = deque()
        with ThreadPoolExecutor(threads) as pool:
            for chunk in _whole_groups(batches):
                if len(waiting) == threads:
                    yield from waiting.popleft().result().to_batches()
                waiting.append(pool.submit(self._answered, chunk))
            while waiting:
                yield from waiting.popleft().result().to_batches()

    def _answered(self, chunk: pa.Table) -> pa.Table:
        has_time = _flags(chunk.column(MOMENT).is_valid())
        moment = _integers(chunk.column(MOMENT))
        is_label = ~has_time | (moment & 1 == 1)
        carried = len(self.schema) - len(self.aggregates)
        labels = chunk.select([f"c{number}" for number in range(carried)])
        labels = labels.filter(pa.array(is_label))
        key, keys = self._key_numbers(chunk)
        answerable = is_label & (key >= 0) & has_time
        rows = np.flatnonzero(~is_label)
        asked = np.flatnonzero(answerable)
        if not _is_sorted(key[asked], moment[asked]):
            asked = asked[np.lexsort((moment[asked], key[asked]))]
        found = self._aggregated(chunk, key, moment >> 1, rows, asked, keys)
        # Labels without key or time see no row: their answer is the last one.
        place = np.full(chunk.num_rows, len(asked), np.int64)
        place[asked] = np.arange(len(asked))
        taken = pa.array(place[is_label])
        columns = list(labels.columns)
        for answers in found:
            columns.append(answers.take(taken))
        return pa.table(columns, names=self.schema.names).cast(self.schema)

    def _aggregated(
        self,
        chunk: pa.Table,
        key: Integers,
        time: Integers,
        rows: Integers,
        asked: Integers,
        keys: int,
    ) -> list[pa.Array]:
        """Return the answers for the labels asked, and then the one of a label that sees no row."""
        known, tie = _column_or_zeros(chunk, KNOWN), _column_or_zeros(chunk, TIE)
        if self.waits:
            was_known = _flags(chunk.column(KNOWN).is_valid())
            rows = rows[was_known[rows]]
        if not _is_sorted(key[rows], time[rows], strictly=True):
            rows = rows[np.lexsort((tie[rows], known[rows], time[rows], key[rows]))]
        replaced = self._replaced(chunk, key[rows], time[rows], known[rows], rows)
        if replaced is not None:
            current = replaced > np.iinfo(np.int64).min
            rows, replaced = rows[current], replaced[current]
            if not (replaced < NEVER).any():
                replaced = None
        positions = pa.array(rows)
        count = 1 + max([each.values for each in self.aggregates], default=-1)
        values = [_taken(chunk, f"v{number}", positions) for number in range(count)]
        conditions = [_taken(chunk, f"w{each}", positions) for each in range(self.conditions)]
        # One more key without rows, for the label that sees none.
        found = aggregate(
            Rows(key[rows], time[rows], known[rows] if self.waits else None, replaced),
            Labels(np.append(key[asked], keys), np.append(time[asked], 0)),
            keys=keys + 1,
            columns=values,
            aggregates=self.aggregates,
            conditions=conditions,
        )
        answers = []
        for each, fill in zip(found, self.fills, strict=True):
            if fill is not None:
                each = each.fill_null(pa.scalar(fill, each.type))
            answers.append(each)
        return answers

    def _replaced(
        self, chunk: pa.Table, key: Integers, time: Integers, known: Integers, rows: Integers
    ) -> Integers | None:
        """Return from when on another version counts instead of each row; None if none ever does.

        The least integer stands for a row that never counts: its successor is known as early.
        """
        same = (key[1:] == key[:-1]) & (time[1:] == time[:-1])
        if not same.any():
            return None
        shares = np.append(same, False) | np.append(False, same)
        tied = np.flatnonzero(shares)
        columns = [chunk.column(f"m{number}") for number in range(self.members)]
        member = _codes([column.take(pa.array(rows[tied])) for column in columns], len(tied))
        # Rows of one event stand together then, in the order in which they were known.
        order = np.lexsort((np.arange(len(tied)), member, time[tied], key[tied]))
        tied, member = tied[order], member[order]
        is_version = (
            (key[tied[1:]] == key[tied[:-1]])
            & (time[tied[1:]] == time[tied[:-1]])
            & (member[1:] == member[:-1])
        )
        if not is_version.any():
            return None
        if self.refuses_ties:
            raise InvalidArgument(
                f"Feature group {self.group!r} has several rows of one key and event time, and "
                "nothing says whether they are several events or versions of one.",
                hint="declare what tells them apart as part of primary_key, or a created_time",
            )
        found = np.full(len(rows), NEVER)
        earlier = tied[:-1][is_version]
        later = tied[1:][is_version]
        if self.waits:
            start = np.maximum(known[earlier], time[earlier])
            next_start = np.maximum(known[later], time[later])
            found[earlier] = np.where(next_start > start, next_start, np.iinfo(np.int64).min)
        else:
            found[earlier] = np.iinfo(np.int64).min
        return found

    def _key_numbers(self, chunk: pa.Table) -> tuple[Integers, int]:
        """Return a number for each row's key, -1 where a part of it is null, and how many."""
        names = [f"k{number}" for number in range(self.keys)] or [GROUP]
        columns = [chunk.column(name).combine_chunks() for name in names]
        present = np.ones(chunk.num_rows, bool)
        for column in columns:
            present &= _flags(column.is_valid())
        group = chunk.column(GROUP).combine_chunks()
        changes = _differs(group)
        # Where the hash goes on, the key nearly always does, too.
        if not any((_differs(column) & ~changes).any() for column in columns):
            number = np.cumsum(changes) - 1
        else:
            number = _codes(columns, chunk.num_rows)
        keys = int(number.max(initial=-1)) + 1
        return np.where(present, number, -1), keys


def _whole_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield tables of many rows that end where a group does."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        last = _first_of_last_group(batch)
        if rows + last >= _CHUNK_ROWS and (last > 0 or _begins_group(held, batch)):
            whole = [*held, batch.slice(0, last)]
            yield pa.Table.from_batches([each for each in whole if each.num_rows])
            held, rows = [], 0
            batch = batch.slice(last)
        held.append(batch)
        rows += batch.num_rows
    if held:
        yield pa.Table.from_batches(held)


def _first_of_last_group(batch: pa.RecordBatch) -> int:
    """Return where the last group of a batch begins; 0 where it may have begun before."""
    changes = np.flatnonzero(_differs(batch.column(GROUP)))
    return int(changes[-1])


def _begins_group(held: Sequence[pa.RecordBatch], batch: pa.RecordBatch) -> bool:
    if not held:
        return False
    previous = held[-1].column(GROUP)
    return bool(previous[len(previous) - 1] != batch.column(GROUP)[0])


def _differs(column: pa.Array) -> Flags:
    """Return where a value differs from the one before it; the first does."""
    differs = np.ones(len(column), bool)
    if len(column) > 1:
        before, after = column.slice(0, len(column) - 1), column.slice(1)
        unequal = pc.fill_null(pc.not_equal(before, after), False)
        one_null = pc.xor(before.is_null(), after.is_null())
        differs[1:] = _flags(pc.or_(unequal, one_null))
    return differs


def _codes(columns: Sequence[pa.Array | pa.ChunkedArray], rows: int) -> Integers:
    """Return a number for each row; rows whose columns are all equal have the same."""
    numbers = np.zeros(rows, np.int64)
    for column in columns:
        encoded = column.dictionary_encode(null_encoding="encode")
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        indices = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        pairs = numbers * (int(indices.max(initial=0)) + 1) + indices
        numbers = np.unique(pairs, return_inverse=True)[1].astype(np.int64)
    return numbers


def _is_sorted(key: Integers, time: Integers, *, strictly: bool = False) -> bool:
    """Tell whether pairs of key and time ascend; strictly where none occurs twice."""
    same = key[1:] == key[:-1]
    later = time[1:] > time[:-1]
    if not strictly:
        later |= time[1:] == time[:-1]
    return bool(np.all((key[1:] > key[:-1]) | (same & later)))


def _column_or_zeros(chunk: pa.Table, name: str) -> Integers:
    if name not in chunk.column_names:
        return np.zeros(chunk.num_rows, np.int64)
    return _integers(chunk.column(name))


def _taken(chunk: pa.Table, name: str, positions: pa.Array) -> pa.Array:
    taken = chunk.column(name).take(positions)
    return taken.combine_chunks()


def _flags(column: pa.Array | pa.ChunkedArray) -> Flags:
    return np.asarray(column.to_numpy(zero_copy_only=False), bool)


def _integers(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    return np.asarray(pc.fill_null(column, 0).to_numpy(), np.int64)
