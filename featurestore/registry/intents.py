"""Intents.

A row from before a write begins until its result is registered, so that a death in between is seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.model import times
from featurestore.model.times import to_micros
from featurestore.registry.tables import intents


@dataclass(frozen=True)
class Intent:
    """A write that has begun; ``owner`` is the process that does it.

    ``kind``: "create", "write" and "delete" of a feature group, "reclaim" for a vacuum of it and
    while a deletion checks for readers, "export" and "remove" of a training dataset, "define"
    and "undefine" of a feature view, "enter"
    and "leave" of a registered model, "stage" for rows in the staging directory only.
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
    """Record that a write is registered, or has left nothing."""
    connection.execute(intents.delete().where(intents.c.run_id == run_id))


def find(connection: Connection, run_id: str) -> Intent | None:
    """Return an intent, or None when it has ended."""
    matches = _read(connection, intents.c.run_id == run_id)
    return matches[0] if matches else None


def every(connection: Connection) -> list[Intent]:
    """Return the intents of all writes in flight or dead, oldest first."""
    return _read(connection, sa.true())


def of_name(connection: Connection, kind: str, name: str) -> list[Intent]:
    """Return the intents of one kind on one name."""
    return _read(connection, sa.and_(intents.c.kind == kind, intents.c.name == name))


def _read(connection: Connection, condition: sa.ColumnElement[bool]) -> list[Intent]:
    columns = intents.c
    query = sa.select(columns.run_id, columns.kind, columns.name, columns.version, columns.owner)
    rows = connection.execute(query.where(condition).order_by(columns.created))
    return [Intent(*row) for row in rows]
