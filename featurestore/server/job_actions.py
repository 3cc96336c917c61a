"""Job actions in the browser: pause, resume, and sequential runs in a background thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from featurestore.errors import FeatureStoreError, InvalidArgument, JobLeased, LimitExceeded
from featurestore.jobs import service
from featurestore.jobs.windows import find_complete_windows
from featurestore.model.job import JobSpec
from featurestore.model.threads import independent_tasks
from featurestore.model.times import parse_moment, utc_now
from featurestore.registry.audit_log import Actor
from featurestore.registry.runs import Run
from featurestore.server.access import visitors
from featurestore.server.guard import (
    CurrentVisitor,
    Form,
    FullStore,
    Settings,
    Store,
    actor_of,
    log_change,
)
from featurestore.server.rendering import page
from featurestore.server.routes import Router
from featurestore.server.settings import SPARK
from featurestore.store import FeatureStore

Work = Callable[[], Sequence[Run]]
_log = logging.getLogger("featurestore.server")
pages = Router(prefix="/jobs")


def writable_job_store(
    name: str, store: Store, full_store: FullStore, visitor: CurrentVisitor
) -> FeatureStore:
    """Return the unfiltered store if the visitor may change and run a job."""
    service.get_job(store.session, name)
    if visitor is not None:
        visitor.check(visitors.WRITER)
    return full_store


WritableJobStore = Annotated[FeatureStore, Depends(writable_job_store)]


@pages.post("/{name}/pause")
def pause(name: str, full_store: WritableJobStore, visitor: CurrentVisitor) -> RedirectResponse:
    """Pause the schedule of a job."""
    full_store.pause_job(name)
    return _log_and_redirect(full_store, visitor, "pause job", name, {})


@pages.post("/{name}/resume")
def resume(name: str, full_store: WritableJobStore, visitor: CurrentVisitor) -> RedirectResponse:
    """Resume the schedule of a job."""
    full_store.unpause_job(name)
    return _log_and_redirect(full_store, visitor, "resume job", name, {})


@pages.post("/{name}/run")
def run(
    request: Request, name: str, full_store: WritableJobStore, visitor: CurrentVisitor, form: Form
) -> RedirectResponse:
    """Run the due windows, the stale windows or the latest window of a job."""
    choice = form.get("what", "")
    work_by_choice: dict[str, Work] = {
        "due": lambda: full_store.run_job(name, due=True),
        "stale": lambda: full_store.run_job(name, stale=True),
        "latest": lambda: full_store.run_job(name),
    }
    if choice not in work_by_choice:
        raise InvalidArgument(
            f"Unknown value what={choice!r}. Available: {', '.join(work_by_choice)}."
        )
    command = f"featurestore job run {name}"
    if choice != "latest":
        command += f" --{choice}"
    _check_runs_here(request, command)
    _job_runs(request).start(name, f"run: {choice}", actor_of(visitor), work_by_choice[choice])
    return _log_and_redirect(full_store, visitor, "run job", name, {"what": choice})


@pages.get("/{name}/backfill")
def plan_page(
    request: Request, store: Store, settings: Settings, name: str, start: str = "", end: str = ""
) -> HTMLResponse:
    """Display the windows in a time range, their inputs and the estimated time."""
    job = service.get_job(store.session, name)
    plan, command = None, ""
    if start.strip() and end.strip():
        window = _parse_range(start, end)
        _check_windows(job.spec, *window, max_windows=settings.windows)
        plan, command = store.plan_job(name, window=window), _backfill_command(name, *window)
    return page(
        request,
        "job_backfill.html",
        title=f"Backfill of {name}",
        job=job,
        start=start,
        end=end,
        plan=plan,
        command=command,
    )


@pages.post("/{name}/backfill")
def backfill(
    request: Request,
    name: str,
    full_store: WritableJobStore,
    visitor: CurrentVisitor,
    form: Form,
    settings: Settings,
) -> RedirectResponse:
    """Start a backfill of a time range."""
    first, last = _parse_range(form.get("start", ""), form.get("end", ""))
    _check_windows(
        service.get_job(full_store.session, name).spec, first, last, max_windows=settings.windows
    )
    recompute = form.get("anew", "") == "yes"
    command = _backfill_command(name, first, last)
    _check_runs_here(request, f"{command} --anew" if recompute else command)
    description = f"backfill from {first.isoformat()} to {last.isoformat()}"

    def work() -> list[Run]:
        return full_store.backfill_job(name, first, last, resume=not recompute)

    _job_runs(request).start(name, description, actor_of(visitor), work)
    detail = {"start": first, "end": last, "anew": recompute}
    return _log_and_redirect(full_store, visitor, "backfill job", name, detail)


def _backfill_command(name: str, first: datetime, last: datetime) -> str:
    """Return the command for a backfill; ISO times contain no spaces and need no quotes."""
    return f"featurestore job backfill {name} --start {first.isoformat()} --end {last.isoformat()}"


def _parse_range(start: str, end: str) -> tuple[datetime, datetime]:
    first = parse_moment(start.strip(), argument="start", warn=False)
    last = parse_moment(end.strip(), argument="end", warn=False)
    if first >= last:
        raise InvalidArgument(f"start={first.isoformat()} is not before end={last.isoformat()}.")
    return first, last


def _check_windows(spec: JobSpec, first: datetime, last: datetime, *, max_windows: int) -> None:
    """Reject a time range with more windows than the limit."""
    # The limit stops the enumeration early: a long range of a frequent job has millions of windows.
    if len(find_complete_windows(spec, first, last, limit=max_windows + 1)) > max_windows:
        raise LimitExceeded(
            f"The range has more than {max_windows:,} windows, the limit of one plan.",
            hint="use a shorter range, or the command line: featurestore job backfill",
        )


def _check_runs_here(request: Request, command: str) -> None:
    """Reject jobs of Spark stores, since the server has no Spark session.

    Raises:
        InvalidArgument: The hint contains the command to run instead.
    """
    if request.app.state.jobs_engine == SPARK:
        raise InvalidArgument("Jobs of this store run on Spark, not in the server.", hint=command)


def _job_runs(request: Request) -> JobRuns:
    job_runs: JobRuns = request.app.state.job_runs
    return job_runs


def _log_and_redirect(
    full_store: FeatureStore,
    visitor: CurrentVisitor,
    action: str,
    name: str,
    detail: dict[str, Any],
) -> RedirectResponse:
    log_change(full_store, visitor, action, name, detail)
    return RedirectResponse(f"/jobs/{name}", status_code=303)


@dataclass(frozen=True)
class RequestedRun:
    """A job run that a user requested, and its state."""

    job: str
    description: str
    requester: str
    timestamp: datetime
    future: Future[Sequence[Run]]

    @property
    def state(self) -> str:
        """Return "waiting", "running", "done" or "failed"."""
        if not self.future.done():
            return "running" if self.future.running() else "waiting"
        is_done = not self.future.cancelled() and self.future.exception() is None
        return "done" if is_done else "failed"

    @property
    def error(self) -> FeatureStoreError | None:
        """The error of the store that ended the run; None for other outcomes."""
        if not self.future.done() or self.future.cancelled():
            return None
        error = self.future.exception()
        return error if isinstance(error, FeatureStoreError) else None

    @property
    def outcome_text(self) -> str:
        """The outcome of a finished run without an error of the store."""
        if not self.future.done():
            return ""
        if self.future.cancelled():
            return "The server stopped before the run started."
        if self.future.exception() is not None:
            return "Unexpected error; see the server log for the traceback."
        runs = self.future.result()
        windows = sum(run.windows for run in runs)
        return (
            f"{windows} windows in {len(runs)} runs."
            if runs
            else "There were no windows to compute."
        )


class JobRuns:
    """A queue of job runs, executed sequentially by one thread in this process.

    The registry stores the runs; this class remembers the last request for each job since the
    server started. Shutdown waits for the current run. If the server is killed, the next process
    recovers the run.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._latest: dict[str, RequestedRun] = {}

    def start(self, job: str, description: str, actor: Actor, work: Work) -> RequestedRun:
        """Queue a run.

        Raises:
            JobLeased: A run of this job is already queued or running.
        """
        with self._lock:
            previous = self._latest.get(job)
            if previous is not None and previous.state in ("waiting", "running"):
                raise JobLeased(
                    f"A run of job {job!r}, requested by {previous.requester}, is already "
                    f"{previous.state}.",
                    hint="wait until it finishes",
                )
            if self._pool is None:
                self._pool = independent_tasks(1, "featurestore-job")
            requested_run = RequestedRun(
                job, description, actor.name, utc_now(), self._pool.submit(work)
            )
            self._latest[job] = requested_run
        # Errors of the store are displayed on the page of the job; only unexpected errors are
        # logged.
        requested_run.future.add_done_callback(_log_failure)
        return requested_run

    def last(self, job: str) -> RequestedRun | None:
        """Return the run last requested for a job since the server started."""
        with self._lock:
            return self._latest.get(job)

    def close(self) -> None:
        """Cancel queued runs and wait for the current one."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _log_failure(future: Future[Sequence[Run]]) -> None:
    error = None if future.cancelled() else future.exception()
    if error is not None and not isinstance(error, FeatureStoreError):
        _log.error("a job failed", exc_info=error)
