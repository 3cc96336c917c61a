"""A write under way: announced in the registry before it begins, settled there whatever becomes of it."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from featurestore.delta import deltalog
from featurestore.errors import FeatureGroupExists, FeatureStoreError
from featurestore.registry import featuregroups, heal, intents
from featurestore.session import Session
from featurestore.storage import files

_POLL_SECONDS = 0.05
# Writes of this process, by registry, that are announced although they have ended.
_LEFT: set[tuple[str, str]] = set()


@dataclass
class Underway:
    """One write between its announcement and its registration.

    ``landed`` is the Delta version of its commit, as soon as it is known that there is one.
    """

    run_id: str
    staging: str
    registered: bool = False
    landed: int | None = None


def new_run_id() -> str:
    """Return an id for a run."""
    return uuid.uuid4().hex


@contextmanager
def underway(
    session: Session, *, kind: str, name: str, version: int, run_id: str | None = None
) -> Iterator[Underway]:
    """Announce a write; afterwards remove its stage and settle what it left if it did not register itself.

    What cannot be settled (the registry is locked, the disk is full) stays announced, and is settled before the next
    write of this process, or at a connect after its end.
    """
    # The id of a run may come from a job that writes more than once; the announcement has its own.
    own = new_run_id()
    _announce(session, own, kind=kind, name=name, version=version)
    write = Underway(run_id or own, session.staging_path(own))
    try:
        yield write
    except BaseException as error:
        if write.landed is not None:
            error.add_note(
                f"The rows of this write had landed as Delta version {write.landed}: do not write them again."
            )
        _finish(session, own, write, settle=True)
        raise
    _finish(session, own, write, settle=write.landed is None)


def _announce(session: Session, own: str, *, kind: str, name: str, version: int) -> None:
    _settle_left(session)
    path = session.featuregroup_path(name, version)
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


def _finish(session: Session, own: str, write: Underway, *, settle: bool) -> None:
    """End an announcement; no error leaves, since the write has its result, or its error, already.

    Without ``settle`` an unregistered write stays announced: the registry has just refused it.
    """
    left = session.registry.url, own
    _LEFT.add(left)
    try:
        files.remove(write.staging, below=session.location)
        if not write.registered and not settle:
            return
        with session.registry.transaction() as connection:
            if write.registered:
                intents.end(connection, own)
            else:
                _settle(session, connection, own)
    except (FeatureStoreError, OSError, SQLAlchemyError):
        return
    _LEFT.discard(left)


def _settle_left(session: Session) -> None:
    """Settle the writes of this process that could not be settled when they ended."""
    for url, own in list(_LEFT):
        if url != session.registry.url:
            continue
        with suppress(FeatureStoreError, OSError):
            with session.registry.transaction() as connection:
                _settle(session, connection, own)
            _LEFT.discard((url, own))


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
        connection.execute(
            select(func.pg_advisory_xact_lock(func.hashtext(f"featuregroup/{name}/{version}")))
        )


def _settle(session: Session, connection: Connection, own: str) -> None:
    for intent in intents.every(connection):
        if intent.run_id == own:
            heal.settle(connection, session.location, intent)
