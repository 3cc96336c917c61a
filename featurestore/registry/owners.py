"""Heartbeats: when each process that writes was last heard of."""

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
    now = to_micros(times.utc_now())
    found = connection.execute(owners.update().where(owners.c.name == name).values(seen=now))
    if found.rowcount == 0:
        connection.execute(owners.insert().values(name=name, seen=now))


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
