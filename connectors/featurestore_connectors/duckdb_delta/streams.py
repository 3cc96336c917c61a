"""Rows out of DuckDB.

Arrow streams with bounded batches, functions over them, mergeable aggregates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Queue
from typing import TYPE_CHECKING, Generic, Self, TypeVar

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.arrow_cast import cast_batch
from featurestore.arrow.arrow_rows import coalesce_batches, copy_sliced_structs
from featurestore.arrow.widths import width_of
from featurestore.plugins.engine import Accumulator, BatchFunction, Relation
from featurestore_connectors.duckdb_delta import failures
from featurestore_connectors.duckdb_delta.failures import error_of_stream, translated
from featurestore_connectors.duckdb_delta.interrupts import interruptible
from featurestore_connectors.duckdb_delta.session import Database, building, query_of

if TYPE_CHECKING:
    import duckdb

State = TypeVar("State")
Result = TypeVar("Result")

BATCH_ROWS = 65_536
_BATCHES_BEHIND = 4
# DuckDB hands out rows in vectors of this many.
_VECTOR_ROWS = 2_048
_BATCH_BYTES = 64 << 20
# What may be held of a relation to be read again. An export needs as much once more while it sorts.
MOST_HELD_BYTES = 256 << 20


def stream(
    database: Database,
    relation: Relation,
    *,
    batch_rows: int = BATCH_ROWS,
    limit: int | None = None,
) -> pa.RecordBatchReader:
    """Return the rows of a relation as batches of its feature types.

    Nothing runs before the first is asked for. What a function makes of a relation comes straight
    from it: inside a query of DuckDB, what it reads itself would find a thread less to run on.
    """
    source = relation.source if isinstance(relation, MappedRelation) else None
    # DuckDB refuses to read a second time what can be read once.
    if source is None or isinstance(source, StreamOnce):
        batches = _batches(database, relation, batch_rows=batch_rows, limit=limit)
    else:
        batches = _pieces_of(source.batches(), relation.schema, batch_rows, limit)
    return pa.RecordBatchReader.from_batches(relation.schema, batches)


def source(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
    """Return batches as DuckDB takes them; all Arrow goes into DuckDB by this road.

    Errors on the way are kept for the caller. DuckDB refuses structs of structs that are slices.
    """
    whole = (copy_sliced_structs(batch) for batch in batches)
    return pa.RecordBatchReader.from_batches(schema, failures.guarded(whole))


class MappedStream:
    """An Arrow source that applies a function to the batches of a relation at every reading."""

    def __init__(
        self, database: Database, relation: Relation, function: BatchFunction, schema: pa.Schema
    ) -> None:
        self.schema = schema
        self._database = database
        self._relation = relation
        self._function = function

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return a new stream of the function's results."""
        return source(self.schema, self.batches()).__arrow_c_stream__()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the function's results."""
        for batch in batches_of(self._database, self._relation):
            yield cast_batch(self._function(batch), self.schema)


class StreamOnce(MappedStream):
    """The batches that a caller brought, which can be read once, here or by DuckDB.

    ``kept`` holds those that DuckDB has read, from when it is made a list until they are too many;
    ``is_read`` says that these are all. ``watcher`` is given each before DuckDB is.
    """

    def __init__(
        self, database: Database, schema: pa.Schema, batches: Iterator[pa.RecordBatch]
    ) -> None:
        self.schema = schema
        self.kept: list[pa.RecordBatch] | None = None
        self.watcher: Callable[[pa.RecordBatch], None] | None = None
        self.is_read = False
        self._database = database
        self._given = batches

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches, in pieces that are not too large."""
        return in_pieces(self._given, self.schema)

    def handed_on(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches to DuckDB."""
        size = 0
        for batch in self._given:
            size += batch.nbytes
            if size > MOST_HELD_BYTES:
                self.kept = None
            elif self.kept is not None:
                self.kept.append(batch)
            if self.watcher is not None:
                self.watcher(batch)
            yield batch
        self.is_read = True


def in_pieces(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches in batches that are not too large."""
    rows = min(BATCH_ROWS, _rows_that_fit(schema))
    for batch in batches:
        yield from _cut(batch, rows)


def _cut(batch: pa.RecordBatch, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch in batches of at most so many."""
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _pieces_of(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, batch_rows: int, limit: int | None
) -> Iterator[pa.RecordBatch]:
    """Yield the first rows of batches, or all, in batches of at most so many."""
    rows = min(batch_rows, _rows_that_fit(schema))
    left = limit
    for batch in batches:
        if left is not None:
            batch = batch.slice(0, left)
            left -= batch.num_rows
        for piece in _cut(batch, rows):
            yield cast_batch(piece, schema)
        if left == 0:
            return


def mapped(database: Database, source: MappedStream, *, single_use: bool) -> Relation:
    """Return what a function makes of a relation, as a relation."""
    with building():
        native = database.connection.from_arrow(source)
    return MappedRelation("duckdb", native, source.schema, single_use, source)


@dataclass(frozen=True)
class MappedRelation(Relation):
    """What a function makes of the batches of a relation.

    Who wants batches again need not send them through DuckDB.
    """

    source: MappedStream | None = None


def batches_of(database: Database, relation: Relation) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a relation as batches of its feature types."""
    if isinstance(relation, MappedRelation) and relation.source is not None:
        return relation.source.batches()
    return _batches(database, relation)


def aggregate(
    database: Database, relation: Relation, accumulator: Accumulator[State, Result], *, threads: int
) -> Result:
    """Return what an accumulator makes of all rows.

    With two threads or more each has a state of its own. Which batch goes where depends on nothing
    but its number, so that sums of floats come out the same every time.
    """
    batches = batches_of(database, relation)
    if threads <= 1:
        state = accumulator.start()
        for batch in batches:
            state = accumulator.update(state, batch)
        return accumulator.finish(state)
    queues: list[Queue[pa.RecordBatch | None]] = [Queue(maxsize=2) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        states = []
        for queue in queues:
            states.append(pool.submit(_accumulate_queue, accumulator, queue))
        try:
            for number, batch in enumerate(batches):
                queues[number % threads].put(batch)
        finally:
            for queue in queues:
                queue.put(None)
        merged = states[0].result()
        for state_of_thread in states[1:]:
            merged = accumulator.merge(merged, state_of_thread.result())
    return accumulator.finish(merged)


class AggregateBeside(Generic[State, Result]):
    """What an accumulator makes of a stream while DuckDB reads it, in a thread of its own.

    DuckDB waits where the accumulator is a few batches behind.
    """

    def __init__(self, once: StreamOnce, accumulator: Accumulator[State, Result]) -> None:
        self._once, self._accumulator = once, accumulator
        self._queue: Queue[pa.RecordBatch | None] = Queue(maxsize=_BATCHES_BEHIND)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="beside")

    def __enter__(self) -> Self:
        self._state = self._pool.submit(_accumulate_queue, self._accumulator, self._queue)
        self._once.watcher = self._put
        return self

    def __exit__(self, *_: object) -> None:
        self._once.watcher = None
        self._queue.put(None)
        self._pool.shutdown()

    def result(self) -> Result | None:
        """Return the result, after the block; None where DuckDB did not read all, or it failed.

        Who wants it then makes it anew, and gets the error where it belongs.
        """
        if not self._once.is_read or self._state.exception() is not None:
            return None
        return self._accumulator.finish(self._state.result())

    def _put(self, batch: pa.RecordBatch) -> None:
        # However wide: what is in memory already is counted fastest at once.
        for piece in _cut(batch, BATCH_ROWS):
            self._queue.put(piece)


def _accumulate_queue(
    accumulator: Accumulator[State, Result], queue: Queue[pa.RecordBatch | None]
) -> State:
    state = accumulator.start()
    try:
        while (batch := queue.get()) is not None:
            state = accumulator.update(state, batch)
    except BaseException:
        # Keep taking, or the thread that fills the queue would wait for ever.
        while queue.get() is not None:
            pass
        raise
    return state


def _batches(
    database: Database,
    relation: Relation,
    *,
    batch_rows: int = BATCH_ROWS,
    limit: int | None = None,
) -> Iterator[pa.RecordBatch]:
    rows = min(batch_rows, _rows_that_fit(relation.schema))
    with database.cursor() as cursor:
        native: duckdb.DuckDBPyRelation = cursor.sql(query_of(relation.native))
        if limit is not None:
            native = native.limit(limit)
        if _has_long_values(relation.schema) and rows > _VECTOR_ROWS:
            # Put together from small ones, while the next one fits.
            most = rows - _VECTOR_ROWS + 1
            batches = coalesce_batches(_read(cursor, native, _VECTOR_ROWS), rows=most)
        else:
            batches = _read(cursor, native, rows)
        for batch in batches:
            for piece in _cut(batch, rows):
                yield cast_batch(piece, relation.schema)


def _read(
    cursor: duckdb.DuckDBPyConnection, native: duckdb.DuckDBPyRelation, rows: int
) -> Iterator[pa.RecordBatch]:
    with interruptible(cursor):
        reader = native.to_arrow_reader(rows)
    while True:
        try:
            with translated(), interruptible(cursor):
                batch = reader.read_next_batch()
        except StopIteration:
            return
        except (OSError, pa.ArrowException) as error:
            raised = failures.recall(str(error))
            if raised is not None:
                raise raised from None
            raise error_of_stream(str(error)) from error
        if batch.num_rows:
            yield batch


def _has_long_values(schema: pa.Schema) -> bool:
    """Tell whether a column has bytes, lists or structs of any length; texts count as short."""
    return any(map(_may_be_long, schema.types))


def _may_be_long(kind: pa.DataType) -> bool:
    return bool(pat.is_binary(kind) or pat.is_list(kind) or pat.is_struct(kind))


def _rows_that_fit(schema: pa.Schema) -> int:
    width = sum(map(width_of, schema.types))
    return max(_BATCH_BYTES // max(width, 1), 1)
