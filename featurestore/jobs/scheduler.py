"""The scheduler: every few seconds it asks which windows are due, and runs them in the order in which jobs feed others.

It keeps nothing in memory that matters: what is due follows from the registry and the clock, so it may be killed and
started anew at any time, and any number of schedulers may share a registry (a lease a job).
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from featurestore.errors import FeatureStoreError, JobLeased, missing_extra
from featurestore.jobs import service
from featurestore.jobs.definitions import schedule_of
from featurestore.jobs.logs import LOGGER
from featurestore.jobs.tick import before_gap, levels, ready, upstream
from featurestore.jobs.windows import latest_complete
from featurestore.jobs.work import Watch
from featurestore.model import times
from featurestore.model.window import Window
from featurestore.registry import jobs, runs
from featurestore.registry.jobs import RegisteredJob
from featurestore.session import Session

_log = logging.getLogger(LOGGER)


@dataclass(frozen=True)
class Options:
    """How a scheduler works: seconds between ticks, jobs at once, whether stale windows are computed anew."""

    every: float = 10.0
    workers: int = 4
    stale: bool = False


class Scheduler:
    """Runs what is due, until it is told to stop.

    Args:
        store: The store; functions of training jobs get it.
        options: How.
    """

    def __init__(self, store: Any, options: Options | None = None) -> None:
        self._store = store
        self._session: Session = store.session
        self._options = options or Options()
        self._watch = Watch()

    def run(self) -> None:
        """Tick until SIGTERM, SIGINT or ``stop``; runs that have begun are finished first."""
        try:
            from apscheduler.schedulers.background import BackgroundScheduler
        except ImportError as error:
            raise missing_extra("apscheduler", "jobs") from error
        clock = BackgroundScheduler(timezone="UTC")
        # Its timer runs on the machine's clock, whatever clock the windows are due by.
        clock.add_job(
            self.tick, "interval", seconds=self._options.every, max_instances=1, coalesce=True, misfire_grace_time=None,
            next_run_time=datetime.now(UTC),
        )  # fmt: skip
        with _stopped_by_signals(self._watch.stop):
            clock.start()
            _log.info("scheduler started")
            try:
                self._watch.stop.wait()
            finally:
                clock.shutdown(wait=True)
                _log.info("scheduler stopped")

    def stop(self) -> None:
        """Stop after the runs that have begun."""
        self._watch.stop.set()

    def tick(self) -> None:
        """Run everything that is due now, in order; errors of one job are logged and touch no other."""
        with self._session.registry.reading() as connection:
            found = {job.spec.name: job for job in jobs.every(connection) if not job.paused}
        with ThreadPoolExecutor(self._options.workers, thread_name_prefix="job") as pool:
            for group in levels(job.spec for job in found.values()):
                if self._watch.stop.is_set():
                    return
                list(pool.map(lambda name: self._run(found[name], found.values()), group))

    def _run(self, job: RegisteredJob, others: Any) -> None:
        name = job.spec.name
        try:
            waiting = self._waiting(job, [each.spec for each in others])
            if self.due(job, waiting):
                self._attempt(name, lambda _, current: self.due(current, waiting))
            if self._options.stale and job.spec.mode != "append":
                self._attempt(name, service.all_stale)
        except JobLeased:
            _log.debug("%s is run by another process", name)
        except FeatureStoreError as error:
            _log.error("%s: %s", name, error)
        except Exception:  # whatever one job does, the others go on
            _log.exception("%s", name)

    def _attempt(self, name: str, choose: service.Choice) -> None:
        service.attempt(self._session, name, choose, store=self._store, watch=self._watch)

    def due(self, job: RegisteredJob, waiting: dict[str, list[Window]]) -> Sequence[Window]:
        """Return the windows of a job to be tried now."""
        if job.paused:
            return []
        now = times.utc_now()
        latest = latest_complete(schedule_of(job.spec), now)
        if latest is None:
            return []
        with self._session.registry.reading() as connection:
            failed = runs.windows_of(connection, job.spec.name, states=[runs.FAILED])
        found = []
        for window in before_gap(service.due_of(self._session, job), waiting):
            state = failed.get(window)
            is_ready = ready(
                window,
                failures=0 if state is None else state.tries,
                failed_at=None if state is None else state.updated,
                retries=job.spec.retries,
                settled_at=latest.end + job.spec.settle,
                now=now,
            )
            if is_ready:
                found.append(window)
            elif job.spec.on_error == "wait":
                break
        return found

    def _waiting(self, job: RegisteredJob, specs: list[Any]) -> dict[str, list[Window]]:
        """Return the windows that jobs upstream still have to compute; failed ones hold nobody up."""
        found = {}
        for name in upstream(job.spec, specs):
            above = service.get_job(self._session, name)
            with self._session.registry.reading() as connection:
                failed = runs.windows_of(connection, name, states=[runs.FAILED])
            found[name] = [] if above.paused else [
                window for window in service.due_of(self._session, above) if window not in failed
            ]  # fmt: skip
        return found


@contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Let SIGTERM and SIGINT set an event, where this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    wanted = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(each, lambda *_: stop.set()) for each in wanted]
    try:
        yield
    finally:
        for number, handler in zip(wanted, before, strict=True):
            signal.signal(number, handler)
