"""A write under way: announced in the registry before it begins, settled there whatever becomes of it."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from featurestore.delta import deltalog
from featurestore.errors import FeatureGroupExists
from featurestore.registry import featuregroups, heal, intents
from featurestore.session import Session
from featurestore.storage import files

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

_POLL_SECONDS = 0.05


@dataclass
class Underway:
    """One write between its announcement and its registration."""

    run_id: str
    staging: str
    registered: bool = False


def new_run_id() -> str:
    """Return an id for a run."""
    return uuid.uuid4().hex


@contextmanager
def underway(
    session: Session, *, kind: str, name: str, version: int, run_id: str | None = None
) -> Iterator[Underway]:
    """Announce a write; afterwards remove its stage and settle what it left if it did not register itself."""
    path = session.featuregroup_path(name, version)
    # The id of a run may come from a job that writes more than once; the announcement has its own.
    own = new_run_id()
    with session.registry.transaction() as connection:
        if kind == "create":
            _claim(session, connection, name, version)
        intents.begin(
            connection,
            run_id=own,
            kind=kind,
            name=name,
            version=version,
            path=os.path.relpath(path, session.location),
        )
    write = Underway(run_id or own, session.staging_path(own))
    try:
        yield write
    finally:
        files.remove(write.staging, below=session.location)
        with session.registry.transaction() as connection:
            if write.registered:
                intents.end(connection, own)
            else:
                _settle(session, connection, own)


def wait_for_creator(session: Session, name: str, version: int) -> bool:
    """Wait while another process creates a version; return whether one did when this was called."""
    waited = False
    while True:
        with session.registry.reading() as connection:
            if version not in intents.creating(connection, name):
                return waited
        waited = True
        time.sleep(_POLL_SECONDS)


def _claim(session: Session, connection: Connection, name: str, version: int) -> None:
    """Make this process the only creator of a version; clean what a dead one left."""
    lock_group(session, connection, name, version)
    taken = featuregroups.find(connection, name, version) is not None
    busy = version in intents.creating(connection, name)
    path = session.featuregroup_path(name, version)
    if not taken and not busy:
        if not heal.is_group(path):
            if deltalog.exists(path):
                files.remove(path, below=session.location)
            return
        heal.register_table(connection, session.location, path)
    state = "is being created by another process" if busy else "exists already"
    raise FeatureGroupExists(
        f"Feature group {name!r} version {version} {state}.",
        hint="leave version=None for the next version, or use insert_into_featuregroup",
    )


def lock_group(session: Session, connection: Connection, name: str, version: int) -> None:
    """Let no other process change what a version is until this transaction ends.

    A transaction of SQLite excludes every other one by itself.
    """
    if session.registry.dialect == "postgresql":
        from sqlalchemy import func, select

        connection.execute(
            select(func.pg_advisory_xact_lock(func.hashtext(f"featuregroup/{name}/{version}")))
        )


def _settle(session: Session, connection: Connection, own: str) -> None:
    for intent in intents.every(connection):
        if intent.run_id == own:
            heal.settle(connection, session.location, intent)
