"""Reading a source in a snapshot of its own, and noting what was read."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from featurestore.errors import SourceChanged
from featurestore.external.ahead import read_ahead
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
    """Yield the rows of a query in a snapshot of their own, and fill in what was read.

    A thread reads them, so that the source works while rows that came are written.
    """
    return read_ahead(partial(_read, session, spec, query, schema, read, time=time))


def has_parts(session: Session, spec: SourceSpec) -> bool:
    """Return whether the tasks of the engine read a source, each a part of the rows."""
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
    """Have tasks read the rows of a query into a directory, in a snapshot that ends with it."""
    snapshot = open_snapshot(session, spec, query.at)
    try:
        read.snapshot = snapshot.identity
        assert isinstance(snapshot, PartitionedSnapshot)
        _check_same(spec, snapshot.schema(query), schema)
        return stage_counted(session, snapshot, query, read, directory, time=time)
    finally:
        snapshot.close()


def stage_counted(
    session: Session,
    snapshot: PartitionedSnapshot,
    query: SourceQuery,
    read: SourceRead,
    directory: str,
    *,
    time: str | None,
) -> Relation:
    """Have tasks read the rows of a query into a directory, and fill in what was read."""
    engine = session.engine
    rows = snapshot.stage(query, engine, directory)
    read.rows = engine.count(rows)
    if time is not None and time in rows.schema.names:
        times = engine.select(rows, {"moment": time})
        found = engine.sql("SELECT max(moment) FROM given", tables={"given": times}, parameters={})
        (last,) = engine.stream(found).read_all().column(0).to_pylist()
        if last is not None:
            read.high_water_mark = last.isoformat()
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
        _check_same(spec, reader.schema, schema)
        yield from counted(reader, read, time=time)
        read.quarantined = snapshot.bad_row_count
        read.bad_rows = tuple(snapshot.bad_rows)
    finally:
        snapshot.close()


def counted(
    batches: Iterator[pa.RecordBatch], read: SourceRead, *, time: str | None
) -> Iterator[pa.RecordBatch]:
    """Yield batches, and count their rows and the greatest time."""
    greatest = None
    for batch in batches:
        read.rows += batch.num_rows
        if time is not None and time in batch.schema.names:
            last = pc.max(batch.column(batch.schema.get_field_index(time))).as_py()
            if last is not None and (greatest is None or last > greatest):
                greatest = last
                read.high_water_mark = greatest.isoformat()
        yield batch


def _check_same(spec: SourceSpec, given: pa.Schema, expected: pa.Schema) -> None:
    """Refuse columns whose type changed at the source since the frame was made."""
    changed = []
    for field in expected:
        found = given.field(field.name).type
        if found != field.type:
            changed.append(f"{field.name!r} is {found}, was {field.type}")
    if changed:
        raise SourceChanged(
            f"Columns of source {spec.name!r} have other types now: {', '.join(changed)}.",
            hint="read it anew, or cast the columns in sql=",
        )
