"""Leases: of jobs in the registry, and of long writes as objects below a URI."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta

from sqlalchemy.engine import Connection

from featurestore.errors import JobLeased, StorageError
from featurestore.recovery import owners
from featurestore.recovery.owners import Store
from featurestore.registry import jobs
from featurestore.registry import owners as heartbeats
from featurestore.storage import files
from featurestore.storage.selection import storage_for

RENEWAL_SECONDS = 15.0
# Forty renewals, and longer than the retries of a request.
LEASE_TIMEOUT = timedelta(minutes=10)
_FOLDER = "_leases"
_JOIN_SECONDS = 5.0
_log = logging.getLogger("featurestore.recovery")


@contextmanager
def hold_job_lease(store: Store, job: str) -> Iterator[str]:
    """Hold the lease of a job while the block runs, and yield the holder's name.

    Raises:
        JobNotFound: The job does not exist.
        JobLeased: Another process, or another thread of this one, runs the job.
    """
    registry, location = store.registry, store.location
    with owners.heartbeat(registry, location) as owner:
        holder = f"{owner}/{threading.get_ident()}"
        with registry.transaction() as connection:
            jobs.get(connection, job)
            heartbeats.record(connection, owner)
            current_holder = acquire(connection, location, job, holder)
        if current_holder is not None:
            raise JobLeased(
                f"Job {job!r} is currently run by {current_holder}.",
                hint="retry after this run has ended",
            )
        try:
            yield holder
        finally:
            with registry.transaction() as connection:
                jobs.drop_lease(connection, job, holder)


def acquire(connection: Connection, location: str, job: str, holder: str) -> str | None:
    """Acquire the lease of a job; return None on success, else the current holder.

    The lease of a dead owner is taken over.
    """
    current_holder = jobs.lease_owner(connection, job, locked=True)
    if current_holder is not None and current_holder != holder:
        owner = current_holder.partition("/")[0]
        if owners.is_alive(connection, location, owner):
            return current_holder
    jobs.set_lease(connection, job, holder)
    return None


@contextmanager
def renewed_lease(location: str, run: str) -> Iterator[None]:
    """Renew the lease of a write while the block runs; nothing is done on a disk."""
    if not storage_for(location).needs_claims:
        yield
        return
    path = _path(location, run)
    stop, has_renewed = threading.Event(), threading.Event()
    thread = threading.Thread(
        target=_renew, args=(path, stop, has_renewed), name="lease", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_JOIN_SECONDS)
        if has_renewed.is_set():
            with suppress(StorageError):  # the lease expires anyway
                files.remove(path, below=location)


def is_expired(location: str, run: str, *paths: str, now: datetime | None = None) -> bool:
    """Return True if the lease of a write has expired.

    Args:
        location: The URI of the store.
        run: The id of the write.
        paths: Objects of the write, and folders that it writes to.
        now: The time of the store's server, if known; reading it takes several requests.
    """
    last_written = files.last_written(_path(location, run))
    for path in paths:
        written_at = files.last_written(path)
        if written_at is not None and (last_written is None or written_at > last_written):
            last_written = written_at
    if last_written is None:
        return True
    return (now or files.current_time(location)) - last_written > LEASE_TIMEOUT


def remove_expired(location: str) -> None:
    """Remove the leases of dead processes."""
    if not storage_for(location).needs_claims:
        return
    folder = os.path.join(location, _FOLDER)
    runs = files.list_directory(folder)
    if not runs:
        return
    now = files.current_time(location)
    for run in runs:
        if is_expired(location, run, now=now):
            files.remove(_path(location, run), below=location)


def _path(location: str, run: str) -> str:
    return os.path.join(location, _FOLDER, run)


def _renew(path: str, stop: threading.Event, has_renewed: threading.Event) -> None:
    while not stop.wait(RENEWAL_SECONDS):
        try:
            files.write_atomically(path, b"renewed")
            has_renewed.set()
        except StorageError as error:
            _log.warning("the lease of a write was not renewed: %s", error.message)
