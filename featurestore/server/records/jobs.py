"""Records of jobs: status, runs and windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from featurestore.jobs import service
from featurestore.jobs.run import definition_words
from featurestore.model.window import Window
from featurestore.registry import overview, stored_errors
from featurestore.registry.jobs import RegisteredJob
from featurestore.registry.runs import Run
from featurestore.server.job_runs import RequestedRun
from featurestore.store import FeatureStore


@dataclass(frozen=True)
class JobWindow:
    """A window of a job; ``state`` is "done", "failed", "stale" or "due"."""

    window: Window
    state: str


def status_record(job_status: service.JobStatus) -> dict[str, Any]:
    """Return the status of a job as a record."""
    last_run = job_status.last
    return {
        "name": job_status.name,
        "kind": job_status.job.spec.kind,
        "state": job_status.job.state,
        "schedule": job_status.job.spec.schedule,
        "target": job_status.job.spec.target,
        "inputs": dict(job_status.job.spec.inputs),
        "watermark": job_status.job.watermark,
        "due": job_status.due,
        "failed": job_status.failed,
        "last_state": last_run.state if last_run else None,
        "last_error": last_run.error if last_run else None,
        "last_ended": last_run.ended if last_run else None,
    }


def run_record(job_run: Run) -> dict[str, Any]:
    """Return a run as a record, without the path of its log."""
    return {
        "run_id": job_run.run_id,
        "job": job_run.job,
        "job_version": job_run.job_version,
        "state": job_run.state,
        "start": job_run.window.start,
        "end": job_run.window.end,
        "windows": job_run.windows,
        "rows": job_run.rows,
        "delta_version": job_run.delta_version,
        "started": job_run.started,
        "ended": job_run.ended,
        "seconds": job_run.seconds,
        "memory": job_run.memory,
        "error": job_run.error,
        "hint": job_run.hint,
    }


def outcome_text(
    store: FeatureStore,
    full_store: FeatureStore,
    job: RegisteredJob,
    requested_run: RequestedRun | None,
) -> str:
    """Return the outcome of a requested run, without names that are hidden from the visitor."""
    if requested_run is None:
        return ""
    known_names = definition_words(job.spec)
    stored = stored_errors.unlisted(
        full_store.session.registry, requested_run.outcome_text, own=known_names
    )
    with store.session.registry.reading() as connection:
        return stored_errors.shown(connection, stored)


def window_strip(store: FeatureStore, name: str, *, limit: int = 400) -> list[JobWindow]:
    """Return the newest and due windows of a job with their states, oldest first."""
    session = store.session
    job = service.get_job(session, name)
    with session.registry.reading() as connection:
        states = dict(overview.newest_windows(connection, name, limit=limit))
    for window in service.find_due_windows(session, job)[-limit:]:
        states.setdefault(window, "due")
    return [JobWindow(window, states[window]) for window in sorted(states)[-limit:]]
