"""Stream jobs: a topic's records in a feature group, a trigger at a time."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa

from featurestore.errors import InvalidJob, did_you_mean, listing
from featurestore.featuregroups.definition import Declaration
from featurestore.jobs import specs
from featurestore.jobs.definitions import Columns, Duration, JobDefinition, made_by_caller
from featurestore.jobs.run import Attempt, Recording, Written, check_lease, recorded
from featurestore.jobs.target import declaration
from featurestore.model import avro, times
from featurestore.model.arguments import answering
from featurestore.model.arrow_json import named_type
from featurestore.model.callers import calling_globals
from featurestore.model.durations import format_duration, parse_duration, parse_ttl
from featurestore.model.job import JobSpec
from featurestore.model.names import (
    check_feature_names,
    check_name,
    renames_to_features,
    snake_case_names,
)
from featurestore.model.renames import SNAKE_CASE, check_rename
from featurestore.model.stream import StreamSpec, check_stream
from featurestore.model.types import check_nesting, feature_schema
from featurestore.model.untyped import dtypes_line, refuse_untyped
from featurestore.model.window import Window
from featurestore.registry import jobs, runs, streams
from featurestore.registry.jobs import RegisteredJob
from featurestore.registry.runs import Run
from featurestore.session import Session
from featurestore.streams import StreamTarget, consume

_log = logging.getLogger("featurestore.jobs")


@answering
def stream_job(
    name: str,
    *,
    source: str,
    topic: str,
    schema: pa.Schema | Mapping[str, Any] | str,
    featuregroup: str | None = None,
    primary_key: Columns = (),
    event_time: str | None = None,
    created_time: str | None = None,
    partition_by: Columns = (),
    format: str = "json",
    fields: Mapping[str, str] | None = None,
    rename: Mapping[str, str] | str | None = None,
    trigger: Duration = "10s",
    mode: str | None = None,
    on_duplicates: str = "last",
    on_bad_record: str = "quarantine",
    most_bad: float = 0.5,
    on_lost: str = "fail",
    begin: str = "earliest",
    batch_records: int = 100_000,
    schema_registry: str | None = None,
    consumer_group: str | None = None,
    generation: int = 1,
    validation: str = "quarantine",
    ttl: Duration | None = None,
    expectations: Sequence[Mapping[str, Any]] = (),
    statistics: bool = True,
    description: str = "",
    tags: Mapping[str, str] | None = None,
    retries: int = 2,
    alert: Columns = (),
) -> JobDefinition:
    """Make a job that brings the records of a topic into a feature group, each of them once.

    A run reads what the topic has then, in micro-batches; schedulers run it at each trigger. Each
    micro-batch passes the group's checks and is one commit, which also says which offsets come
    next: whatever is killed, repeated or run twice, no record is missing and none is there twice.

    Args:
        name: Name of the job.
        source: A registered source that has topics (``add_source("events", "kafka://...")``).
        topic: The topic.
        schema: The columns of the values: ``{name: type}`` with types of Arrow or their names
            ("string", "int64", "double", "timestamp", ...), an Arrow schema, or a schema of Avro
            as a dict or as JSON text where ``format="avro"``.
        featuregroup: The group that the job fills; else that of the job's name.
        primary_key: As for ``create_featuregroup``; never null in a record.
        event_time: The column of the time when the record was true; never null in a record.
        created_time: As for ``create_featuregroup``.
        partition_by: As for ``create_featuregroup``.
        format: "json"; "avro" in the wire format of schema registries; "debezium", change events
            of a table in JSON, or in Avro with ``schema_registry``; or "raw", the bytes or the text
            of the value in one column.
        fields: ``{column: what}``, columns that hold what is known of a record: its "topic",
            "partition", "offset", "timestamp" or "key" (as text); of change events also
            "change_timestamp", "capture_timestamp" and "operation". An ``event_time`` that change
            events do not have as a column is their "change_timestamp", a ``created_time`` their
            "capture_timestamp".
        rename: ``{name in records: column}``, or "snake_case", for names of ``schema`` that are no
            names of features; keys and times are named as columns.
        trigger: How often schedulers look for records.
        mode: "append"; or "upsert", in which a record without a value deletes the rows of its
            primary key, which the record's key holds. Change events are always upserts.
        on_duplicates: Which record of a primary key and its times lands, wherever micro-batches
            end: the "last" of a partition, the "first", or the first while the others go to the
            "quarantine".
        on_bad_record: What becomes of records that cannot be read: "quarantine" sets them aside
            with topic, partition, offset and reason, "fail" ends the run, "skip" counts them.
        most_bad: A run of which more than this share of at least 100 records cannot be read fails.
        on_lost: What becomes of a stream whose unread records the topic has removed: "fail", or
            "skip" them.
        begin: Where a topic is begun that was never read, "earliest" or "latest".
        batch_records: At most so many records in a micro-batch.
        schema_registry: Address of a registry of the schemas that records of Avro were written
            with; None: they were written with ``schema``.
        consumer_group: Runners of this name share the partitions of the topic; None: one runner at
            a time reads all of them.
        generation: Raise it where the topic was made anew, so that its offsets count from zero.
        validation: Policy of the writes.
        ttl: As for ``create_featuregroup``.
        expectations: As for ``create_featuregroup``, as plain dicts.
        statistics: Whether commits count statistics.
        description: Of the feature group.
        tags: Of the feature group.
        retries: How often schedulers try again soon after a failure, waiting longer each time.
        alert: Channels that are told when runs keep failing (``add_alert_channel``).

    Raises:
        InvalidJob: There is no event time, or a format, type or choice that there is not.

    >>> clicks = featurestore.stream_job(
    ...     "clicks", source="events", topic="clicks", primary_key="user", event_time="at",
    ...     schema={"user": "string", "page": "string", "at": "timestamp"}, trigger="10s",
    ... )
    >>> (clicks.spec.kind, clicks.spec.stream.columns.names)
    ('stream', ['user', 'page', 'at'])
    """
    columns, text = _columns_of(name, schema, format)
    columns, renames = _renamed(name, columns, rename)
    stream = StreamSpec(
        source=source,
        topic=topic,
        schema=columns,
        format=format,  # type: ignore[arg-type]
        fields=_fields(fields, columns, format, event_time, created_time),
        trigger=parse_duration(trigger, argument="trigger"),
        on_bad_record=on_bad_record,  # type: ignore[arg-type]
        on_lost=on_lost,
        begin=begin,
        batch_records=batch_records,
        avro=text,
        schema_registry=schema_registry,
        consumer_group=consumer_group,
        generation=generation,
        on_duplicates=on_duplicates,
        mode=mode or ("upsert" if format == "debezium" else "append"),
        most_bad=most_bad,
        renames=renames,
    )
    check_stream(stream)
    spec = JobSpec(
        name=check_name(name, noun="job"),
        kind="stream",
        target=check_name(featuregroup or name, noun="feature group"),
        schedule=f"every {format_duration(stream.trigger)}",
        inputs={},
        code="",
        mode=stream.mode,  # type: ignore[arg-type]
        validation=validation,
        primary_key=(primary_key,) if isinstance(primary_key, str) else tuple(primary_key),
        event_time=event_time,
        created_time=created_time,
        partition_by=(partition_by,) if isinstance(partition_by, str) else tuple(partition_by),
        ttl=parse_ttl(ttl),
        expectations=tuple(dict(each) for each in expectations),
        statistics=statistics,
        description=description,
        tags=dict(tags or {}),
        retries=retries,
        alert=specs.channels(alert),
        stream=stream,
    )
    specs.check_choices(spec)
    specs.check_rows(spec)
    _check_columns(spec)
    return made_by_caller(JobDefinition(spec), calling_globals())


def _fields(
    fields: Mapping[str, str] | None,
    columns: pa.Schema,
    format: str,
    event_time: str | None,
    created_time: str | None,
) -> dict[str, str]:
    """Return the columns of what is known of records, with those that change events imply."""
    named = dict(fields or {})
    if format != "debezium":
        return named
    implied = ((event_time, "change_timestamp"), (created_time, "capture_timestamp"))
    for column, told in implied:
        if column is not None and column not in (*columns.names, *named):
            named[column] = told
    return named


def _renamed(
    job: str, columns: pa.Schema, rename: Mapping[str, str] | str | None
) -> tuple[pa.Schema, dict[str, str]]:
    """Return the columns under their new names, and the names in records of those that differ.

    Raises:
        InvalidJob: A column has no name of a feature; the hint is the mapping.
    """
    text = check_rename(rename)
    names: dict[str, str] = {}
    if text == SNAKE_CASE:
        names = snake_case_names(columns.names)
    elif text is not None:
        names = json.loads(text)
    absent = [name for name in names if name not in columns.names]
    if absent:
        raise InvalidJob(
            f"Job {job!r}: rename= names {listing(absent)}; schema= has {listing(columns.names)}.",
            hint=did_you_mean(absent[0], columns.names, write="rename={{{!r}: '...'}}"),
        )
    renamed = [names.get(name, name) for name in columns.names]
    needed = renames_to_features(renamed)
    if needed:
        mapping = {}
        for foreign, column in zip(columns.names, renamed, strict=True):
            if column in needed or foreign in names:
                mapping[foreign] = needed.get(column, column)
        raise InvalidJob(
            f"Job {job!r}: {listing(list(needed))} are not names of features.",
            hint=f"rename={mapping!r}, or rename='snake_case'",
        )
    fields = zip(renamed, columns.types, strict=True)
    foreign_names = {}
    for foreign, column in zip(columns.names, renamed, strict=True):
        if foreign != column:
            foreign_names[column] = foreign
    return pa.schema([pa.field(column, kind) for column, kind in fields]), foreign_names


def _columns_of(name: str, schema: object, format: str) -> tuple[pa.Schema, str | None]:
    """Return the columns of values, and the schema of Avro as text where it is one."""
    if format == "avro":
        text = schema if isinstance(schema, str) else None
        if isinstance(schema, Mapping):
            text = json.dumps(schema)
        if text is None:
            raise InvalidJob(
                f"Job {name!r}: format='avro' needs the schema of Avro.",
                hint="schema=Path('click.avsc').read_text(), or the same as a dict",
            )
        return avro.columns_of(text), text
    if isinstance(schema, Mapping):
        fields = []
        for column, given in schema.items():
            fields.append(pa.field(str(column), named_type(given, column=str(column))))
        schema = pa.schema(fields)
    if not isinstance(schema, pa.Schema) or not len(schema):
        raise InvalidJob(
            f"Job {name!r}: schema={schema!r} names no columns.",
            hint='schema={"user": "string", "at": "timestamp"}',
        )
    check_nesting(schema)
    schema = feature_schema(schema)
    refuse_untyped(schema, what=f"Job {name!r}", hint=_schema_line)
    return schema, None


def _schema_line(columns: pa.Schema) -> str:
    return dtypes_line(columns).replace("dtypes=", "schema=")


def _check_columns(spec: JobSpec) -> None:
    """Refuse keys and times that are no columns, or of no type that they can have."""
    assert spec.stream is not None
    columns = spec.stream.columns
    check_feature_names(columns.names)
    roles = {"event_time": (spec.event_time,), "created_time": (spec.created_time,)}
    named = {**roles, "primary_key": spec.primary_key, "partition_by": spec.partition_by}
    for argument, names in named.items():
        for column in names:
            if column is not None and column not in columns.names:
                raise InvalidJob(
                    f"Job {spec.name!r}: {argument} names {column!r}; its columns are "
                    f"{listing(columns.names)}.",
                    hint=did_you_mean(column, columns.names, write=f"{argument}={{!r}}"),
                )
    for argument, (column,) in roles.items():
        if column is None:
            continue
        kind = columns.field(column).type
        if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            raise InvalidJob(
                f"Job {spec.name!r}: {argument} {column!r} is {kind}, which is no time.",
                hint=f'"{column}": "timestamp", or fields={{"{column}": "timestamp"}}',
            )


def is_due(session: Session, job: RegisteredJob) -> bool:
    """Return whether a stream job's trigger has passed since it looked at its topic last."""
    stream = job.spec.stream
    if stream is None or job.paused:
        return False
    now = times.utc_now()
    with session.registry.reading() as connection:
        status = streams.status(connection, job.spec.name)
        last = runs.last(connection, job.spec.name)
    if last is not None and last.state == runs.FAILED and last.ended is not None:
        return times.has_passed(last.ended, _wait(session, job), now=now)
    if status is None or status.looked is None:
        return True
    return times.has_passed(status.looked, stream.trigger, now=now)


def _wait(session: Session, job: RegisteredJob) -> timedelta:
    """Return how long a stream rests after failing as often as it did last."""
    with session.registry.reading() as connection:
        failures = runs.failures_in_a_row(connection, job.spec.name)
    if failures > job.spec.retries:
        return timedelta(hours=1)
    return timedelta(seconds=30) * 2 ** (failures - 1)


def run_stream(session: Session, attempt: Attempt, *, stop: threading.Event) -> Run:
    """Bring what the topic has into the group; the caller has the job's lease, if it needs one."""
    return recorded(session, attempt, partial(_consumed, session, attempt, stop))


def window_of(job: RegisteredJob) -> Window:
    """Return the time of a look at a topic, up to now: what a run of a stream job is told by."""
    assert job.spec.stream is not None
    now = times.utc_now()
    return Window(times.shifted(now, -job.spec.stream.trigger), now)


def _consumed(
    session: Session, attempt: Attempt, stop: threading.Event, recording: Recording
) -> Written:
    spec = attempt.spec
    assert spec.stream is not None
    declared: Declaration = declaration(spec)
    check = partial(check_lease, session, attempt)
    if spec.stream.consumer_group is not None:
        check = partial(_check_registered, session, attempt)
    progress = consume(
        session,
        spec,
        StreamTarget(recording.group, declared),
        run_id=recording.run.run_id,
        check=check,
        stop=stop,
    )
    _log.info(
        "%d rows and %d bad records in %d micro-batches, %.1f s",
        progress.rows,
        progress.bad,
        progress.batches,
        progress.seconds,
    )
    return Written(progress.rows, progress.delta_version, progress.version)


def _check_registered(session: Session, attempt: Attempt) -> None:
    """Refuse to go on with a definition that was registered anew meanwhile."""
    with session.registry.reading() as connection:
        job = jobs.get(connection, attempt.spec.name)
    if job.version != attempt.job.version:
        raise InvalidJob(
            f"Job {attempt.spec.name!r} was registered anew while this run read for version "
            f"{attempt.job.version}.",
            hint="run it again",
        )
