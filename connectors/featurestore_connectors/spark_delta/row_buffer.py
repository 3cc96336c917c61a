"""In-memory buffers of small streams in the driver, processed without Spark jobs.

A buffered relation also has a Spark frame of the same rows, with the same functions applied, for
operations that this module does not implement.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from featurestore.arrow.types import storage_schema
from featurestore.plugins.engine import Accumulator, BatchFunction, Relation, Result, State
from featurestore.storage import files
from featurestore_connectors.spark_delta import relations, repeated_keys, streams
from featurestore_connectors.spark_delta.tasks import first_rows
from featurestore_connectors.spark_delta.types import spark_schema, to_features, to_storage

_FILE = "part-00000.parquet"


@dataclass(frozen=True)
class BufferedRelation(Relation):
    """A relation whose rows are in this process; each call of ``batches`` iterates over them."""

    batches: Callable[[], Iterator[pa.RecordBatch]] = field(kw_only=True, repr=False, compare=False)

    def stored(self) -> pa.Table:
        """Return the rows in storage types."""
        return pa.Table.from_batches(map(to_storage, self.batches()), storage_schema(self.schema))


def buffer_rows(
    session: Any, batches: Sequence[pa.RecordBatch], schema: pa.Schema
) -> BufferedRelation:
    """Return a relation over batches of feature types."""
    table = pa.Table.from_batches(map(to_storage, batches), storage_schema(schema))
    frame = session.createDataFrame(table if len(table) else [], spark_schema(schema))
    return BufferedRelation(relations.ENGINE, frame, schema, batches=partial(iter, batches))


def selected(source: BufferedRelation, columns: Mapping[str, str]) -> BufferedRelation:
    """Return columns under new names."""
    chosen = relations.select(source, columns)
    renamed = partial(_renamed, source, list(columns.values()), chosen.schema)
    return BufferedRelation(chosen.engine, chosen.native, chosen.schema, batches=renamed)


def mapped(
    source: BufferedRelation, function: BatchFunction, *, schema: pa.Schema
) -> BufferedRelation:
    """Return a lazy relation with a function applied to each batch."""
    frame = streams.map_batches(source, function, schema=schema).native
    applied = partial(_applied, source, function, schema)
    return BufferedRelation(source.engine, frame, schema, batches=applied)


def stage(source: BufferedRelation, directory: str) -> BufferedRelation:
    """Compute the rows, write them as one Parquet file and return them."""
    batches = list(source.batches())
    staged = buffer_rows(source.native.sparkSession, batches, source.schema)
    sink = pa.BufferOutputStream()
    parquet.write_table(staged.stored(), sink)
    files.remove(directory, below=os.path.dirname(directory))
    files.write_atomically(os.path.join(directory, _FILE), sink.getvalue().to_pybytes())
    return staged


def aggregate(source: BufferedRelation, accumulator: Accumulator[State, Result]) -> Result:
    """Return the result of an accumulator over all rows."""
    state = accumulator.start()
    for batch in source.batches():
        state = accumulator.update(state, batch)
    return accumulator.finish(state)


def count(source: BufferedRelation) -> int:
    """Return how many rows there are."""
    return sum(batch.num_rows for batch in source.batches())


def stream(source: BufferedRelation, *, batch_rows: int, limit: int | None) -> pa.RecordBatchReader:
    """Return the rows in batches of a size, the first ones only where there is a limit."""
    chosen = first_rows(source.batches(), limit)
    return pa.RecordBatchReader.from_batches(source.schema, _in_pieces(chosen, batch_rows))


def duplicates(
    source: BufferedRelation, key: Sequence[str], *, limit: int
) -> tuple[int, list[dict[str, Any]]]:
    """Return how many keys occur more than once, and the first few of them with their count."""
    if not repeated_keys.can_compare(source.schema, key):
        return streams.duplicates(source, key, limit=limit)
    keys = pa.Table.from_batches(source.batches(), source.schema).select(list(key))
    return repeated_keys.duplicates(keys, key, limit=limit)


def _renamed(
    source: BufferedRelation, columns: Sequence[str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for batch in source.batches():
        yield pa.RecordBatch.from_arrays(batch.select(columns).columns, schema=schema)


def _applied(
    source: BufferedRelation, function: BatchFunction, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for batch in source.batches():
        yield to_features(function(batch).select(schema.names), schema)


def _in_pieces(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)
