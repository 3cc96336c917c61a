"""Replay: decode quarantined records with the current job, and write the valid records.

Written records are removed from the quarantine. Rows that already exist in the group are not
replaced, because they may come from a later record. Deletes are not replayed for the same reason.
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
from featurestore.featuregroups import WriteRequest, insert
from featurestore.featuregroups.record_queries import OFFSET, PARTITION
from featurestore.featuregroups.records import RecordOrder, positions_of_ranges
from featurestore.featuregroups.table import OpenGroup
from featurestore.model import display
from featurestore.model.job import StreamWork
from featurestore.model.stream import StreamSpec
from featurestore.plugins.engine import BatchFunction, Engine, Relation, TableWrite
from featurestore.plugins.source import RECORD_DELETES, RECORD_ERROR, STORED_COLUMNS
from featurestore.recovery.in_flight import in_flight
from featurestore.retrieval import FeatureFrame
from featurestore.session import Session
from featurestore.streams.opening import make_decoder, open_streams

_TOPIC = "record_topic"
_DELETED = "deletes are not replayed: the row may have been written again since"
_NOT_WRITTEN = "the row fails validation, or the group already has a row with its key and times"


@dataclass(frozen=True)
class Replayed:
    """The result of a replay: written records, and the reasons why others remain quarantined."""

    rows: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)

    __repr__ = display.record_repr

    @property
    def left(self) -> int:
        """The number of records that remain in the quarantine."""
        return sum(self.reasons.values())


@dataclass(frozen=True)
class _QuarantineDecoder:
    """Decodes the records of a quarantine table."""

    decode: BatchFunction

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        # The decoder expects the columns of a topic, which have no prefix.
        names = [name.removeprefix("record_") for name in batch.schema.names]
        return self.decode(pa.RecordBatch.from_arrays(batch.columns, names))


def replay(session: Session, job: str, work: StreamWork, group: OpenGroup) -> Replayed:
    """Replay the quarantined records of a group; the caller holds the job's lease.

    Raises:
        ValidationFailed: Rows violate expectations, and the job's validation policy is strict.
    """
    stream, engine = work.stream, session.engine
    path = session.quarantine_path(group.spec.name, group.spec.version)
    if not is_delta_table(path):
        return Replayed()
    # A replay commits the rows to the group first, then removes their records. A crash in between
    # must not write the rows again.
    state = _finish_interrupted_replay(session, stream, group, read_snapshot(path))
    if not state.rows or _TOPIC not in state.schema.names:
        return Replayed()
    source = open_streams(session, stream)
    schema = source.decoded_schema(stream)
    with in_flight(session, operation="stage", name=job, version=1) as run:
        records = _read_quarantine(engine, state, schema, stream.topic)
        rows = engine.map_batches(
            records, _QuarantineDecoder(make_decoder(source, work)), schema=schema
        )
        rows = engine.stage(rows, os.path.join(run.rows, "records"))
        bad = engine.filter(rows, f"{RECORD_ERROR} IS NOT NULL OR {RECORD_DELETES}")
        errors = engine.stream(engine.select(bad, {RECORD_ERROR: RECORD_ERROR})).read_all()
        reasons = Counter(pc.fill_null(errors.column(0), _DELETED).to_pylist())
        good = engine.filter(rows, f"{RECORD_ERROR} IS NULL AND NOT {RECORD_DELETES}")
        names = [*stream.columns.names, *STORED_COLUMNS]
        good = engine.select(good, {name: name for name in names})
        if not engine.count(good):
            return Replayed(reasons=reasons)
        inserted = _insert_new_rows(session, work, group, good, state)
        _remove_records(session, state, inserted, stream.topic)
        not_written = engine.count(good) - inserted.num_rows
    if not_written:
        reasons[_NOT_WRITTEN] = not_written
    return Replayed(inserted.num_rows, reasons)


def _read_quarantine(engine: Engine, state: Snapshot, schema: pa.Schema, topic: str) -> Relation:
    """Return the records of a topic from a quarantine table."""
    stored_columns = [name for name in STORED_COLUMNS if name in state.schema.names]
    columns = pa.schema([schema.field(name) for name in stored_columns])
    rows = engine.read_table(
        state.path, version=state.version, schema=columns, columns=stored_columns
    )
    is_of_topic = exp.column(_TOPIC, quoted=True).eq(exp.Literal.string(topic))
    rows = engine.filter(rows, is_of_topic.sql(dialect=engine.dialect))
    if len(stored_columns) == len(STORED_COLUMNS):
        return engine.select(rows, {name: name for name in STORED_COLUMNS})
    full_schema = pa.schema([schema.field(name) for name in STORED_COLUMNS])
    return engine.map_batches(rows, _AddMissingColumns(full_schema), schema=full_schema)


@dataclass(frozen=True)
class _AddMissingColumns:
    """Adds null columns that tables of earlier releases lack."""

    schema: pa.Schema

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            batch.column(column.name)
            if column.name in batch.schema.names
            else pa.nulls(batch.num_rows, column.type)
            for column in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _insert_new_rows(
    session: Session, work: StreamWork, group: OpenGroup, good: Relation, state: Snapshot
) -> pa.Table:
    """Write the rows that the group does not contain, and return their record positions."""
    inserted: list[pa.Table] = []
    columns = pa.schema([good.schema.field(name) for name in STORED_COLUMNS])
    request = WriteRequest(
        work.target,
        version=group.spec.version,
        schema_change="add",
        validation=work.options.validation,
        # The table accepts only one replay of a version of the quarantine.
        transaction=(_replay_application_id(work.stream), state.version),
        # Rows in the group may come from later records, so they are kept.
        order=RecordOrder("first", columns, written_positions=inserted),
    )
    insert(session, FeatureFrame(session, good), request)
    return inserted[0]


def _replay_application_id(stream: StreamSpec) -> str:
    """Return the application id whose transaction number is a quarantine version."""
    return f"replay/{stream.source}/{stream.topic}"


def _finish_interrupted_replay(
    session: Session, stream: StreamSpec, group: OpenGroup, state: Snapshot
) -> Snapshot:
    """Finish a replay that died between its two commits; return the updated quarantine."""
    if read_snapshot(group.path).transactions.get(_replay_application_id(stream)) != state.version:
        return state
    for commit in read_history(group.path):
        ranges = commit.user_metadata.get("replayed")
        if isinstance(ranges, Mapping):
            _remove_records(session, state, positions_of_ranges(ranges), stream.topic)
            return read_snapshot(state.path)
    return state


def _remove_records(session: Session, state: Snapshot, written_rows: pa.Table, topic: str) -> None:
    """Remove written records from the quarantine in one commit."""
    if not written_rows.num_rows:
        return
    engine = session.engine
    topics = pa.array([topic] * written_rows.num_rows, pa.string())
    positions = engine.from_arrow(written_rows.append_column(_TOPIC, topics).to_reader())
    no_rows = engine.from_arrow(state.schema.empty_table().to_reader())
    # An upsert without rows only deletes, by key and in one commit.
    write = TableWrite(
        mode="upsert",
        key=(_TOPIC, PARTITION, OFFSET),
        deletes=positions,
        commit_metadata={"operation": "replay"},
    )
    engine.write(state.path, no_rows, write)
