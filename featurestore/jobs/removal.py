"""Removal of jobs: the registry forgets a job and its runs; the results of the job remain."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from featurestore.errors import FeatureStoreError, JobLeased, JobNotFound, listing
from featurestore.jobs.shared_targets import release_groups, release_target
from featurestore.model import display
from featurestore.model.job import StreamWork
from featurestore.recovery.liveness import hold_job_lease, is_alive
from featurestore.registry import jobs, runs
from featurestore.session import Session

_RESULTS = {
    "training": "the versions of training dataset {target!r}",
    "publish": "the published values of feature view {target!r}",
    "catalog": "the tables in source {target!r}",
    "monitor": "the monitored feature group",
}


@dataclass(frozen=True)
class RemovedJob:
    """A removed job, the number of its removed runs, and what remains in the store."""

    name: str
    runs: int
    remaining: str

    __repr__ = display.record_repr

    def __str__(self) -> str:
        runs_text = "1 run" if self.runs == 1 else f"{self.runs:,} runs"
        return (
            f"removed job {self.name!r}: its definitions, window states and {runs_text}\n"
            f"not removed: {self.remaining}"
        )


def remove_job(session: Session, name: str) -> RemovedJob:
    """Remove a job that is not running, also if its definition is damaged or only in tables.

    Raises:
        JobNotFound: The job does not exist.
        JobLeased: A process is running the job.
    """
    spec, owners = None, list[str]()
    try:
        with session.registry.reading() as connection:
            jobs.check_exists(connection, name)
    except JobNotFound:
        # After the loss of a registry, only the tables of its groups know the job.
        groups = release_groups(session, name)
        if not groups:
            raise
        return RemovedJob(name, 0, f"feature group {listing(groups)} with its rows")
    # A job that is running would record its result after the removal.
    with hold_job_lease(session, name):
        with suppress(FeatureStoreError), session.registry.reading() as connection:
            spec = jobs.get(connection, name).spec
            # The members of a consumer group do not hold the lease of the job.
            work = spec.work
            if isinstance(work, StreamWork) and work.stream.consumer_group is not None:
                running = runs.runs_of_job(connection, name, state=runs.RUNNING)
                owners = [run.owner.partition("/")[0] for run in running]
                owners = [
                    owner for owner in owners if is_alive(connection, session.location, owner)
                ]
        if owners:
            raise JobLeased(
                f"Job {name!r} is currently run by {listing(owners)}.",
                hint="retry after these runs have ended",
            )
        # Before the removal from the registry, so that a second call completes a killed one.
        if spec is not None:
            release_target(session, spec)
        with session.registry.transaction() as connection:
            removed_runs = jobs.remove(connection, name)
    if spec is None:
        return RemovedJob(name, removed_runs, "what it wrote")
    results = _RESULTS.get(spec.kind, "feature group {target!r} with its rows")
    return RemovedJob(name, removed_runs, f"{results.format(target=spec.target)}, logs")
