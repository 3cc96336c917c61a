"""The scheduler: periodically runs the due windows of all jobs, in dependency order.

It has no state of its own: the due windows follow from the registry and the clock. It can be killed
and restarted at any time, and any number of schedulers can share a registry, because each job has a
lease.
"""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from featurestore.alerts.incidents import send_waiting
from featurestore.errors import (
    ConfigurationError,
    FeatureStoreError,
    InvalidJob,
    JobLeased,
    ThreadsUnavailable,
)
from featurestore.jobs.execution import Watch, WindowSelector, run_attempt
from featurestore.jobs.publish_jobs import groups_to_publish, groups_to_register
from featurestore.jobs.run import TrainingCall
from featurestore.jobs.schedule import check_schedule, is_computable, latest_complete_window
from featurestore.jobs.stale_windows import find_all_stale
from featurestore.jobs.stream_jobs import is_due
from featurestore.jobs.windows import find_due_windows
from featurestore.model import times
from featurestore.model.job import CatalogWork, JobSpec, PublishWork, StreamWork
from featurestore.model.threads import independent_tasks, start_thread
from featurestore.model.times import Window
from featurestore.registry import jobs, runs
from featurestore.registry.jobs import RegisteredJob
from featurestore.session import Session

_log = logging.getLogger("featurestore.jobs")
_FIRST_WAIT = timedelta(seconds=30)
_LONGEST_WAIT = timedelta(hours=1)


@dataclass(frozen=True)
class Options:
    """Options of a scheduler.

    Attributes:
        every: Seconds between two polls.
        workers: Maximum number of concurrent jobs.
        stale: Whether stale windows are computed again.
    """

    every: float = 10.0
    workers: int = 4
    stale: bool = False


class Scheduler:
    """Runs due jobs until it is stopped.

    Args:
        session: The connection.
        call: Calls the functions of training jobs.
        options: Interval, workers and handling of stale windows.
    """

    def __init__(
        self, session: Session, *, call: TrainingCall, options: Options | None = None
    ) -> None:
        self._session = session
        self._call = call
        self._options = options or Options()
        self._watch = Watch()
        self._sending: threading.Thread | None = None
        # The last error of each job that cannot run until a user acts.
        self._reported: dict[str, str] = {}

    def run(self) -> None:
        """Run due windows repeatedly until SIGTERM, SIGINT or ``stop``.

        Runs in progress are finished before it returns.
        """
        stop = self._watch.stop
        with _stop_on_signals(stop):
            _log.info("scheduler started")
            while not stop.is_set():
                # The polling interval must not change when the system clock is set.
                started = time.monotonic()
                try:
                    self.run_due()
                except FeatureStoreError as error:  # the registry may be available next time
                    _log.error("%s", error)
                self._send_alerts()
                elapsed = time.monotonic() - started
                stop.wait(max(self._options.every - elapsed, 0))
            _log.info("scheduler stopped")

    def _send_alerts(self) -> None:
        """Send the queued alerts in a thread, so that slow channels do not delay jobs."""
        if self._sending is None or not self._sending.is_alive():
            # A daemon thread, because the messages remain in the outbox if the process ends.
            try:
                self._sending = start_thread(send_waiting, self._session, name="alerts")
            except ThreadsUnavailable as error:
                _log.error("alerts are sent later: %s", error)

    def stop(self) -> None:
        """Stop after the runs in progress have finished."""
        self._watch.stop.set()

    def run_due(self) -> None:
        """Run all due jobs, in dependency order.

        An error in one job is logged and does not affect other jobs.
        """
        with self._session.registry.reading() as connection:
            registered = [job for job in jobs.list_all(connection) if not job.paused]
        active = {job.spec.name: job for job in registered}
        upstream = upstream_jobs(
            {job.spec.name: self._find_inputs(job.spec) for job in registered},
            # The target of a catalog job is a source, which may have the name of a group.
            targets={
                job.spec.name: job.spec.target
                for job in registered
                if not isinstance(job.spec.work, CatalogWork)
            },
        )
        with independent_tasks(self._options.workers, "job") as pool:
            for names in dependency_levels(upstream):
                if self._watch.stop.is_set():
                    return
                # list() waits for the entire level, whose targets are inputs of the next level.
                list(pool.map(lambda name: self._run(active[name], upstream[name]), names))

    def _find_inputs(self, spec: JobSpec) -> Mapping[str, str]:
        """Return the inputs of a job, and the groups that a publish or catalog job reads."""
        if isinstance(spec.work, PublishWork):
            return groups_to_publish(self._session, spec.work)
        if isinstance(spec.work, CatalogWork):
            return groups_to_register(self._session, spec.work)
        return spec.inputs

    def _run(self, job: RegisteredJob, upstream: Sequence[str]) -> None:
        """Run what is due of one job; errors are logged and do not stop other jobs."""
        name = job.spec.name
        try:
            if isinstance(job.spec.work, StreamWork):
                # A stream job has no windows, so the selector is not called.
                if is_due(self._session, job):
                    self._attempt(name, find_all_stale)
                return
            waiting = self._find_open_upstream(upstream)
            # The due windows are selected again under the lease, because another scheduler may
            # compute them in the meantime.
            if self.due(job, waiting):
                self._attempt(name, lambda _, current: self.due(current, waiting))
            if self._options.stale and not job.spec.appends:
                self._attempt(name, find_all_stale)
        except JobLeased:
            _log.debug("another process is running job %s", name)
        # These last until a user acts, so they are logged only once.
        except (InvalidJob, ConfigurationError) as error:
            if self._reported.get(name) != str(error):
                _log.error("%s (%s): %s", name, job.origin, error)
            self._reported[name] = str(error)
        except FeatureStoreError as error:
            _log.error("%s: %s", name, error)
        except Exception:  # errors in the code of one job must not stop the others
            _log.exception("%s", name)

    def _attempt(self, name: str, choose: WindowSelector) -> None:
        run_attempt(self._session, name, choose, call=self._call, watch=self._watch)
        self._reported.pop(name, None)

    def due(self, job: RegisteredJob, waiting: Mapping[str, Sequence[Window]]) -> Sequence[Window]:
        """Return the windows of a job to compute now.

        ``waiting`` contains the due windows of upstream jobs.
        """
        now = times.utc_now()
        schedule = check_schedule(job.spec.schedule)
        latest = latest_complete_window(schedule, now)
        if job.paused or latest is None:
            return []
        with self._session.registry.reading() as connection:
            failed = runs.window_states(connection, job.spec.name, states=[runs.FAILED])
        to_run = []
        for window in windows_before_gap(find_due_windows(self._session, job), waiting):
            state = failed.get(window)
            if state is None or is_retry_due(
                failures=state.tries,
                failed_at=state.updated,
                retries=schedule.retries,
                complete_at=times.shift_time(latest.end, schedule.allowed_lateness),
                now=now,
            ):
                to_run.append(window)
            elif schedule.on_error == "wait":
                break
        return to_run

    def _find_open_upstream(self, upstream: Sequence[str]) -> dict[str, list[Window]]:
        """Return the windows that upstream jobs have yet to compute, except failed windows."""
        waiting = {}
        for name in upstream:
            with self._session.registry.reading() as connection:
                upstream_job = jobs.get(connection, name)
                if upstream_job.paused or not is_computable(upstream_job.spec):
                    continue
                # A failed window must not block the jobs that read the group.
                failed = runs.window_states(connection, name, states=[runs.FAILED])
            due = find_due_windows(self._session, upstream_job)
            waiting[name] = [window for window in due if window not in failed]
        return waiting


def dependency_levels(upstream: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Return job names in levels: each level reads only targets of earlier levels.

    Jobs with circular dependencies are in the last level.

    Args:
        upstream: The jobs whose targets a job reads, by its name.

    >>> dependency_levels({"b": ["a"], "a": []})
    [['a'], ['b']]
    """
    remaining = dict(upstream)
    levels: list[list[str]] = []
    while remaining:
        independent = [
            name for name, names in remaining.items() if remaining.keys().isdisjoint(names)
        ]
        level = sorted(independent or remaining)
        levels.append(level)
        for name in level:
            del remaining[name]
    return levels


def upstream_jobs(
    inputs: Mapping[str, Mapping[str, str]], targets: Mapping[str, str]
) -> dict[str, list[str]]:
    """Return the names of the jobs whose targets a job reads, by its name.

    Args:
        inputs: The inputs of each job.
        targets: The groups that jobs write.
    """
    upstream = {}
    for name, references in inputs.items():
        groups = {reference.partition("@")[0] for reference in references.values()}
        upstream[name] = [
            writer for writer, target in targets.items() if writer != name and target in groups
        ]
    return upstream


def is_retry_due(
    *, failures: int, failed_at: datetime, retries: int, complete_at: datetime, now: datetime
) -> bool:
    """Return whether a failed window should be retried now.

    Retries follow after 30 seconds, one minute, two minutes, and so on up to an hour. When the
    retries are exhausted, the window is retried whenever another window of the job becomes due.

    Args:
        failures: Number of failures since the last success.
        failed_at: Time of the last failure.
        retries: Maximum number of retries.
        complete_at: When the job's last window became due.
        now: The current time.
    """
    if failed_at > now:  # the clock was set back: do not wait for it to catch up
        return True
    if failures <= retries:
        wait = min(_FIRST_WAIT * 2 ** (failures - 1), _LONGEST_WAIT)
        return times.has_passed(failed_at, wait, now=now)
    return complete_at > failed_at


def windows_before_gap(
    windows: Sequence[Window], open_upstream: Mapping[str, Collection[Window]]
) -> list[Window]:
    """Return the windows that end before the first missing window of any upstream job."""
    begins = [window.start for waiting in open_upstream.values() for window in waiting]
    if not begins:
        return list(windows)
    gap = min(begins)
    return [window for window in windows if window.end <= gap]


@contextmanager
def _stop_on_signals(stop: threading.Event) -> Iterator[None]:
    """Set an event on SIGTERM and SIGINT; does nothing outside the main thread."""
    # Python allows signal handlers only in the main thread.
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    received: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def set_stop() -> None:
        if received.get() is not None:
            stop.set()

    # A handler interrupts this thread, which may hold the lock of the event, but a queue accepts
    # items in a handler. The thread exists before, since it may not start when it is needed.
    start_thread(set_stop, name="stop")
    signals = (signal.SIGTERM, signal.SIGINT)
    previous_handlers = [
        signal.signal(number, lambda number, _: received.put(number)) for number in signals
    ]
    try:
        yield
    finally:
        for number, handler in zip(signals, previous_handlers, strict=True):
            signal.signal(number, handler)
        received.put(None)
