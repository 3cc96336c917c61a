"""Commit metadata of stream jobs: runs, offsets, the topic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sqlalchemy.engine import Connection

from featurestore.delta.history import LogCommit, read_history
from featurestore.delta.log import is_delta_table
from featurestore.model.job import JobSpec
from featurestore.model.window import Window
from featurestore.registry import featuregroups, runs, streams
from featurestore.registry.runs import Run
from featurestore.session import Session


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
    return [each for each in _commits(path) if each.job == spec.name]


def _commits(path: str) -> Iterator[StreamCommit]:
    if is_delta_table(path):
        for commit in read_history(path):
            stream_commit = parse_stream_commit(commit)
            if stream_commit is not None:
                yield stream_commit


def parse_stream_commit(commit: LogCommit) -> StreamCommit | None:
    """Return the stream metadata of a commit, None if it has no valid one."""
    metadata = commit.note.get("stream")
    if not isinstance(metadata, Mapping):
        return None
    try:
        offsets = {int(number): int(end) for number, end in dict(metadata["offsets"]).items()}
        job, run, topic = metadata["job"], metadata["run"], metadata["topic"]
        identity = metadata.get("topic_id")
        if not all(isinstance(each, str) for each in (job, run, topic, identity or "")):
            return None
        return StreamCommit(job, run, topic, identity, offsets, int(metadata["bad"]), commit)
    except (KeyError, TypeError, ValueError):
        return None


def restore_stream_runs(connection: Connection, path: str) -> None:
    """Record the runs of stream jobs from the commits of a table."""
    runs_by_id: dict[str, Run] = {}
    for each in reversed(list(_commits(path))):
        commit = each.commit
        earlier = runs_by_id.get(each.run)
        if earlier is None:
            window = Window(commit.time, commit.time)
            earlier = Run(each.run, each.job, 0, window, 1, runs.DONE, "restored", rows=0)
            earlier = replace(earlier, started=commit.time)
        rows = (earlier.rows or 0) + commit.rows_in
        runs_by_id[each.run] = replace(
            earlier, rows=rows, ended=commit.time, delta_version=commit.version
        )
    for run in runs_by_id.values():
        runs.restore(connection, run)


def restore_stream(connection: Connection, session: Session, spec: JobSpec) -> None:
    """Restore the progress of a stream job from its commits; its lag is unknown."""
    assert spec.stream is not None
    if streams.status(connection, spec.name) is not None:
        return
    versions = featuregroups.versions(connection, spec.target)
    if not versions:
        return
    path = session.featuregroup_path(spec.target, max(versions))
    offsets: dict[int, int] = {}
    bad, last = 0, None
    for each in _commits(path):
        if each.job != spec.name or each.topic != spec.stream.topic:
            continue
        last = last or each
        bad += each.bad
        offsets = {**each.offsets, **offsets}
    if last is None:
        return
    streams.record_offsets(connection, spec.name, last.topic, offsets, ends={})
    streams.record_progress(
        connection,
        spec.name,
        topic_id=last.topic_id,
        rows_per_second=None,
        bad_records=bad,
        last_commit=last.commit.time,
        delta_version=last.commit.version,
    )
