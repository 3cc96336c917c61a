"""One micro-batch: decoded, what cannot be read set aside, the rest through the write path."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from featurestore.errors import BadRecord
from featurestore.featuregroups.audit import add_to_quarantine
from featurestore.featuregroups.table import OpenGroup
from featurestore.featuregroups.write import Write, insert
from featurestore.model.job import JobSpec
from featurestore.model.stream import StreamSpec
from featurestore.plugins.engine import BatchFunction, TableWrite
from featurestore.plugins.stream import RECORD_ERROR, MicroBatch
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
class Landed:
    """What a micro-batch came to: rows in the group, records set aside, and the Delta version."""

    rows: int
    bad: int
    delta_version: int


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
    with _split(session, spec, batch, decoding) as (good, bad):
        if bad.num_rows:
            _set_aside(session, spec, group, bad, offsets, note)
        told = {**note, "offsets": {str(number): end for number, end in batch.end.items()}}
        write = Write(
            schema_change="add",
            validation=spec.validation,
            offsets=offsets,
            stream={**told, "bad": bad.num_rows},
        )
        commit = insert(session, good, spec.target, version=group.spec.version, write=write)
    return Landed(commit.rows_in, bad.num_rows, commit.delta_version)


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
) -> Iterator[tuple[object, pa.Table]]:
    """Give the rows that can be read, and the records that cannot."""
    assert spec.stream is not None
    columns = spec.stream.columns.names
    if isinstance(batch.records, pa.Table):
        records = batch.records.combine_chunks()  # few calls of the decoder, for many rows each
        decoded = [decoding.decode(each) for each in records.to_batches(_DECODED_ROWS)]
        rows = pa.Table.from_batches(decoded, schema=decoding.schema)
        is_bad = pc.is_valid(rows.column(RECORD_ERROR))
        bad = rows.filter(is_bad)
        good = rows.select(columns)
        if bad.num_rows:
            good = good.filter(pc.invert(is_bad))
        yield good, bad
        return
    engine = session.engine
    with in_flight(session, kind="stage", name=spec.name, version=1) as run:
        records = engine.adopt(batch.records)
        assert records is not None
        mapped = engine.map_batches(records, decoding.decode, schema=decoding.schema)
        rows = engine.stage(mapped, os.path.join(run.rows, "records"))
        bad = engine.stream(engine.filter(rows, f"{RECORD_ERROR} IS NOT NULL")).read_all()
        good = engine.filter(rows, f"{RECORD_ERROR} IS NULL")
        good = engine.select(good, {name: name for name in columns})
        yield FeatureFrame(session, good), bad


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
    for field in schema:
        columns[field.name] = pa.nulls(bad.num_rows, field.type)
    reasons = [[reason] for reason in bad.column(RECORD_ERROR).to_pylist()]
    columns[REASONS] = pa.array(reasons, pa.list_(pa.field("item", pa.string())))
    for name in bad.schema.names:
        if name.startswith("record_") and name != RECORD_ERROR:
            columns[name] = bad.column(name)
    return pa.table(columns)
