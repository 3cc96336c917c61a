"""Replays of stream jobs, one at a time and never beside a run."""

from __future__ import annotations

from featurestore.errors import InvalidJob
from featurestore.jobs.target import target
from featurestore.recovery.leases import hold_job_lease
from featurestore.registry import jobs
from featurestore.session import Session
from featurestore.streams.replay import Replayed, replay


def replay_stream(session: Session, name: str) -> Replayed:
    """Read the records of a job's quarantine again, by the job as it is registered now.

    Raises:
        JobNotFound: There is no such job.
        InvalidJob: It reads no topic, or its group does not fit it yet.
        JobLeased: A run of the job is at work.
    """
    with session.registry.reading() as connection:
        spec = jobs.get(connection, name).spec
    if spec.stream is None:
        raise InvalidJob(f"Job {name!r} reads no topic.", hint="featurestore job list")
    with hold_job_lease(session, name):
        group = target(session, spec)
        if group is None:
            raise InvalidJob(
                f"Job {name!r} has no group of its columns yet, and so no quarantine.",
                hint=f"featurestore job run {name}",
            )
        return replay(session, spec, group)
