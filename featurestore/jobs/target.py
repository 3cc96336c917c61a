"""The feature group that a job fills: found, declared, and asked what it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.delta.history import LogCommit, read_history
from featurestore.delta.snapshot import transaction_version
from featurestore.featuregroups.definition import Declaration
from featurestore.featuregroups.table import OpenGroup, open_stored
from featurestore.model.durations import format_ttl
from featurestore.model.job import JobSpec
from featurestore.model.untyped import refuse_untyped, schema_line, sql_casts
from featurestore.model.window import Window
from featurestore.plugins.engine import Relation
from featurestore.registry import featuregroups
from featurestore.session import Session
from featurestore.storage import files
from featurestore.streams.opening import differing_columns


@dataclass(frozen=True)
class JobCommit:
    """A commit of a job.

    The windows whose rows it holds, ``count`` of them, together ``window``.
    """

    job: str
    window: Window
    count: int
    commit: LogCommit


def target(session: Session, spec: JobSpec) -> OpenGroup | None:
    """Return the group that a job fills; None when it must be made.

    That is so when it is absent, or when its key, times or partitions (of a stream also its columns)
    differ from the job's, which calls for the next version.
    """
    with session.registry.reading() as connection:
        if featuregroups.find(connection, spec.target) is None:
            return None
    group = open_stored(session, spec.target, to="fill it by a job")
    known = (
        group.spec.primary_key,
        group.spec.event_time,
        group.spec.created_time,
        group.spec.partition_by,
    )
    wanted = (spec.primary_key, spec.event_time, spec.created_time, spec.partition_by)
    if known != wanted:
        return None
    if spec.stream is not None and differing_columns(spec.stream, group.spec):
        return None
    return group


def declaration(spec: JobSpec) -> Declaration:
    """Return what a job declares about the group that it fills."""
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
    """Return rows without new columns of nothing but nulls, which later windows may have values in.

    The group gets such a column with its first value; before and after that these rows are null
    there. Other columns without a type, such as those of empty lists, would lose values.

    Raises:
        UnsupportedType: A column without a type has values, or a role or an expectation needs it.
    """
    needed = {*spec.primary_key, *spec.partition_by, spec.event_time, spec.created_time}
    for expectation in spec.expectations:
        needed.update(map(str, expectation.get("kwargs", {}).values()))
    columns = {}
    for field in rows.schema:
        if field.name in stored or field.name in needed or not pat.is_null(field.type):
            columns[field.name] = field.name

    def hint(untyped: pa.Schema) -> str:
        if spec.kind == "sql":
            return f"cast them in the job's query: {sql_casts(untyped)}"
        return f"return pa.Table.from_pylist(rows, {schema_line(rows.schema)})"

    new = pa.schema([rows.schema.field(name) for name in columns if name not in stored])
    refuse_untyped(new, what=f"Job {spec.name!r}", hint=hint)
    if len(columns) == len(rows.schema.names):
        return rows
    return session.engine.select(rows, columns)


def transaction(group: OpenGroup | None, spec: JobSpec, window: Window) -> tuple[str, int]:
    """Return the app of a chunk and the number after the last one that the table has for it.

    A window that is appended has number 0 for ever: whoever tries again, the table takes it once.
    """
    app = f"job/{spec.name}/{window.start.isoformat()}/{window.end.isoformat()}"
    if spec.mode == "append" or group is None:
        return app, 0
    last = transaction_version(group.path, app)
    if last is None:
        return app, 0
    return app, last + 1


def note_of_windows(spec: JobSpec, window: Window, count: int) -> dict[str, Any]:
    """Return what a commit's note tells of the windows in it; ``windows_of_note`` reads it back."""
    told = {
        "job": spec.name,
        "start": window.start.isoformat(),
        "end": window.end.isoformat(),
        "count": count,
    }
    if spec.reach:
        told["rows_from"] = (window.start - spec.reach).isoformat()
    return told


def rows_of_note(note: Mapping[str, Any]) -> Window | None:
    """Return the range of the rows of a commit's windows, late ones too; None where none is told."""
    told = windows_of_note(note)
    if told is None:
        return None
    _, window, _ = told
    try:
        first = datetime.fromisoformat(note["window"].get("rows_from", window.start.isoformat()))
    except (TypeError, ValueError):
        return None
    if first.tzinfo is None or first > window.start:
        return None
    return Window(first, window.end)


def windows_of_note(note: Mapping[str, Any]) -> tuple[str, Window, int] | None:
    """Return job, range and number of the windows of a commit; None where its note tells none.

    Notes come with the table, from whoever wrote it: what is not well formed is no note of a job.
    """
    told = note.get("window")
    if not isinstance(told, Mapping):
        return None
    job, count = told.get("job"), told.get("count")
    if not isinstance(job, str) or not isinstance(count, int) or count < 1:
        return None
    try:
        start = datetime.fromisoformat(told["start"])
        end = datetime.fromisoformat(told["end"])
        if start.tzinfo is None or start >= end:
            return None
    except (KeyError, TypeError, ValueError):
        return None
    return job, Window(start, end), count


def commits_of_job(session: Session, spec: JobSpec) -> Iterator[tuple[int, JobCommit]]:
    """Yield (version of the group, commit) of everything that a job wrote, newest first."""
    with session.registry.reading() as connection:
        versions = featuregroups.versions(connection, spec.target)
    for version in reversed(versions):
        path = session.featuregroup_path(spec.target, version)
        for found in job_commits(path, spec.name):
            yield version, found


def job_commits(path: str, job: str | None = None) -> list[JobCommit]:
    """Return the commits of a table that hold windows of a job (None: of any job), newest first."""
    if not files.is_directory(path):
        return []
    found = []
    for commit in read_history(path):
        told = windows_of_note(commit.note)
        if told is not None and job in (None, told[0]):
            found.append(JobCommit(*told, commit))
    return found
