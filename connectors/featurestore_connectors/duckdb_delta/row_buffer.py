"""In-memory buffers of small relations that are read more than once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import pyarrow as pa

from featurestore.arrow.batches import coalesce_batches
from featurestore.plugins.engine import Relation
from featurestore_connectors.duckdb_delta.relations import check_columns, from_arrow
from featurestore_connectors.duckdb_delta.session import Database
from featurestore_connectors.duckdb_delta.streams import (
    BATCH_ROWS,
    MAX_BUFFERED_BYTES,
    MappedRelation,
    MappedStream,
    SingleUseStream,
    batches_of,
    bounded_batches,
    mapped,
)


class BufferedBatches(MappedStream):
    """An Arrow source over batches in memory."""

    def __init__(
        self, database: Database, schema: pa.Schema, batches: Sequence[pa.RecordBatch]
    ) -> None:
        self.schema = schema
        self.buffered = batches
        self._database = database

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches."""
        return iter(self.buffered)


def buffer_rows(database: Database, rows: Relation) -> Relation:
    """Buffer the rows in memory; if they do not fit, return a single-use relation of all rows."""
    buffered: list[pa.RecordBatch] = []
    size = 0
    batches = batches_of(database, rows)
    for batch in batches:
        buffered.append(batch)
        size += batch.nbytes
        if size > MAX_BUFFERED_BYTES:
            all_batches = chain(_drain(buffered), batches)
            return from_arrow(database, pa.RecordBatchReader.from_batches(rows.schema, all_batches))
    return mapped(database, BufferedBatches(database, rows.schema, buffered), single_use=False)


def select_buffered(
    database: Database, rows: Relation, columns: Mapping[str, str]
) -> Relation | None:
    """Return columns of buffered rows under new names, None if the rows are not buffered.

    Small batches are concatenated, to reduce the cost per batch.
    """
    buffered = buffered_batches(rows)
    if buffered is None:
        return None
    check_columns(rows.schema, list(columns.values()))
    fields = [rows.schema.field(column).with_name(name) for name, column in columns.items()]
    schema = pa.schema(fields)
    batches = []
    for batch in buffered:
        selected_columns = batch.select(list(columns.values()))
        batches.append(pa.RecordBatch.from_arrays(selected_columns.columns, schema=schema))
    joined = list(coalesce_batches(batches, rows=BATCH_ROWS))
    return mapped(database, BufferedBatches(database, schema, joined), single_use=False)


def buffered_batches(rows: Relation) -> Sequence[pa.RecordBatch] | None:
    """Return the batches of buffered rows, None if the rows are not buffered."""
    if isinstance(rows, MappedRelation) and isinstance(rows.source, BufferedBatches):
        return rows.source.buffered
    return None


def start_recording(database: Database, rows: Relation) -> None:
    """Record the batches of a single-use stream while DuckDB reads them."""
    stream = single_use_stream(rows)
    if stream is not None and not database.limit_is_chosen:
        stream.recorded = []


def recorded_batches(database: Database, rows: Relation) -> BufferedBatches | None:
    """Return the recorded batches of a stream, None if they are incomplete."""
    stream = single_use_stream(rows)
    if stream is None or stream.recorded is None or not stream.is_read:
        return None
    return BufferedBatches(
        database, rows.schema, list(bounded_batches(stream.recorded, rows.schema))
    )


def single_use_stream(rows: Relation) -> SingleUseStream | None:
    """Return the stream of a single-use relation, None for other relations."""
    if isinstance(rows, MappedRelation) and isinstance(rows.source, SingleUseStream):
        return rows.source
    return None


def _drain(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches in order and release each one."""
    batches.reverse()
    while batches:
        yield batches.pop()
