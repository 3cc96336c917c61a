"""Rows that the driver holds, where a stream was small: they are looked at here, without Spark jobs.

A relation over them has a frame of Spark, too, for all that is not answered here. It is made of the
same rows, and functions that were applied to the one are applied to the other.
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
class HeldRelation(Relation):
    """A relation whose rows this process has; ``batches`` gives them again at each call."""

    batches: Callable[[], Iterator[pa.RecordBatch]] = field(kw_only=True, repr=False, compare=False)

    def stored(self) -> pa.Table:
        """Return the rows in storage types."""
        return pa.Table.from_batches(map(to_storage, self.batches()), storage_schema(self.schema))


def hold(session: Any, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> HeldRelation:
    """Return a relation over batches of feature types."""
    stored = pa.Table.from_batches(map(to_storage, batches), storage_schema(schema))
    frame = session.createDataFrame(stored if len(stored) else [], spark_schema(schema))
    return HeldRelation(relations.ENGINE, frame, schema, batches=partial(iter, batches))


def selected(given: HeldRelation, columns: Mapping[str, str]) -> HeldRelation:
    """Return columns under new names."""
    chosen = relations.select(given, columns)
    renamed = partial(_renamed, given, list(columns.values()), chosen.schema)
    return HeldRelation(chosen.engine, chosen.native, chosen.schema, batches=renamed)


def mapped(given: HeldRelation, function: BatchFunction, *, schema: pa.Schema) -> HeldRelation:
    """Return the rows with a function applied to each batch, when they are read."""
    frame = streams.map_batches(given, function, schema=schema).native
    applied = partial(_applied, given, function, schema)
    return HeldRelation(given.engine, frame, schema, batches=applied)


def stage(given: HeldRelation, directory: str) -> HeldRelation:
    """Write the rows as one Parquet file and return them, their functions applied."""
    batches = list(given.batches())
    staged = hold(given.native.sparkSession, batches, given.schema)
    written = pa.BufferOutputStream()
    parquet.write_table(staged.stored(), written)
    files.remove(directory, below=os.path.dirname(directory))
    files.write_atomically(os.path.join(directory, _FILE), written.getvalue().to_pybytes())
    return staged


def aggregate(given: HeldRelation, accumulator: Accumulator[State, Result]) -> Result:
    """Return what an accumulator makes of all rows."""
    state = accumulator.start()
    for batch in given.batches():
        state = accumulator.update(state, batch)
    return accumulator.finish(state)


def count(given: HeldRelation) -> int:
    """Return how many rows there are."""
    return sum(batch.num_rows for batch in given.batches())


def stream(given: HeldRelation, *, batch_rows: int, limit: int | None) -> pa.RecordBatchReader:
    """Return the rows in batches of a size, the first ones only where there is a limit."""
    chosen = first_rows(given.batches(), limit)
    return pa.RecordBatchReader.from_batches(given.schema, _in_pieces(chosen, batch_rows))


def duplicates(
    given: HeldRelation, key: Sequence[str], *, limit: int
) -> tuple[int, list[dict[str, Any]]]:
    """Return how many keys occur more than once, and the first few of them with their count."""
    if not repeated_keys.can_compare(given.schema, key):
        return streams.duplicates(given, key, limit=limit)
    keys = pa.Table.from_batches(given.batches(), given.schema).select(list(key))
    return repeated_keys.duplicates(keys, key, limit=limit)


def _renamed(
    given: HeldRelation, columns: Sequence[str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for batch in given.batches():
        yield pa.RecordBatch.from_arrays(batch.select(columns).columns, schema=schema)


def _applied(
    given: HeldRelation, function: BatchFunction, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for batch in given.batches():
        yield to_features(function(batch).select(schema.names), schema)


def _in_pieces(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)
