"""The lease of a job: one process runs it at a time, and a dead one loses it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from featurestore.errors import JobLeased, RegistryError
from featurestore.jobs.logs import LOGGER
from featurestore.registry import Registry, jobs

_log = logging.getLogger(LOGGER)
LASTING = timedelta(seconds=60)
_BEATS = 4


@contextmanager
def leased(registry: Registry, name: str, *, lasting: timedelta = LASTING) -> Iterator[str]:
    """Hold the lease of a job, kept by a heartbeat, and give its owner's name.

    Raises:
        JobLeased: Another process, or another thread of this one, runs the job.
    """
    owner = jobs.owner_name()
    with registry.transaction() as connection:
        jobs.get(connection, name)
        holder = jobs.take_lease(connection, name, owner, lasting=lasting)
    if holder is not None:
        raise JobLeased(
            f"Job {name!r} is run by {holder} at the moment.",
            hint="it goes on when that one ends or dies",
        )
    stop = threading.Event()
    beat = threading.Thread(
        target=_keep, args=(registry, name, owner, lasting, stop), name=f"lease-{name}", daemon=True
    )
    beat.start()
    try:
        yield owner
    finally:
        stop.set()
        beat.join()
        with registry.transaction() as connection:
            jobs.drop_lease(connection, name, owner)


def _keep(
    registry: Registry, name: str, owner: str, lasting: timedelta, stop: threading.Event
) -> None:
    while not stop.wait(lasting.total_seconds() / _BEATS):
        try:
            with registry.transaction() as connection:
                if not jobs.keep_lease(connection, name, owner, lasting=lasting):
                    return
        except RegistryError:
            _log.warning("the lease of %s could not be kept; tried again", name, exc_info=True)
