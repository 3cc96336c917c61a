"""Heartbeats: when each process that writes was last heard of, by the clock of the registry.

Hosts share a registry on Postgres, whose server's clock is the only one that is read. SQLite serves
the processes of one host, which have one clock. A heartbeat ahead of that clock is of before it was
set back, and says nothing about its age: it is recorded as one of the present, so that its owner
either sends the next or is dead as long after as any other.
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
    now = bring_back(connection)
    found = connection.execute(owners.update().where(owners.c.name == name).values(seen=now))
    if found.rowcount == 0:
        connection.execute(owners.insert().values(name=name, seen=now))


def bring_back(connection: Connection) -> int:
    """Record heartbeats ahead of the registry's clock as of now; return now in microseconds."""
    now = to_micros(time_of(connection))
    # Two processes that do so at once do not wait for each other's heartbeats.
    ahead = sa.select(owners.c.name).where(owners.c.seen > now).with_for_update(skip_locked=True)
    connection.execute(owners.update().where(owners.c.name.in_(ahead)).values(seen=now))
    return now


def are_ahead(connection: Connection) -> bool:
    """Return whether heartbeats are ahead of the registry's clock."""
    ahead = sa.select(owners.c.name).where(owners.c.seen > to_micros(time_of(connection)))
    return connection.execute(ahead.limit(1)).first() is not None


def time_of(connection: Connection) -> datetime:
    """Return the time by the clock of the registry."""
    if connection.dialect.name == "postgresql":
        # Not now(), which is when the transaction began: it may have waited for a lock.
        now: datetime = connection.execute(sa.select(sa.func.clock_timestamp())).scalar_one()
        return now
    return times.utc_now()


def seen(connection: Connection, name: str) -> datetime | None:
    """Return when an owner was last heard of; None when it never was."""
    found = connection.execute(sa.select(owners.c.seen).where(owners.c.name == name)).scalar()
    return to_time(found)


def every(connection: Connection) -> list[str]:
    """Return the names of all owners that were ever heard of and not forgotten."""
    return list(connection.execute(sa.select(owners.c.name)).scalars())


def forget(connection: Connection, name: str) -> None:
    """Forget an owner."""
    connection.execute(owners.delete().where(owners.c.name == name))
