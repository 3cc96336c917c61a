"""Write intents, and the heartbeats of the processes that own them.

An intent is recorded before a write begins and removed when its result is registered, so that the
write of a crashed process can be recovered. A heartbeat is the time at which a process last updated
the registry, by the clock of the registry. Several hosts may share a registry in Postgres, so only
the clock of its server is used. SQLite is used by processes on one host, which share a clock. A
heartbeat in the future was recorded before the clock was set back, so its age is unknown. It is
replaced by the current time: a live owner sends the next heartbeat in time, and a dead owner loses
its leases after the usual timeout.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.model import times
from featurestore.model.times import to_micros
from featurestore.registry.rows import put_row, to_time
from featurestore.registry.tables import intents, owners


@dataclass(frozen=True)
class Intent:
    """A write in progress; ``owner`` is the writing process.

    ``kind`` is "create", "write" or "delete" for a feature group, "reclaim" for its vacuum and
    while a deletion checks for readers, "export" or "remove" for a training dataset, "define" or
    "undefine" for a feature view, "enter" or "leave" for a registered model, "apply" for a
    project that is being applied, and "stage" for rows that are only in the staging directory.
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
    """Remove the intent of a write that was registered or whose files were removed."""
    connection.execute(intents.delete().where(intents.c.run_id == run_id))


def find(connection: Connection, run_id: str) -> Intent | None:
    """Return an intent, None if the write has ended."""
    matches = _read(connection, intents.c.run_id == run_id)
    return matches[0] if matches else None


def list_all(connection: Connection) -> list[Intent]:
    """Return the intents of all writes, active or crashed, oldest first."""
    return _read(connection, sa.true())


def needs_recovery(connection: Connection) -> bool:
    """Return True if a write may have been left by a dead process, or the clock was set back."""
    has_intents = connection.execute(sa.select(intents.c.run_id).limit(1)).first() is not None
    return has_intents or has_future_heartbeats(connection)


def find_by_name(connection: Connection, kind: str, name: str) -> list[Intent]:
    """Return the intents of one kind for one name."""
    return _read(connection, sa.and_(intents.c.kind == kind, intents.c.name == name))


def _read(connection: Connection, condition: sa.ColumnElement[bool]) -> list[Intent]:
    columns = intents.c
    query = sa.select(columns.run_id, columns.kind, columns.name, columns.version, columns.owner)
    rows = connection.execute(query.where(condition).order_by(columns.created))
    return [Intent(*row) for row in rows]


def record_heartbeat(connection: Connection, name: str) -> None:
    """Record that an owner is alive."""
    now = correct_future_heartbeats(connection)
    put_row(connection, owners, {"name": name}, {"seen": now})


def last_heartbeat(connection: Connection, name: str) -> datetime | None:
    """Return the time of an owner's last heartbeat, None if there is none."""
    micros = connection.execute(sa.select(owners.c.seen).where(owners.c.name == name)).scalar()
    return to_time(micros)


def current_time(connection: Connection) -> datetime:
    """Return the current time by the clock of the registry."""
    if connection.dialect.name == "postgresql":
        # Not now(), which is the start of the transaction; the transaction may have waited for a
        # lock.
        now: datetime = connection.execute(sa.select(sa.func.clock_timestamp())).scalar_one()
        return now
    return times.utc_now()


def correct_future_heartbeats(connection: Connection) -> int:
    """Set heartbeats in the future to the current time; return that time in microseconds."""
    now = to_micros(current_time(connection))
    # Locked rows are skipped, so that two processes do not wait for each other.
    names = sa.select(owners.c.name).where(owners.c.seen > now).with_for_update(skip_locked=True)
    connection.execute(owners.update().where(owners.c.name.in_(names)).values(seen=now))
    return now


def has_future_heartbeats(connection: Connection) -> bool:
    """Return True if any heartbeat is later than the clock of the registry."""
    names = sa.select(owners.c.name).where(owners.c.seen > to_micros(current_time(connection)))
    return connection.execute(names.limit(1)).first() is not None


def owner_names(connection: Connection) -> list[str]:
    """Return the names of all owners with a heartbeat."""
    return list(connection.execute(sa.select(owners.c.name)).scalars())


def remove_owner(connection: Connection, name: str) -> None:
    """Remove an owner's heartbeat."""
    connection.execute(owners.delete().where(owners.c.name == name))
