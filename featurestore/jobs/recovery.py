"""Recovery of runs after a crash, and of all runs after the registry was lost.

Before a run computes, the registry records it with its transaction number. The next owner of the
lease checks the table of a dead run: if the table contains the commit, only the result of the run
was not recorded. Otherwise no rows of the run are visible, and its windows are still due.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.engine import Connection

from featurestore.delta.history import LogCommit, read_history
from featurestore.delta.log import is_delta_table
from featurestore.errors import InvalidJob, JobFailed
from featurestore.featuregroups import WriteRequest, insert
from featurestore.featuregroups.writers import select_writers
from featurestore.jobs.run import RunOutput, latest_dataset_version, record_computed
from featurestore.jobs.schedule import check_schedule, windows_between
from featurestore.jobs.target import (
    JobCommit,
    find_target,
    iter_job_commits,
    job_commits,
    parse_grid,
)
from featurestore.jobs.windows import Coverage, merge_ranges, overlaps_itself
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.job import (
    GroupWork,
    JobSpec,
    StreamWork,
    TrainingWork,
    WindowedWork,
)
from featurestore.model.stream import StreamSpec
from featurestore.model.times import Window
from featurestore.plugins import observers
from featurestore.plugins.observers import Work
from featurestore.recovery import liveness
from featurestore.recovery import recover as recover_writes
from featurestore.recovery.liveness import hold_job_lease
from featurestore.registry import featuregroups, jobs, runs
from featurestore.registry.runs import Run
from featurestore.session import Session
from featurestore.streams.replay import Replayed, replay
from featurestore.training import catalog


@dataclass(frozen=True)
class StreamCommit:
    """A commit of a stream job: its run, topic, next offsets and number of bad records."""

    job: str
    run: str
    topic: str
    topic_id: str | None
    offsets: Mapping[int, int]
    bad: int
    commit: LogCommit


def stream_commits(session: Session, spec: JobSpec) -> list[StreamCommit]:
    """Return the commits of a stream job in the latest version of its group, newest first."""
    with session.registry.reading() as connection:
        versions = featuregroups.versions(connection, spec.target)
    if not versions:
        return []
    path = session.featuregroup_path(spec.target, max(versions))
    return [commit for commit in _iter_stream_commits(path) if commit.job == spec.name]


def _iter_stream_commits(path: str) -> Iterator[StreamCommit]:
    if is_delta_table(path):
        for commit in read_history(path):
            stream_commit = parse_stream_commit(commit)
            if stream_commit is not None:
                yield stream_commit


def parse_stream_commit(commit: LogCommit) -> StreamCommit | None:
    """Parse the stream metadata of a commit; return None if it is missing or invalid."""
    metadata = commit.user_metadata.get("stream")
    if not isinstance(metadata, Mapping):
        return None
    try:
        offsets = {int(number): int(end) for number, end in dict(metadata["offsets"]).items()}
        job, run, topic = metadata["job"], metadata["run"], metadata["topic"]
        identity = metadata.get("topic_id")
        if not all(isinstance(text, str) for text in (job, run, topic, identity or "")):
            return None
        return StreamCommit(job, run, topic, identity, offsets, int(metadata["bad"]), commit)
    # Any program can write commit metadata, so invalid metadata must not prevent a recovery.
    except (KeyError, TypeError, ValueError):
        return None


def restore_stream_runs(connection: Connection, path: str) -> None:
    """Restore the runs of stream jobs from the commits of a table."""
    commits_by_run: dict[str, list[StreamCommit]] = {}
    # The history is newest first; a run starts with its oldest commit.
    for stream_commit in reversed(list(_iter_stream_commits(path))):
        commits_by_run.setdefault(stream_commit.run, []).append(stream_commit)
    for run_id, run_commits in commits_by_run.items():
        first, last = run_commits[0].commit, run_commits[-1].commit
        run = Run(
            run_id,
            run_commits[0].job,
            job_version=0,
            window=Window(first.time, first.time),
            windows=1,
            state=runs.DONE,
            owner="restored",
            started=first.time,
            ended=last.time,
            rows=sum(stream_commit.commit.rows_in for stream_commit in run_commits),
            delta_version=last.version,
        )
        runs.restore(connection, run)


def restore_stream(
    connection: Connection, session: Session, spec: JobSpec, stream: StreamSpec
) -> None:
    """Restore the progress of a stream job from its commits; its lag remains unknown."""
    if jobs.stream_status(connection, spec.name) is not None:
        return
    versions = featuregroups.versions(connection, spec.target)
    if not versions:
        return
    path = session.featuregroup_path(spec.target, max(versions))
    offsets: dict[int, int] = {}
    bad, last = 0, None
    for stream_commit in _iter_stream_commits(path):
        if stream_commit.job != spec.name or stream_commit.topic != stream.topic:
            continue
        last = last or stream_commit
        bad += stream_commit.bad
        # Commits are newest first, so the offsets of earlier iterations are kept.
        offsets = {**stream_commit.offsets, **offsets}
    if last is None:
        return
    jobs.record_offsets(connection, spec.name, last.topic, offsets, ends={})
    jobs.record_progress(
        connection,
        spec.name,
        topic_id=last.topic_id,
        rows_per_second=None,
        bad_records=bad,
        last_commit=last.commit.time,
        delta_version=last.commit.version,
    )


def recover_dead_runs(session: Session, name: str, *, shared: bool = False) -> list[Run]:
    """Record the results of runs whose process died, and return these runs.

    The caller holds the job's lease, so every run that is still recorded as running is dead. A
    ``shared`` job has several concurrent runners, so the process of each run is checked.
    """
    with session.registry.reading() as connection:
        running = runs.runs_of_job(connection, name, state=runs.RUNNING)
        if shared:
            running = [
                run
                for run in running
                if not liveness.is_alive(connection, session.location, run.owner.partition("/")[0])
            ]
    # Resolve the writes of the dead process first, so that the registry knows the versions that
    # they created, and their staged rows are removed.
    if running:
        recover_writes(session)
    return [_recover_run(session, run) for run in running]


def restore_runs(connection: Connection, _: FeatureGroupSpec, path: str) -> None:
    """Restore the successful runs from the commits of a group's table."""
    for job_commit in reversed(job_commits(path)):
        runs.restore(connection, _to_run(job_commit))
    restore_stream_runs(connection, path)


def restore(
    connection: Connection, session: Session, spec: JobSpec, *, former: Collection[str] = ()
) -> None:
    """Restore runs and computed windows of a job from the commits of its group.

    ``former`` are jobs that wrote the group and no longer do: their windows are those of the job.
    """
    if isinstance(spec.work, StreamWork):
        restore_stream(connection, session, spec, spec.work.stream)
    if not isinstance(spec.work, WindowedWork):
        return
    specs = [job.spec for job in jobs.list_all(connection)]
    writers = {*select_writers(specs, spec.target)} - {spec.name, *former}
    for version in featuregroups.versions(connection, spec.target):
        path = session.featuregroup_path(spec.target, version)
        own_commits = [
            job_commit for job_commit in job_commits(path) if job_commit.job not in writers
        ]
        for job_commit, windows in reversed(list(iter_visible_windows(spec, own_commits))):
            run = _to_run(job_commit)
            runs.restore(connection, run)
            runs.record_computed_windows(
                connection,
                spec.name,
                windows,
                run_id=run.run_id,
                target_version=version,
                inputs=run.inputs,
            )


def iter_visible_windows(
    spec: JobSpec, newest_first: Sequence[JobCommit]
) -> Iterator[tuple[JobCommit, list[Window]]]:
    """Yield the commits of a job with the windows whose rows later commits have not replaced."""
    later_ranges: list[Window] = []
    for job_commit in newest_first:
        grid = parse_grid(job_commit.commit.user_metadata)
        # A commit of an earlier release does not contain its schedule.
        schedule = (
            replace(check_schedule(spec.schedule), start=None) if grid is None else grid.schedule
        )
        windows = windows_between(
            schedule, job_commit.window.start, job_commit.window.end, limit=job_commit.count
        )
        # A commit of an earlier release does not contain its schedule.
        bounds = (job_commit.window.start, job_commit.window.end)
        if len(windows) != job_commit.count or (windows[0].start, windows[-1].end) != bounds:
            windows = [job_commit.window]
        if not overlaps_itself(schedule):
            covered = Coverage(later_ranges, schedule)
            visible = [window for window in windows if window not in covered]
            later_ranges = merge_ranges([*later_ranges, *windows])
            windows = visible
        yield job_commit, windows


def _recover_run(session: Session, run: Run) -> Run:
    """Record a dead run as done if its output was committed, otherwise as failed."""
    with session.registry.reading() as connection:
        spec = jobs.definition(connection, run.job, run.job_version)
    if isinstance(spec.work, StreamWork):
        return _report_end(session, spec, _recover_stream_run(session, spec, run))
    output = _committed_output(session, spec, run)
    if output is None and not revoke_transaction(session, spec, run):
        output = _committed_output(session, spec, run)
    with session.registry.transaction() as connection:
        if output is None:
            error, hint = "The process died before it committed.", "its windows are due again"
            runs.end(connection, run.run_id, runs.FAILED, error=error, hint=hint)
        else:
            rows, delta_version = output.rows, output.delta_version
            runs.end(connection, run.run_id, runs.DONE, rows=rows, delta_version=delta_version)
            windows = windows_between(
                check_schedule(spec.schedule), run.window.start, run.window.end, limit=run.windows
            )
            record_computed(connection, spec, windows, run, output.target_version)
        recovered = runs.get(connection, run.run_id)
    return _report_end(session, spec, recovered)


def _report_end(session: Session, spec: JobSpec, run: Run) -> Run:
    """Notify observers of the end of a run whose process died, and return the run."""
    work = Work("job", run.job, run.run_id.removeprefix("job-"), session.location, job=spec)
    work.window, work.inputs = run.window, tuple((run.inputs or {}).get("inputs", ()))
    if run.state == runs.FAILED:
        work.process_died, work.error = True, JobFailed(run.error or "The process died.")
    observers.notify_end(work)
    return run


def revoke_transaction(session: Session, spec: JobSpec, run: Run) -> bool:
    """Commit the transaction of a dead run without rows; return False if the run has committed it.

    A process on another machine may only be suspended, even just before its commit. When it
    resumes, the table refuses the commit, because it contains the transaction.
    """
    owner = run.owner.partition("/")[0]
    may_resume = liveness.is_on_another_machine(session.location, owner)
    group = None
    if may_resume and isinstance(spec.work, GroupWork):
        group = find_target(session, spec.work)
    if group is None or run.transaction is None:
        return True
    request = WriteRequest(
        spec.target,
        version=group.spec.version,
        validation="off",
        transaction=run.transaction,
        run_id=f"{run.run_id}-revoked",
    )
    return insert(session, group.spec.schema.empty_table(), request).applied


def _recover_stream_run(session: Session, spec: JobSpec, run: Run) -> Run:
    """Record a stream run as failed because its process died, with the rows it committed."""
    commits = [
        stream_commit
        for stream_commit in stream_commits(session, spec)
        if stream_commit.run == run.run_id
    ]
    rows = sum(stream_commit.commit.rows_in for stream_commit in commits)
    last_version = commits[0].commit.version if commits else None
    error = "The process died."
    hint = "its committed micro-batches remain; the next run continues after them"
    with session.registry.transaction() as connection:
        runs.end(
            connection,
            run.run_id,
            runs.FAILED,
            rows=rows,
            delta_version=last_version,
            error=error,
            hint=hint,
        )
        return runs.get(connection, run.run_id)


def _committed_output(session: Session, spec: JobSpec, run: Run) -> RunOutput | None:
    """Return the output that a dead run committed to its table or dataset, or None."""
    if isinstance(spec.work, TrainingWork):
        # The run recorded the latest version before it wrote, so a later version is its output.
        last = latest_dataset_version(session, spec.target)
        if last <= run.inputs.get("before", last):
            return None
        dataset = catalog.get(session, spec.target, last)
        return RunOutput(sum(dataset.num_rows(split) for split in dataset.splits), last, last)
    # Findings of a monitor are recorded with the end of its run.
    if not isinstance(spec.work, WindowedWork):
        return None
    for version, job_commit in iter_job_commits(session, spec):
        if job_commit.commit.user_metadata.get("run") == run.run_id:
            return RunOutput(job_commit.commit.rows_in, job_commit.commit.version, version)
    return None


def _to_run(job_commit: JobCommit) -> Run:
    """Build the record of a successful run from its commit."""
    commit = job_commit.commit
    inputs: dict[str, Any] = {"inputs": list(commit.user_metadata.get("inputs") or ())}
    grid = parse_grid(commit.user_metadata)
    if grid is not None:
        inputs["closed"] = grid.closed
    return Run(
        run_id=str(commit.user_metadata.get("run")),
        job=job_commit.job,
        job_version=0,
        window=job_commit.window,
        windows=job_commit.count,
        state=runs.DONE,
        owner="restored",
        inputs=inputs,
        started=commit.time,
        ended=commit.time,
        rows=commit.rows_in,
        delta_version=commit.version,
    )


def replay_quarantine(session: Session, name: str) -> Replayed:
    """Decode the quarantined records of a stream job again, with its current definition.

    Raises:
        JobNotFound: The job does not exist.
        InvalidJob: It does not read a topic, or its group does not have its columns yet.
        JobLeased: The job is running.
    """
    with session.registry.reading() as connection:
        spec = jobs.get(connection, name).spec
    work = spec.work
    if not isinstance(work, StreamWork):
        raise InvalidJob(f"Job {name!r} does not read a topic.", hint="featurestore job list")
    with hold_job_lease(session, name):
        group = find_target(session, work)
        if group is None:
            raise InvalidJob(
                f"Job {name!r} has no feature group with its current columns yet, and therefore no "
                "quarantine.",
                hint=f"featurestore job run {name}",
            )
        return replay(session, name, work, group)
