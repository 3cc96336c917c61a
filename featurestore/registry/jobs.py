"""Jobs in the registry: definitions by version, watermarks and leases."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from featurestore.errors import JobNotFound, RegistryError, listing
from featurestore.model import display, times
from featurestore.model.arguments import warn_caller
from featurestore.model.job import JobSpec
from featurestore.model.times import to_micros
from featurestore.registry.rows import readable, to_column, to_time
from featurestore.registry.tables import job_definitions, job_states


@dataclass(frozen=True)
class RegisteredJob:
    """A job as the registry knows it. ``origin`` is the file or module that defines it."""

    spec: JobSpec
    version: int
    origin: str
    paused: bool
    watermark: datetime | None

    @property
    def state(self) -> str:
        """Whether schedulers run it: "active" or "paused"."""
        return "paused" if self.paused else "active"

    def _summary(self) -> dict[str, object]:
        return {
            "name": self.spec.name,
            "state": self.state,
            "schedule": self.spec.schedule,
            "target": self.spec.target,
            "inputs": self.spec.inputs,
            "watermark": self.watermark,
        }

    def _repr_html_(self) -> str:
        more = {"version": self.version, "kind": self.spec.kind, "origin": self.origin}
        return display.properties_table({**self._summary(), **more}, caption="Job")


def register(
    connection: Connection, spec: JobSpec, *, origin: str, watermark: datetime | None
) -> int:
    """Record a definition and return its version.

    The one before when nothing changed, else the next.

    ``watermark`` is the initial watermark of a job that is new to the registry.
    """
    last = _latest(connection, spec.name)
    if last is None:
        connection.execute(
            job_states.insert().values(name=spec.name, paused=False, watermark=to_column(watermark))
        )
    if last is not None and last.hash == spec.hash:
        same = sa.and_(
            job_definitions.c.name == spec.name, job_definitions.c.version == last.version
        )
        connection.execute(job_definitions.update().where(same).values(origin=origin))
        return _number(last)
    version = 1 if last is None else _number(last) + 1
    connection.execute(
        job_definitions.insert().values(
            name=spec.name,
            version=version,
            hash=spec.hash,
            spec=json.dumps(spec.to_json(), ensure_ascii=False),
            origin=origin,
            registered=to_micros(times.utc_now()),
        )
    )
    return version


def get(connection: Connection, name: str) -> RegisteredJob:
    """Return a job's latest definition and state; JobNotFound lists those registered."""
    job = find(connection, name)
    if job is None:
        names = connection.execute(
            sa.select(job_states.c.name).order_by(job_states.c.name)
        ).scalars()
        raise JobNotFound(
            f"Unknown job {name!r}. Available: {listing(names)}.",
            hint="featurestore job register path/to/jobs.py",
        )
    return job


def find(connection: Connection, name: str) -> RegisteredJob | None:
    """Return a job's latest definition and state, or None."""
    row = _latest(connection, name)
    return None if row is None else _job(connection, row)


def registered_at(connection: Connection, name: str) -> datetime | None:
    """Return when a job was first registered, None for one that is not."""
    query = sa.select(sa.func.min(job_definitions.c.registered)).where(
        job_definitions.c.name == name
    )
    return to_time(connection.execute(query).scalar())


def definition(connection: Connection, name: str, version: int) -> JobSpec:
    """Return a definition that a job has or had."""
    same = sa.and_(job_definitions.c.name == name, job_definitions.c.version == version)
    text = connection.execute(sa.select(job_definitions.c.spec).where(same)).scalar_one()
    with readable(f"job {name!r} version {version}"):
        return JobSpec.from_text(text)


def every(
    connection: Connection, *, limit: int | None = None, offset: int = 0
) -> list[RegisteredJob]:
    """Return jobs in their latest definitions, by name: all, or one page.

    One whose definition is damaged is left out with a warning.
    """
    query = sa.select(job_states.c.name).order_by(job_states.c.name).limit(limit).offset(offset)
    names = connection.execute(query).scalars().all()
    jobs = []
    for name in names:
        try:
            jobs.append(get(connection, name))
        except RegistryError as error:
            warn_caller(f"The job {name!r} is left out: {error.message}")
    return jobs


def set_paused(connection: Connection, name: str, paused: bool) -> None:
    """Pause or resume a job."""
    get(connection, name)
    connection.execute(job_states.update().where(job_states.c.name == name).values(paused=paused))


def watermark(connection: Connection, name: str) -> datetime | None:
    """Return up to where every window of a job was computed."""
    micros = connection.execute(
        sa.select(job_states.c.watermark).where(job_states.c.name == name)
    ).scalar_one()
    return to_time(micros)


def held_watermark(connection: Connection, name: str) -> datetime | None:
    """Return the watermark of a job and keep others from moving it until this transaction ends."""
    query = sa.select(job_states.c.watermark).where(job_states.c.name == name).with_for_update()
    micros = connection.execute(query).scalar_one()
    return to_time(micros)


def advance(connection: Connection, name: str, watermark: datetime) -> None:
    """Move the watermark forward; it never moves back."""
    micros = to_micros(watermark)
    is_behind = sa.or_(job_states.c.watermark.is_(None), job_states.c.watermark < micros)
    connection.execute(
        job_states.update()
        .where(job_states.c.name == name, is_behind)
        .values(watermark=to_column(watermark))
    )


# -- leases; see featurestore.recovery.leases for the rules ---------------------------------------


def lease_owner(connection: Connection, name: str, *, locked: bool = False) -> str | None:
    """Return who holds the lease of a job.

    ``locked`` keeps others from taking it until this transaction ends.
    """
    query = sa.select(job_states.c.lease_owner).where(job_states.c.name == name)
    owner: str | None = connection.execute(
        query.with_for_update() if locked else query
    ).scalar_one()
    return owner


def set_lease(connection: Connection, name: str, holder: str) -> None:
    """Give the lease of a job to a holder."""
    connection.execute(
        job_states.update().where(job_states.c.name == name).values(lease_owner=holder)
    )


def drop_lease(connection: Connection, name: str, holder: str) -> None:
    """Release a lease."""
    is_owned = sa.and_(job_states.c.name == name, job_states.c.lease_owner == holder)
    connection.execute(job_states.update().where(is_owned).values(lease_owner=None))


def _latest(connection: Connection, name: str) -> Row[tuple[object, ...]] | None:
    columns = job_definitions.c
    query = (
        sa.select(job_definitions)
        .where(columns.name == name)
        .order_by(columns.version.desc())
        .limit(1)
    )
    return connection.execute(query).first()


def _number(row: Row[Any]) -> int:
    """Return the version of a row of definitions."""
    with readable(f"job {row.name!r}"):
        return int(row.version)


def _job(connection: Connection, row: Row[tuple[object, ...]]) -> RegisteredJob:
    state = connection.execute(sa.select(job_states).where(job_states.c.name == row.name)).one()
    with readable(f"job {row.name!r}"):
        watermark = to_time(state.watermark)
        spec = JobSpec.from_text(str(row.spec))
    return RegisteredJob(spec, row.version, row.origin, bool(state.paused), watermark)
