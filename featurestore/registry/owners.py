"""Heartbeats: when each process that writes sent its last one, by the clock of the registry.

Hosts share a registry on Postgres, and only the clock of its server is read. SQLite serves the
processes of one host, which have one clock. A heartbeat in the future was recorded before that
clock was set back, so its age is unknown: it becomes one of the present. A living owner sends the
next one; a dead owner loses its leases after the usual time.
"""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.model import times
from featurestore.model.times import to_micros
from featurestore.registry.rows import to_time
from featurestore.registry.tables import owners


def record(connection: Connection, name: str) -> None:
    """Record that an owner is alive now."""
    now = correct_future(connection)
    result = connection.execute(owners.update().where(owners.c.name == name).values(seen=now))
    if result.rowcount == 0:
        connection.execute(owners.insert().values(name=name, seen=now))


def correct_future(connection: Connection) -> int:
    """Record heartbeats in the future as of now; return now in microseconds."""
    now = to_micros(time_of(connection))
    # Two processes that do so at once do not wait for each other's heartbeats.
    names = sa.select(owners.c.name).where(owners.c.seen > now).with_for_update(skip_locked=True)
    connection.execute(owners.update().where(owners.c.name.in_(names)).values(seen=now))
    return now


def has_future(connection: Connection) -> bool:
    """Return whether heartbeats are in the future of the registry's clock."""
    names = sa.select(owners.c.name).where(owners.c.seen > to_micros(time_of(connection)))
    return connection.execute(names.limit(1)).first() is not None


def time_of(connection: Connection) -> datetime:
    """Return the time by the clock of the registry."""
    if connection.dialect.name == "postgresql":
        # Not now(), which is when the transaction began: it may have waited for a lock.
        now: datetime = connection.execute(sa.select(sa.func.clock_timestamp())).scalar_one()
        return now
    return times.utc_now()


def last_heartbeat(connection: Connection, name: str) -> datetime | None:
    """Return when an owner was last heard of; None when it never was."""
    micros = connection.execute(sa.select(owners.c.seen).where(owners.c.name == name)).scalar()
    return to_time(micros)


def every(connection: Connection) -> list[str]:
    """Return the names of all owners that were ever heard of and not forgotten."""
    return list(connection.execute(sa.select(owners.c.name)).scalars())


def forget(connection: Connection, name: str) -> None:
    """Forget an owner."""
    connection.execute(owners.delete().where(owners.c.name == name))
