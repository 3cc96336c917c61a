"""Leases of jobs: one thread runs a job at a time, and a dead process loses its lease."""

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
