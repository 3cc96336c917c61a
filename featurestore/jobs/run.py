"""One run: pin, compute, commit exactly the windows, and only then move the watermark.

The run is recorded with the number of its Delta transaction before it computes; ``recovery`` says
what that is good for. What the library and the job's code log meanwhile goes into the run's file.
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
from featurestore.featuregroups.create import create
from featurestore.featuregroups.table import OpenGroup
from featurestore.featuregroups.write import Write, insert
from featurestore.jobs import deletions
from featurestore.jobs.compute import Computation, compute
from featurestore.jobs.definitions import JobDefinition
from featurestore.jobs.inputs import PinnedInput, pin
from featurestore.jobs.run_log import LOGGER, logging_to
from featurestore.jobs.schedule import moved_watermark
from featurestore.jobs.source_inputs import SourceInputs
from featurestore.jobs.specs import schedule_of
from featurestore.jobs.target import (
    declaration,
    note_of_windows,
    target,
    transaction,
    without_nulls,
)
from featurestore.model.job import JobSpec
from featurestore.model.source import SourceRead
from featurestore.model.window import Window
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

# Calls the function of a training job with the store and a window; the facade gives it, as the
# store is its.
TrainingCall = Callable[[JobDefinition, Window], object]

_log = logging.getLogger(LOGGER)
# A peak is in KiB on Linux and in bytes on macOS.
_PEAK_UNIT = 1 if sys.platform == "darwin" else 1024


def no_training(definition: JobDefinition, _: Window) -> object:
    """Refuse to call a function: what is run has none."""
    raise InvalidJob(f"Job {definition.spec.name!r} has no function.")


@dataclass(frozen=True)
class Attempt:
    """A run about to be made: of which job, for which neighbouring windows, by whom."""

    job: jobs.RegisteredJob
    definition: JobDefinition
    windows: tuple[Window, ...]
    owner: str
    call: TrainingCall

    @property
    def spec(self) -> JobSpec:
        """The job's definition, as its file has it."""
        return self.definition.spec

    @property
    def window(self) -> Window:
        """The range of all windows."""
        return Window(self.windows[0].start, self.windows[-1].end)


@dataclass(frozen=True)
class Written:
    """What a run left: rows, Delta version (or version of the dataset), version of the group.

    ``record`` writes what else belongs to its record, in the same transaction.
    """

    rows: int = 0
    delta_version: int | None = None
    target_version: int | None = None
    record: Callable[[Connection], None] | None = None


@dataclass(frozen=True)
class Recording:
    """A run that has begun: its record, and what it reads."""

    run: Run
    inputs: tuple[PinnedInput, ...]
    group: OpenGroup | None


def run_windows(session: Session, attempt: Attempt) -> Run:
    """Compute neighbouring windows in one commit; the caller has the job's lease.

    A failure is recorded, not raised: the run says what went wrong, and its windows stay due.
    """
    return recorded(session, attempt, partial(_compute_and_write, session, attempt))


def recorded(session: Session, attempt: Attempt, work: Callable[[Recording], Written]) -> Run:
    """Do the work of a run between its record and its result."""
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
    own = names_of(spec)
    with (
        UnlistedTexts(session.registry, own=own) as without_names,
        logging_to(log, without_names=without_names),
    ):
        _log.info(
            "%s, %d windows from %s to %s", spec.name, run.windows, run.window.start, run.window.end
        )
        told = Work("job", spec.name, run_id.removeprefix("job-"), session.location, job=spec)
        told.window = run.window
        with observed(told):
            try:
                recording = _begin(session, attempt, run)
                told.inputs = tuple(each.to_json() for each in recording.inputs)
                written = work(recording)
            except Exception as error:  # a job's code may raise anything: the history tells it
                told.error = error
                return _failed(session, spec, run_id, error)
            return _done(session, attempt, recording.run, written)


def _begin(session: Session, attempt: Attempt, run: Run) -> Recording:
    """Record the run, also when its inputs are missing, and return it with what it reads pinned."""
    spec = attempt.spec
    try:
        inputs = pin(session, spec)
        group = target(session, spec) if spec.fills_group or spec.stream else None
    except FeatureStoreError:
        with session.registry.transaction() as connection:
            runs.begin(connection, run)
        raise
    told: dict[str, Any] = {"inputs": [each.to_json() for each in inputs]}
    if spec.kind == "training":
        run = replace(run, inputs={**told, "before": last_dataset(session, spec.target)})
    elif not spec.fills_group:  # a stream has a transaction for each of its partitions
        run = replace(run, inputs=told)
    else:
        run = replace(run, inputs=told, transaction=transaction(group, spec, run.window))
    with session.registry.transaction() as connection:
        runs.begin(connection, run)
    return Recording(run, inputs, group)


def _compute_and_write(session: Session, attempt: Attempt, recording: Recording) -> Written:
    group = recording.group
    schema = None if group is None else group.spec.schema
    with in_flight(session, kind="stage", name=attempt.spec.name, version=1) as computing:
        staging = computing.rows
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
            _delete(session, attempt, recording, sources, version, [])
            return Written(target_version=version)
        if rows is None:
            rows = _no_rows(session, schema, os.path.join(staging, "nothing"))
        check_lease(session, attempt)
        rows, dead = deletions.split(session, attempt.spec, rows)
        written = _write(session, attempt, recording, rows, sources.reads)
        _delete(session, attempt, recording, sources, written.target_version, dead)
        return written


def _delete(
    session: Session,
    attempt: Attempt,
    recording: Recording,
    sources: SourceInputs,
    version: int | None,
    dead: Sequence[dict[str, Any]],
) -> None:
    """Delete what the source says is deleted; the rows of the run are in the group by now."""
    if version is None:
        return
    check_lease(session, attempt)
    run_id = recording.run.run_id
    if dead:
        deletions.delete_dead(session, attempt.spec, version, dead, run_id=run_id)
    if sources.keys is not None:
        deletions.delete_missing(session, attempt.spec, version, sources.keys, run_id=run_id)


def _no_rows(session: Session, schema: pa.Schema | None, place: str) -> Relation:
    """Return no rows, staged: what windows without rows are replaced by."""
    assert schema is not None
    nothing = session.engine.from_arrow(schema.empty_table().to_reader())
    return session.engine.stage(nothing, place)


def check_lease(session: Session, attempt: Attempt) -> None:
    """Refuse to commit when another process has taken the job over, thinking this one dead."""
    with session.registry.reading() as connection:
        holder = jobs.lease_owner(connection, attempt.spec.name)
    if holder != attempt.owner:
        raise JobLeased(
            f"Job {attempt.spec.name!r} was taken over by {holder} while this run computed."
        )


def _write(
    session: Session,
    attempt: Attempt,
    recording: Recording,
    rows: Relation,
    reads: Sequence[SourceRead],
) -> Written:
    spec, window, group = attempt.spec, attempt.window, recording.group
    mode: str = spec.mode
    replaced = None
    if spec.mode == "replace_window":
        mode = "replace"
        replaced = TimeRange(str(spec.event_time), window.start, window.end, spec.closed)
    typed = without_nulls(session, spec, rows, () if group is None else group.spec.schema.names)
    write = Write(
        mode=mode,
        replace=replaced,
        schema_change="add",
        transaction=recording.run.transaction,
        validation=spec.validation,
        run_id=recording.run.run_id,
        inputs=tuple(each.to_json() for each in recording.inputs if each.kind != "source"),
        reads=reads or None,
        window=note_of_windows(spec, window, len(attempt.windows)),
        staged=spec.tombstone is None and typed is rows,
    )
    frame = FeatureFrame(session, typed)
    if group is None:
        made, commit = create(session, frame, spec.target, declared=declaration(spec), write=write)
        return Written(commit.rows_in, commit.delta_version, made.version)
    commit = insert(session, frame, spec.target, version=group.spec.version, write=write)
    if not commit.applied:
        _log.info("the table has these windows from an earlier run")
        return Written(0, commit.delta_version, group.spec.version)
    return Written(commit.rows_in, commit.delta_version, group.spec.version)


def _done(session: Session, attempt: Attempt, run: Run, written: Written) -> Run:
    """Record run, windows and watermark together.

    The rows have landed: where the registry does not answer, the next run finds the commit.
    """
    found: dict[str, Any] = {
        "rows": written.rows,
        "delta_version": written.delta_version,
        "memory": _peak(),
    }
    try:
        with session.registry.transaction() as connection:
            runs.end(connection, run.run_id, runs.DONE, **found)
            if attempt.spec.stream is None:
                record_computed(
                    connection, attempt.spec, attempt.windows, run, written.target_version
                )
            if written.record is not None:
                written.record(connection)
            _tell_of_success(connection, attempt.spec, run)
            done = runs.get(connection, run.run_id)
    except RegistryError as error:
        _log.warning("done, and recorded by the next run of the job: %s", error.message)
        return replace(run, state=runs.DONE, **found)
    seconds = done.seconds or 0
    _log.info("done: %d rows, version %s, %.3f s", written.rows, written.delta_version, seconds)
    return done


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
    others = runs.windows_in(
        connection, spec.name, states=states, start=watermark, besides=run.run_id
    )
    moved = moved_watermark(schedule_of(spec), watermark, others.union(windows))
    if moved is not None:
        jobs.advance(connection, spec.name, moved)


def _tell_of_success(connection: Connection, spec: JobSpec, run: Run) -> None:
    """Tell the job's channels that it works again, or of rows that a lenient policy let land."""
    if not spec.alert:
        return
    if not runs.windows_of(connection, spec.name, states=[runs.FAILED]):
        incidents.update(connection, spec, {}, families=[incidents.FAILURE])
    if spec.fills_group or spec.stream is not None:
        present = {}
        bad = reports.failed_of_run(connection, run.run_id)
        if bad:
            present[incidents.VALIDATION] = bad
        incidents.update(connection, spec, present, families=[incidents.VALIDATION])


def _failed(session: Session, spec: JobSpec, run_id: str, error: Exception) -> Run:
    if isinstance(error, FeatureStoreError):
        text, hint = error.message, error.hint
        explained = error.__cause__ is None
    else:
        text, hint = f"{type(error).__name__}: {error}", None
        explained = False
    _log.error("failed: %s", text, exc_info=None if explained else error)
    own = names_of(spec)
    text = unlisted(session.registry, text, own=own)
    hint = unlisted_hint(session.registry, hint, own=own)
    with session.registry.transaction() as connection:
        runs.end(connection, run_id, runs.FAILED, memory=_peak(), error=text, hint=hint)
        if isinstance(error, ValidationFailed | BadRecord):  # the same rows fail again
            incidents.update(
                connection,
                spec,
                {incidents.VALIDATION: [text]},
                families=[incidents.VALIDATION],
            )
        # Alerts and commands are told of the error as it is stored.
        return replace(runs.get(connection, run_id), error=text, hint=hint)


def names_of(spec: JobSpec) -> frozenset[str]:
    """Return the names that an error of a job may contain: those of its definition."""
    return words_of(json.dumps(spec.to_json(), ensure_ascii=False))


def _peak() -> int:
    """Return the largest memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _PEAK_UNIT


def last_dataset(session: Session, name: str) -> int:
    """Return the last version of a dataset, also one whose process died before registering it."""
    recover_writes(session)
    return catalog.last_version(session, name)
