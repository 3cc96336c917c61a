"""Leases: objects that long writes below a URI renew, so that any machine can tell who lives.

A process is known to its registry, and its lock to its machine. Another registry, and the machine
that took the place of one that died, know neither: they look at the lease, an object named by the
write that is written again every few seconds. A write that is younger than its first renewal is
told by what it wrote. Times are those of the store's server alone, so no clocks are compared.

Whom a lease takes for dead wrongly (a process that stood still, say) loses its work, and never
harms a dataset: what is published passes ``claims.pass_gate`` first.
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
from featurestore.storage.location import is_uri

RENEWAL_SECONDS = 15.0
# Forty renewals, and longer than a request is tried again.
SILENCE = timedelta(minutes=10)
_FOLDER = "_leases"
_JOIN_SECONDS = 5.0
_log = logging.getLogger("featurestore.recovery")


@contextmanager
def renewed(location: str, run: str) -> Iterator[None]:
    """Renew the lease of a write while the block runs; on a disk there is none."""
    if not is_uri(location):
        yield
        return
    path = _path(location, run)
    stop, written = threading.Event(), threading.Event()
    thread = threading.Thread(target=_renew, args=(path, stop, written), name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_JOIN_SECONDS)
        if written.is_set():
            with suppress(StorageError):  # it is silent from now on
                files.remove(path, below=location)


def is_silent(location: str, run: str, *written: str, now: datetime | None = None) -> bool:
    """Tell whether a write has been silent for so long that it is taken for dead.

    Args:
        location: The URI of the store.
        run: The id of the write.
        written: Objects of it, and folders that it writes to.
        now: The time of the store's server, where it is known: it takes several requests.
    """
    last = files.last_written(_path(location, run))
    for path in written:
        found = files.last_written(path)
        if found is not None and (last is None or found > last):
            last = found
    if last is None:
        return True
    return (now or files.time_of_store(location)) - last > SILENCE


def remove_ended(location: str) -> None:
    """Remove the leases of processes that died."""
    if not is_uri(location):
        return
    folder = os.path.join(location, _FOLDER)
    runs = files.list_directory(folder)
    if not runs:
        return
    now = files.time_of_store(location)
    for run in runs:
        if is_silent(location, run, now=now):
            files.remove(_path(location, run), below=location)


def _path(location: str, run: str) -> str:
    return os.path.join(location, _FOLDER, run)


def _renew(path: str, stop: threading.Event, written: threading.Event) -> None:
    while not stop.wait(RENEWAL_SECONDS):
        try:
            files.write_atomically(path, b"renewed")
            written.set()
        except StorageError as error:
            _log.warning("the lease of a write was not renewed: %s", error.message)
