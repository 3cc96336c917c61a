"""Job runs that users start in the browser: one at a time in a background thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

from featurestore.errors import FeatureStoreError, JobLeased
from featurestore.model.times import utc_now
from featurestore.registry.audit_log import Actor
from featurestore.registry.runs import Run

Work = Callable[[], Sequence[Run]]
_log = logging.getLogger("featurestore.server")


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
    def outcome_text(self) -> str:
        """The error or the counts of a finished run."""
        if not self.future.done():
            return ""
        if self.future.cancelled():
            return "The server stopped before the run started."
        error = self.future.exception()
        if isinstance(error, FeatureStoreError):
            return str(error)
        if error is not None:
            return "Unexpected error; the log of the server contains the traceback."
        runs = self.future.result()
        windows = sum(run.windows for run in runs)
        return (
            f"{windows} windows in {len(runs)} runs."
            if runs
            else "There were no windows to compute."
        )


class JobRuns:
    """Queue of job runs, executed by one thread of this process in order of their requests.

    The registry stores the runs; this class remembers the last request of each job since the server
    started. Shutdown waits for the current run. After a kill the next process recovers the run.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="featurestore-job")
        self._lock = threading.Lock()
        self._latest: dict[str, RequestedRun] = {}

    def start(self, job: str, description: str, actor: Actor, work: Work) -> RequestedRun:
        """Queue a run.

        Raises:
            JobLeased: A run of this job is queued or running.
        """
        with self._lock:
            previous = self._latest.get(job)
            if previous is not None and previous.state in ("waiting", "running"):
                raise JobLeased(
                    f"A run of job {job!r} requested by {previous.requester} is {previous.state}.",
                    hint="wait until it has finished",
                )
            requested_run = RequestedRun(
                job, description, actor.name, utc_now(), self._pool.submit(work)
            )
            self._latest[job] = requested_run
        requested_run.future.add_done_callback(_log_failure)
        return requested_run

    def last(self, job: str) -> RequestedRun | None:
        """Return the last requested run of a job since the server started."""
        with self._lock:
            return self._latest.get(job)

    def close(self) -> None:
        """Cancel queued runs and wait for the current one."""
        self._pool.shutdown(cancel_futures=True)


def _log_failure(future: Future[Sequence[Run]]) -> None:
    error = None if future.cancelled() else future.exception()
    if error is not None and not isinstance(error, FeatureStoreError):
        _log.error("a job failed", exc_info=error)
