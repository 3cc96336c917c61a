"""Commit a micro-batch: decode its records, quarantine unreadable records, write the rows."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from featurestore.errors import BadRecord
from featurestore.featuregroups import WriteRequest, insert
from featurestore.featuregroups.log_order import has_decreasing_times
from featurestore.featuregroups.quality import add_to_quarantine
from featurestore.featuregroups.record_queries import OFFSET, PARTITION
from featurestore.featuregroups.records import RecordOrder, has_repeated_keys
from featurestore.featuregroups.table import OpenGroup
from featurestore.model.job import StreamWork
from featurestore.model.reader_text import remove_machine_details
from featurestore.model.stream import StreamSpec
from featurestore.plugins.engine import BatchFunction, TableWrite
from featurestore.plugins.source import (
    RECORD_DELETES,
    RECORD_ERROR,
    STORED_COLUMNS,
    MicroBatch,
)
from featurestore.recovery.in_flight import in_flight
from featurestore.retrieval import FeatureFrame
from featurestore.session import Session
from featurestore.streams.opening import BAD
from featurestore.validation.quarantine import REASONS

_SHOWN_CHARACTERS = 200
_DECODED_ROWS = 122_880


@dataclass(frozen=True)
class RecordDecoder:
    """A record decoder with the schema of its rows."""

    decode: BatchFunction
    schema: pa.Schema


@dataclass(frozen=True)
class _Records:
    """The decoded records of a micro-batch: rows, deleted keys and bad records."""

    good: pa.Table | FeatureFrame
    deleted: pa.Table
    bad: pa.Table


@dataclass(frozen=True)
class Committed:
    """The result of a micro-batch: row count, bad records, and Delta version.

    ``records`` is the number of decoded records; ``reasons`` counts the errors of bad records.
    """

    rows: int
    bad: int
    delta_version: int
    records: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)


def commit_micro_batch(
    session: Session,
    job: str,
    work: StreamWork,
    group: OpenGroup,
    batch: MicroBatch,
    *,
    previous_offsets: Mapping[int, int | None],
    decoding: RecordDecoder,
    commit_metadata: Mapping[str, Any],
) -> Committed:
    """Commit a micro-batch.

    ``previous_offsets`` contains the table's offset of each partition.

    Raises:
        StreamOvertaken: Another process committed these records first.
        BadRecord: A record is unreadable, and the job fails on bad records.
    """
    stream = work.stream
    offsets = _find_advanced_offsets(stream, batch, previous_offsets)
    with _decode_records(session, job, work, batch, decoding) as records:
        # Bad records are quarantined first. Only the commit of the rows advances the offsets, so
        # after a crash in between, the next run reads the same records again and loses none.
        if records.bad.num_rows:
            _handle_bad_records(session, job, work, group, records.bad, offsets, commit_metadata)
        metadata = {
            **commit_metadata,
            "offsets": {str(number): end for number, end in batch.end.items()},
        }
        order = None
        rows = _select_columns(session, records.good, stream.columns.names)
        # Most micro-batches have no repeated keys and need no comparison of their records.
        if _depends_on_order(session, work, group, records, rows):
            order = RecordOrder(
                stream.on_duplicates,
                pa.schema([records.bad.schema.field(name) for name in STORED_COLUMNS]),
                records.deleted if records.deleted.num_rows else None,
                is_log_time=_has_log_time(work),
            )
            rows = _select_columns(
                session, records.good, [*stream.columns.names, *order.columns.names]
            )
        request = WriteRequest(
            work.target,
            version=group.spec.version,
            schema_change="add",
            validation=work.options.validation,
            offsets=offsets,
            stream={**metadata, "bad": records.bad.num_rows},
            order=order,
        )
        commit = insert(session, rows, request)
        good = records.good
        count = good.num_rows if isinstance(good, pa.Table) else good.count()
    bad = records.bad
    return Committed(
        commit.rows_in,
        bad.num_rows,
        commit.delta_version,
        count + records.deleted.num_rows + bad.num_rows,
        Counter(bad.column(RECORD_ERROR).to_pylist()),
    )


def _depends_on_order(
    session: Session, work: StreamWork, group: OpenGroup, records: _Records, rows: object
) -> bool:
    """Return whether the result depends on the order of the records in a micro-batch."""
    if records.deleted.num_rows:
        return True
    if group.spec.expectations and work.options.validation != "off":
        return True  # rows are quarantined before rows with the same key are compared
    if has_repeated_keys(session, rows, group):
        return True
    if not _has_log_time(work):
        return False
    names = [*work.options.primary_key, str(work.options.event_time), PARTITION, OFFSET]
    return has_decreasing_times(session, _select_columns(session, records.good, names), group)


def _has_log_time(work: StreamWork) -> bool:
    """Return whether the event time is the time at which the database logged a change."""
    return work.stream.fields.get(str(work.options.event_time)) == "change_timestamp"


def _select_columns(
    session: Session, good: pa.Table | FeatureFrame, names: Sequence[str]
) -> pa.Table | FeatureFrame:
    """Select columns by name."""
    if isinstance(good, pa.Table):
        return good.select(list(names))
    relation = session.engine.select(good.relation, {name: name for name in names})
    return FeatureFrame(session, relation)


def _find_advanced_offsets(
    stream: StreamSpec, batch: MicroBatch, previous_offsets: Mapping[int, int | None]
) -> dict[str, tuple[int | None, int]]:
    """Return the previous and the next offset of each partition that advances."""
    return {
        stream.app(number): (previous_offsets[number], end)
        for number, end in batch.end.items()
        if end != previous_offsets[number]
    }


@contextmanager
def _decode_records(
    session: Session, job: str, work: StreamWork, batch: MicroBatch, decoding: RecordDecoder
) -> Iterator[_Records]:
    """Decode a micro-batch; yield its rows, deleted keys and bad records."""
    columns = [name for name in decoding.schema.names if name not in (RECORD_ERROR, RECORD_DELETES)]
    keys = [*work.options.primary_key, PARTITION, OFFSET]
    if isinstance(batch.records, pa.Table):
        records = batch.records.combine_chunks()  # the decoder is fast on many rows at once
        decoded = [
            decoding.decode(record_batch) for record_batch in records.to_batches(_DECODED_ROWS)
        ]
        rows = pa.Table.from_batches(decoded, schema=decoding.schema)
        is_bad = pc.is_valid(rows.column(RECORD_ERROR))
        is_deleted = rows.column(RECORD_DELETES)
        bad, deleted = rows.filter(is_bad), rows.filter(is_deleted)
        good = rows.select(columns)
        if bad.num_rows or deleted.num_rows:
            good = good.filter(pc.invert(pc.or_(is_bad, is_deleted)))
        yield _Records(good, deleted.select(keys), bad)
        return
    engine = session.engine
    with in_flight(session, operation="stage", name=job, version=1) as run:
        # On Spark, the executors decode the records. The result is staged, because each of the
        # filters below would read and decode the topic again.
        adopted = engine.adopt(batch.records)
        assert adopted is not None
        mapped = engine.map_batches(adopted, decoding.decode, schema=decoding.schema)
        staged = engine.stage(mapped, os.path.join(run.rows, "records"))
        bad = engine.stream(engine.filter(staged, f"{RECORD_ERROR} IS NOT NULL")).read_all()
        deleted_keys = engine.select(
            engine.filter(staged, RECORD_DELETES), {name: name for name in keys}
        )
        deleted = engine.stream(deleted_keys).read_all() if work.stream.mode == "upsert" else None
        readable = engine.filter(staged, f"{RECORD_ERROR} IS NULL AND NOT {RECORD_DELETES}")
        readable = engine.select(readable, {name: name for name in columns})
        no_keys = decoding.schema.empty_table().select(keys)
        yield _Records(
            FeatureFrame(session, readable), no_keys if deleted is None else deleted, bad
        )


def _handle_bad_records(
    session: Session,
    job: str,
    work: StreamWork,
    group: OpenGroup,
    bad: pa.Table,
    offsets: Mapping[str, tuple[int | None, int]],
    commit_metadata: Mapping[str, Any],
) -> None:
    """Fail on bad records, skip them or quarantine them, as the job specifies."""
    if work.stream.on_bad_record == "fail":
        first = bad.slice(0, 1).to_pylist()[0]
        raise BadRecord(
            f"Job {job!r}: {bad.num_rows} records are unreadable. The first one is in "
            f"partition {first['record_partition']} at offset {first['record_offset']}: "
            f"{str(first[RECORD_ERROR])[:_SHOWN_CHARACTERS]}.",
            hint="on_bad_record='quarantine' stores them in a quarantine table and continues",
        )
    if work.stream.on_bad_record == "skip":
        return
    rows = _to_quarantine_rows(bad, group.spec.schema)
    # By these offsets, the quarantine table recognizes bad records that it already contains. Rows
    # that fail validation have the application ids without the prefix.
    bad_offsets = {f"{BAD}{app}": advance for app, advance in offsets.items()}
    write = TableWrite(
        mode="append", commit_metadata={"run": commit_metadata["run"]}, offsets=bad_offsets
    )
    relation = session.engine.from_arrow(rows.to_reader())
    add_to_quarantine(session, relation, group.spec, write)


def _to_quarantine_rows(bad: pa.Table, schema: pa.Schema) -> pa.Table:
    """Convert bad records to quarantine rows: null features, position and reason."""
    columns = {column.name: pa.nulls(bad.num_rows, column.type) for column in schema}
    reasons = [[remove_machine_details(reason)] for reason in bad.column(RECORD_ERROR).to_pylist()]
    columns[REASONS] = pa.array(reasons, pa.list_(pa.field("item", pa.string())))
    for name in bad.schema.names:
        if name in STORED_COLUMNS:
            columns[name] = bad.column(name)
    return pa.table(columns)
