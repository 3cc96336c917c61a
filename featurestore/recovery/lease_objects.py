"""Lease objects of long writes below a URI, which show liveness to any machine.

Heartbeats are visible in one registry, and locks on one machine. Other registries, and the
replacement of a dead machine, read the lease: an object named after the write that is written again
every few seconds. Before the first renewal, the files of the write count instead. All times are
those of the store's server, so that no clocks are compared.

A process that is wrongly considered dead (for example after a pause) loses its work, but cannot harm
a dataset: publication requires ``claims.try_publish``.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta

from featurestore.errors import StorageError
from featurestore.storage import files
from featurestore.storage.selection import storage_for

RENEWAL_SECONDS = 15.0
# Forty renewals, and longer than the retries of a request.
LEASE_TIMEOUT = timedelta(minutes=10)
_FOLDER = "_leases"
_JOIN_SECONDS = 5.0
_log = logging.getLogger("featurestore.recovery")


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
