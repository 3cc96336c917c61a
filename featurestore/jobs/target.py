"""The feature group that a job fills: its declaration, transactions and commit metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.untyped import refuse_untyped, schema_line, sql_casts
from featurestore.delta.history import LogCommit, read_history
from featurestore.delta.snapshot import transaction_version
from featurestore.featuregroups.definition import Declaration
from featurestore.featuregroups.table import OpenGroup, open_stored
from featurestore.model.durations import format_ttl
from featurestore.model.job import JobSpec
from featurestore.model.window import Window
from featurestore.plugins.engine import Relation
from featurestore.registry import featuregroups
from featurestore.session import Session
from featurestore.storage import files
from featurestore.streams.opening import differing_columns


@dataclass(frozen=True)
class JobCommit:
    """A commit of a job: ``count`` windows, together the range ``window``."""

    job: str
    window: Window
    count: int
    commit: LogCommit


def find_target(session: Session, spec: JobSpec) -> OpenGroup | None:
    """Return the group that a job fills; None if the job has to create it or a new version.

    A new version is needed if key, times or partitions (for a stream also the columns) differ from
    the definition of the job.
    """
    with session.registry.reading() as connection:
        if featuregroups.find(connection, spec.target) is None:
            return None
    group = open_stored(session, spec.target, to="fill it by a job")
    current = (
        group.spec.primary_key,
        group.spec.event_time,
        group.spec.created_time,
        group.spec.partition_by,
    )
    declared = (spec.primary_key, spec.event_time, spec.created_time, spec.partition_by)
    if current != declared:
        return None
    if spec.stream is not None and differing_columns(spec.stream, group.spec):
        return None
    return group


def declaration(spec: JobSpec) -> Declaration:
    """Return the declaration of the group that a job fills."""
    return Declaration(
        primary_key=spec.primary_key,
        event_time=spec.event_time,
        created_time=spec.created_time,
        partition_by=spec.partition_by,
        ttl=format_ttl(spec.ttl),
        expectations=spec.expectations or None,
        validation=spec.validation,
        statistics=spec.statistics,
        compact=spec.compact,
        description=spec.description,
        tags=dict(spec.tags),
        job=spec.name,
    )


def without_nulls(
    session: Session, spec: JobSpec, rows: Relation, stored: Sequence[str]
) -> Relation:
    """Drop new columns that contain only nulls, because later windows may have typed values.

    The group gets such a column with its first value; rows of earlier windows are null there. Other
    untyped columns, such as those of empty lists, cannot be dropped without loss.

    Raises:
        UnsupportedType: A column without a type has values, or a role or an expectation needs it.
    """
    needed = {*spec.primary_key, *spec.partition_by, spec.event_time, spec.created_time}
    for expectation in spec.expectations:
        needed.update(map(str, expectation.get("kwargs", {}).values()))
    columns = {
        field.name: field.name
        for field in rows.schema
        if field.name in stored or field.name in needed or not pat.is_null(field.type)
    }

    def hint(untyped: pa.Schema) -> str:
        if spec.kind == "sql":
            return f"cast them in the job's query: {sql_casts(untyped)}"
        return f"return pa.Table.from_pylist(rows, {schema_line(rows.schema)})"

    new = pa.schema([rows.schema.field(name) for name in columns if name not in stored])
    refuse_untyped(new, what=f"Job {spec.name!r}", hint=hint)
    if len(columns) == len(rows.schema.names):
        return rows
    return session.engine.select(rows, columns)


def next_transaction(group: OpenGroup | None, spec: JobSpec, window: Window) -> tuple[str, int]:
    """Return the application id of a chunk, and its next transaction number.

    The number of a window that is appended is always 0, so that the table accepts it only once.
    """
    app = f"job/{spec.name}/{window.start.isoformat()}/{window.end.isoformat()}"
    if spec.mode == "append" or group is None:
        return app, 0
    last = transaction_version(group.path, app)
    if last is None:
        return app, 0
    return app, last + 1


def windows_metadata(spec: JobSpec, window: Window, count: int) -> dict[str, Any]:
    """Return the commit metadata of windows; ``parse_windows`` parses it."""
    metadata = {
        "job": spec.name,
        "start": window.start.isoformat(),
        "end": window.end.isoformat(),
        "count": count,
    }
    if spec.row_lookback:
        metadata["rows_from"] = (window.start - spec.row_lookback).isoformat()
    return metadata


def row_range(metadata: Mapping[str, Any]) -> Window | None:
    """Return the time range of the rows in a commit, with late ones; None if it is not recorded."""
    parsed = parse_windows(metadata)
    if parsed is None:
        return None
    _, window, _ = parsed
    try:
        first = datetime.fromisoformat(
            metadata["window"].get("rows_from", window.start.isoformat())
        )
    except (TypeError, ValueError):
        return None
    if first.tzinfo is None or first > window.start:
        return None
    return Window(first, window.end)


def parse_windows(metadata: Mapping[str, Any]) -> tuple[str, Window, int] | None:
    """Return job, range and number of the windows of a commit, None if its metadata has none.

    Metadata comes with the table and may be written by anyone: malformed metadata is ignored.
    """
    windows = metadata.get("window")
    if not isinstance(windows, Mapping):
        return None
    job, count = windows.get("job"), windows.get("count")
    if not isinstance(job, str) or not isinstance(count, int) or count < 1:
        return None
    try:
        start = datetime.fromisoformat(windows["start"])
        end = datetime.fromisoformat(windows["end"])
        if start.tzinfo is None or start >= end:
            return None
    except (KeyError, TypeError, ValueError):
        return None
    return job, Window(start, end), count


def commits_of_job(session: Session, spec: JobSpec) -> Iterator[tuple[int, JobCommit]]:
    """Yield (version of the group, commit) of all commits of a job, newest first."""
    with session.registry.reading() as connection:
        versions = featuregroups.versions(connection, spec.target)
    for version in reversed(versions):
        path = session.featuregroup_path(spec.target, version)
        for commit in job_commits(path, spec.name):
            yield version, commit


def job_commits(path: str, job: str | None = None) -> list[JobCommit]:
    """Return the commits of a table with windows of a job (None: of any job), newest first."""
    if not files.is_directory(path):
        return []
    commits = []
    for commit in read_history(path):
        parsed = parse_windows(commit.note)
        if parsed is not None and job in (None, parsed[0]):
            commits.append(JobCommit(*parsed, commit))
    return commits
