"""Execution of a job under its lease, from selecting windows to committing their rows.

``run_attempt`` acquires the lease, recovers dead runs, and selects the windows to compute. They are
computed in chunks of neighboring windows; each chunk is one run and one commit. A failed chunk is
split in halves and computed again, until the failing windows are isolated.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from featurestore import progress
from featurestore.errors import InvalidJob, JobLeased
from featurestore.featuregroups import WriteRequest, create, insert
from featurestore.jobs import target
from featurestore.jobs.compute import compute_aggregates, compute_transform
from featurestore.jobs.definitions import JobDefinition
from featurestore.jobs.failures import alert_stream_failure, record_failure
from featurestore.jobs.inputs import SourceInputs
from featurestore.jobs.key_versions import stage_table
from featurestore.jobs.monitors.run import run_monitor
from featurestore.jobs.publish_jobs import run_catalog, run_publish
from featurestore.jobs.recovery import recover_dead_runs
from featurestore.jobs.registration import load_definition
from featurestore.jobs.run import (
    JobRun,
    RunOutput,
    TrainingCall,
    check_lease,
    recorder_of_job,
    run_recorded,
)
from featurestore.jobs.schedule import check_schedule, has_overlapping_windows, windows_after
from featurestore.jobs.stream_jobs import current_window, is_due, run_stream
from featurestore.jobs.training_jobs import run_training
from featurestore.jobs.upserts import Upsert, may_remove_rows, plan_upsert, record_versions
from featurestore.jobs.windows import refuse_repeated_rows
from featurestore.model.job import (
    CatalogWork,
    JobSpec,
    MonitorWork,
    PublishWork,
    RunOnceWork,
    StreamWork,
    TrainingWork,
    TransformWork,
    WindowedWork,
    WindowWork,
)
from featurestore.model.source import SourceRead
from featurestore.model.threads import independent_tasks
from featurestore.model.times import Window
from featurestore.plugins.engine import TimeRange, find_engine
from featurestore.recovery import liveness
from featurestore.recovery.in_flight import in_flight
from featurestore.recovery.liveness import hold_job_lease
from featurestore.registry import jobs, runs
from featurestore.registry.jobs import RegisteredJob
from featurestore.registry.recorded_reads import recording
from featurestore.registry.runs import Run
from featurestore.retrieval import FeatureFrame
from featurestore.session import Session

# Selects the windows to compute, while holding the lease.
WindowSelector = Callable[[Session, RegisteredJob], Sequence[Window]]

_log = logging.getLogger("featurestore.jobs")
# Maximum number of windows per commit. A query computes many windows nearly as fast as one; a
# function is called once per window. A killed chunk starts again from its first window. A training
# job writes one version for all due windows, and a publish job publishes once.
CHUNKS = {"sql": 1000, "python": 100, "window": 100, "monitor": 400} | dict.fromkeys(
    ("training", "publish", "catalog"), 1_000_000
)
# After this many consecutive failures of single windows, the windows are not the cause, and the
# remaining windows are left for later.
_MAX_CONSECUTIVE_FAILURES = 3


@dataclass
class AttemptOutcome:
    """The runs of an attempt, and the windows that could not be computed."""

    runs: list[Run] = field(default_factory=list)
    failed: list[Window] = field(default_factory=list)
    stopped: bool = False


@dataclass(frozen=True)
class Watch:
    """A progress callback ``(completed windows, total windows)``, and a stop signal."""

    progress: Callable[[int, int], None] | None = None
    stop: threading.Event = field(default_factory=threading.Event)


def run_attempt(
    session: Session,
    name: str,
    choose: WindowSelector,
    *,
    call: TrainingCall,
    watch: Watch | None = None,
    parallel: int = 1,
    due: bool = False,
) -> AttemptOutcome:
    """Acquire the lease of a job, recover its dead runs, and compute the selected windows.

    Args:
        session: The connection.
        name: The job.
        choose: Selects the windows while the lease is held.
        call: Calls the function of a training job.
        watch: Progress callback and stop signal.
        parallel: Maximum number of concurrent chunks, if the windows are independent.
        due: Whether to skip a stream job whose trigger interval has not elapsed.

    Raises:
        JobLeased: Another process is running the job.
    """
    watch = watch or Watch()
    # The code outside of the functions of a file may read rows, too.
    with recording(recorder_of_job(session, name)):
        job = _get_job(session, name)
        # The file is loaded before the lease is acquired, so that a missing or changed file is
        # reported even while another process runs the job.
        definition = load_definition(session, job)
        if isinstance(job.spec.work, StreamWork):
            if due and not is_due(session, job):
                return AttemptOutcome()
            return _read_stream(session, job, job.spec.work, definition, watch)
        with hold_job_lease(session, name) as owner:
            # The windows are selected after the recovery, because a dead run may have committed
            # windows that are not recorded yet. The job is read again, because it may have been
            # registered again since it was read without the lease.
            recover_dead_runs(session, name)
            job = _get_job(session, name)
            definition = load_definition(session, job)
            windows = tuple(choose(session, job))
            if not windows:
                return AttemptOutcome()
            refuse_repeated_rows(session, job, windows)
            all_windows = JobRun(session, job, definition, windows, owner, call)
            return _compute_windows(all_windows, watch, parallel)


def _get_job(session: Session, name: str) -> RegisteredJob:
    with session.registry.reading() as connection:
        return jobs.get(connection, name)


def _read_stream(
    session: Session,
    job: RegisteredJob,
    work: StreamWork,
    definition: JobDefinition,
    watch: Watch,
) -> AttemptOutcome:
    """Read the new records of a stream in one run; consumer group members need no lease."""
    name, outcome = job.spec.name, AttemptOutcome()
    with ExitStack() as stack:
        if work.stream.consumer_group is None:
            owner = stack.enter_context(hold_job_lease(session, name))
            recover_dead_runs(session, name)
        else:
            owner = stack.enter_context(liveness.heartbeat(session.registry, session.location))
            recover_dead_runs(session, name, shared=True)
        stream_run = JobRun(session, job, definition, (current_window(work),), owner)
        record = run_stream(stream_run, work, stop=watch.stop)
        if record.state == runs.DONE and record.delta_version is None:
            # Schedulers poll every few seconds: most runs read nothing, and their records are
            # removed.
            with session.registry.transaction() as connection:
                runs.delete_run(connection, record.run_id)
            if record.log is not None:
                session.storage.remove(record.log, below=session.logs_path)
            return outcome
        outcome.runs.append(record)
        if record.state != runs.DONE:
            alert_stream_failure(stream_run, record)
            outcome.failed += stream_run.windows
    return outcome


def _compute_windows(all_windows: JobRun, watch: Watch, parallel: int) -> AttemptOutcome:
    """Compute windows in one or more runs; the caller holds the lease."""
    spec = all_windows.spec
    chunks = [
        replace(all_windows, windows=chunk) for chunk in split_chunks(spec, all_windows.windows)
    ]
    counter = _ProgressCounter(watch, len(all_windows.windows))
    if parallel > 1 and len(chunks) > 2 and are_windows_independent(spec):
        return _compute_in_parallel(chunks, watch, counter, parallel)
    outcome = AttemptOutcome()
    for chunk in chunks:
        _compute_chunk(chunk, outcome, watch)
        counter.add(len(chunk.windows))
        if outcome.stopped:
            break
    return outcome


def split_chunks(spec: JobSpec, windows: Sequence[Window]) -> Iterator[tuple[Window, ...]]:
    """Yield chunks of consecutive windows, one chunk per commit."""
    # The transaction of an append identifies exactly one window, by which the table rejects it the
    # second time. In a commit of several windows, one repeated window could not be rejected alone.
    schedule, group = check_schedule(spec.schedule), list[Window]()
    mode = spec.work.mode if isinstance(spec.work, WindowedWork) else "replace_window"
    size = 1 if mode == "append" else CHUNKS[spec.kind]
    # Rows of overlapping windows may have the same key.
    if mode == "upsert" and has_overlapping_windows(schedule):
        size = 1
    upcoming: Iterator[Window] = iter(())
    for window in windows:
        # A commit replaces one time range, in which an earlier definition may have computed rows
        # between the windows.
        is_full = len(group) == size or (
            mode == "replace_window" and group and group[-1].end != window.start
        )
        if group and (is_full or next(upcoming, None) != window):
            yield tuple(group)
            group = []
        if not group:
            upcoming = windows_after(schedule, window.end)
        group.append(window)
    if group:
        yield tuple(group)


def are_windows_independent(spec: JobSpec) -> bool:
    """Return whether the windows may be computed in any order."""
    sources = [source.partition("@")[0] for source in spec.inputs.values()]
    # A job that reads its own target depends on the rows of its earlier windows.
    if not isinstance(spec.work, WindowedWork) or spec.target in sources:
        return False
    # Upserts of the same key must be committed in the order of their windows, and on_error="wait"
    # stops at the first window that fails.
    return spec.work.mode == "replace_window" and spec.schedule.on_error == "continue"


def _compute_chunk(chunk: JobRun, outcome: AttemptOutcome, watch: Watch) -> None:
    """Compute a chunk in one run; split a failed chunk until the failing windows are isolated."""
    if watch.stop.is_set() or outcome.stopped:
        outcome.stopped = True
        return
    spec, windows = chunk.spec, chunk.windows
    record = _run_chunk(chunk)
    outcome.runs.append(record)
    if record.state == runs.DONE:
        return
    # Another process owns the job now; to split and retry the chunk would compete with it.
    with chunk.session.registry.reading() as connection:
        lease_owner = jobs.lease_owner(connection, spec.name)
    if lease_owner != chunk.owner:
        outcome.failed += windows
        outcome.stopped = True
        return
    # A run that could not even pin its inputs would fail for every window.
    if len(windows) == 1 or not record.inputs or isinstance(spec.work, RunOnceWork):
        record_failure(chunk, record)
        outcome.failed += windows
        outcome.stopped = spec.schedule.on_error == "wait" or _fails_consecutively(outcome)
        return
    middle = len(windows) // 2
    for half in (windows[:middle], windows[middle:]):
        _compute_chunk(replace(chunk, windows=half), outcome, watch)


def _run_chunk(chunk: JobRun) -> Run:
    """Do the work of a chunk in one recorded run."""
    match chunk.spec.work:
        case TransformWork() | WindowWork() as work:
            return run_recorded(chunk, partial(_compute_and_write, work))
        case TrainingWork() as work:
            return run_training(chunk, work)
        case MonitorWork() as work:
            return run_monitor(chunk, work)
        case PublishWork() as work:
            return run_publish(chunk, work)
        case CatalogWork() as work:
            return run_catalog(chunk, work)
        case StreamWork():
            raise InvalidJob(f"Job {chunk.spec.name!r} reads a stream and has no windows.")


def _compute_and_write(work: TransformWork | WindowWork, run: JobRun) -> RunOutput:
    """Stage the rows of a run, and commit them with the deleted keys."""
    group = run.group
    with in_flight(run.session, operation="stage", name=run.spec.name, version=1) as staged_write:
        run = replace(run, staging=staged_write.rows)
        source_keys, reads = None, list[SourceRead]()
        if isinstance(work, TransformWork):
            sources = SourceInputs(run.session, work, run.inputs, run.staging)
            rows = compute_transform(run, work, sources)
            source_keys, reads = sources.keys, sources.reads
        else:
            rows = compute_aggregates(run, work)
        if rows is None and not may_remove_rows(run, work, source_keys):
            _log.info("no rows")
            return RunOutput(target_version=None if group is None else group.spec.version)
        if rows is None:  # the commit only removes rows
            assert group is not None
            schema = group.spec.schema
            if isinstance(work, TransformWork) and work.tombstone is not None:
                schema = schema.append(pa.field(work.tombstone, pa.bool_()))
            rows = stage_table(run, schema.empty_table(), "nothing")
        write = Upsert(rows)
        if isinstance(work, TransformWork) and work.mode == "upsert":
            write = plan_upsert(run, work, rows, source_keys)
        # A process that was suspended while it computed may have lost the lease. If the lease is
        # lost between this check and the commit, the transaction number lets only one of the two
        # processes commit.
        check_lease(run)
        if write.versions is not None:
            run = record_versions(run, work, write.rows, write.versions)
        return _commit_rows(run, work, write, reads, is_staged=write.rows is rows)


def _commit_rows(
    run: JobRun,
    work: WindowedWork,
    upsert: Upsert,
    reads: Sequence[SourceRead],
    *,
    is_staged: bool,
) -> RunOutput:
    """Commit the rows of a run; the first run of a job creates the group."""
    session, spec, window, group = run.session, run.spec, run.window, run.group
    mode: str = work.mode
    replaced_range = None
    if work.mode == "replace_window":
        mode = "replace"
        event_time = str(work.options.event_time)
        replaced_range = TimeRange(event_time, window.start, window.end, work.closed)
    stored_names = () if group is None else group.spec.schema.names
    typed = target.drop_null_columns(session, work, upsert.rows, stored_names)
    request = WriteRequest(
        work.target,
        version=None if group is None else group.spec.version,
        # The validator, which takes seconds to import, is needed only for a new group.
        options=target.declaration(work) if group is None else work.options,
        mode=mode,
        replace=replaced_range,
        schema_change="add",
        transaction=run.transaction,
        validation=work.options.validation,
        run_id=run.run_id,
        # The reads of sources are recorded with their snapshots, in ``reads``.
        inputs=tuple(pinned.to_json() for pinned in run.inputs if pinned.source_type != "source"),
        reads=reads or None,
        window=target.build_windows_metadata(
            spec, work, window, len(run.windows), first_changed=upsert.first_deleted
        ),
        # Staged files can become files of the table only if they contain exactly these rows.
        staged=is_staged and typed is upsert.rows,
        deletes=upsert.deletes,
    )
    frame = FeatureFrame(session, typed)
    if group is None:
        created_group, commit = create(session, frame, request)
        return RunOutput(commit.rows_in, commit.delta_version, created_group.version)
    commit = insert(session, frame, request)
    if not commit.applied:
        if not target.contains_windows(group, spec.name, work, window):
            # Runs of the same windows have the same transaction until a run commits it. A
            # process that took over an earlier run, and was suspended, may revoke that of this run.
            raise JobLeased(
                f"Another process considered this run of job {spec.name!r} dead, and revoked its "
                "transaction."
            )
        _log.info("the table already contains these windows from an earlier run")
        return RunOutput(0, commit.delta_version, group.spec.version)
    return RunOutput(commit.rows_in, commit.delta_version, group.spec.version)


def _fails_consecutively(outcome: AttemptOutcome) -> bool:
    """Return whether many single windows failed in a row, so that the windows are not the cause."""
    states = [run.state for run in outcome.runs if run.windows == 1 or run.state == runs.DONE]
    return states[-_MAX_CONSECUTIVE_FAILURES:] == [runs.FAILED] * _MAX_CONSECUTIVE_FAILURES


class _ProgressCounter:
    """A thread-safe counter of completed windows."""

    def __init__(self, watch: Watch, total: int) -> None:
        self._watch, self._total, self._finished = watch, total, 0
        self._lock = threading.Lock()

    def add(self, windows: int) -> None:
        with self._lock:
            self._finished += windows
            progress.report("compute windows", self._finished, self._total, unit="windows")
            if self._watch.progress is not None:
                self._watch.progress(self._finished, self._total)


def _compute_in_parallel(
    chunks: Sequence[JobRun], watch: Watch, counter: _ProgressCounter, parallel: int
) -> AttemptOutcome:
    """Compute chunks in several threads, each with its own engine.

    The first chunk runs alone if it creates the group.
    """
    total, first = AttemptOutcome(), chunks[0]
    work = first.spec.work
    # Concurrent chunks would each create the group, and all but one would fail.
    if isinstance(work, WindowedWork) and target.find_target(first.session, work) is None:
        _compute_chunk(first, total, watch)
        counter.add(len(first.windows))
        chunks = chunks[1:]
    sessions: queue.SimpleQueue[Session] = queue.SimpleQueue()
    workers = [
        replace(first.session, engine_source=find_engine(first.session.engine.name))
        for _ in range(min(parallel, len(chunks)))
    ]
    for worker in workers:
        sessions.put(worker)

    def compute_on_worker(chunk: JobRun) -> AttemptOutcome:
        worker, outcome = sessions.get(), AttemptOutcome(stopped=total.stopped)
        try:
            _compute_chunk(replace(chunk, session=worker), outcome, watch)
        finally:
            sessions.put(worker)
        counter.add(len(chunk.windows))
        total.stopped = total.stopped or outcome.stopped
        return outcome

    try:
        with independent_tasks(max(len(workers), 1), f"job-{first.spec.name}") as pool:
            for outcome in pool.map(compute_on_worker, chunks):
                total.runs += outcome.runs
                total.failed += outcome.failed
    finally:
        for worker in workers:
            if worker.engine.name != "spark":  # all Spark engines share one session
                worker.engine.close()
    return total
