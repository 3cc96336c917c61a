"""Replays: records of the quarantine are read again by the present job, and those that pass land.

A record that lands leaves the quarantine, any other stays in it. A row that the group has already is
not replaced: it may be of a later record. Deletes are not repeated for the same reason.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from featurestore.delta.history import read_history
from featurestore.delta.log import is_delta_table
from featurestore.delta.snapshot import Snapshot, read_snapshot
from featurestore.featuregroups.records import (
    OFFSET,
    PARTITION,
    RecordOrder,
    places_of_ranges,
)
from featurestore.featuregroups.table import OpenGroup
from featurestore.featuregroups.write import Write, insert
from featurestore.model.job import JobSpec
from featurestore.model.stream import StreamSpec
from featurestore.plugins.engine import BatchFunction, Engine, Relation, TableWrite
from featurestore.plugins.stream import RECORD_DELETES, RECORD_ERROR, STORED_COLUMNS
from featurestore.recovery.in_flight import in_flight
from featurestore.retrieval import FeatureFrame
from featurestore.session import Session
from featurestore.streams.opening import decoder_of, streams_of

_TOPIC = "record_topic"
_DELETED = "deletes are not replayed: the row may have been written again since"
_NOT_WRITTEN = "the row fails checks, or the group has a row of its key and times"


@dataclass(frozen=True)
class Replayed:
    """What a replay came to: records that landed, and why the others stay in the quarantine."""

    rows: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """How many records stay in the quarantine."""
        return sum(self.reasons.values())


@dataclass(frozen=True)
class _Again:
    """Decodes the columns of a quarantine table as records."""

    decode: BatchFunction

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = [name.removeprefix("record_") for name in batch.schema.names]
        return self.decode(pa.RecordBatch.from_arrays(batch.columns, names))


def replay(session: Session, spec: JobSpec, group: OpenGroup) -> Replayed:
    """Read the records of a group's quarantine again; the caller has the job's lease.

    Raises:
        ValidationFailed: Rows do not pass, and the job's policy is strict.
    """
    assert spec.stream is not None
    engine = session.engine
    path = session.quarantine_path(group.spec.name, group.spec.version)
    if not is_delta_table(path):
        return Replayed()
    state = _finished(session, spec, group, read_snapshot(path))
    if not state.rows or _TOPIC not in state.schema.names:
        return Replayed()
    source = streams_of(session, spec.stream)
    schema = source.decoded_schema(spec.stream)
    with in_flight(session, kind="stage", name=spec.name, version=1) as run:
        stored = _stored_records(engine, state, schema, spec.stream.topic)
        rows = engine.map_batches(stored, _Again(decoder_of(source, spec)), schema=schema)
        rows = engine.stage(rows, os.path.join(run.rows, "records"))
        reasons = _reasons(engine, rows)
        good = engine.filter(rows, f"{RECORD_ERROR} IS NULL AND NOT {RECORD_DELETES}")
        names = [*spec.stream.columns.names, *STORED_COLUMNS]
        good = engine.select(good, {name: name for name in names})
        if not engine.count(good):
            return Replayed(reasons=reasons)
        landed = _insert(session, spec, group, good, state)
        _remove(session, state, landed, spec.stream.topic)
        refused = engine.count(good) - landed.num_rows
    if refused:
        reasons[_NOT_WRITTEN] = refused
    return Replayed(landed.num_rows, reasons)


def _stored_records(engine: Engine, state: Snapshot, schema: pa.Schema, topic: str) -> Relation:
    """Return the records of a topic that a quarantine table has."""
    stored = [name for name in STORED_COLUMNS if name in state.schema.names]
    columns = pa.schema([schema.field(name) for name in stored])
    rows = engine.read_table(state.path, version=state.version, schema=columns, columns=stored)
    is_of_topic = exp.column(_TOPIC, quoted=True).eq(exp.Literal.string(topic))
    rows = engine.filter(rows, is_of_topic.sql(dialect=engine.dialect))
    if len(stored) == len(STORED_COLUMNS):
        return engine.select(rows, {name: name for name in STORED_COLUMNS})
    whole = pa.schema([schema.field(name) for name in STORED_COLUMNS])
    return engine.map_batches(rows, _WithColumns(whole), schema=whole)


@dataclass(frozen=True)
class _WithColumns:
    """Adds the columns that the tables of earlier releases lack, as nulls."""

    schema: pa.Schema

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = []
        for column in self.schema:
            if column.name in batch.schema.names:
                columns.append(batch.column(column.name))
            else:
                columns.append(pa.nulls(batch.num_rows, column.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _reasons(engine: Engine, rows: Relation) -> Counter[str]:
    """Return how often each reason keeps a record in the quarantine."""
    bad = engine.filter(rows, f"{RECORD_ERROR} IS NOT NULL OR {RECORD_DELETES}")
    found = engine.stream(engine.select(bad, {RECORD_ERROR: RECORD_ERROR})).read_all()
    return Counter(pc.fill_null(found.column(0), _DELETED).to_pylist())


def _insert(
    session: Session, spec: JobSpec, group: OpenGroup, good: Relation, state: Snapshot
) -> pa.Table:
    """Write rows that the group does not have, and return the places of their records."""
    assert spec.stream is not None
    stream = spec.stream
    landed: list[pa.Table] = []
    columns = pa.schema([good.schema.field(name) for name in STORED_COLUMNS])
    write = Write(
        schema_change="add",
        validation=spec.validation,
        transaction=(_app(stream), state.version),
        order=RecordOrder("first", columns, landed=landed),
    )
    insert(
        session, FeatureFrame(session, good), spec.target, version=group.spec.version, write=write
    )
    return landed[0]


def _app(stream: StreamSpec) -> str:
    """Return the application whose transaction number is the version of a replayed quarantine."""
    return f"replay/{stream.source}/{stream.topic}"


def _finished(session: Session, spec: JobSpec, group: OpenGroup, state: Snapshot) -> Snapshot:
    """Return the quarantine without the records of a replay that died between its two commits."""
    assert spec.stream is not None
    if read_snapshot(group.path).transactions.get(_app(spec.stream)) != state.version:
        return state
    for commit in read_history(group.path):
        ranges = commit.note.get("replayed")
        if isinstance(ranges, Mapping):
            _remove(session, state, places_of_ranges(ranges), spec.stream.topic)
            return read_snapshot(state.path)
    return state


def _remove(session: Session, state: Snapshot, landed: pa.Table, topic: str) -> None:
    """Remove records that landed from the quarantine, in one commit."""
    if not landed.num_rows:
        return
    engine = session.engine
    topics = pa.array([topic] * landed.num_rows, pa.string())
    places = engine.from_arrow(landed.append_column(_TOPIC, topics).to_reader())
    nothing = engine.from_arrow(state.schema.empty_table().to_reader())
    how = TableWrite(
        mode="upsert",
        key=(_TOPIC, PARTITION, OFFSET),
        deletes=places,
        note={"operation": "replay"},
    )
    engine.write(state.path, nothing, how)
