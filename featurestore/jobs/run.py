"""A job run: pin the inputs, record the start, do the work, record the end and the watermark.

The run is recorded with its Delta transaction number before it computes, so that ``recovery`` can
find its commit after a crash. Its log records are written to a separate file.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.engine import Connection

from featurestore.alerts import incidents
from featurestore.errors import (
    BadRecord,
    FeatureStoreError,
    InvalidJob,
    JobLeased,
    RegistryError,
    ValidationFailed,
)
from featurestore.featuregroups.table import OpenGroup
from featurestore.jobs.definitions import JobDefinition
from featurestore.jobs.inputs import PinnedInput, pin_inputs
from featurestore.jobs.schedule import advance_watermark, check_schedule
from featurestore.jobs.target import find_target, next_transaction
from featurestore.jobs.windows import COMPUTED, Coverage
from featurestore.model.job import GroupWork, JobSpec, StreamWork, TrainingWork, WindowedWork
from featurestore.model.times import Window
from featurestore.plugins.observers import Work, observed
from featurestore.recovery import recover as recover_writes
from featurestore.registry import artifacts, jobs, runs
from featurestore.registry.hidden import extract_words
from featurestore.registry.origins import GROUP, JOB, Object
from featurestore.registry.recorded_reads import ReadRecorder, recording
from featurestore.registry.runs import Run
from featurestore.registry.stored_errors import LogRedactor, message_of, text_for_readers
from featurestore.session import Session
from featurestore.storage import storage_for
from featurestore.training import catalog

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

# Calls the function of a training job with the store and a window; the facade supplies it, because
# this module must not depend on the store.
TrainingCall = Callable[[JobDefinition, Window], object]

_log = logging.getLogger("featurestore.jobs")
_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
# The peak is measured in KiB on Linux and in bytes on macOS.
_PEAK_UNIT = 1 if sys.platform == "darwin" else 1024


def recorder_of_job(session: Session, name: str) -> ReadRecorder:
    """Return a recorder of the reads of a job."""
    return ReadRecorder(session.location, [Object(JOB, name)], registry=session.registry)


def refuse_training_call(definition: JobDefinition, _: Window) -> object:
    """Raise InvalidJob: jobs without a function cannot be called."""
    raise InvalidJob(f"Job {definition.spec.name!r} has no function.")


@dataclass(frozen=True)
class JobRun:
    """The windows of a job to compute and, once the run has started, its inputs and target.

    Attributes:
        session: The connection.
        job: The registered job.
        definition: The job as loaded from its file.
        windows: The windows, oldest first.
        owner: The owner of the job's lease.
        call: Calls the function of a training job.
        run_id: The run id. Until the run starts, it is "" and the following attributes are unset.
        inputs: The inputs, pinned to their versions.
        group: The group that the job writes; None if the run creates it.
        transaction: The application id and number of the Delta transaction of the run's commit.
        staging: The folder for staged rows, while the run computes windows.
    """

    session: Session
    job: jobs.RegisteredJob
    definition: JobDefinition
    windows: tuple[Window, ...]
    owner: str
    call: TrainingCall = refuse_training_call
    run_id: str = ""
    inputs: tuple[PinnedInput, ...] = ()
    group: OpenGroup | None = None
    transaction: tuple[str, int] | None = None
    staging: str = ""

    @property
    def spec(self) -> JobSpec:
        """The job specification, as loaded from its file."""
        return self.definition.spec

    @property
    def window(self) -> Window:
        """The range that spans all windows."""
        return Window(self.windows[0].start, self.windows[-1].end)


@dataclass(frozen=True)
class RunOutput:
    """The output of a run: row count, Delta (or dataset) version, and group version.

    ``record`` writes further records in the transaction that ends the run.
    """

    rows: int = 0
    delta_version: int | None = None
    target_version: int | None = None
    record: Callable[[Connection], None] | None = None


def run_recorded(run: JobRun, work: Callable[[JobRun], RunOutput]) -> Run:
    """Record the start of a run, do its work, and record its end.

    An error ends the run; it is recorded, not raised, and the windows remain due.
    """
    session, spec = run.session, run.spec
    token = uuid.uuid4().hex
    run_id = f"job-{token}"
    record = Run(
        run_id=run_id,
        job=spec.name,
        job_version=run.job.version,
        window=run.window,
        windows=len(run.windows),
        state=runs.RUNNING,
        owner=run.owner,
        log=os.path.join(session.logs_path, spec.name, f"{run_id}.log"),
    )
    own_names = definition_words(spec)
    with (
        LogRedactor(session.registry, allowed_names=own_names) as redact,
        _log_to_file(str(record.log), redact=redact),
    ):
        _log.info(
            "%s, %d windows from %s to %s",
            spec.name, record.windows, record.window.start, record.window.end,
        )  # fmt: skip
        observed_work = Work("job", spec.name, token, session.location, job=spec)
        observed_work.window = record.window
        # The job and its target get what the run reads as origins, even if the run fails.
        recorder = recorder_of_job(session, spec.name)
        run = replace(run, session=replace(session, reads=recorder))
        with observed(observed_work), recording(recorder):
            try:
                run, record = _start_run(run, record)
                observed_work.inputs = tuple(
                    pinned.to_json() | {"time": pinned.time} for pinned in run.inputs
                )
                output = work(run)
            except Exception as error:  # code of jobs may raise any error: it ends the run
                observed_work.error = error
                return _fail_run(run, run_id, error)
            return _end_run(run, record, output)


def _start_run(run: JobRun, record: Run) -> tuple[JobRun, Run]:
    """Pin the inputs and record the run, even if inputs are missing."""
    session, spec, work = run.session, run.spec, run.spec.work
    try:
        inputs = pin_inputs(session, spec)
        group = find_target(session, work) if isinstance(work, GroupWork) else None
    except FeatureStoreError:
        with session.registry.transaction() as connection:
            runs.begin(connection, record)
        raise
    run_inputs: dict[str, Any] = {"inputs": [pinned.to_json() for pinned in inputs]}
    transaction = None
    if isinstance(work, TrainingWork):
        # After a crash, a later version than this one is the output of the run.
        run_inputs["before"] = latest_dataset_version(session, work.target)
    elif isinstance(work, WindowedWork):  # a stream has a transaction for each of its partitions
        # A later definition may assign the rows on the bounds of windows to other windows.
        run_inputs["closed"] = work.closed
        transaction = next_transaction(group, spec, work, run.window)
    # The transaction is recorded before any rows are computed, so that a commit can be assigned to
    # its run after a crash.
    record = replace(record, inputs=run_inputs, transaction=transaction)
    with session.registry.transaction() as connection:
        runs.begin(connection, record)
        if session.recorder is not None and isinstance(work, GroupWork):
            # Rejected rows and reports contain values before the first commit.
            version = 1 if group is None else group.spec.version
            session.recorder.add_output(connection, Object(GROUP, spec.target, version))
    run = replace(run, run_id=record.run_id, inputs=inputs, group=group, transaction=transaction)
    return run, record


def check_lease(run: JobRun) -> None:
    """Raise an error before a commit if another process has taken over the job's lease."""
    with run.session.registry.reading() as connection:
        if not _has_lease(connection, run):
            raise JobLeased(
                f"Another process has taken over job {run.spec.name!r} during this run."
            )


def _has_lease(connection: Connection, run: JobRun, *, locked: bool = False) -> bool:
    """Return whether the process of a run still holds the job's lease."""
    return jobs.lease_owner(connection, run.spec.name, locked=locked) == run.owner


def _end_run(run: JobRun, record: Run, output: RunOutput) -> Run:
    """Record the run, its windows and the watermark in one transaction.

    The rows are already committed: if the registry fails, the next run finds the commit. If another
    process has taken over the lease, that process records the run.
    """
    figures: dict[str, Any] = {
        "rows": output.rows,
        "delta_version": output.delta_version,
        "memory": _peak_memory(),
    }
    try:
        with run.session.registry.transaction() as connection:
            # The lock prevents that another process takes over the lease before the end of the
            # transaction. The members of a consumer group share a stream job without a lease.
            if not isinstance(run.spec.work, StreamWork) and not _has_lease(
                connection, run, locked=True
            ):
                _log.warning("another process has taken over the job, and records this run")
                return runs.get(connection, record.run_id)
            runs.end(connection, record.run_id, runs.DONE, **figures)
            if not isinstance(run.spec.work, StreamWork):
                record_computed(connection, run.spec, run.windows, record, output.target_version)
            if output.record is not None:
                output.record(connection)
            _update_alerts(connection, run.spec, record.run_id)
            record = runs.get(connection, record.run_id)
    except RegistryError as error:
        _log.warning(
            "done, but not recorded; the next run of the job will record it: %s", error.message
        )
        return replace(record, state=runs.DONE, **figures)
    seconds = record.seconds or 0
    _log.info("done: %d rows, version %s, %.3f s", output.rows, output.delta_version, seconds)
    return record


def record_computed(
    connection: Connection,
    spec: JobSpec,
    windows: Sequence[Window],
    run: Run,
    target_version: int | None,
) -> None:
    """Record windows as computed and advance the watermark to the first gap."""
    schedule = check_schedule(spec.schedule)
    runs.record_computed_windows(
        connection,
        spec.name,
        windows,
        run_id=run.run_id,
        target_version=target_version,
        inputs=run.inputs,
    )
    forget_replaced_windows(connection, spec, windows, run)
    # Chunks may end concurrently. Without the lock, each could miss the windows of the other and
    # leave the watermark before both.
    watermark = jobs.lock_watermark(connection, spec.name)
    computed = runs.find_windows(
        connection, spec.name, states=COMPUTED, start=watermark, excluded_run=run.run_id
    )
    covered = Coverage(computed.union(windows), schedule)
    advanced = advance_watermark(schedule, watermark, covered)
    if advanced is not None:
        jobs.advance(connection, spec.name, advanced)


def forget_replaced_windows(
    connection: Connection, spec: JobSpec, windows: Sequence[Window], run: Run
) -> None:
    """Delete the windows of earlier definitions whose rows were replaced by the given windows."""
    name, schedule, start = spec.name, check_schedule(spec.schedule), windows[0].start
    within = runs.find_windows(
        connection, name, start=start, end=windows[-1].end, excluded_run=run.run_id
    )
    covered = Coverage(windows, schedule)
    replaced = {window for window in within if window.start >= start and window in covered}
    waiting = runs.find_windows(connection, name, states=[runs.REPLACED])
    if waiting:
        start = min(window.start for window in waiting)
        computed = runs.find_windows(connection, name, states=COMPUTED, start=start)
        covered = Coverage(computed, schedule)
        replaced |= {window for window in waiting if window in covered}
    runs.change_states(connection, name, sorted(replaced), None)


def _update_alerts(connection: Connection, spec: JobSpec, run_id: str) -> None:
    """Resolve the failure alerts of a job, and report rows that failed lenient validation."""
    if not spec.alerts.channels:
        return
    if not runs.window_states(connection, spec.name, states=[runs.FAILED]):
        incidents.update_incidents(connection, spec, {}, families=[incidents.FAILURE])
    if isinstance(spec.work, GroupWork):
        present = {}
        failed_rows = artifacts.describe_failed_validations(connection, run_id)
        if failed_rows:
            present[incidents.VALIDATION] = failed_rows
        incidents.update_incidents(connection, spec, present, families=[incidents.VALIDATION])


def _fail_run(run: JobRun, run_id: str, error: Exception) -> Run:
    """Log an error, and record the run as failed with its redacted message.

    A run that another process has recorded after it took over the lease is not changed.
    """
    session, spec = run.session, run.spec
    # Users without access to all groups can read the run, so its error must not list other names.
    text = text_for_readers(session.registry, error, allowed_names=definition_words(spec))
    # Errors of the store describe their cause themselves; a traceback is only logged for other
    # errors.
    is_explained = isinstance(error, FeatureStoreError) and error.__cause__ is None
    _log.error("failed: %s", message_of(error), exc_info=None if is_explained else error)
    with session.registry.transaction() as connection:
        recorded = runs.get(connection, run_id)
        has_lease = isinstance(spec.work, StreamWork) or _has_lease(connection, run, locked=True)
        if not has_lease and recorded.state != runs.RUNNING:
            return recorded
        runs.end(
            connection,
            run_id,
            runs.FAILED,
            memory=_peak_memory(),
            error=text.message,
            hint=text.hint,
        )
        if isinstance(error, ValidationFailed | BadRecord):  # the same rows fail again
            incidents.update_incidents(
                connection,
                spec,
                {incidents.VALIDATION: [text.message]},
                families=[incidents.VALIDATION],
            )
        # Alerts and commands receive the redacted error, without names of other objects.
        return replace(runs.get(connection, run_id), error=text.message, hint=text.hint)


def definition_words(spec: JobSpec) -> frozenset[str]:
    """Return the names that a job's error may contain: the words of its definition."""
    return extract_words(json.dumps(spec.to_json(), ensure_ascii=False))


def _peak_memory() -> int:
    """Return the peak memory of this process in bytes, 0 where it is not measured (Windows)."""
    if resource is None:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _PEAK_UNIT


def latest_dataset_version(session: Session, name: str) -> int:
    """Return the latest version of a dataset, after recovering from writers that died."""
    recover_writes(session)
    return catalog.last_version(session, name)


@contextmanager
def _log_to_file(path: str, *, redact: LogRedactor) -> Iterator[None]:
    """Write this thread's log records to a file; a remote file is uploaded at the end.

    ``redact`` removes details of the machine, and names from warnings, errors and tracebacks.
    """
    thread = threading.get_ident()
    with storage_for(path).growing_file(path) as local_path:
        handler = logging.FileHandler(local_path, encoding="utf-8")
        handler.setFormatter(_LogFormatter(redact))
        # Other threads of the process run other jobs, which have their own files.
        handler.addFilter(lambda record: record.thread == thread)
        # The level would be inherited from the root logger, whose default drops messages below
        # WARNING.
        if _log.level == logging.NOTSET:
            _log.setLevel(logging.INFO)
        root_logger = logging.getLogger()
        root_logger.addHandler(handler)
        try:
            yield
        finally:
            root_logger.removeHandler(handler)
            handler.close()


class _LogFormatter(logging.Formatter):
    def __init__(self, redact: LogRedactor) -> None:
        super().__init__(_LOG_FORMAT)
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        # Only errors list names of other objects.
        is_error = record.levelno >= logging.WARNING or record.exc_info is not None
        return self._redact(super().format(record), lists_names=is_error)
