"""The scheduler.

Every few seconds it asks which windows are due, and runs them in the order in which jobs feed
others.

It keeps nothing in memory that matters: what is due follows from the registry and the clock, so it
may be killed and started anew at any time, and any number of schedulers may share a registry (a
lease a job).
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from featurestore.alerts.outbox import send_waiting
from featurestore.errors import FeatureStoreError, JobLeased
from featurestore.jobs import service
from featurestore.jobs.execution import Watch
from featurestore.jobs.run import TrainingCall
from featurestore.jobs.schedule import latest_complete
from featurestore.jobs.specs import schedule_of
from featurestore.jobs.streams.run import is_due
from featurestore.model import times
from featurestore.model.job import JobSpec
from featurestore.model.window import Window
from featurestore.registry import jobs, runs
from featurestore.registry.jobs import RegisteredJob
from featurestore.session import Session

_log = logging.getLogger("featurestore.jobs")
_FIRST_WAIT = timedelta(seconds=30)
_LONGEST_WAIT = timedelta(hours=1)


@dataclass(frozen=True)
class Options:
    """How a scheduler works.

    Seconds between two looks, jobs at once, whether stale windows are computed anew.
    """

    every: float = 10.0
    workers: int = 4
    stale: bool = False


class Scheduler:
    """Runs what is due, until it is told to stop.

    Args:
        session: The connection.
        call: Calls the functions of training jobs.
        options: How.
    """

    def __init__(
        self, session: Session, *, call: TrainingCall, options: Options | None = None
    ) -> None:
        self._session = session
        self._call = call
        self._options = options or Options()
        self._watch = Watch()
        self._sending: threading.Thread | None = None

    def run(self) -> None:
        """Run what is due again and again until SIGTERM, SIGINT or ``stop``.

        Runs that have begun are finished first.
        """
        stop = self._watch.stop
        with _stopped_by_signals(stop):
            _log.info("scheduler started")
            while not stop.is_set():
                begun = time.monotonic()
                try:
                    self.run_due()
                except FeatureStoreError as error:  # the registry may answer the next time
                    _log.error("%s", error)
                self._send_alerts()
                spent = time.monotonic() - begun
                stop.wait(max(self._options.every - spent, 0))
            _log.info("scheduler stopped")

    def _send_alerts(self) -> None:
        """Send what waits in the outbox beside the jobs, which no channel may hold up."""
        if self._sending is None or not self._sending.is_alive():
            self._sending = threading.Thread(
                target=send_waiting, args=(self._session,), name="alerts", daemon=True
            )
            self._sending.start()

    def stop(self) -> None:
        """Stop after the runs that have begun."""
        self._watch.stop.set()

    def run_due(self) -> None:
        """Run everything that is due now, in order.

        Errors of one job are logged and touch no other.
        """
        with self._session.registry.reading() as connection:
            active = {job.spec.name: job for job in jobs.every(connection) if not job.paused}
        specs = [job.spec for job in active.values()]
        with ThreadPoolExecutor(self._options.workers, thread_name_prefix="job") as pool:
            for names in levels(specs):
                if self._watch.stop.is_set():
                    return
                list(pool.map(lambda name: self._run(active[name], specs), names))

    def _run(self, job: RegisteredJob, specs: Sequence[JobSpec]) -> None:
        name = job.spec.name
        try:
            if job.spec.stream is not None:
                if is_due(self._session, job):
                    self._attempt(name, service.all_stale)
                return
            waiting = self._waiting(job, specs)
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
        service.attempt(self._session, name, choose, call=self._call, watch=self._watch)

    def due(self, job: RegisteredJob, waiting: Mapping[str, Sequence[Window]]) -> Sequence[Window]:
        """Return the windows of a job to be tried now.

        ``waiting`` are those of jobs that it reads.
        """
        now = times.utc_now()
        latest = latest_complete(schedule_of(job.spec), now)
        if job.paused or latest is None:
            return []
        with self._session.registry.reading() as connection:
            failed = runs.windows_of(connection, job.spec.name, states=[runs.FAILED])
        found = []
        for window in before_gap(service.due_of(self._session, job), waiting):
            state = failed.get(window)
            if state is None or retry_is_due(
                failures=state.tries,
                failed_at=state.updated,
                retries=job.spec.retries,
                complete_at=times.shifted(latest.end, job.spec.allowed_lateness),
                now=now,
            ):
                found.append(window)
            elif job.spec.on_error == "wait":
                break
        return found

    def _waiting(self, job: RegisteredJob, specs: Sequence[JobSpec]) -> dict[str, list[Window]]:
        """Return the windows that jobs upstream still have to compute.

        Failed ones hold nobody up.
        """
        waiting = {}
        for name in upstream(job.spec, specs):
            above = service.get_job(self._session, name)
            if above.paused:
                continue
            with self._session.registry.reading() as connection:
                failed = runs.windows_of(connection, name, states=[runs.FAILED])
            due = service.due_of(self._session, above)
            waiting[name] = [window for window in due if window not in failed]
        return waiting


def levels(specs: Iterable[JobSpec]) -> list[list[str]]:
    """Return jobs in groups: each reads only what jobs of earlier groups fill.

    Jobs that read each other come last.

    >>> sql = {"kind": "sql", "schedule": "", "code": ""}
    >>> a = JobSpec(name="a", target="hours", inputs={"t": "trips"}, **sql)
    >>> b = JobSpec(name="b", target="days", inputs={"h": "hours"}, **sql)
    >>> levels([b, a])
    [['a'], ['b']]
    """
    left = {spec.name: spec for spec in specs}
    found: list[list[str]] = []
    while left:
        free = [name for name, spec in left.items() if not upstream(spec, left.values())]
        group = sorted(free or left)
        found.append(group)
        for name in group:
            del left[name]
    return found


def upstream(spec: JobSpec, others: Iterable[JobSpec]) -> list[str]:
    """Return the jobs whose targets a job reads."""
    read = {place.partition("@")[0] for place in spec.inputs.values()}
    found = []
    for other in others:
        if other.name != spec.name and other.target in read:
            found.append(other.name)
    return found


def retry_is_due(
    *, failures: int, failed_at: datetime, retries: int, complete_at: datetime, now: datetime
) -> bool:
    """Return whether a window that failed is to be tried again now.

    That is so after 30 seconds, a minute, two, ... an hour; when its retries are used up, once
    whenever another window of the job comes due.

    Args:
        failures: How often it failed since it was last computed.
        failed_at: When it failed last.
        retries: How often it is tried again.
        complete_at: When the job's last window came due.
        now: The present.
    """
    if failed_at > now:  # a clock that was set back must not hold it up
        return True
    if failures <= retries:
        wait = min(_FIRST_WAIT * 2 ** (failures - 1), _LONGEST_WAIT)
        return times.has_passed(failed_at, wait, now=now)
    return complete_at > failed_at


def before_gap(
    windows: Sequence[Window], open_upstream: Mapping[str, Collection[Window]]
) -> list[Window]:
    """Return the windows that end before the first one that jobs upstream have yet to compute."""
    begins = []
    for waiting in open_upstream.values():
        for window in waiting:
            begins.append(window.start)
    if not begins:
        return list(windows)
    gap = min(begins)
    return [window for window in windows if window.end <= gap]


@contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Let SIGTERM and SIGINT set an event, where this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def set_stop(*_: object) -> None:
        # A handler runs between two instructions of this thread, which may hold the event's lock.
        threading.Thread(target=stop.set, name="stop").start()

    wanted = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(each, set_stop) for each in wanted]
    try:
        yield
    finally:
        for number, handler in zip(wanted, before, strict=True):
            signal.signal(number, handler)
