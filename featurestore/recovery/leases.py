"""Leases of jobs: one thread of one process runs a job at a time, and a dead one loses it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.engine import Connection

from featurestore.errors import JobLeased
from featurestore.recovery import owners
from featurestore.recovery.owners import Store
from featurestore.registry import jobs
from featurestore.registry import owners as heartbeats


@contextmanager
def leased(store: Store, job: str) -> Iterator[str]:
    """Hold the lease of a job while the block runs, and give the holder's name.

    Raises:
        JobNotFound: There is no such job.
        JobLeased: Another process, or another thread of this one, runs the job.
    """
    registry, location = store.registry, store.location
    with owners.heartbeat(registry, location) as owner:
        holder = f"{owner}/{threading.get_ident()}"
        with registry.transaction() as connection:
            jobs.get(connection, job)
            heartbeats.record(connection, owner)
            other = take(connection, location, job, holder)
        if other is not None:
            raise JobLeased(
                f"Job {job!r} is run by {other} at the moment.",
                hint="it goes on when that one ends or dies",
            )
        try:
            yield holder
        finally:
            with registry.transaction() as connection:
                jobs.drop_lease(connection, job, holder)


def take(connection: Connection, location: str, job: str, holder: str) -> str | None:
    """Take the lease of a job; return None when it is taken, else who holds it.

    A lease whose owner is dead is taken over.
    """
    other = jobs.lease_owner(connection, job, locked=True)
    if other is not None and other != holder:
        owner = other.partition("/")[0]
        if owners.is_alive(connection, location, owner):
            return other
    jobs.set_lease(connection, job, holder)
    return None
