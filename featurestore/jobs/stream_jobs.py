"""Stream jobs: write the records of a topic into a feature group, triggered periodically."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa

from featurestore.arrow import json_schemas, proto_schemas, schemas
from featurestore.arrow.column_names import (
    check_feature_names,
    snake_case_names,
    suggest_renames,
)
from featurestore.arrow.hints import parse_type
from featurestore.arrow.types import check_nesting, feature_schema
from featurestore.arrow.untyped import format_dtypes, refuse_untyped
from featurestore.errors import InvalidJob, did_you_mean, listing
from featurestore.jobs.definition_checks import check_choices, check_keys_and_times
from featurestore.jobs.definitions import (
    Columns,
    Duration,
    JobDefinition,
    add_to_module,
    check_channel_names,
    plain_expectations,
)
from featurestore.jobs.publish_jobs import publish_committed, publish_missed
from featurestore.jobs.run import JobRun, RunOutput, check_lease, run_recorded
from featurestore.jobs.target import declaration
from featurestore.model import times
from featurestore.model.arguments import as_tuple, calling_globals, with_suggestions
from featurestore.model.featuregroup import VALIDATION_POLICIES
from featurestore.model.group_options import GroupOptions
from featurestore.model.job import Alerts, JobSpec, Schedule, StreamWork
from featurestore.model.names import SNAKE_CASE, check_name, check_rename
from featurestore.model.publication_target import parse_targets
from featurestore.model.stream import SCHEMA_FORMATS, StreamSpec, check_stream
from featurestore.model.times import Window, format_duration, parse_duration, parse_ttl
from featurestore.registry import jobs, runs
from featurestore.registry.jobs import RegisteredJob
from featurestore.registry.runs import Run
from featurestore.session import Session
from featurestore.streams import StreamTarget, consume

# A file name for hints, and the function that converts a schema of the format.
_SCHEMA_FORMATS = {
    "avro": ("click.avsc", schemas.schema_from_avro),
    "protobuf": ("click.proto", proto_schemas.schema_from_proto),
    "json_schema": ("click.json", json_schemas.schema_from_json_schema),
}
_log = logging.getLogger("featurestore.jobs")


@with_suggestions
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
    publish: Columns | Mapping[str, str | None] = (),
    shared: bool = False,
) -> JobDefinition:
    """Define a job that writes each record of a topic into a feature group exactly once.

    Schedulers run the job at each trigger. A run reads the new records of the topic in
    micro-batches. Each micro-batch is validated and becomes one commit, whose metadata contains the
    next offsets: no record is lost or duplicated by crashes and repeated runs.

    Args:
        name: The job name.
        source: A registered source with topics (``add_source("events", "kafka://...")``).
        topic: The topic name.
        schema: The columns of the record values: ``{name: type}`` with Arrow types or their
            names ("string", "int64", "double", "timestamp", ...), or an Arrow schema. For
            ``format="avro"`` and "json_schema", such a schema as a dict or JSON string; for
            "protobuf" the text of a ``.proto`` file, whose first message is read.
        featuregroup: The group that the job writes; defaults to the job name.
        primary_key: As for ``create_featuregroup``; never null in a record.
        event_time: The column with the time of a record; never null in a record.
        created_time: As for ``create_featuregroup``.
        partition_by: As for ``create_featuregroup``.
        format: "json"; "avro", "protobuf" or "json_schema" in the wire format of schema
            registries; "debezium" for change events of a table in JSON, or in Avro with
            ``schema_registry``; or "raw" for the value as bytes or as a string in one column.
        fields: ``{column: field}`` for columns with record metadata: "topic", "partition",
            "offset", "timestamp" or "key" (as a string); for change events also
            "change_timestamp", "capture_timestamp" and "operation". For change events, an
            ``event_time`` that is not one of their columns is set to "change_timestamp", and a
            ``created_time`` to "capture_timestamp".
        rename: ``{name in records: column}``, or "snake_case", for names in ``schema`` that are
            not valid feature names; keys and times use the column names.
        trigger: How often schedulers poll for records.
        mode: "append"; or "upsert", where a record without a value deletes the rows with the
            record key as primary key. Change events are always upserted.
        on_duplicates: Which of several records with the same primary key and times is stored,
            across micro-batches: the "last" in a partition, the "first", or the first while the
            others go to the "quarantine".
        on_bad_record: How to handle unreadable records: "quarantine" stores them with topic,
            partition, offset and reason, "fail" ends the run, "skip" only counts them.
        most_bad: A run fails if more than this fraction of at least 100 records is unreadable.
        on_lost: How to handle unread records that the topic has removed: "fail", or "skip"
            them.
        begin: Where to start reading a topic for the first time, "earliest" or "latest".
        batch_records: Maximum number of records in a micro-batch.
        schema_registry: The address of a registry with the writer schemas of records; None if
            the records were written with ``schema``.
        consumer_group: Runners with the same consumer group share the partitions of the topic.
            None: one runner at a time reads all partitions.
        generation: Increase it when the topic was recreated, so that its offsets start from
            zero.
        validation: The validation policy for writes.
        ttl: As for ``create_featuregroup``.
        expectations: As for ``create_featuregroup``, as plain dicts.
        statistics: Whether commits compute statistics.
        description: The description of the feature group.
        tags: The tags of the feature group.
        retries: The number of early retries after a failure, with increasing delays.
        alert: The channels to alert when runs keep failing (``add_alert_channel``).
        publish: The feature views to publish after each micro-batch, ``["buyers"]``, or
            ``{"buyers": "cache"}`` with their online stores. If a view cannot be published, the
            run continues, and the view is published after the next micro-batch or at the next
            trigger. The channels of ``alert`` are alerted once, until no view is behind.
        shared: Whether other jobs with different keys may write the same group, which must also
            set it. Without it, registering a second writer warns.

    Raises:
        InvalidJob: The event time is missing, or a format, type or option is invalid.

    >>> clicks = featurestore.stream_job(
    ...     "clicks", source="events", topic="clicks", primary_key="user", event_time="at",
    ...     schema={"user": "string", "page": "string", "at": "timestamp"}, trigger="10s",
    ... )
    >>> (clicks.spec.kind, clicks.spec.work.stream.columns.names)
    ('stream', ['user', 'page', 'at'])
    """
    columns, message_schema = _value_columns(name, schema, format)
    columns, renames = _rename_columns(name, columns, rename)
    stream = StreamSpec(
        source=source,
        topic=topic,
        schema=columns,
        format=format,  # type: ignore[arg-type]
        fields=_metadata_fields(fields, columns, format, event_time, created_time),
        trigger=parse_duration(trigger, argument="trigger"),
        on_bad_record=on_bad_record,  # type: ignore[arg-type]
        on_lost=on_lost,
        begin=begin,
        batch_records=batch_records,
        message_schema=message_schema,
        schema_registry=schema_registry,
        consumer_group=consumer_group,
        generation=generation,
        on_duplicates=on_duplicates,
        mode=mode or ("upsert" if format == "debezium" else "append"),
        most_bad=most_bad,
        renames=renames,
    )
    check_stream(stream)
    check_name(name, noun="job")  # before that of the group, which it defaults to
    work = StreamWork(
        target=check_name(featuregroup or name, noun="feature group"),
        options=GroupOptions(
            primary_key=as_tuple(primary_key),
            event_time=event_time,
            created_time=created_time,
            partition_by=as_tuple(partition_by),
            ttl=parse_ttl(ttl),
            expectations=plain_expectations(expectations),
            validation=validation,
            statistics=statistics,
            compact="auto",
            description=description,
            tags=dict(tags or {}),
            job=name,
        ),
        shared=bool(shared),
        stream=stream,
        publishes=parse_targets(publish),
    )
    spec = JobSpec(
        name=name,
        schedule=Schedule(f"every {format_duration(stream.trigger)}", retries=retries),
        alerts=Alerts(check_channel_names(alert)),
        work=work,
    )
    check_choices(name, {"validation": (validation, VALIDATION_POLICIES)})
    check_keys_and_times(name, work, mode=stream.mode)
    _check_columns(name, work)
    return add_to_module(spec, calling_globals())


def _metadata_fields(
    fields: Mapping[str, str] | None,
    columns: pa.Schema,
    format: str,
    event_time: str | None,
    created_time: str | None,
) -> dict[str, str]:
    """Return the record metadata columns, including those that change events imply."""
    columns_by_field = dict(fields or {})
    if format != "debezium":
        return columns_by_field
    # The database changed the row at the change timestamp; it became known at the capture
    # timestamp.
    implied = ((event_time, "change_timestamp"), (created_time, "capture_timestamp"))
    for column, field in implied:
        if column is not None and column not in (*columns.names, *columns_by_field):
            columns_by_field[column] = field
    return columns_by_field


def _rename_columns(
    job: str, columns: pa.Schema, rename: Mapping[str, str] | str | None
) -> tuple[pa.Schema, dict[str, str]]:
    """Rename columns, and return the original name of each renamed column.

    Raises:
        InvalidJob: A column is not a valid feature name; the hint suggests a mapping.
    """
    rename_text = check_rename(rename)
    names: dict[str, str] = {}
    if rename_text == SNAKE_CASE:
        names = snake_case_names(columns.names)
    elif rename_text is not None:
        names = json.loads(rename_text)
    missing = [name for name in names if name not in columns.names]
    if missing:
        raise InvalidJob(
            f"Job {job!r}: unknown columns {listing(missing)} in rename=. Available: "
            f"{listing(columns.names)}.",
            hint=did_you_mean(missing[0], columns.names, write="rename={{{!r}: '...'}}"),
        )
    renamed = [names.get(name, name) for name in columns.names]
    invalid_names = suggest_renames(renamed)
    if invalid_names:
        mapping = {}
        for foreign, column in zip(columns.names, renamed, strict=True):
            # Valid renames of the caller are included, so that the hint is a complete argument.
            if column in invalid_names or foreign in names:
                mapping[foreign] = invalid_names.get(column, column)
        raise InvalidJob(
            f"Job {job!r}: {listing(list(invalid_names))} are not valid feature names.",
            hint=f"rename={mapping!r}, or rename='snake_case'",
        )
    fields = zip(renamed, columns.types, strict=True)
    foreign_names = {}
    for foreign, column in zip(columns.names, renamed, strict=True):
        if foreign != column:
            foreign_names[column] = foreign
    return pa.schema([pa.field(column, dtype) for column, dtype in fields]), foreign_names


def _value_columns(name: str, schema: object, format: str) -> tuple[pa.Schema, str | None]:
    """Return the columns of record values, and the text of a schema of the format, or None."""
    if format in SCHEMA_FORMATS:
        # A Protobuf schema is not JSON.
        if isinstance(schema, Mapping) and format != "protobuf":
            schema = json.dumps(schema)
        if not isinstance(schema, str):
            hint = f"schema=Path({_SCHEMA_FORMATS[format][0]!r}).read_text()"
            raise InvalidJob(
                f"Job {name!r}: format={format!r} needs the schema of the records.",
                hint=hint if format == "protobuf" else f"{hint}, or the same as a dict",
            )
        columns = _SCHEMA_FORMATS[format][1](schema)
        check_nesting(columns)
        return columns, schema
    if isinstance(schema, Mapping):
        schema = pa.schema(
            [
                pa.field(str(column), parse_type(column_type, column=str(column)))
                for column, column_type in schema.items()
            ]
        )
    if not isinstance(schema, pa.Schema) or not len(schema):
        raise InvalidJob(
            f"Job {name!r}: schema={schema!r} has no columns.",
            hint='schema={"user": "string", "at": "timestamp"}',
        )
    check_nesting(schema)
    schema = feature_schema(schema)
    refuse_untyped(
        schema,
        subject=f"Job {name!r}",
        hint=lambda columns: format_dtypes(columns).replace("dtypes=", "schema="),
    )
    return schema, None


def _check_columns(job: str, work: StreamWork) -> None:
    """Raise an error for keys and times that are not columns, or have an invalid type."""
    columns, options = work.stream.columns, work.options
    check_feature_names(columns.names)
    roles = {"event_time": options.event_time, "created_time": options.created_time}
    names_by_argument = {
        **{argument: (name,) for argument, name in roles.items() if name is not None},
        "primary_key": options.primary_key,
        "partition_by": options.partition_by,
    }
    for argument, names in names_by_argument.items():
        for name in names:
            if name not in columns.names:
                raise InvalidJob(
                    f"Job {job!r}: unknown column {name!r} in {argument}. Available: "
                    f"{listing(columns.names)}.",
                    hint=did_you_mean(name, columns.names, write=f"{argument}={{!r}}"),
                )
    for argument, time in roles.items():
        if time is None:
            continue
        dtype = columns.field(time).type
        if not (pa.types.is_timestamp(dtype) or pa.types.is_date(dtype)):
            raise InvalidJob(
                f"Job {job!r}: {argument} {time!r} has type {dtype}, which is not a time.",
                hint=f'"{time}": "timestamp", or fields={{"{time}": "timestamp"}}',
            )


def is_due(session: Session, job: RegisteredJob) -> bool:
    """Return whether the trigger interval of a stream job has elapsed since its last run."""
    work = job.spec.work
    if not isinstance(work, StreamWork) or job.paused:
        return False
    now = times.utc_now()
    with session.registry.reading() as connection:
        status = jobs.stream_status(connection, job.spec.name)
        last = runs.last(connection, job.spec.name)
    # After a failure, the retry delay replaces the trigger interval.
    if last is not None and last.state == runs.FAILED and last.ended is not None:
        return times.has_passed(last.ended, _retry_delay(session, job), now=now)
    if status is None or status.polled is None:
        return True
    # Runs that read nothing are not recorded, so the interval is measured from the last poll.
    return times.has_passed(status.polled, work.stream.trigger, now=now)


def _retry_delay(session: Session, job: RegisteredJob) -> timedelta:
    """Return the delay before the next retry of a stream job after its last failures."""
    with session.registry.reading() as connection:
        failures = runs.count_consecutive_failures(connection, job.spec.name)
    # A stream never stops: after the early retries, it is retried every hour.
    if failures > job.spec.schedule.retries:
        return timedelta(hours=1)
    return timedelta(seconds=30) * 2 ** (failures - 1)


def run_stream(run: JobRun, work: StreamWork, *, stop: threading.Event) -> Run:
    """Write the new records of the topic into the group; the caller holds any required lease."""
    return run_recorded(run, partial(_consume, work, stop))


def current_window(work: StreamWork) -> Window:
    """Return the window that labels a stream run: the trigger interval up to now."""
    now = times.utc_now()
    return Window(times.shift_time(now, -work.stream.trigger), now)


def _consume(work: StreamWork, stop: threading.Event, run: JobRun) -> RunOutput:
    """Read the topic up to now, and return the output of the run."""
    check = partial(check_lease, run)
    # Members of a consumer group run without a lease: the table rejects commits of the same
    # records. Only a new definition of the job must end their runs.
    if work.stream.consumer_group is not None:
        check = partial(_check_registered, run)
    progress = consume(
        run.session,
        run.spec.name,
        work,
        StreamTarget(run.group, declaration(work) if run.group is None else work.options),
        run_id=run.run_id,
        check=check,
        after_commit=partial(publish_committed, run, work),
        stop=stop,
    )
    if not progress.batches:
        publish_missed(run, work)
    _log.info(
        "%d rows and %d bad records in %d micro-batches, %.1f s",
        progress.rows,
        progress.bad,
        progress.batches,
        progress.seconds,
    )
    return RunOutput(progress.rows, progress.delta_version, progress.version)


def _check_registered(run: JobRun) -> None:
    """Raise an error if the job definition was replaced during the run."""
    with run.session.registry.reading() as connection:
        job = jobs.get(connection, run.spec.name)
    if job.version != run.job.version:
        raise InvalidJob(
            f"Job {run.spec.name!r} was registered again during this run of version "
            f"{run.job.version}.",
            hint="run it again",
        )
