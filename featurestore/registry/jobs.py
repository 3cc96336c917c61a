"""Jobs in the registry: versioned definitions, watermarks, leases, and progress of stream jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from featurestore.errors import JobNotFound, RegistryError, did_you_mean, listing
from featurestore.model import display, times
from featurestore.model.arguments import warn_caller
from featurestore.model.job import JobSpec, WindowedWork
from featurestore.model.times import to_micros
from featurestore.registry import origins, rows
from featurestore.registry.experiments import find_objects_named
from featurestore.registry.hidden import extract_words
from featurestore.registry.origins import JOB, Object
from featurestore.registry.tables import (
    incidents,
    job_definitions,
    job_states,
    monitor_acceptances,
    monitor_results,
    runs,
    stream_offsets,
    stream_progress,
    windows,
)


@dataclass(frozen=True)
class RegisteredJob:
    """A registered job; ``origin`` is the file or module that defines it.

    ``changes`` describe the effect of a registration on the windows of the job.
    """

    spec: JobSpec
    version: int
    origin: str
    paused: bool
    watermark: datetime | None
    changes: tuple[str, ...] = ()

    __repr__ = display.record_repr

    @property
    def state(self) -> str:
        """Whether schedulers run the job: "active" or "paused"."""
        return "paused" if self.paused else "active"

    def _summary(self) -> dict[str, object]:
        return {
            "name": self.spec.name,
            "state": self.state,
            "schedule": self.spec.schedule.cron,
            "target": self.spec.target,
            "inputs": self.spec.inputs,
            "watermark": self.watermark,
            **({"changes": "; ".join(self.changes)} if self.changes else {}),
        }

    def _repr_html_(self) -> str:
        details = {"version": self.version, "kind": self.spec.kind, "origin": self.origin}
        return display.properties_table({**self._summary(), **details}, caption="Job")


def lock_definitions(connection: Connection) -> None:
    """Lock the definitions of all jobs until the end of a transaction that depends on them."""
    rows.lock(connection, "jobs")


def register(
    connection: Connection, spec: JobSpec, *, origin: str, watermark: datetime | None
) -> int:
    """Register a definition and return its version, which is new if the definition changed.

    ``watermark`` is the initial watermark of a job that is not registered yet.
    """
    lock_definitions(connection)
    last = _latest_row(connection, spec.name)
    if last is None:
        origins.begin(connection, Object(JOB, spec.name))
        connection.execute(
            job_states.insert().values(
                name=spec.name, paused=False, watermark=rows.to_column(watermark)
            )
        )
    if last is not None and last.hash == spec.hash:
        # The same definition may be registered from another file.
        is_last = sa.and_(
            job_definitions.c.name == spec.name, job_definitions.c.version == last.version
        )
        connection.execute(job_definitions.update().where(is_last).values(origin=origin))
        return _version_of(last)
    version = 1 if last is None else _version_of(last) + 1
    text = json.dumps(spec.to_json(), ensure_ascii=False)
    # The names in a definition are those of its inputs, or of groups that its code opens.
    named_objects = find_objects_named(connection, extract_words(text))
    origins.record(connection, Object(JOB, spec.name), named_objects)
    connection.execute(
        job_definitions.insert().values(
            name=spec.name,
            version=version,
            hash=spec.hash,
            spec=text,
            origin=origin,
            registered=to_micros(times.utc_now()),
        )
    )
    return version


def remove(connection: Connection, name: str) -> int:
    """Remove the definitions, state, reports and runs of a job; return the number of runs."""
    origins.end(connection, Object(JOB, name))
    columns = [
        runs.c.job,
        *[table.c.job for table in (windows, incidents, stream_offsets, stream_progress)],
        *[table.c.monitor for table in (monitor_results, monitor_acceptances)],
        *[table.c.name for table in (job_definitions, job_states)],
    ]
    counts: list[int] = [
        connection.execute(sa.delete(column.table).where(column == name)).rowcount
        for column in columns
    ]
    return counts[0]


def get(connection: Connection, name: str) -> RegisteredJob:
    """Return the latest definition and the state of a job.

    Raises:
        JobNotFound: The message lists the registered jobs.
    """
    job = find(connection, name)
    if job is None:
        raise _unknown_job_error(connection, name)
    return job


def check_exists(connection: Connection, name: str) -> None:
    """Raise JobNotFound if a job does not exist; its definition may be damaged."""
    if _latest_row(connection, name) is None:
        raise _unknown_job_error(connection, name)


def _unknown_job_error(connection: Connection, name: str) -> JobNotFound:
    names = connection.execute(sa.select(job_states.c.name).order_by(job_states.c.name)).scalars()
    available = list(names)
    return JobNotFound(
        f"Unknown job {name!r}. Available: {listing(available)}.",
        hint=did_you_mean(name, available) or "featurestore job register path/to/jobs.py",
    )


def find(connection: Connection, name: str) -> RegisteredJob | None:
    """Return the latest definition and the state of a job, None if it does not exist."""
    row = _latest_row(connection, name)
    return None if row is None else _to_registered_job(connection, row)


def registration_time(connection: Connection, name: str) -> datetime | None:
    """Return the time when a job was first registered, None if it does not exist."""
    query = sa.select(sa.func.min(job_definitions.c.registered)).where(
        job_definitions.c.name == name
    )
    return rows.to_time(connection.execute(query).scalar())


def definition(connection: Connection, name: str, version: int) -> JobSpec:
    """Return one version of a job definition."""
    is_version = sa.and_(job_definitions.c.name == name, job_definitions.c.version == version)
    text = connection.execute(sa.select(job_definitions.c.spec).where(is_version)).scalar_one()
    with rows.translate_parse_errors(f"job {name!r} version {version}"):
        return JobSpec.from_text(text)


def list_all(
    connection: Connection, *, kind: str | None = None, limit: int | None = None, offset: int = 0
) -> list[RegisteredJob]:
    """Return the latest definitions of jobs by name, optionally of one kind or only one page.

    Jobs with a damaged definition are skipped with a warning.
    """
    columns = job_definitions.c
    newest = (
        sa.select(sa.func.max(columns.version))
        .where(columns.name == job_states.c.name)
        .correlate(job_states)
        .scalar_subquery()
    )
    is_newest = sa.and_(columns.name == job_states.c.name, columns.version == newest)
    query = (
        sa.select(job_definitions, job_states.c.paused, job_states.c.watermark)
        .select_from(job_states)
        .join(job_definitions, is_newest)
        .order_by(job_states.c.name)
    )
    if kind is not None:
        # In the text of a definition, quotes in strings are escaped.
        query = query.where(columns.spec.contains(f'"kind": "{kind}"', autoescape=True))
    jobs = []
    for row in connection.execute(query.limit(limit).offset(offset)):
        try:
            job = _to_job(row, row)
        except RegistryError as error:
            warn_caller(f"The job {row.name!r} is skipped: {error.message}")
            continue
        if kind in (None, job.spec.kind):
            jobs.append(job)
    return jobs


def set_paused(connection: Connection, name: str, paused: bool) -> None:
    """Pause or resume a job."""
    get(connection, name)
    connection.execute(job_states.update().where(job_states.c.name == name).values(paused=paused))


def writers_of(connection: Connection, group: str) -> list[RegisteredJob]:
    """Return the jobs that compute windows of a feature group."""
    return [
        job
        for job in list_all(connection)
        if isinstance(job.spec.work, WindowedWork) and job.spec.target == group
    ]


def watermark(connection: Connection, name: str) -> datetime | None:
    """Return the time up to which all windows of a job are computed."""
    micros = connection.execute(
        sa.select(job_states.c.watermark).where(job_states.c.name == name)
    ).scalar_one()
    return rows.to_time(micros)


def lock_watermark(connection: Connection, name: str) -> datetime | None:
    """Return the watermark of a job and lock it until the end of the transaction."""
    # SQLAlchemy omits FOR UPDATE for SQLite, where write transactions exclude each other.
    query = sa.select(job_states.c.watermark).where(job_states.c.name == name).with_for_update()
    micros = connection.execute(query).scalar_one()
    return rows.to_time(micros)


def advance(connection: Connection, name: str, watermark: datetime) -> None:
    """Move the watermark forward; an earlier watermark has no effect."""
    micros = to_micros(watermark)
    # A backfill of earlier windows must not move the watermark back.
    is_behind = sa.or_(job_states.c.watermark.is_(None), job_states.c.watermark < micros)
    connection.execute(
        job_states.update()
        .where(job_states.c.name == name, is_behind)
        .values(watermark=rows.to_column(watermark))
    )


def set_watermark(connection: Connection, name: str, watermark: datetime | None) -> None:
    """Replace the watermark after a change of the job's windows."""
    values = {"watermark": rows.to_column(watermark)}
    connection.execute(job_states.update().where(job_states.c.name == name).values(values))


def lease_owner(connection: Connection, name: str, *, locked: bool = False) -> str | None:
    """Return the owner of a job's lease; ``locked`` locks it until the end of the transaction."""
    query = sa.select(job_states.c.lease_owner).where(job_states.c.name == name)
    owner: str | None = connection.execute(
        query.with_for_update() if locked else query
    ).scalar_one()
    return owner


def set_lease(connection: Connection, name: str, holder: str) -> None:
    """Assign the lease of a job to a holder."""
    connection.execute(
        job_states.update().where(job_states.c.name == name).values(lease_owner=holder)
    )


def drop_lease(connection: Connection, name: str, holder: str) -> None:
    """Release a lease if ``holder`` owns it."""
    # Another process may have taken over the lease of an owner that was considered dead.
    is_owned = sa.and_(job_states.c.name == name, job_states.c.lease_owner == holder)
    connection.execute(job_states.update().where(is_owned).values(lease_owner=None))


def _latest_row(connection: Connection, name: str) -> Row[tuple[object, ...]] | None:
    """Return the row of the latest definition of a job."""
    columns = job_definitions.c
    query = (
        sa.select(job_definitions)
        .where(columns.name == name)
        .order_by(columns.version.desc())
        .limit(1)
    )
    return connection.execute(query).first()


def _version_of(row: Row[Any]) -> int:
    """Return the version in a row of job definitions."""
    with rows.translate_parse_errors(f"job {row.name!r}"):
        return int(row.version)


def _to_registered_job(connection: Connection, row: Row[tuple[object, ...]]) -> RegisteredJob:
    state = connection.execute(sa.select(job_states).where(job_states.c.name == row.name)).one()
    return _to_job(row, state)


def _to_job(row: Row[*tuple[Any, ...]], state: Row[*tuple[Any, ...]]) -> RegisteredJob:
    """Return the job of a row with its definition and a row with its state."""
    with rows.translate_parse_errors(f"job {row.name!r}"):
        watermark = rows.to_time(state.watermark)
        spec = JobSpec.from_text(str(row.spec))
    return RegisteredJob(spec, row.version, row.origin, bool(state.paused), watermark)


@dataclass(frozen=True)
class PartitionOffset:
    """The progress in a topic partition: next offset, end offset and lag."""

    topic: str
    partition: int
    offset: int
    end_offset: int | None
    lag: int | None
    recorded: datetime | None

    __repr__ = display.record_repr


@dataclass(frozen=True)
class StreamStatus:
    """The status of a stream job; ``lag`` is the sum over all partitions, None if unknown."""

    lag: int | None = None
    rows_per_second: float | None = None
    bad_records: int | None = None
    last_commit: datetime | None = None
    polled: datetime | None = None
    offsets: tuple[PartitionOffset, ...] = ()

    __repr__ = display.record_repr

    def summary(self) -> dict[str, object]:
        """Return the values to print."""
        rate = self.rows_per_second
        if rate is not None:
            rate = round(rate, 1)
        return {
            "lag": self.lag,
            "rows_per_second": rate,
            "bad_records": self.bad_records,
            "last_commit": self.last_commit,
        }


# The status of a job without a topic, or before its first poll.
NO_STATUS = StreamStatus()


def record_offsets(
    connection: Connection,
    job: str,
    topic: str,
    offsets: Mapping[int, int],
    *,
    ends: Mapping[int, int],
) -> None:
    """Record the next offsets of partitions, and their end offsets if known."""
    now = to_micros(times.utc_now())
    for number, offset in offsets.items():
        end = ends.get(number)
        # The end may have been read before the offset advanced.
        lag = None if end is None else max(end - offset, 0)
        key = {"job": job, "topic": topic, "partition": number}
        values = {"offset": offset, "end_offset": end, "lag": lag, "at": now}
        rows.put_row(connection, stream_offsets, key, values)


def record_progress(
    connection: Connection,
    job: str,
    *,
    topic_id: str | None,
    rows_per_second: float | None,
    bad_records: int,
    last_commit: datetime | None,
    delta_version: int | None,
) -> None:
    """Record a poll of a topic and its commit; ``bad_records`` is added to the recorded number."""
    # The members of a consumer group add to the same number.
    rows.lock(connection, f"stream progress/{job}")
    progress = connection.execute(
        sa.select(stream_progress).where(stream_progress.c.job == job)
    ).one_or_none()
    values: dict[str, Any] = {"looked": to_micros(times.utc_now())}
    values["bad_records"] = bad_records + (0 if progress is None else int(progress.bad_records))
    optional_values = {
        "topic_id": topic_id,
        "rows_per_second": rows_per_second,
        "last_commit": rows.to_column(last_commit),
        "delta_version": delta_version,
    }
    values |= {name: value for name, value in optional_values.items() if value is not None}
    rows.put_row(connection, stream_progress, {"job": job}, values)


def topic_id(connection: Connection, job: str) -> str | None:
    """Return the id of the topic that a job last read, None before its first poll."""
    query = sa.select(stream_progress.c.topic_id).where(stream_progress.c.job == job)
    identifier: str | None = connection.execute(query).scalar_one_or_none()
    return identifier


def stream_status(connection: Connection, job: str) -> StreamStatus | None:
    """Return the status of a stream job; None before its first poll."""
    progress = connection.execute(
        sa.select(stream_progress).where(stream_progress.c.job == job)
    ).one_or_none()
    if progress is None:
        return None
    query = (
        sa.select(stream_offsets)
        .where(stream_offsets.c.job == job)
        .order_by(stream_offsets.c.topic, stream_offsets.c.partition)
    )
    offsets = [
        PartitionOffset(
            row.topic, row.partition, row.offset, row.end_offset, row.lag, rows.to_time(row.at)
        )
        for row in connection.execute(query)
    ]
    lags = [offset.lag for offset in offsets if offset.lag is not None]
    return StreamStatus(
        lag=sum(lags) if lags else None,
        rows_per_second=progress.rows_per_second,
        bad_records=progress.bad_records,
        last_commit=rows.to_time(progress.last_commit),
        polled=rows.to_time(progress.looked),
        offsets=tuple(offsets),
    )
