"""Arrow streams of DuckDB relations: bounded, mapped and buffered batches, and aggregation.

Small relations that are read more than once are buffered in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from queue import Queue
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.batches import coalesce_batches, copy_sliced_structs
from featurestore.arrow.casts import cast_batch
from featurestore.arrow.types import feature_schema, type_width
from featurestore.model.threads import capture_errors, cooperating_threads
from featurestore.plugins.engine import Accumulator, BatchFunction, Relation, unknown_columns_error
from featurestore_connectors.duckdb_delta import session
from featurestore_connectors.duckdb_delta.messages import translate_stream_error
from featurestore_connectors.duckdb_delta.session import Database

if TYPE_CHECKING:
    import duckdb

State = TypeVar("State")
Result = TypeVar("Result")
BATCH_ROWS = 65_536
_MAX_QUEUED_BATCHES = 4
# The number of rows in a DuckDB vector.
_VECTOR_ROWS = 2_048
_BATCH_BYTES = 64 << 20
# Maximum bytes of a buffered relation. An export needs the same amount again while it sorts.
MAX_BUFFERED_BYTES = 256 << 20
# The same limit as a fraction of DuckDB's memory limit; the larger one applies to exports. Joined
# rows above it are staged as Parquet, which takes longer than an export of buffered rows.
_BUFFERED_FRACTION = 0.05


def stream(
    database: Database,
    relation: Relation,
    *,
    batch_rows: int = BATCH_ROWS,
    limit: int | None = None,
) -> pa.RecordBatchReader:
    """Stream the rows of a relation lazily, as batches of its feature types.

    A mapped relation is streamed directly from its function, since inside a DuckDB query the
    function would block a DuckDB thread.
    """
    source = source_of(relation)
    # Single-use streams are read through DuckDB, which rejects a second read.
    if source is None or isinstance(source, SingleUseStream):
        batches = _batches(database, relation, batch_rows=batch_rows, limit=limit)
    else:
        batches = _limited_batches(source.batches(), relation.schema, batch_rows, limit)
    return pa.RecordBatchReader.from_batches(relation.schema, batches)


def _batches(
    database: Database,
    relation: Relation,
    *,
    batch_rows: int = BATCH_ROWS,
    limit: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Run the query of a relation and yield its rows as batches of feature types."""
    rows = min(batch_rows, _rows_that_fit(relation.schema))
    with database.cursor() as cursor:
        query = relation.query if isinstance(relation, LazyRelation) else None
        native: duckdb.DuckDBPyRelation = cursor.sql(query or session.query_of(relation.native))
        if limit is not None:
            # DuckDB stops reading as soon as it has enough rows.
            native = native.limit(limit)
        if any(map(_may_be_long, relation.schema.types)) and rows > _VECTOR_ROWS:
            # Concatenate small batches until the next one does not fit.
            max_rows = rows - _VECTOR_ROWS + 1
            batches = coalesce_batches(_read_batches(cursor, native, _VECTOR_ROWS), rows=max_rows)
        else:
            batches = _read_batches(cursor, native, rows)
        for batch in bounded_batches(batches, relation.schema, batch_rows):
            yield cast_batch(batch, relation.schema)


def _read_batches(
    cursor: duckdb.DuckDBPyConnection, native: duckdb.DuckDBPyRelation, rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a result, and convert errors that Arrow reports as messages."""
    with session.interrupt_on_signal(cursor):
        reader = native.to_arrow_reader(rows)
    while True:
        try:
            with session.translate_errors(), session.interrupt_on_signal(cursor):
                batch = reader.read_next_batch()
        except StopIteration:
            return
        except (OSError, pa.ArrowException) as error:
            python_error = session.recall_exception(str(error))
            if python_error is not None:
                raise python_error from None
            raise translate_stream_error(str(error)) from error
        if batch.num_rows:
            yield batch


def _limited_batches(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, batch_rows: int, limit: int | None
) -> Iterator[pa.RecordBatch]:
    """Yield the first ``limit`` rows (all if None) in batches of at most ``batch_rows``."""

    def first_batches() -> Iterator[pa.RecordBatch]:
        remaining = limit
        for batch in batches:
            if remaining is not None:
                batch = batch.slice(0, remaining)
                remaining -= batch.num_rows
            yield batch
            if remaining == 0:
                return

    for batch in bounded_batches(first_batches(), schema, batch_rows):
        yield cast_batch(batch, schema)


def bounded_batches(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, batch_rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches of bounded size, with at most ``batch_rows`` rows."""
    rows = min(batch_rows, _rows_that_fit(schema))
    for batch in batches:
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def _may_be_long(dtype: pa.DataType) -> bool:
    """Return whether values of a type may be long: binaries, lists and structs."""
    return bool(pat.is_binary(dtype) or pat.is_list(dtype) or pat.is_struct(dtype))


def _rows_that_fit(schema: pa.Schema) -> int:
    width = sum(map(type_width, schema.types))
    return max(_BATCH_BYTES // max(width, 1), 1)


def source(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
    """Return a reader for DuckDB. All Arrow data is passed to DuckDB by this function.

    Exceptions are captured for the caller. Slices are copied, since DuckDB rejects nested structs
    in slices.
    """

    def unsliced_batches() -> Iterator[pa.RecordBatch]:
        with capture_errors():
            for batch in batches:
                yield copy_sliced_structs(batch)

    return pa.RecordBatchReader.from_batches(schema, unsliced_batches())


class ArrowSource:
    """An Arrow source with one schema; ``batches`` reads the rows."""

    schema: pa.Schema

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return a new stream of the rows."""
        return source(self.schema, self.batches()).__arrow_c_stream__()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        raise NotImplementedError


@dataclass(eq=False)
class MappedStream(ArrowSource):
    """An Arrow source that applies a function to the batches of a relation at every read."""

    schema: pa.Schema
    relation: Relation
    database: Database
    function: BatchFunction

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the function's results."""
        for batch in batches_of(self.database, self.relation):
            yield cast_batch(self.function(batch), self.schema)


@dataclass(eq=False)
class SingleUseStream(ArrowSource):
    """Batches of a caller, which can be read once, directly or by DuckDB.

    Attributes:
        schema: The feature types of the batches.
        unread: The batches of the caller.
        recorded: The batches that DuckDB has read, if it was set to a list before. Reset to None
            when the batches exceed ``MAX_BUFFERED_BYTES``.
        watcher: A function that receives each batch before DuckDB.
        is_read: Whether DuckDB has read all batches.
    """

    schema: pa.Schema
    unread: Iterator[pa.RecordBatch]
    recorded: list[pa.RecordBatch] | None = None
    watcher: Callable[[pa.RecordBatch], None] | None = None
    is_read: bool = False

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches of bounded size."""
        return bounded_batches(self.unread, self.schema)

    def batches_for_duckdb(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches to DuckDB."""
        size = 0
        for batch in self.unread:
            size += batch.nbytes
            # The rows do not fit; release those recorded so far.
            if size > MAX_BUFFERED_BYTES:
                self.recorded = None
            elif self.recorded is not None:
                self.recorded.append(batch)
            if self.watcher is not None:
                self.watcher(batch)
            yield batch
        self.is_read = True


@dataclass(eq=False)
class BufferedBatches(ArrowSource):
    """An Arrow source over in-memory batches."""

    schema: pa.Schema
    buffered: Sequence[pa.RecordBatch]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the buffered batches."""
        return iter(self.buffered)


@dataclass(frozen=True)
class MappedRelation(Relation):
    """A relation over an Arrow source, which batch consumers can read without DuckDB."""

    source: ArrowSource | None = None


@dataclass(frozen=True)
class LazyRelation(MappedRelation):
    """A relation whose native relation is created on first use, by the function passed as ``native``.

    DuckDB needs milliseconds to bind a native relation, and most reads do not need one.

    Attributes:
        query: SQL text with the same rows, which any cursor can run, if it is known.
    """

    query: str | None = None

    @property  # type: ignore[misc]  # mypy knows no dataclass field with a setter
    def native(self) -> duckdb.DuckDBPyRelation:
        """The native relation; all calls return the same one."""
        with session.relation_lock():
            native = self.__dict__["native"]
            if callable(native):
                native = self.__dict__["native"] = native()
            return native

    @native.setter
    def native(self, value: object) -> None:
        # Called by the constructor of the dataclass.
        self.__dict__["native"] = value


def mapped_relation(database: Database, source: ArrowSource, *, single_use: bool) -> Relation:
    """Return a relation over an Arrow source."""
    return LazyRelation(
        "duckdb",
        lambda: database.connection.from_arrow(source),
        source.schema,
        single_use=single_use,
        source=source,
    )


def from_arrow(database: Database, reader: pa.RecordBatchReader) -> Relation:
    """Return a single-use relation over a stream."""
    schema = feature_schema(reader.schema)
    batches = iter(reader)
    if reader.schema != schema:
        batches = (cast_batch(batch, schema) for batch in reader)
    input_stream = SingleUseStream(schema, batches)
    # DuckDB gets one reader and not the stream object, so that it rejects a second read.
    reader_for_duckdb = source(schema, input_stream.batches_for_duckdb())
    return LazyRelation(
        "duckdb",
        lambda: database.connection.from_arrow(reader_for_duckdb),
        schema,
        single_use=True,
        source=input_stream,
    )


def batches_of(database: Database, relation: Relation) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a relation as batches of its feature types."""
    source = source_of(relation)
    return _batches(database, relation) if source is None else source.batches()


def check_columns(schema: pa.Schema, columns: Sequence[str]) -> None:
    """Raise SchemaMismatch if the schema lacks some of the columns."""
    present = set(schema.names)  # ``names`` is a new list each time
    absent = [column for column in columns if column not in present]
    if absent:
        raise unknown_columns_error(absent, schema.names)


def buffer_rows(database: Database, rows: Relation) -> Relation:
    """Buffer rows in memory; return a single-use relation of all rows if they do not fit."""
    buffered: list[pa.RecordBatch] = []
    size = 0
    max_bytes = max(MAX_BUFFERED_BYTES, int(database.memory_limit * _BUFFERED_FRACTION))
    batches = batches_of(database, rows)
    for batch in batches:
        buffered.append(batch)
        size += batch.nbytes
        if size > max_bytes:
            all_batches = chain(_release_batches(buffered), batches)
            return from_arrow(database, pa.RecordBatchReader.from_batches(rows.schema, all_batches))
    return mapped_relation(database, BufferedBatches(rows.schema, buffered), single_use=False)


def _release_batches(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches in order, and release each one."""
    batches.reverse()
    while batches:
        yield batches.pop()


def select_buffered(
    database: Database, rows: Relation, columns: Mapping[str, str]
) -> Relation | None:
    """Select and rename columns of buffered rows; return None if the rows are not buffered.

    Small batches are concatenated, to reduce the overhead per batch.
    """
    buffered_rows = source_of(rows)
    if not isinstance(buffered_rows, BufferedBatches):
        return None
    check_columns(rows.schema, list(columns.values()))
    fields = [rows.schema.field(column).with_name(name) for name, column in columns.items()]
    schema = pa.schema(fields)
    batches = []
    for batch in buffered_rows.buffered:
        selected_columns = batch.select(list(columns.values()))
        batches.append(pa.RecordBatch.from_arrays(selected_columns.columns, schema=schema))
    joined = list(coalesce_batches(batches, rows=BATCH_ROWS))
    return mapped_relation(database, BufferedBatches(schema, joined), single_use=False)


def source_of(rows: Relation) -> ArrowSource | None:
    """Return the Arrow source of a relation, or None if DuckDB computes its rows."""
    return rows.source if isinstance(rows, MappedRelation) else None


def recorded_rows(input_stream: ArrowSource | None) -> BufferedBatches | None:
    """Return the recorded batches of a stream, or None if they are incomplete."""
    if not isinstance(input_stream, SingleUseStream) or not input_stream.is_read:
        return None
    if input_stream.recorded is None:
        return None
    schema = input_stream.schema
    return BufferedBatches(schema, list(bounded_batches(input_stream.recorded, schema)))


def aggregate(
    database: Database, relation: Relation, accumulator: Accumulator[State, Result], *, threads: int
) -> Result:
    """Return the result of an accumulator over all rows.

    With several threads, each thread has its own state, and batches are assigned round-robin, so
    that float sums are reproducible.
    """
    batches = batches_of(database, relation)
    if threads <= 1:
        state = accumulator.start()
        for batch in batches:
            state = accumulator.update(state, batch)
        return accumulator.finish(state)
    # Bounded, so that the reader waits for slow threads instead of filling the memory.
    queues: list[Queue[pa.RecordBatch | None]] = [Queue(maxsize=2) for _ in range(threads)]
    with cooperating_threads(threads, "featurestore-aggregate") as pool:
        states = [pool.submit(_accumulate_queue, accumulator, queue) for queue in queues]
        try:
            for number, batch in enumerate(batches):
                queues[number % threads].put(batch)
        finally:
            # Also after an error, since every thread waits for the end of its queue.
            for queue in queues:
                queue.put(None)
        # In the order of threads, which fixes the order of float additions.
        merged_state = states[0].result()
        for state_of_thread in states[1:]:
            merged_state = accumulator.merge(merged_state, state_of_thread.result())
    return accumulator.finish(merged_state)


def aggregate_while(
    read: Callable[[], Relation], stream: SingleUseStream, accumulator: Accumulator[State, Result]
) -> tuple[Relation, Result | None]:
    """Aggregate a stream in a separate thread while a function reads it by DuckDB.

    DuckDB blocks when the accumulator is several batches behind.

    Returns:
        The result of the function, and that of the accumulator: None if DuckDB did not read all
        rows or the accumulator failed. The caller then aggregates again, which raises the error.
    """
    queue: Queue[pa.RecordBatch | None] = Queue(maxsize=_MAX_QUEUED_BATCHES)

    def put(batch: pa.RecordBatch) -> None:
        # The queue needs no size limit, since the batch is already in memory.
        for start in range(0, batch.num_rows, BATCH_ROWS):
            queue.put(batch.slice(start, BATCH_ROWS))

    with cooperating_threads(1, "featurestore-aggregate") as pool:
        state = pool.submit(_accumulate_queue, accumulator, queue)
        stream.watcher = put
        try:
            relation = read()
        finally:
            stream.watcher = None
            queue.put(None)
    if not stream.is_read or state.exception() is not None:
        return relation, None
    return relation, accumulator.finish(state.result())


def _accumulate_queue(
    accumulator: Accumulator[State, Result], queue: Queue[pa.RecordBatch | None]
) -> State:
    """Accumulate the batches of a queue until None is received, and return the state."""
    state = accumulator.start()
    try:
        while (batch := queue.get()) is not None:
            state = accumulator.update(state, batch)
    except BaseException:
        # Drain the queue; otherwise the producer would block forever.
        while queue.get() is not None:
            pass
        raise
    return state
