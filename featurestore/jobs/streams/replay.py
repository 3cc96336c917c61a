"""Replays of stream jobs, under the lease of the job."""

from __future__ import annotations

from featurestore.errors import InvalidJob
from featurestore.jobs.target import find_target
from featurestore.recovery.leases import hold_job_lease
from featurestore.registry import jobs
from featurestore.session import Session
from featurestore.streams.replay import Replayed, replay


def replay_stream(session: Session, name: str) -> Replayed:
    """Read the quarantined records of a job again, by its current definition.

    Raises:
        JobNotFound: The job does not exist.
        InvalidJob: It reads no topic, or its group does not have its columns yet.
        JobLeased: The job is running.
    """
    with session.registry.reading() as connection:
        spec = jobs.get(connection, name).spec
    if spec.stream is None:
        raise InvalidJob(f"Job {name!r} reads no topic.", hint="featurestore job list")
    with hold_job_lease(session, name):
        group = find_target(session, spec)
        if group is None:
            raise InvalidJob(
                f"Job {name!r} has no group with its columns yet, and so no quarantine.",
                hint=f"featurestore job run {name}",
            )
        return replay(session, spec, group)
