"""One run: pin, compute, commit exactly the windows, and only then move the watermark.

The run is recorded with the number of its Delta transaction before it computes. Whatever kills it, the next run of the
job finds the record: if the table has the commit, the run is done and only its record was missing; if not, nothing of
it is visible and the windows are still due.
"""

from __future__ import annotations

import logging
import os
import resource
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.engine import Connection

from featurestore.delta import commits
from featurestore.errors import FeatureStoreError, JobLeased
from featurestore.featuregroups.create import create
from featurestore.featuregroups.table import OpenGroup
from featurestore.featuregroups.write import Write, insert
from featurestore.jobs.compute import Computation, compute
from featurestore.jobs.definitions import JobDefinition
from featurestore.jobs.inputs import PinnedInput, pin
from featurestore.jobs.logs import LOGGER, logging_to
from featurestore.jobs.schedule import moved_watermark, windows_between
from featurestore.jobs.specs import schedule_of
from featurestore.jobs.target import commits_of_job, declaration, target, transaction
from featurestore.model.job import JobSpec
from featurestore.model.window import Window
from featurestore.plugins.engine import Relation, TimeRange
from featurestore.recovery import recover as recover_writes
from featurestore.registry import jobs, runs
from featurestore.registry.runs import Run
from featurestore.retrieval import FeatureFrame
from featurestore.session import Session
from featurestore.storage import files
from featurestore.training import catalog

# Calls the function of a training job with the store and a window; the facade gives it, as the store is its.
TrainingCall = Callable[[JobDefinition, Window], object]

_log = logging.getLogger(LOGGER)
# A peak is in KiB on Linux and in bytes on macOS.
_PEAK_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True)
class Attempt:
    """A run about to be made: the registered job, its definition, neighbouring windows, and who makes it."""

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
    """What a run left: rows, the Delta version (or the version of a dataset), the version of the group."""

    rows: int = 0
    delta_version: int | None = None
    target_version: int | None = None


@dataclass(frozen=True)
class Recording:
    """A run that has begun: its record, and what it reads."""

    run: Run
    inputs: tuple[PinnedInput, ...]
    group: OpenGroup | None


def run_windows(session: Session, attempt: Attempt) -> Run:
    """Compute neighbouring windows in one commit and return the run; the caller holds the job's lease.

    A failure is recorded, not raised: the run says what went wrong, and its windows stay due.
    """
    return recorded(
        session, attempt, lambda recording: _compute_and_write(session, attempt, recording)
    )


def recorded(session: Session, attempt: Attempt, work: Callable[[Recording], Written]) -> Run:
    """Do the work of a run between its record and its result."""
    spec = attempt.spec
    run_id = f"job-{uuid.uuid4().hex}"
    log = os.path.join(session.logs_path, spec.name, f"{run_id}.log")
    run = Run(
        run_id,
        spec.name,
        attempt.job.version,
        attempt.window,
        len(attempt.windows),
        runs.RUNNING,
        attempt.owner,
        log=log,
    )
    with logging_to(log):
        _log.info(
            "%s, %d windows from %s to %s", spec.name, run.windows, run.window.start, run.window.end
        )
        try:
            recording = _begin(session, attempt, run)
            written = work(recording)
        except (
            Exception
        ) as error:  # a job's code may raise anything: it ends in the history, not in a crash
            return _failed(session, attempt, run_id, error)
        return _done(session, attempt, recording.run, written)


def recover(session: Session, name: str) -> list[Run]:
    """Recover the runs of dead processes, and return them; the caller holds the job's lease.

    What was committed becomes done with its windows and watermark; the rest becomes failed.
    """
    with session.registry.reading() as connection:
        left = runs.of_job(connection, name, state=runs.RUNNING)
    if left:
        recover_writes(session)
    return [_recovered(session, run) for run in left]


def _begin(session: Session, attempt: Attempt, run: Run) -> Recording:
    """Record the run, also when its inputs are missing, and return it with what it reads pinned."""
    spec = attempt.spec
    try:
        inputs = pin(session, spec)
        group = None if spec.kind == "training" else target(session, spec)
    except FeatureStoreError:
        with session.registry.transaction() as connection:
            runs.begin(connection, run)
        raise
    number = None if spec.kind == "training" else transaction(group, spec, run.window)
    told: dict[str, Any] = {"inputs": [each.to_json() for each in inputs]}
    if spec.kind == "training":
        told["before"] = _last_dataset(session, spec.target)
    run = replace(run, transaction=number, inputs=told)
    with session.registry.transaction() as connection:
        runs.begin(connection, run)
    return Recording(run, inputs, group)


def _compute_and_write(session: Session, attempt: Attempt, recording: Recording) -> Written:
    staging = session.staging_path(recording.run.run_id)
    group = recording.group
    try:
        like = None if group is None else group.spec.schema
        computation = Computation(session, attempt.definition, recording.inputs, staging, like)
        rows = compute(computation, attempt.windows)
        if rows is None:
            if group is None or attempt.spec.mode != "replace_window":
                _log.info("no rows")
                return Written(target_version=None if group is None else group.spec.version)
            nothing = session.engine.from_arrow(group.spec.schema.empty_table().to_reader())
            rows = session.engine.stage(nothing, os.path.join(staging, "nothing"))
        _check_lease(session, attempt)
        return _write(session, attempt, recording, rows)
    finally:
        files.remove(staging, below=session.location)


def _check_lease(session: Session, attempt: Attempt) -> None:
    """Refuse to commit when another process has taken the job over, thinking this one dead."""
    with session.registry.reading() as connection:
        holder = jobs.lease_owner(connection, attempt.spec.name)
    if holder != attempt.owner:
        raise JobLeased(
            f"Job {attempt.spec.name!r} was taken over by {holder} while this run computed."
        )


def _write(session: Session, attempt: Attempt, recording: Recording, rows: Relation) -> Written:
    spec, window, group = attempt.spec, attempt.window, recording.group
    replacing = spec.mode == "replace_window"
    write = Write(
        mode="replace" if replacing else spec.mode,
        replace=TimeRange(str(spec.event_time), window.start, window.end, spec.closed)
        if replacing
        else None,
        schema_change="add",
        transaction=recording.run.transaction,
        validation=spec.validation,
        run_id=recording.run.run_id,
        inputs=tuple(each.to_json() for each in recording.inputs),
        window={
            "job": spec.name,
            "start": window.start.isoformat(),
            "end": window.end.isoformat(),
            "count": len(attempt.windows),
        },
        staged=True,
    )
    frame = FeatureFrame(session, rows)
    if group is None:
        made, commit = create(session, frame, spec.target, declared=declaration(spec), write=write)
        return Written(commit.rows_in, commit.delta_version, made.version)
    commit = insert(session, frame, spec.target, version=group.spec.version, write=write)
    if not commit.applied:
        _log.info("the table has these windows from an earlier run")
        return Written(0, commit.delta_version, group.spec.version)
    return Written(commit.rows_in, commit.delta_version, group.spec.version)


def _done(session: Session, attempt: Attempt, run: Run, written: Written) -> Run:
    """Record run, windows and watermark together."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _PEAK_UNIT
    with session.registry.transaction() as connection:
        runs.end(
            connection,
            run.run_id,
            runs.DONE,
            rows=written.rows,
            delta_version=written.delta_version,
            memory=peak,
        )
        record_computed(connection, attempt.spec, attempt.windows, run, written.target_version)
        done = runs.get(connection, run.run_id)
    _log.info(
        "done: %d rows, version %s, %.3f s", written.rows, written.delta_version, done.seconds or 0
    )
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


def _failed(session: Session, attempt: Attempt, run_id: str, error: Exception) -> Run:
    known = isinstance(error, FeatureStoreError)
    text = (
        error.message
        if isinstance(error, FeatureStoreError)
        else f"{type(error).__name__}: {error}"
    )
    hint = error.hint if isinstance(error, FeatureStoreError) else None
    _log.error("failed: %s", text, exc_info=None if known and not error.__cause__ else error)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _PEAK_UNIT
    with session.registry.transaction() as connection:
        runs.end(connection, run_id, runs.FAILED, memory=peak, error=text, hint=hint)
        return runs.get(connection, run_id)


def _recovered(session: Session, run: Run) -> Run:
    with session.registry.reading() as connection:
        spec = jobs.definition(connection, run.job, run.job_version)
    found = _committed(session, spec, run)
    with session.registry.transaction() as connection:
        if found is None:
            error, hint = "The process died before it committed.", "its windows are due again"
            runs.end(connection, run.run_id, runs.FAILED, error=error, hint=hint)
        else:
            runs.end(
                connection,
                run.run_id,
                runs.DONE,
                rows=found.rows,
                delta_version=found.delta_version,
            )
            windows = windows_between(schedule_of(spec), run.window.start, run.window.end)
            record_computed(connection, spec, windows, run, found.target_version)
        recovered = runs.get(connection, run.run_id)
    files.remove(session.staging_path(run.run_id), below=session.location)
    return recovered


def _last_dataset(session: Session, name: str) -> int:
    """Return the last version of a dataset, also one whose export died between the manifest and the registry."""
    recover_writes(session)
    return catalog.last_version(session, name)


def _committed(session: Session, spec: JobSpec, run: Run) -> Written | None:
    """Return what a run that died left in its table, if anything."""
    if spec.kind == "training":
        last = _last_dataset(session, spec.target)
        if last <= run.inputs.get("before", last):
            return None
        dataset = catalog.get(session, spec.target, last)
        return Written(sum(dataset.num_rows(split) for split in dataset.splits), last, last)
    for version, commit in commits_of_job(session, spec):
        if commit.note.get("run") == run.run_id:
            path = session.featuregroup_path(spec.target, version)
            return Written(commits.commit_of(path, commit.version).rows_in, commit.version, version)
    return None
