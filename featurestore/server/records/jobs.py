"""Jobs: definitions, where they stand, their runs and windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from featurestore.jobs import service
from featurestore.jobs.run import definition_words
from featurestore.model.window import Window
from featurestore.registry import overview, stored_errors
from featurestore.registry.jobs import RegisteredJob
from featurestore.registry.runs import Run
from featurestore.server.job_runs import AskedRun
from featurestore.store import FeatureStore


@dataclass(frozen=True)
class JobWindow:
    """A window of a job's strip; ``state`` is "done", "failed", "stale" or "due"."""

    window: Window
    state: str


def status(found: service.JobStatus) -> dict[str, Any]:
    """Return how a job stands."""
    last = found.last
    return {
        "name": found.name,
        "kind": found.job.spec.kind,
        "state": found.job.state,
        "schedule": found.job.spec.schedule,
        "target": found.job.spec.target,
        "inputs": dict(found.job.spec.inputs),
        "watermark": found.job.watermark,
        "due": found.due,
        "failed": found.failed,
        "last_state": last.state if last else None,
        "last_error": last.error if last else None,
        "last_ended": last.ended if last else None,
    }


def run(found: Run) -> dict[str, Any]:
    """Return a run; the path of its log stays on the server."""
    return {
        "run_id": found.run_id,
        "job": found.job,
        "job_version": found.job_version,
        "state": found.state,
        "start": found.window.start,
        "end": found.window.end,
        "windows": found.windows,
        "rows": found.rows,
        "delta_version": found.delta_version,
        "started": found.started,
        "ended": found.ended,
        "seconds": found.seconds,
        "memory": found.memory,
        "error": found.error,
        "hint": found.hint,
    }


def outcome(
    store: FeatureStore, whole: FeatureStore, job: RegisteredJob, asked: AskedRun | None
) -> str:
    """Return what became of a run that was asked for, with the names that its reader may see."""
    if asked is None:
        return ""
    own = definition_words(job.spec)
    stored = stored_errors.unlisted(whole.session.registry, asked.told, own=own)
    with store.session.registry.reading() as connection:
        return stored_errors.shown(connection, stored)


def strip(store: FeatureStore, name: str, *, limit: int = 400) -> list[JobWindow]:
    """Return the newest windows of a job with their states, oldest first, and those due."""
    session = store.session
    job = service.get_job(session, name)
    found = []
    with session.registry.reading() as connection:
        for window, state in overview.newest_windows(connection, name, limit=limit):
            found.append(JobWindow(window, state))
    known = {each.window for each in found}
    for window in service.find_due_windows(session, job)[-limit:]:
        if window not in known:
            found.append(JobWindow(window, "due"))
    found.sort(key=lambda each: each.window)
    return found[-limit:]
