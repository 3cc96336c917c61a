"""One micro-batch: decoded, what cannot be read set aside, the rest through the write path."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from featurestore.errors import BadRecord
from featurestore.featuregroups.audit import add_to_quarantine
from featurestore.featuregroups.records import OFFSET, PARTITION, RecordOrder, needs_order
from featurestore.featuregroups.table import OpenGroup
from featurestore.featuregroups.write import Write, insert
from featurestore.model.job import JobSpec
from featurestore.model.stream import StreamSpec
from featurestore.plugins.engine import BatchFunction, TableWrite
from featurestore.plugins.stream import (
    RECORD_DELETES,
    RECORD_ERROR,
    STORED_COLUMNS,
    MicroBatch,
)
from featurestore.recovery.in_flight import in_flight
from featurestore.retrieval import FeatureFrame
from featurestore.session import Session
from featurestore.streams.positions import BAD
from featurestore.validation.quarantine import REASONS

_SHOWN = 200
_DECODED_ROWS = 122_880


@dataclass(frozen=True)
class Decoding:
    """How the records of a job become rows; ``schema`` is what ``decode`` gives."""

    decode: BatchFunction
    schema: pa.Schema


@dataclass(frozen=True)
class _Records:
    """A micro-batch apart: rows with the columns of their records, deleted keys, bad records."""

    good: pa.Table | FeatureFrame
    deleted: pa.Table
    bad: pa.Table


@dataclass(frozen=True)
class Landed:
    """What a micro-batch came to: rows in the group, records set aside, and the Delta version.

    ``records`` are those that were looked at, ``reasons`` count why some cannot be read.
    """

    rows: int
    bad: int
    delta_version: int
    records: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)


def land(
    session: Session,
    spec: JobSpec,
    group: OpenGroup,
    batch: MicroBatch,
    *,
    seen: Mapping[int, int | None],
    decoding: Decoding,
    note: Mapping[str, Any],
) -> Landed:
    """Commit a micro-batch.

    ``seen`` is where the table has the partitions, ``note`` what the commit tells of the stream.

    Raises:
        StreamOvertaken: Another process committed these records first.
        BadRecord: One cannot be read, and the job is to fail at those.
    """
    stream = spec.stream
    assert stream is not None
    offsets = _offsets(stream, batch, seen)
    with _split(session, spec, batch, decoding) as records:
        if records.bad.num_rows:
            _set_aside(session, spec, group, records.bad, offsets, note)
        told = {**note, "offsets": {str(number): end for number, end in batch.end.items()}}
        write = Write(
            schema_change="add",
            validation=spec.validation,
            offsets=offsets,
            stream={**told, "bad": records.bad.num_rows},
        )
        rows = _selected(session, records.good, stream.columns.names)
        if _is_ordered(session, spec, group, records, rows):
            order = RecordOrder(
                stream.on_duplicates,
                _record_columns(records),
                records.deleted if records.deleted.num_rows else None,
            )
            write = replace(write, order=order)
            rows = _selected(session, records.good, [*stream.columns.names, *order.columns.names])
        commit = insert(session, rows, spec.target, version=group.spec.version, write=write)
        good = records.good
        count = good.num_rows if isinstance(good, pa.Table) else good.count()
    bad = records.bad
    return Landed(
        commit.rows_in,
        bad.num_rows,
        commit.delta_version,
        count + records.deleted.num_rows + bad.num_rows,
        Counter(bad.column(RECORD_ERROR).to_pylist()),
    )


def _is_ordered(
    session: Session, spec: JobSpec, group: OpenGroup, records: _Records, rows: object
) -> bool:
    """Return whether it matters which record of the micro-batch comes first."""
    if records.deleted.num_rows:
        return True
    if group.spec.expectations and spec.validation != "off":
        return True  # rows go to the quarantine before those of one key are compared
    return needs_order(session, rows, group)


def _selected(
    session: Session, good: pa.Table | FeatureFrame, names: Sequence[str]
) -> pa.Table | FeatureFrame:
    """Return some columns of rows."""
    if isinstance(good, pa.Table):
        return good.select(list(names))
    chosen = session.engine.select(good.relation, {name: name for name in names})
    return FeatureFrame(session, chosen)


def _record_columns(records: _Records) -> pa.Schema:
    """Return the columns of records that go with rows: place, key and value."""
    return pa.schema([records.bad.schema.field(name) for name in STORED_COLUMNS])


def _offsets(
    stream: StreamSpec, batch: MicroBatch, seen: Mapping[int, int | None]
) -> dict[str, tuple[int | None, int]]:
    """Return how the partitions of a micro-batch move on."""
    moved = {}
    for number, end in batch.end.items():
        if end != seen[number]:
            moved[stream.app(number)] = (seen[number], end)
    return moved


@contextmanager
def _split(
    session: Session, spec: JobSpec, batch: MicroBatch, decoding: Decoding
) -> Iterator[_Records]:
    """Give the rows that can be read, the keys that are deleted, and what cannot be read."""
    assert spec.stream is not None
    wanted = [name for name in decoding.schema.names if name not in (RECORD_ERROR, RECORD_DELETES)]
    keys = [*spec.primary_key, PARTITION, OFFSET]
    if isinstance(batch.records, pa.Table):
        records = batch.records.combine_chunks()  # few calls of the decoder, for many rows each
        decoded = [decoding.decode(each) for each in records.to_batches(_DECODED_ROWS)]
        rows = pa.Table.from_batches(decoded, schema=decoding.schema)
        is_bad = pc.is_valid(rows.column(RECORD_ERROR))
        is_deleted = rows.column(RECORD_DELETES)
        bad, deleted = rows.filter(is_bad), rows.filter(is_deleted)
        good = rows.select(wanted)
        if bad.num_rows or deleted.num_rows:
            good = good.filter(pc.invert(pc.or_(is_bad, is_deleted)))
        yield _Records(good, deleted.select(keys), bad)
        return
    engine = session.engine
    with in_flight(session, kind="stage", name=spec.name, version=1) as run:
        adopted = engine.adopt(batch.records)
        assert adopted is not None
        mapped = engine.map_batches(adopted, decoding.decode, schema=decoding.schema)
        staged = engine.stage(mapped, os.path.join(run.rows, "records"))
        bad = engine.stream(engine.filter(staged, f"{RECORD_ERROR} IS NOT NULL")).read_all()
        gone = engine.select(engine.filter(staged, RECORD_DELETES), {name: name for name in keys})
        deleted = engine.stream(gone).read_all() if spec.stream.mode == "upsert" else None
        left = engine.filter(staged, f"{RECORD_ERROR} IS NULL AND NOT {RECORD_DELETES}")
        left = engine.select(left, {name: name for name in wanted})
        nothing = decoding.schema.empty_table().select(keys)
        yield _Records(FeatureFrame(session, left), nothing if deleted is None else deleted, bad)


def _set_aside(
    session: Session,
    spec: JobSpec,
    group: OpenGroup,
    bad: pa.Table,
    offsets: Mapping[str, tuple[int | None, int]],
    note: Mapping[str, Any],
) -> None:
    """Do with records that cannot be read what the job says."""
    assert spec.stream is not None
    if spec.stream.on_bad_record == "fail":
        first = bad.slice(0, 1).to_pylist()[0]
        raise BadRecord(
            f"Job {spec.name!r}: {bad.num_rows} records cannot be read; the first one, of partition "
            f"{first['record_partition']} at offset {first['record_offset']}: "
            f"{str(first[RECORD_ERROR])[:_SHOWN]}.",
            hint="on_bad_record='quarantine' sets them aside and goes on",
        )
    if spec.stream.on_bad_record == "skip":
        return
    rows = _quarantine_rows(bad, group.spec.schema)
    own = {f"{BAD}{app}": moved for app, moved in offsets.items()}
    how = TableWrite(mode="append", note={"run": note["run"]}, offsets=own)
    relation = session.engine.from_arrow(rows.to_reader())
    add_to_quarantine(session, relation, group.spec, how)


def _quarantine_rows(bad: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return records as rows of a quarantine table: no features, where they were, and why."""
    columns = {}
    for column in schema:
        columns[column.name] = pa.nulls(bad.num_rows, column.type)
    reasons = [[reason] for reason in bad.column(RECORD_ERROR).to_pylist()]
    columns[REASONS] = pa.array(reasons, pa.list_(pa.field("item", pa.string())))
    for name in bad.schema.names:
        if name in STORED_COLUMNS:
            columns[name] = bad.column(name)
    return pa.table(columns)
