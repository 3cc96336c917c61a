"""What becomes of runs after a crash, and of all runs after the registry was lost.

A run is in the registry, with the number of its transaction, before it computes. So whoever takes
the lease next can tell from the table what a dead run came to: with its commit there the run is
done, and only its record was missing; without it nothing of it is visible and its windows are due.
"""

from __future__ import annotations

from sqlalchemy.engine import Connection

from featurestore.jobs.run import Written, last_dataset, record_computed
from featurestore.jobs.schedule import windows_between
from featurestore.jobs.specs import schedule_of
from featurestore.jobs.streams.commits import (
    restore_stream,
    restore_stream_runs,
    stream_commits,
)
from featurestore.jobs.target import JobCommit, commits_of_job, job_commits
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.job import JobSpec
from featurestore.recovery import owners
from featurestore.recovery import recover as recover_writes
from featurestore.registry import featuregroups, jobs, runs
from featurestore.registry.runs import Run
from featurestore.session import Session
from featurestore.storage import files
from featurestore.training import catalog


def recover(session: Session, name: str, *, shared: bool = False) -> list[Run]:
    """Record what the runs of dead processes came to, and return them.

    The caller holds the job's lease, so whatever is recorded as running is dead; or the job is
    ``shared`` by several runners, of which some may be alive.
    """
    with session.registry.reading() as connection:
        left = runs.of_job(connection, name, state=runs.RUNNING)
        if shared:
            left = [run for run in left if not _is_alive(session, connection, run)]
    if left:
        recover_writes(session)
    return [_recovered(session, run) for run in left]


def _is_alive(session: Session, connection: Connection, run: Run) -> bool:
    return owners.is_alive(connection, session.location, run.owner.partition("/")[0])


def restore_runs(connection: Connection, _: FeatureGroupSpec, path: str) -> None:
    """Record the successful runs that the commits of a group's table tell of."""
    for found in reversed(job_commits(path)):
        runs.restore(connection, _run(found))
    restore_stream_runs(connection, path)


def restore(connection: Connection, session: Session, spec: JobSpec) -> None:
    """Bring back runs, computed windows and watermark of a job from its group, oldest first."""
    if spec.stream is not None:
        restore_stream(connection, session, spec)
    if not spec.fills_group:
        return
    for version in featuregroups.versions(connection, spec.target):
        path = session.featuregroup_path(spec.target, version)
        if not files.is_directory(path):
            continue
        for found in reversed(job_commits(path, spec.name)):
            run = _run(found)
            runs.restore(connection, run)
            _record(connection, spec, run, version)


def _recovered(session: Session, run: Run) -> Run:
    with session.registry.reading() as connection:
        spec = jobs.definition(connection, run.job, run.job_version)
    if spec.stream is not None:
        return _recovered_stream(session, spec, run)
    written = _written(session, spec, run)
    with session.registry.transaction() as connection:
        if written is None:
            error, hint = "The process died before it committed.", "its windows are due again"
            runs.end(connection, run.run_id, runs.FAILED, error=error, hint=hint)
        else:
            rows, delta_version = written.rows, written.delta_version
            runs.end(connection, run.run_id, runs.DONE, rows=rows, delta_version=delta_version)
            _record(connection, spec, run, written.target_version)
        recovered = runs.get(connection, run.run_id)
    return recovered


def _recovered_stream(session: Session, spec: JobSpec, run: Run) -> Run:
    """Record that a run of a stream died, and the rows of the micro-batches that it committed."""
    commits = [each for each in stream_commits(session, spec) if each.run == run.run_id]
    rows = sum(each.commit.rows_in for each in commits)
    last = commits[0].commit.version if commits else None
    error, hint = "The process died.", "its micro-batches stay; the next run goes on after them"
    with session.registry.transaction() as connection:
        runs.end(
            connection,
            run.run_id,
            runs.FAILED,
            rows=rows,
            delta_version=last,
            error=error,
            hint=hint,
        )
        return runs.get(connection, run.run_id)


def _record(connection: Connection, spec: JobSpec, run: Run, target_version: int | None) -> None:
    start, end = run.window.start, run.window.end
    windows = windows_between(schedule_of(spec), start, end, limit=run.windows)
    record_computed(connection, spec, windows, run, target_version)


def _written(session: Session, spec: JobSpec, run: Run) -> Written | None:
    """Return what a run that died left in its table, or in its dataset; None for nothing."""
    if spec.kind == "training":
        last = last_dataset(session, spec.target)
        if last <= run.inputs.get("before", last):
            return None
        dataset = catalog.get(session, spec.target, last)
        return Written(sum(dataset.num_rows(split) for split in dataset.splits), last, last)
    if not spec.fills_group:  # what a monitor found is recorded with the end of its run
        return None
    for version, found in commits_of_job(session, spec):
        if found.commit.note.get("run") == run.run_id:
            return Written(found.commit.rows_in, found.commit.version, version)
    return None


def _run(found: JobCommit) -> Run:
    commit = found.commit
    return Run(
        run_id=str(commit.note.get("run")),
        job=found.job,
        job_version=0,
        window=found.window,
        windows=found.count,
        state=runs.DONE,
        owner="restored",
        inputs={"inputs": list(commit.note.get("inputs") or ())},
        started=commit.time,
        ended=commit.time,
        rows=commit.rows_in,
        delta_version=commit.version,
    )
