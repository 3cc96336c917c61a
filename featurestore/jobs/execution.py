"""Execution of jobs: windows in chunks that share a commit, and versions of training datasets."""

from __future__ import annotations

import logging
import os
import queue
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from featurestore.alerts import incidents
from featurestore.errors import InvalidJob, listing
from featurestore.jobs.inputs import PinnedInput
from featurestore.jobs.monitors.run import run_monitor
from featurestore.jobs.run import Attempt, RunOutput, StartedRun, run_recorded, run_windows
from featurestore.jobs.schedule import windows_after
from featurestore.jobs.specs import schedule_of
from featurestore.jobs.stale import changes
from featurestore.jobs.streams.run import run_stream
from featurestore.jobs.target import find_target
from featurestore.model.display import printable
from featurestore.model.job import JobSpec
from featurestore.model.manifest import Manifest
from featurestore.model.requests import TrainingDatasetRequest
from featurestore.model.times import Window
from featurestore.plugins.engine import find_engine
from featurestore.registry import jobs, runs, training_datasets
from featurestore.registry.runs import Run
from featurestore.session import Session
from featurestore.storage import files
from featurestore.training import catalog
from featurestore.training.create import create
from featurestore.training.export.request import export_data

_log = logging.getLogger("featurestore.jobs")
# A query computes many windows nearly as fast as one; a function is called for each window. A
# killed chunk starts again from its first window.
CHUNKS = {"sql": 1000, "python": 100, "window": 100, "training": 1_000_000, "monitor": 400}
# When so many single windows fail in a row, the windows are not the cause, and the rest is
# left for later.
_MAX_CONSECUTIVE_FAILURES = 3
_COMMAND_SECONDS = 60


def run_training(session: Session, attempt: Attempt) -> Run:
    """Write one version for the last window, unless nothing changed since the latest version."""
    return run_recorded(session, attempt, partial(_write_and_retire, session, attempt))


def _write_and_retire(session: Session, attempt: Attempt, recording: StartedRun) -> RunOutput:
    output = _write_dataset(session, attempt, recording)
    # Also if nothing was written: a killed run may have left one version too many.
    if attempt.spec.keep is not None:
        _retire(session, attempt.spec.target, attempt.spec.keep)
    return output


def _write_dataset(session: Session, attempt: Attempt, recording: StartedRun) -> RunOutput:
    spec = attempt.spec
    latest = catalog.last_version(session, spec.target)
    if latest and spec.inputs and not _inputs_changed(session, attempt, recording.inputs):
        return _unchanged_version(latest)
    returned = attempt.call(attempt.definition, attempt.windows[-1])
    arguments = {"data": returned}
    if isinstance(returned, Mapping):
        arguments = dict(returned)
    if "data" not in arguments:
        raise InvalidJob(
            f"Job {spec.name!r} returned the arguments {sorted(arguments)} without 'data'.",
            hint="return {'data': frame, 'label': ...}, or the frame alone",
        )
    data = arguments.pop("data")
    request = _request(spec, arguments)
    if latest and not spec.inputs and _same_sources(session, spec.target, data):
        return _unchanged_version(latest)
    dataset = create(session, data, request, progress=False)
    rows = sum(dataset.num_rows(split) for split in dataset.splits)
    return RunOutput(rows, dataset.version, dataset.version)


def _request(spec: JobSpec, arguments: Mapping[str, Any]) -> TrainingDatasetRequest:
    """Return the request for the next version, from the arguments that a job's function returned."""
    argument_names = {each.name for each in fields(TrainingDatasetRequest)} - {"name"}
    unknown = [key for key in arguments if key not in argument_names]
    if unknown:
        raise InvalidJob(
            f"Job {spec.name!r} returned unknown arguments {listing(unknown)} of "
            "create_training_dataset.",
            hint=f"available: {listing(sorted(argument_names))}",
        )
    defaults = {"description": spec.description, "tags": dict(spec.tags)}
    return TrainingDatasetRequest(name=spec.target, **{**defaults, **arguments})


def _unchanged_version(latest: int) -> RunOutput:
    _log.info("no input changed since version %d", latest)
    return RunOutput(0, latest, latest)


def _inputs_changed(session: Session, attempt: Attempt, inputs: tuple[PinnedInput, ...]) -> bool:
    with session.registry.reading() as connection:
        finished_runs = runs.of_job(connection, attempt.spec.name, state=runs.DONE)
    if not finished_runs or finished_runs[-1].ended is None:
        return True
    recorded_inputs = {each["input"]: each for each in finished_runs[-1].inputs.get("inputs", ())}
    return any(
        changes(pinned, recorded_inputs.get(pinned.name, {}), since=finished_runs[-1].ended)
        for pinned in inputs
    )


def _same_sources(session: Session, name: str, data: object) -> bool:
    """Return whether a frame reads the same Delta versions as the latest version did."""
    provenance = export_data(session, data).provenance
    if provenance.plan is None or not provenance.reproducible:
        return False
    manifest: Manifest = catalog.get(session, name, None).manifest
    return list(map(dict, provenance.sources)) == list(map(dict, manifest.sources))


def _retire(session: Session, name: str, keep: int) -> None:
    with session.registry.reading() as connection:
        versions: list[int] = training_datasets.versions(connection, name)
    for version in sorted(versions)[:-keep]:
        catalog.remove(session, name, version)
        _log.info("%s version %d retired", name, version)


_RUN = {"training": run_training, "monitor": run_monitor}


@dataclass
class Outcome:
    """All runs, and the windows that could not be computed."""

    runs: list[Run] = field(default_factory=list)
    failed: list[Window] = field(default_factory=list)
    stopped: bool = False


@dataclass(frozen=True)
class Watch:
    """A callback for ``(windows done, windows in total)`` and a signal to stop after this run."""

    progress: Callable[[int, int], None] | None = None
    stop: threading.Event = field(default_factory=threading.Event)


def compute_windows(
    session: Session, attempt: Attempt, *, watch: Watch | None = None, parallel: int = 1
) -> Outcome:
    """Compute the windows of an attempt, in one or more commits; the caller has the lease.

    Args:
        session: The connection.
        attempt: The job and all its windows.
        watch: Progress callback and stop signal.
        parallel: Maximum number of chunks at once, if windows do not depend on each other.
    """
    watch = watch or Watch()
    pending_chunks = list(split_chunks(attempt.spec, attempt.windows))
    counter = _ProgressCounter(watch, len(attempt.windows))
    if parallel > 1 and len(pending_chunks) > 2 and are_windows_independent(attempt.spec):
        return _compute_in_parallel(session, attempt, pending_chunks, watch, counter, parallel)
    outcome = Outcome()
    for chunk in pending_chunks:
        _compute(session, replace(attempt, windows=chunk), outcome, watch)
        counter.add(len(chunk))
        if outcome.stopped:
            break
    return outcome


def compute_stream(session: Session, attempt: Attempt, watch: Watch) -> Outcome:
    """Read the new records of a stream in one run."""
    outcome = Outcome()
    run = run_stream(session, attempt, stop=watch.stop)
    if run.state == runs.DONE and run.delta_version is None:
        _remove_run(session, run)  # schedulers poll every few seconds: most runs read nothing
        return outcome
    outcome.runs.append(run)
    if run.state != runs.DONE:
        _alert_failures(session, attempt, run)
        outcome.failed += attempt.windows
    return outcome


def _remove_run(session: Session, run: Run) -> None:
    """Remove the record and the log of a run that read nothing."""
    with session.registry.transaction() as connection:
        runs.forget(connection, run.run_id)
    if run.log is not None:
        files.remove(run.log, below=session.logs_path)


def _alert_failures(session: Session, attempt: Attempt, run: Run) -> None:
    """Alert the channels of a stream job whose retries are used up."""
    name = attempt.spec.name
    with session.registry.transaction() as connection:
        if runs.failures_in_a_row(connection, name) > attempt.spec.retries:
            open_incidents = {incidents.FAILURE: [run.error or "it failed"]}
            incidents.update(connection, attempt.spec, open_incidents, families=[incidents.FAILURE])


def split_chunks(spec: JobSpec, windows: Sequence[Window]) -> Iterator[tuple[Window, ...]]:
    """Yield groups of consecutive windows, each for one commit."""
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


def are_windows_independent(spec: JobSpec) -> bool:
    """Return whether windows may be computed in any order."""
    sources = [source.partition("@")[0] for source in spec.inputs.values()]
    if not spec.fills_group or spec.target in sources:
        return False
    return spec.mode == "replace_window" and spec.on_error == "continue"


def _compute(session: Session, attempt: Attempt, outcome: Outcome, watch: Watch) -> None:
    """Compute a chunk; halve a failed one until the failing windows are isolated."""
    if watch.stop.is_set() or outcome.stopped:
        outcome.stopped = True
        return
    run = _RUN.get(attempt.spec.kind, run_windows)(session, attempt)
    outcome.runs.append(run)
    if run.state == runs.DONE:
        return
    if _has_lost_lease(session, attempt):
        outcome.failed += attempt.windows
        outcome.stopped = True
        return
    # A run that could not even pin its inputs fails alike for every window.
    if len(attempt.windows) == 1 or not run.inputs or attempt.spec.kind == "training":
        _record_failure(session, attempt, run)
        outcome.failed += attempt.windows
        outcome.stopped = attempt.spec.on_error == "wait" or _fails_consecutively(outcome)
        return
    middle = len(attempt.windows) // 2
    for half in (attempt.windows[:middle], attempt.windows[middle:]):
        _compute(session, replace(attempt, windows=half), outcome, watch)


def _fails_consecutively(outcome: Outcome) -> bool:
    """Return whether so many single windows failed in a row that the windows are not the cause."""
    states = [run.state for run in outcome.runs if run.windows == 1 or run.state == runs.DONE]
    return states[-_MAX_CONSECUTIVE_FAILURES:] == [runs.FAILED] * _MAX_CONSECUTIVE_FAILURES


def _has_lost_lease(session: Session, attempt: Attempt) -> bool:
    with session.registry.reading() as connection:
        return jobs.lease_owner(connection, attempt.spec.name) != attempt.owner


def _record_failure(session: Session, attempt: Attempt, run: Run) -> None:
    name = attempt.spec.name
    with session.registry.transaction() as connection:
        runs.failed(connection, name, attempt.windows, run_id=run.run_id)
        failed_windows = runs.windows_of(connection, name, states=[runs.FAILED])
        tries = max(failed_windows[window].tries for window in attempt.windows)
        if tries > attempt.spec.retries:
            message = f"{run.error or 'it failed'} (window from {run.window.start.isoformat()})"
            open_incidents = {incidents.FAILURE: [message]}
            incidents.update(connection, attempt.spec, open_incidents, families=[incidents.FAILURE])
    if attempt.spec.on_failure is not None and tries == attempt.spec.retries + 1:
        _run_failure_command(attempt.spec.on_failure, run)


def _run_failure_command(command: str, run: Run) -> None:
    """Run the job's ``on_failure`` command; environment variables describe the run."""
    environment = {
        "FEATURESTORE_JOB": run.job,
        "FEATURESTORE_RUN": run.run_id,
        "FEATURESTORE_WINDOW_START": run.window.start.isoformat(),
        "FEATURESTORE_WINDOW_END": run.window.end.isoformat(),
        "FEATURESTORE_ERROR": printable(run.error or ""),
        "FEATURESTORE_LOG": run.log or "",
    }
    try:
        # The command is the job's own, as in a crontab.
        process = subprocess.run(
            command, shell=True, env=os.environ | environment, timeout=_COMMAND_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        _log.error("on_failure of %s: %s", run.job, error)
        return
    if process.returncode:
        _log.error("on_failure of %s: exit %d", run.job, process.returncode)


class _ProgressCounter:
    """A thread-safe progress counter of windows."""

    def __init__(self, watch: Watch, total: int) -> None:
        self._watch, self._total, self._finished = watch, total, 0
        self._lock = threading.Lock()

    def add(self, windows: int) -> None:
        with self._lock:
            self._finished += windows
            if self._watch.progress is not None:
                self._watch.progress(self._finished, self._total)


def _compute_in_parallel(
    session: Session,
    attempt: Attempt,
    pending_chunks: list[tuple[Window, ...]],
    watch: Watch,
    counter: _ProgressCounter,
    parallel: int,
) -> Outcome:
    """Compute chunks on several threads, each with its own engine.

    The first chunk runs alone if it creates the group.
    """
    total = Outcome()
    if find_target(session, attempt.spec) is None:
        _compute(session, replace(attempt, windows=pending_chunks[0]), total, watch)
        counter.add(len(pending_chunks[0]))
        pending_chunks = pending_chunks[1:]
    sessions: queue.SimpleQueue[Session] = queue.SimpleQueue()
    workers = [
        replace(session, engine=find_engine(session.engine.name))
        for _ in range(min(parallel, len(pending_chunks)))
    ]
    for worker in workers:
        sessions.put(worker)

    def compute(chunk: tuple[Window, ...]) -> Outcome:
        worker_session, outcome = sessions.get(), Outcome(stopped=total.stopped)
        try:
            _compute(worker_session, replace(attempt, windows=chunk), outcome, watch)
        finally:
            sessions.put(worker_session)
        counter.add(len(chunk))
        total.stopped = total.stopped or outcome.stopped
        return outcome

    try:
        with ThreadPoolExecutor(
            max(len(workers), 1), thread_name_prefix=f"job-{attempt.spec.name}"
        ) as pool:
            for chunk_outcome in pool.map(compute, pending_chunks):
                total.runs += chunk_outcome.runs
                total.failed += chunk_outcome.failed
    finally:
        for worker in workers:
            if worker.engine.name != "spark":  # all Spark engines share one session
                worker.engine.close()
    return total
