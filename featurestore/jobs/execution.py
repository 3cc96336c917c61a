"""Windows in chunks that share a commit, in turn or side by side, narrowed down to what fails."""

from __future__ import annotations

import logging
import os
import queue
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from featurestore.alerts import incidents
from featurestore.jobs.monitors.run import run_monitor
from featurestore.jobs.run import Attempt, run_windows
from featurestore.jobs.schedule import windows_after
from featurestore.jobs.specs import schedule_of
from featurestore.jobs.streams.run import run_stream
from featurestore.jobs.target import target
from featurestore.jobs.training import run_training
from featurestore.model.job import JobSpec
from featurestore.model.printable import printable
from featurestore.model.window import Window
from featurestore.plugins.engine import find_engine
from featurestore.registry import jobs, runs
from featurestore.registry.runs import Run
from featurestore.session import Session
from featurestore.storage import files

_log = logging.getLogger("featurestore.jobs")
# A query takes many windows nearly as fast as one; a function is called for each. A killed chunk
# starts again whole.
CHUNKS = {"sql": 1000, "python": 100, "window": 100, "training": 1_000_000, "monitor": 400}
_RUN = {"training": run_training, "monitor": run_monitor}
# When so many single windows fail one after the other, the fault is not in them, and the rest is
# left for later.
_GIVE_UP_AFTER = 3
_COMMAND_SECONDS = 60


@dataclass
class Outcome:
    """Every run that was made, and the windows that could not be computed."""

    runs: list[Run] = field(default_factory=list)
    failed: list[Window] = field(default_factory=list)
    stopped: bool = False


@dataclass(frozen=True)
class Watch:
    """Who is told ``(windows done, windows in all)``, and a signal to stop after this run."""

    progress: Callable[[int, int], None] | None = None
    stop: threading.Event = field(default_factory=threading.Event)


def compute_windows(
    session: Session, attempt: Attempt, *, watch: Watch | None = None, parallel: int = 1
) -> Outcome:
    """Compute the windows of an attempt, in any number of commits; the caller has the lease.

    Args:
        session: The connection.
        attempt: The job and all its windows.
        watch: Who looks on.
        parallel: How many chunks at once, where windows do not depend on each other.
    """
    watch = watch or Watch()
    todo = list(chunks(attempt.spec, attempt.windows))
    counted = _Counted(watch, len(attempt.windows))
    if parallel > 1 and len(todo) > 2 and independent(attempt.spec):
        return _side_by_side(session, attempt, todo, watch, counted, parallel)
    outcome = Outcome()
    for chunk in todo:
        _compute(session, replace(attempt, windows=chunk), outcome, watch)
        counted.add(len(chunk))
        if outcome.stopped:
            break
    return outcome


def compute_stream(session: Session, attempt: Attempt, watch: Watch) -> Outcome:
    """Read what a stream has now, in one run."""
    outcome = Outcome()
    run = run_stream(session, attempt, stop=watch.stop)
    if run.state == runs.DONE and run.delta_version is None:
        _forget(session, run)  # schedulers look every few seconds, and mostly there is nothing
        return outcome
    outcome.runs.append(run)
    if run.state != runs.DONE:
        _tell_of_failures(session, attempt, run)
        outcome.failed += attempt.windows
    return outcome


def _forget(session: Session, run: Run) -> None:
    """Remove the record and the log of a run that found nothing to do."""
    with session.registry.transaction() as connection:
        runs.forget(connection, run.run_id)
    if run.log is not None:
        files.remove(run.log, below=session.logs_path)


def _tell_of_failures(session: Session, attempt: Attempt, run: Run) -> None:
    """Tell the channels of a stream job that it failed for good."""
    name = attempt.spec.name
    with session.registry.transaction() as connection:
        if runs.failures_in_a_row(connection, name) > attempt.spec.retries:
            present = {incidents.FAILURE: [run.error or "it failed"]}
            incidents.update(connection, attempt.spec, present, families=[incidents.FAILURE])


def chunks(spec: JobSpec, windows: Sequence[Window]) -> Iterator[tuple[Window, ...]]:
    """Yield windows in groups of neighbours of the schedule, which one commit can hold."""
    size = 1 if spec.mode == "append" else CHUNKS[spec.kind]
    schedule, group = schedule_of(spec), list[Window]()
    following: Iterator[Window] = iter(())
    for window in windows:
        if group and (len(group) == size or next(following, None) != window):
            yield tuple(group)
            group = []
        if not group:
            following = windows_after(schedule, window.end)
        group.append(window)
    if group:
        yield tuple(group)


def independent(spec: JobSpec) -> bool:
    """Return whether windows may be computed in any order."""
    sources = [source.partition("@")[0] for source in spec.inputs.values()]
    if not spec.fills_group or spec.target in sources:
        return False
    return spec.mode == "replace_window" and spec.on_error == "continue"


def _compute(session: Session, attempt: Attempt, outcome: Outcome, watch: Watch) -> None:
    """Compute a chunk; when it fails, find the windows that are to blame by halving it."""
    if watch.stop.is_set() or outcome.stopped:
        outcome.stopped = True
        return
    run = _RUN.get(attempt.spec.kind, run_windows)(session, attempt)
    outcome.runs.append(run)
    if run.state == runs.DONE:
        return
    if _is_lost(session, attempt):
        outcome.failed += attempt.windows
        outcome.stopped = True
        return
    # A run that could not even pin its inputs fails alike for every window.
    if len(attempt.windows) == 1 or not run.inputs or attempt.spec.kind == "training":
        _record_failure(session, attempt, run)
        outcome.failed += attempt.windows
        outcome.stopped = attempt.spec.on_error == "wait" or _gives_up(outcome)
        return
    middle = len(attempt.windows) // 2
    for half in (attempt.windows[:middle], attempt.windows[middle:]):
        _compute(session, replace(attempt, windows=half), outcome, watch)


def _gives_up(outcome: Outcome) -> bool:
    """Return whether so many single windows failed in a row that the fault is not in them."""
    told = [run.state for run in outcome.runs if run.windows == 1 or run.state == runs.DONE]
    return told[-_GIVE_UP_AFTER:] == [runs.FAILED] * _GIVE_UP_AFTER


def _is_lost(session: Session, attempt: Attempt) -> bool:
    with session.registry.reading() as connection:
        return jobs.lease_owner(connection, attempt.spec.name) != attempt.owner


def _record_failure(session: Session, attempt: Attempt, run: Run) -> None:
    name = attempt.spec.name
    with session.registry.transaction() as connection:
        runs.failed(connection, name, attempt.windows, run_id=run.run_id)
        known = runs.windows_of(connection, name, states=[runs.FAILED])
        tries = max(known[window].tries for window in attempt.windows)
        if tries > attempt.spec.retries:
            line = f"{run.error or 'it failed'} (window from {run.window.start.isoformat()})"
            present = {incidents.FAILURE: [line]}
            incidents.update(connection, attempt.spec, present, families=[incidents.FAILURE])
    if attempt.spec.on_failure is not None and tries == attempt.spec.retries + 1:
        _tell(attempt.spec.on_failure, run)


def _tell(command: str, run: Run) -> None:
    """Run the job's command, with what it needs to know in its environment."""
    told = {
        "FEATURESTORE_JOB": run.job,
        "FEATURESTORE_RUN": run.run_id,
        "FEATURESTORE_WINDOW_START": run.window.start.isoformat(),
        "FEATURESTORE_WINDOW_END": run.window.end.isoformat(),
        "FEATURESTORE_ERROR": printable(run.error or ""),
        "FEATURESTORE_LOG": run.log or "",
    }
    try:
        # The command is the job's own, as in a crontab.
        done = subprocess.run(
            command, shell=True, env=os.environ | told, timeout=_COMMAND_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        _log.error("on_failure of %s: %s", run.job, error)
        return
    if done.returncode:
        _log.error("on_failure of %s: exit %d", run.job, done.returncode)


class _Counted:
    """Counts windows for who looks on, from any thread."""

    def __init__(self, watch: Watch, total: int) -> None:
        self._watch, self._total, self._done = watch, total, 0
        self._lock = threading.Lock()

    def add(self, windows: int) -> None:
        with self._lock:
            self._done += windows
            if self._watch.progress is not None:
                self._watch.progress(self._done, self._total)


def _side_by_side(
    session: Session,
    attempt: Attempt,
    todo: list[tuple[Window, ...]],
    watch: Watch,
    counted: _Counted,
    parallel: int,
) -> Outcome:
    """Compute chunks on several threads, each with an engine of its own.

    The first one alone if it makes the group.
    """
    whole = Outcome()
    if target(session, attempt.spec) is None:
        _compute(session, replace(attempt, windows=todo[0]), whole, watch)
        counted.add(len(todo[0]))
        todo = todo[1:]
    sessions: queue.SimpleQueue[Session] = queue.SimpleQueue()
    workers = [
        replace(session, engine=find_engine(session.engine.name))
        for _ in range(min(parallel, len(todo)))
    ]
    for worker in workers:
        sessions.put(worker)

    def compute(chunk: tuple[Window, ...]) -> Outcome:
        mine, own = sessions.get(), Outcome(stopped=whole.stopped)
        try:
            _compute(mine, replace(attempt, windows=chunk), own, watch)
        finally:
            sessions.put(mine)
        counted.add(len(chunk))
        whole.stopped = whole.stopped or own.stopped
        return own

    try:
        with ThreadPoolExecutor(
            max(len(workers), 1), thread_name_prefix=f"job-{attempt.spec.name}"
        ) as pool:
            for own in pool.map(compute, todo):
                whole.runs += own.runs
                whole.failed += own.failed
    finally:
        for worker in workers:
            if worker.engine.name != "spark":  # all Spark engines share one session
                worker.engine.close()
    return whole
