"""One run of a job: pin inputs, compute, commit the windows, then advance the watermark.

The run is recorded with the number of its Delta transaction before it computes, so that
``recovery`` can find its commit after a crash. Log records of the run go to its own file.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
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
from featurestore.featuregroups.write import Write, create, insert
from featurestore.jobs import target
from featurestore.jobs.compute import Computation, compute
from featurestore.jobs.definitions import JobDefinition
from featurestore.jobs.inputs import PinnedInput, pin_inputs
from featurestore.jobs.run_log import LOGGER, logging_to
from featurestore.jobs.schedule import advanced_watermark
from featurestore.jobs.source_inputs import SourceInputs
from featurestore.jobs.specs import schedule_of
from featurestore.jobs.target import (
    declaration,
    find_target,
    next_transaction,
    windows_metadata,
    without_nulls,
)
from featurestore.model.job import JobSpec
from featurestore.model.source import SourceRead
from featurestore.model.times import Window
from featurestore.plugins.engine import Relation, TimeRange
from featurestore.plugins.observers import Work, observed
from featurestore.recovery import recover as recover_writes
from featurestore.recovery.in_flight import in_flight
from featurestore.registry import jobs, reports, runs
from featurestore.registry.hidden import words_of
from featurestore.registry.runs import Run
from featurestore.registry.stored_errors import UnlistedTexts, unlisted, unlisted_hint
from featurestore.retrieval import FeatureFrame
from featurestore.session import Session
from featurestore.training import catalog

# Calls the function of a training job with the store and a window; the facade supplies it, because
# this module does not know the store.
TrainingCall = Callable[[JobDefinition, Window], object]

_log = logging.getLogger(LOGGER)
# A peak is in KiB on Linux and in bytes on macOS.
_PEAK_UNIT = 1 if sys.platform == "darwin" else 1024


def no_training(definition: JobDefinition, _: Window) -> object:
    """Raise InvalidJob: jobs without a function cannot be called."""
    raise InvalidJob(f"Job {definition.spec.name!r} has no function.")


@dataclass(frozen=True)
class Attempt:
    """A run to start: its job, neighbouring windows and the owner of the lease."""

    job: jobs.RegisteredJob
    definition: JobDefinition
    windows: tuple[Window, ...]
    owner: str
    call: TrainingCall

    @property
    def spec(self) -> JobSpec:
        """The job's definition, as loaded from its file."""
        return self.definition.spec

    @property
    def window(self) -> Window:
        """The range that spans all windows."""
        return Window(self.windows[0].start, self.windows[-1].end)


@dataclass(frozen=True)
class RunOutput:
    """The output of a run: rows, Delta version (or version of the dataset), version of the group.

    ``record`` writes further records in the transaction that ends the run.
    """

    rows: int = 0
    delta_version: int | None = None
    target_version: int | None = None
    record: Callable[[Connection], None] | None = None


@dataclass(frozen=True)
class StartedRun:
    """A run that has started: its record, pinned inputs and target group."""

    run: Run
    inputs: tuple[PinnedInput, ...]
    group: OpenGroup | None


def run_windows(session: Session, attempt: Attempt) -> Run:
    """Compute neighbouring windows in one commit; the caller has the job's lease.

    A failure is recorded in the run, not raised, and its windows stay due.
    """
    return run_recorded(session, attempt, partial(_compute_and_write, session, attempt))


def run_recorded(
    session: Session, attempt: Attempt, work: Callable[[StartedRun], RunOutput]
) -> Run:
    """Record the start of a run, do its work, and record its end."""
    spec = attempt.spec
    run_id = f"job-{uuid.uuid4().hex}"
    log = os.path.join(session.logs_path, spec.name, f"{run_id}.log")
    run = Run(
        run_id=run_id,
        job=spec.name,
        job_version=attempt.job.version,
        window=attempt.window,
        windows=len(attempt.windows),
        state=runs.RUNNING,
        owner=attempt.owner,
        log=log,
    )
    own_names = definition_words(spec)
    with (
        UnlistedTexts(session.registry, allowed_names=own_names) as without_names,
        logging_to(log, without_names=without_names),
    ):
        _log.info(
            "%s, %d windows from %s to %s", spec.name, run.windows, run.window.start, run.window.end
        )
        work_record = Work(
            "job", spec.name, run_id.removeprefix("job-"), session.location, job=spec
        )
        work_record.window = run.window
        with observed(work_record):
            try:
                recording = _start(session, attempt, run)
                work_record.inputs = tuple(each.to_json() for each in recording.inputs)
                output = work(recording)
            except Exception as error:  # code of jobs may raise any error: it ends the run
                work_record.error = error
                return _fail_run(session, spec, run_id, error)
            return _end_run(session, attempt, recording.run, output)


def _start(session: Session, attempt: Attempt, run: Run) -> StartedRun:
    """Pin the inputs and record the run; a run whose inputs are missing is recorded, too."""
    spec = attempt.spec
    try:
        inputs = pin_inputs(session, spec)
        group = find_target(session, spec) if spec.fills_group or spec.stream else None
    except FeatureStoreError:
        with session.registry.transaction() as connection:
            runs.begin(connection, run)
        raise
    job_inputs: dict[str, Any] = {"inputs": [each.to_json() for each in inputs]}
    if spec.kind == "training":
        run = replace(run, inputs={**job_inputs, "before": last_dataset(session, spec.target)})
    elif not spec.fills_group:  # a stream has a transaction for each of its partitions
        run = replace(run, inputs=job_inputs)
    else:
        run = replace(run, inputs=job_inputs, transaction=next_transaction(group, spec, run.window))
    with session.registry.transaction() as connection:
        runs.begin(connection, run)
    return StartedRun(run, inputs, group)


def _compute_and_write(session: Session, attempt: Attempt, recording: StartedRun) -> RunOutput:
    group = recording.group
    schema = None if group is None else group.spec.schema
    with in_flight(session, kind="stage", name=attempt.spec.name, version=1) as staged_write:
        staging = staged_write.rows
        sources = SourceInputs(session, attempt.spec, recording.inputs, staging)
        computation = Computation(
            session,
            attempt.definition,
            recording.inputs,
            staging,
            sources,
            schema,
            has_rows=group is not None and group.state.rows > 0,
        )
        rows = compute(computation, attempt.windows)
        if rows is None and (group is None or attempt.spec.mode != "replace_window"):
            _log.info("no rows")
            version = None if group is None else group.spec.version
            _delete_keys(session, attempt, recording, sources, version, [])
            return RunOutput(target_version=version)
        if rows is None:
            rows = _no_rows(session, schema, os.path.join(staging, "nothing"))
        check_lease(session, attempt)
        rows, deleted_keys = target.split_tombstones(session, attempt.spec, rows)
        output = _write(session, attempt, recording, rows, sources.reads)
        _delete_keys(session, attempt, recording, sources, output.target_version, deleted_keys)
        return output


def _delete_keys(
    session: Session,
    attempt: Attempt,
    recording: StartedRun,
    sources: SourceInputs,
    version: int | None,
    deleted_keys: Sequence[dict[str, Any]],
) -> None:
    """Delete the keys that the source deleted, after the rows of the run are committed."""
    if version is None:
        return
    check_lease(session, attempt)
    run_id = recording.run.run_id
    if deleted_keys:
        target.delete_tombstones(session, attempt.spec, version, deleted_keys, run_id=run_id)
    if sources.keys is not None:
        target.delete_missing(session, attempt.spec, version, sources.keys, run_id=run_id)


def _no_rows(session: Session, schema: pa.Schema | None, path: str) -> Relation:
    """Return staged rows without content, to replace windows that have no rows."""
    assert schema is not None
    empty_rows = session.engine.from_arrow(schema.empty_table().to_reader())
    return session.engine.stage(empty_rows, path)


def check_lease(session: Session, attempt: Attempt) -> None:
    """Refuse to commit when another process has taken over the lease of the job."""
    with session.registry.reading() as connection:
        lease_owner = jobs.lease_owner(connection, attempt.spec.name)
    if lease_owner != attempt.owner:
        raise JobLeased(
            f"Job {attempt.spec.name!r} was taken over by {lease_owner} while this run computed."
        )


def _write(
    session: Session,
    attempt: Attempt,
    recording: StartedRun,
    rows: Relation,
    reads: Sequence[SourceRead],
) -> RunOutput:
    spec, window, group = attempt.spec, attempt.window, recording.group
    mode: str = spec.mode
    replaced_range = None
    if spec.mode == "replace_window":
        mode = "replace"
        replaced_range = TimeRange(str(spec.event_time), window.start, window.end, spec.closed)
    typed = without_nulls(session, spec, rows, () if group is None else group.spec.schema.names)
    write = Write(
        mode=mode,
        replace=replaced_range,
        schema_change="add",
        transaction=recording.run.transaction,
        validation=spec.validation,
        run_id=recording.run.run_id,
        inputs=tuple(each.to_json() for each in recording.inputs if each.kind != "source"),
        reads=reads or None,
        window=windows_metadata(spec, window, len(attempt.windows)),
        staged=spec.tombstone is None and typed is rows,
    )
    frame = FeatureFrame(session, typed)
    if group is None:
        created_group, commit = create(
            session, frame, spec.target, declared=declaration(spec), write=write
        )
        return RunOutput(commit.rows_in, commit.delta_version, created_group.version)
    commit = insert(session, frame, spec.target, version=group.spec.version, write=write)
    if not commit.applied:
        _log.info("the table has these windows from an earlier run")
        return RunOutput(0, commit.delta_version, group.spec.version)
    return RunOutput(commit.rows_in, commit.delta_version, group.spec.version)


def _end_run(session: Session, attempt: Attempt, run: Run, output: RunOutput) -> Run:
    """Record run, windows and watermark in one transaction.

    The rows are committed by now: if the registry fails, the next run finds the commit.
    """
    figures: dict[str, Any] = {
        "rows": output.rows,
        "delta_version": output.delta_version,
        "memory": _peak_memory(),
    }
    try:
        with session.registry.transaction() as connection:
            runs.end(connection, run.run_id, runs.DONE, **figures)
            if attempt.spec.stream is None:
                record_computed(
                    connection, attempt.spec, attempt.windows, run, output.target_version
                )
            if output.record is not None:
                output.record(connection)
            _update_alerts(connection, attempt.spec, run)
            recorded_run = runs.get(connection, run.run_id)
    except RegistryError as error:
        _log.warning("done; the next run of the job records it: %s", error.message)
        return replace(run, state=runs.DONE, **figures)
    seconds = recorded_run.seconds or 0
    _log.info("done: %d rows, version %s, %.3f s", output.rows, output.delta_version, seconds)
    return recorded_run


def record_computed(
    connection: Connection,
    spec: JobSpec,
    windows: Sequence[Window],
    run: Run,
    target_version: int | None,
) -> None:
    """Record windows as done and move the watermark to the first gap."""
    runs.computed(
        connection,
        spec.name,
        windows,
        run_id=run.run_id,
        target_version=target_version,
        inputs=run.inputs,
    )
    watermark = jobs.held_watermark(connection, spec.name)
    states = [runs.DONE, runs.STALE]
    computed = runs.windows_in(
        connection, spec.name, states=states, start=watermark, besides=run.run_id
    )
    advanced = advanced_watermark(schedule_of(spec), watermark, computed.union(windows))
    if advanced is not None:
        jobs.advance(connection, spec.name, advanced)


def _update_alerts(connection: Connection, spec: JobSpec, run: Run) -> None:
    """Resolve the failure alerts of a job, and report rows that failed a lenient validation."""
    if not spec.alert:
        return
    if not runs.windows_of(connection, spec.name, states=[runs.FAILED]):
        incidents.update(connection, spec, {}, families=[incidents.FAILURE])
    if spec.fills_group or spec.stream is not None:
        present = {}
        failed_rows = reports.failed_of_run(connection, run.run_id)
        if failed_rows:
            present[incidents.VALIDATION] = failed_rows
        incidents.update(connection, spec, present, families=[incidents.VALIDATION])


def _fail_run(session: Session, spec: JobSpec, run_id: str, error: Exception) -> Run:
    if isinstance(error, FeatureStoreError):
        text, hint = error.message, error.hint
        is_explained = error.__cause__ is None
    else:
        text, hint = f"{type(error).__name__}: {error}", None
        is_explained = False
    _log.error("failed: %s", text, exc_info=None if is_explained else error)
    own_names = definition_words(spec)
    text = unlisted(session.registry, text, allowed_names=own_names)
    hint = unlisted_hint(session.registry, hint, allowed_names=own_names)
    with session.registry.transaction() as connection:
        runs.end(connection, run_id, runs.FAILED, memory=_peak_memory(), error=text, hint=hint)
        if isinstance(error, ValidationFailed | BadRecord):  # the same rows fail again
            incidents.update(
                connection,
                spec,
                {incidents.VALIDATION: [text]},
                families=[incidents.VALIDATION],
            )
        # Alerts and commands get the error as it is stored, without names of other objects.
        return replace(runs.get(connection, run_id), error=text, hint=hint)


def definition_words(spec: JobSpec) -> frozenset[str]:
    """Return the names that an error of a job may contain: the words of its definition."""
    return words_of(json.dumps(spec.to_json(), ensure_ascii=False))


def _peak_memory() -> int:
    """Return the peak memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _PEAK_UNIT


def last_dataset(session: Session, name: str) -> int:
    """Return the last version of a dataset, after recovery of writes of dead processes."""
    recover_writes(session)
    return catalog.last_version(session, name)
