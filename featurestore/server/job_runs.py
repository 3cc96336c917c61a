"""Runs of jobs that people ask for: one after the other, beside the requests of everybody."""

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
class AskedRun:
    """What somebody asked for, and what became of it."""

    job: str
    what: str
    by: str
    at: datetime
    future: Future[Sequence[Run]]

    @property
    def state(self) -> str:
        """Return "waiting", "running", "done" or "failed"."""
        if not self.future.done():
            return "running" if self.future.running() else "waiting"
        is_done = not self.future.cancelled() and self.future.exception() is None
        return "done" if is_done else "failed"

    @property
    def told(self) -> str:
        """What there is to say of a run that ended."""
        if not self.future.done():
            return ""
        if self.future.cancelled():
            return "The server was stopped before it began."
        error = self.future.exception()
        if isinstance(error, FeatureStoreError):
            return str(error)
        if error is not None:
            return "The server failed at this; its log says where."
        runs = self.future.result()
        windows = sum(run.windows for run in runs)
        return f"{windows} windows in {len(runs)} runs." if runs else "There was nothing to do."


class JobRuns:
    """Runs jobs in a thread of this process, in the order in which they were asked for.

    The registry knows the runs; this knows what was asked for since the server began. Who ends the
    server waits for the run that goes on; one that is killed is settled by the next process.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="featurestore-job")
        self._lock = threading.Lock()
        self._asked: dict[str, AskedRun] = {}

    def start(self, job: str, what: str, actor: Actor, work: Work) -> AskedRun:
        """Begin a run, or let it wait for those before it.

        Raises:
            JobLeased: One of this job goes on, or waits.
        """
        with self._lock:
            before = self._asked.get(job)
            if before is not None and before.state in ("waiting", "running"):
                raise JobLeased(
                    f"A run of job {job!r} that {before.by} asked for is {before.state}.",
                    hint="wait until it has ended",
                )
            asked = AskedRun(job, what, actor.name, utc_now(), self._pool.submit(work))
            self._asked[job] = asked
        asked.future.add_done_callback(_log_failure)
        return asked

    def last(self, job: str) -> AskedRun | None:
        """Return what was asked for last of a job since the server began."""
        with self._lock:
            return self._asked.get(job)

    def close(self) -> None:
        """Drop what waits, and wait for what goes on."""
        self._pool.shutdown(cancel_futures=True)


def _log_failure(future: Future[Sequence[Run]]) -> None:
    error = None if future.cancelled() else future.exception()
    if error is not None and not isinstance(error, FeatureStoreError):
        _log.error("a job failed", exc_info=error)
