"""The target group of a job: its declaration, transactions and commit metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.untyped import format_schema, format_sql_casts, refuse_untyped
from featurestore.delta.history import LogCommit, read_history
from featurestore.delta.snapshot import transaction_version
from featurestore.errors import FeatureStoreError
from featurestore.featuregroups.comparison import COLUMN_FIELDS, compare_fields
from featurestore.featuregroups.definition import normalize_expectations
from featurestore.featuregroups.table import OpenGroup, open_stored
from featurestore.jobs.schedule import check_schedule
from featurestore.model.group_options import GroupOptions
from featurestore.model.job import GroupWork, JobSpec, Schedule, SqlWork, StreamWork, WindowedWork
from featurestore.model.times import Window, duration_from_json, duration_to_json
from featurestore.plugins.engine import Relation
from featurestore.registry import featuregroups
from featurestore.session import Session
from featurestore.storage import storage_for
from featurestore.streams.opening import describe_column_changes


@dataclass(frozen=True)
class JobCommit:
    """A commit of a job: ``count`` windows, which together span ``window``."""

    job: str
    window: Window
    count: int
    commit: LogCommit


def find_target(session: Session, work: GroupWork) -> OpenGroup | None:
    """Return the target group of a job; None if the job must create the group or a new version.

    A new version is needed if keys, times or partitions (for a stream also the columns) differ from
    the job definition.
    """
    with session.registry.reading() as connection:
        if featuregroups.find(connection, work.target) is None:
            return None
    group = open_stored(session, work.target, to="write rows of a job")
    # Other columns need no new version, because runs add new columns to the group.
    if compare_fields(group.spec, work.options, COLUMN_FIELDS):
        return None
    if isinstance(work, StreamWork) and describe_column_changes(work.stream, group.spec):
        return None
    return group


def declaration(work: GroupWork) -> GroupOptions:
    """Return the options of a job's target group."""
    return replace(work.options, expectations=normalize_expectations(work.options.expectations))


def drop_null_columns(
    session: Session, work: GroupWork, rows: Relation, stored_names: Sequence[str]
) -> Relation:
    """Drop new columns that contain only nulls, because later windows may have typed values.

    The column is added to the group with its first value; earlier rows are then null. Other
    untyped columns, such as columns of empty lists, cannot be dropped without data loss.

    Raises:
        UnsupportedType: An untyped column has values, or is required by a role or an expectation.
    """
    needed = {*work.options.primary_key, *work.options.partition_by, *work.options.times}
    for expectation in work.options.expectations:
        needed.update(map(str, expectation.get("kwargs", {}).values()))
    columns = {
        field.name: field.name
        for field in rows.schema
        if field.name in stored_names or field.name in needed or not pat.is_null(field.type)
    }

    def hint(untyped: pa.Schema) -> str:
        if isinstance(work, SqlWork):
            return f"cast them in the job's query: {format_sql_casts(untyped)}"
        return f"return pa.Table.from_pylist(rows, {format_schema(rows.schema)})"

    new = pa.schema([rows.schema.field(name) for name in columns if name not in stored_names])
    refuse_untyped(new, subject=f"Job {work.options.job!r}", hint=hint)
    if len(columns) == len(rows.schema.names):
        return rows
    return session.engine.select(rows, columns)


def next_transaction(
    group: OpenGroup | None, spec: JobSpec, work: WindowedWork, window: Window
) -> tuple[str, int]:
    """Return the application id of a chunk, and its next transaction number.

    The transaction of an appended window that the table contains is its last one, so that the
    table accepts a window only once.
    """
    app = f"job/{spec.name}/{window.start.isoformat()}/{window.end.isoformat()}"
    # A run recomputes its windows with the next number. If another process commits the same windows
    # in the meantime, the table already has this number and rejects the second commit.
    last = None if group is None else transaction_version(group.path, app)
    if group is None or last is None:
        return app, 0
    if work.mode == "append":
        return app, last + (not contains_windows(group, spec.name, work, window))
    return app, last + 1


def contains_windows(group: OpenGroup, job: str, work: WindowedWork, window: Window) -> bool:
    """Return whether a commit of the job computed exactly these windows.

    A run that recomputes windows needs a commit that is newer than ``group``, its target when it
    started; an appended window needs any. A transaction that was revoked from a dead run has a
    commit without windows.
    """
    first_version = 0 if work.mode == "append" else group.delta_version + 1
    return any(
        job_commit.window == window and job_commit.commit.version >= first_version
        for job_commit in job_commits(group.path, job)
    )


def build_windows_metadata(
    spec: JobSpec,
    work: WindowedWork,
    window: Window,
    count: int,
    *,
    first_changed: datetime | None = None,
) -> dict[str, Any]:
    """Build the commit metadata for windows; see ``parse_windows``.

    ``first_changed`` is the event time of the first deleted row, which may be before the windows.
    """
    metadata = {
        "job": spec.name,
        "start": window.start.isoformat(),
        "end": window.end.isoformat(),
        "count": count,
        "grid": {
            "schedule": spec.schedule.cron,
            "window": duration_to_json(spec.schedule.width),
            "timezone": spec.schedule.timezone,
            "closed": work.closed,
        },
    }
    first = window.start - work.row_lookback
    if first_changed is not None:
        first = min(first, first_changed)
    if first < window.start:
        metadata["rows_from"] = first.isoformat()
    return metadata


def parse_row_range(metadata: Mapping[str, Any]) -> Window | None:
    """Return the time range of the rows in a commit, including late rows; None if unknown."""
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
    # A range that does not contain the window was not written by this library.
    if first.tzinfo is None or first > window.start:
        return None
    return Window(first, window.end)


def parse_windows(metadata: Mapping[str, Any]) -> tuple[str, Window, int] | None:
    """Return the job, range and number of windows of a commit, or None if its metadata has none.

    Metadata is stored with the table and may be written by anyone, so malformed metadata is
    ignored.
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


@dataclass(frozen=True)
class Grid:
    """The schedule of the windows in a commit, and the bound that belongs to each window."""

    schedule: Schedule
    closed: str


def parse_grid(metadata: Mapping[str, Any]) -> Grid | None:
    """Return the grid in the metadata of a commit with windows; None if it has none.

    Commits of earlier releases have none. Invalid metadata is ignored, as by ``parse_windows``.
    """
    try:
        grid = metadata["window"]["grid"]
        width = duration_from_json(grid["window"])
        schedule = check_schedule(Schedule(grid["schedule"], width, timezone=grid["timezone"]))
    except (FeatureStoreError, KeyError, TypeError, ValueError, AttributeError):
        return None
    return Grid(schedule, "left" if grid.get("closed") == "left" else "right")


def iter_job_commits(session: Session, spec: JobSpec) -> Iterator[tuple[int, JobCommit]]:
    """Yield the group version and the commit for all commits of a job, newest first."""
    with session.registry.reading() as connection:
        versions = featuregroups.versions(connection, spec.target)
    for version in reversed(versions):
        path = session.featuregroup_path(spec.target, version)
        for commit in job_commits(path, spec.name):
            yield version, commit


def job_commits(path: str, job: str | None = None) -> list[JobCommit]:
    """Return the commits that wrote windows of ``job`` (any job if None), newest first."""
    if not storage_for(path).is_directory(path):
        return []
    commits = []
    for commit in read_history(path):
        parsed = parse_windows(commit.user_metadata)
        if parsed is not None and job in (None, parsed[0]):
            commits.append(JobCommit(*parsed, commit))
    return commits
