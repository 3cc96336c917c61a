"""Write intents and the heartbeats of the processes that own them.

An intent is recorded before a write begins and removed when its result is registered, so that the
write of a dead process can be recovered. A heartbeat is the time at which a process last reported to
the registry, by the clock of the registry. Hosts share a registry on Postgres, so only the clock of
its server counts. SQLite serves the processes of one host, which have one clock. A heartbeat in the
future was recorded before that clock was set back, so its age is unknown: it is replaced by the
present time. A living owner sends the next one; a dead owner loses its leases after the usual time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.model import times
from featurestore.model.times import to_micros
from featurestore.registry.rows import to_time
from featurestore.registry.tables import intents, owners


@dataclass(frozen=True)
class Intent:
    """A write that has begun; ``owner`` is the writing process.

    ``kind`` is "create", "write" or "delete" for a feature group, "reclaim" for its vacuum and
    while a deletion checks for readers, "export" or "remove" for a training dataset, "define" or
    "undefine" for a feature view, "enter" or "leave" for a registered model, and "stage" for rows
    in the staging directory only.
    """

    run_id: str
    kind: str
    name: str
    version: int
    owner: str


def begin(
    connection: Connection, *, run_id: str, kind: str, name: str, version: int, owner: str
) -> None:
    """Record that an owner begins a write."""
    connection.execute(
        intents.insert().values(
            run_id=run_id,
            kind=kind,
            name=name,
            version=version,
            owner=owner,
            created=to_micros(times.utc_now()),
        )
    )


def end(connection: Connection, run_id: str) -> None:
    """Remove the intent of a write that is registered, or whose files were removed."""
    connection.execute(intents.delete().where(intents.c.run_id == run_id))


def find(connection: Connection, run_id: str) -> Intent | None:
    """Return an intent, or None if it has ended."""
    matches = _read(connection, intents.c.run_id == run_id)
    return matches[0] if matches else None


def every(connection: Connection) -> list[Intent]:
    """Return the intents of all writes, in flight or dead, oldest first."""
    return _read(connection, sa.true())


def of_name(connection: Connection, kind: str, name: str) -> list[Intent]:
    """Return the intents of one kind on one name."""
    return _read(connection, sa.and_(intents.c.kind == kind, intents.c.name == name))


def _read(connection: Connection, condition: sa.ColumnElement[bool]) -> list[Intent]:
    columns = intents.c
    query = sa.select(columns.run_id, columns.kind, columns.name, columns.version, columns.owner)
    rows = connection.execute(query.where(condition).order_by(columns.created))
    return [Intent(*row) for row in rows]


def record_heartbeat(connection: Connection, name: str) -> None:
    """Record that an owner is alive."""
    now = correct_future_heartbeats(connection)
    result = connection.execute(owners.update().where(owners.c.name == name).values(seen=now))
    if result.rowcount == 0:
        connection.execute(owners.insert().values(name=name, seen=now))


def last_heartbeat(connection: Connection, name: str) -> datetime | None:
    """Return the last heartbeat of an owner, or None."""
    micros = connection.execute(sa.select(owners.c.seen).where(owners.c.name == name)).scalar()
    return to_time(micros)


def current_time(connection: Connection) -> datetime:
    """Return the time by the clock of the registry."""
    if connection.dialect.name == "postgresql":
        # Not now(), the start of the transaction, which may have waited for a lock.
        now: datetime = connection.execute(sa.select(sa.func.clock_timestamp())).scalar_one()
        return now
    return times.utc_now()


def correct_future_heartbeats(connection: Connection) -> int:
    """Set heartbeats in the future to the present time; return it in microseconds."""
    now = to_micros(current_time(connection))
    # Locked rows are skipped, so that two processes do not wait for each other.
    names = sa.select(owners.c.name).where(owners.c.seen > now).with_for_update(skip_locked=True)
    connection.execute(owners.update().where(owners.c.name.in_(names)).values(seen=now))
    return now


def has_future_heartbeats(connection: Connection) -> bool:
    """Return True if heartbeats are later than the registry's clock."""
    names = sa.select(owners.c.name).where(owners.c.seen > to_micros(current_time(connection)))
    return connection.execute(names.limit(1)).first() is not None


def owner_names(connection: Connection) -> list[str]:
    """Return the names of all owners with a heartbeat."""
    return list(connection.execute(sa.select(owners.c.name)).scalars())


def forget_owner(connection: Connection, name: str) -> None:
    """Remove the heartbeat of an owner."""
    connection.execute(owners.delete().where(owners.c.name == name))
