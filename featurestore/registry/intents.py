"""Intents: a row from before a write begins until its result is registered, so that a death in between is seen."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.model.times import from_micros, to_micros, utc_now
from featurestore.registry.tables import intents
from featurestore.storage import files

# A process of another host cannot be looked at; after this long its unfinished write is taken for dead.
FOREIGN_PATIENCE = timedelta(days=1)


@dataclass(frozen=True)
class Intent:
    """A write that has begun: ``kind`` is "create" or "write" for groups."""

    run_id: str
    kind: str
    name: str
    version: int
    path: str
    host: str
    pid: int
    process_start: int
    created: datetime

    @property
    def is_alive(self) -> bool:
        """Whether the process that wrote it may still be at work."""
        if self.host != _host():
            return utc_now() - self.created < FOREIGN_PATIENCE
        return files.process_start(self.pid) == self.process_start


def begin(
    connection: Connection, *, run_id: str, kind: str, name: str, version: int, path: str
) -> None:
    """Record that this process begins a write."""
    connection.execute(
        intents.insert().values(
            run_id=run_id,
            kind=kind,
            name=name,
            version=version,
            path=path,
            host=_host(),
            pid=os.getpid(),
            process_start=files.process_start(os.getpid()),
            created=to_micros(utc_now()),
        )
    )


def end(connection: Connection, run_id: str) -> None:
    """Record that a write is registered, or has left nothing."""
    connection.execute(intents.delete().where(intents.c.run_id == run_id))


def every(connection: Connection) -> list[Intent]:
    """Return all writes under way or dead, oldest first."""
    return _read(connection, sa.select(intents).order_by(intents.c.created))


def creating(connection: Connection, name: str) -> list[int]:
    """Return the versions of a feature group that living processes create just now."""
    query = sa.select(intents).where(intents.c.kind == "create", intents.c.name == name)
    return [each.version for each in _read(connection, query) if each.is_alive]


def _read(connection: Connection, query: sa.Select[Any]) -> list[Intent]:
    rows = [row._asdict() for row in connection.execute(query)]
    return [Intent(**{**row, "created": from_micros(row["created"])}) for row in rows]


@cache
def _host() -> str:
    return f"{socket.gethostname()}/{_boot()}"


def _boot() -> str:
    # Containers of one image may share a host name; the boot id and the process namespace tell them apart.
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return f"{boot[:8]}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return "-"
