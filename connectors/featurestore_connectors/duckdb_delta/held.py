"""Rows of a relation that are held in memory, where they are few, for what reads them again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import pyarrow as pa

from featurestore.arrow.arrow_rows import coalesce_batches
from featurestore.plugins.engine import Relation
from featurestore_connectors.duckdb_delta.relations import check_columns, from_arrow
from featurestore_connectors.duckdb_delta.session import Database
from featurestore_connectors.duckdb_delta.streams import (
    BATCH_ROWS,
    MOST_HELD_BYTES,
    MappedRelation,
    MappedStream,
    StreamOnce,
    batches_of,
    in_pieces,
    mapped,
)


class HeldBatches(MappedStream):
    """An Arrow source over batches in memory."""

    def __init__(
        self, database: Database, schema: pa.Schema, batches: Sequence[pa.RecordBatch]
    ) -> None:
        self.schema = schema
        self.held = batches
        self._database = database

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches."""
        return iter(self.held)


def hold(database: Database, rows: Relation) -> Relation:
    """Return a relation over the rows in memory; where they are too many, one for one reading."""
    held: list[pa.RecordBatch] = []
    size = 0
    batches = batches_of(database, rows)
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size > MOST_HELD_BYTES:
            everything = chain(_handed_on(held), batches)
            return from_arrow(database, pa.RecordBatchReader.from_batches(rows.schema, everything))
    return mapped(database, HeldBatches(database, rows.schema, held), single_use=False)


def selected(database: Database, rows: Relation, columns: Mapping[str, str]) -> Relation | None:
    """Return columns of held rows under new names, None where the rows are not held.

    Batches that are small without the other columns are joined: each costs calls to look at.
    """
    held = held_batches(rows)
    if held is None:
        return None
    check_columns(rows.schema, list(columns.values()))
    fields = []
    for name, column in columns.items():
        fields.append(rows.schema.field(column).with_name(name))
    schema = pa.schema(fields)
    batches = []
    for batch in held:
        chosen = batch.select(list(columns.values()))
        batches.append(pa.RecordBatch.from_arrays(chosen.columns, schema=schema))
    whole = list(coalesce_batches(batches, rows=BATCH_ROWS))
    return mapped(database, HeldBatches(database, schema, whole), single_use=False)


def held_batches(rows: Relation) -> Sequence[pa.RecordBatch] | None:
    """Return the batches of held rows, None where the rows are not held."""
    if isinstance(rows, MappedRelation) and isinstance(rows.source, HeldBatches):
        return rows.source.held
    return None


def keep(database: Database, rows: Relation) -> None:
    """Let a stream keep its batches while DuckDB reads them."""
    once = stream_once(rows)
    if once is not None and not database.limit_is_chosen:
        once.kept = []


def kept(database: Database, rows: Relation) -> HeldBatches | None:
    """Return what a stream has kept, None where it is not all of its rows."""
    once = stream_once(rows)
    if once is None or once.kept is None or not once.is_read:
        return None
    return HeldBatches(database, rows.schema, list(in_pieces(once.kept, rows.schema)))


def stream_once(rows: Relation) -> StreamOnce | None:
    """Return the stream that a relation is, None where it is another one."""
    if isinstance(rows, MappedRelation) and isinstance(rows.source, StreamOnce):
        return rows.source
    return None


def _handed_on(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches in their order and let go of each."""
    batches.reverse()
    while batches:
        yield batches.pop()
