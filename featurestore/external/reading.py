"""Read a source in its own snapshot, and record the read."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from featurestore.errors import SourceChanged
from featurestore.external.background_reader import read_in_background
from featurestore.external.opening import open_snapshot, open_source
from featurestore.model.source import SourceRead, SourceSpec
from featurestore.plugins.engine import Relation
from featurestore.plugins.source import PartitionedSnapshot, PartitionedSource, SourceQuery
from featurestore.session import Session


def read_batches(
    session: Session,
    spec: SourceSpec,
    query: SourceQuery,
    schema: pa.Schema,
    read: SourceRead,
    *,
    time: str | None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a query in their own snapshot, and complete the record of the read.

    They are read in a background thread, while earlier rows are written.
    """
    return read_in_background(partial(_read, session, spec, query, schema, read, time=time))


def has_parts(session: Session, spec: SourceSpec) -> bool:
    """Return whether the tasks of the engine read a source in partitions."""
    source = open_source(session, spec)
    return isinstance(source, PartitionedSource) and source.has_parts(session.engine)


def stage_parts(
    session: Session,
    spec: SourceSpec,
    query: SourceQuery,
    schema: pa.Schema,
    read: SourceRead,
    directory: str,
    *,
    time: str | None,
) -> Relation:
    """Stage the rows of a query by tasks of the engine, in a snapshot that is closed afterwards."""
    snapshot = open_snapshot(session, spec, query.at)
    try:
        read.snapshot = snapshot.identity
        assert isinstance(snapshot, PartitionedSnapshot)
        _check_unchanged_types(spec, snapshot.schema(query), schema)
        return stage_recorded(session, snapshot, query, read, directory, time=time)
    finally:
        snapshot.close()


def stage_recorded(
    session: Session,
    snapshot: PartitionedSnapshot,
    query: SourceQuery,
    read: SourceRead,
    directory: str,
    *,
    time: str | None,
) -> Relation:
    """Stage the rows of a query by tasks of the engine, and complete the record of the read."""
    engine = session.engine
    rows = snapshot.stage(query, engine, directory)
    read.rows = engine.count(rows)
    if time is not None and time in rows.schema.names:
        times = engine.select(rows, {"moment": time})
        maximum = engine.sql(
            "SELECT max(moment) FROM given", tables={"given": times}, parameters={}
        )
        (latest,) = engine.stream(maximum).read_all().column(0).to_pylist()
        if latest is not None:
            read.high_water_mark = latest.isoformat()
    return rows


def _read(
    session: Session,
    spec: SourceSpec,
    query: SourceQuery,
    schema: pa.Schema,
    read: SourceRead,
    *,
    time: str | None,
) -> Iterator[pa.RecordBatch]:
    snapshot = open_snapshot(session, spec, query.at)
    try:
        reader = snapshot.read(query)
        read.snapshot = snapshot.identity
        _check_unchanged_types(spec, reader.schema, schema)
        yield from record_batches(reader, read, time=time)
        read.quarantined = snapshot.bad_row_count
        read.bad_rows = tuple(snapshot.bad_rows)
    finally:
        snapshot.close()


def record_batches(
    batches: Iterator[pa.RecordBatch], read: SourceRead, *, time: str | None
) -> Iterator[pa.RecordBatch]:
    """Yield batches, and record the number of rows and the latest time."""
    latest = None
    for batch in batches:
        read.rows += batch.num_rows
        if time is not None and time in batch.schema.names:
            batch_latest = pc.max(batch.column(batch.schema.get_field_index(time))).as_py()
            if batch_latest is not None and (latest is None or batch_latest > latest):
                latest = batch_latest
                read.high_water_mark = latest.isoformat()
        yield batch


def _check_unchanged_types(spec: SourceSpec, actual: pa.Schema, expected: pa.Schema) -> None:
    """Refuse columns whose type changed at the source since the frame was created."""
    changed = [
        f"{field.name!r} is {actual.field(field.name).type}, was {field.type}"
        for field in expected
        if actual.field(field.name).type != field.type
    ]
    if changed:
        raise SourceChanged(
            f"Types of columns of source {spec.name!r} changed: {', '.join(changed)}.",
            hint="read it again, or cast the columns in sql=",
        )
