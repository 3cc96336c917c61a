"""What the commits of a group tell of stream jobs: runs, offsets, the topic."""

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
    """A commit of a stream job: of which run, which topic, the next offsets, and bad records."""

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
            told = stream_of_note(commit)
            if told is not None:
                yield told


def stream_of_note(commit: LogCommit) -> StreamCommit | None:
    """Return what a commit tells of a stream; None where it tells nothing that can be read."""
    told = commit.note.get("stream")
    if not isinstance(told, Mapping):
        return None
    try:
        offsets = {int(number): int(end) for number, end in dict(told["offsets"]).items()}
        job, run, topic = told["job"], told["run"], told["topic"]
        identity = told.get("topic_id")
        if not all(isinstance(each, str) for each in (job, run, topic, identity or "")):
            return None
        return StreamCommit(job, run, topic, identity, offsets, int(told["bad"]), commit)
    except (KeyError, TypeError, ValueError):
        return None


def restore_stream_runs(connection: Connection, path: str) -> None:
    """Record the runs of streams that the commits of a table tell of, as they ended."""
    found: dict[str, Run] = {}
    for each in reversed(list(_commits(path))):
        commit = each.commit
        before = found.get(each.run)
        if before is None:
            window = Window(commit.time, commit.time)
            before = Run(each.run, each.job, 0, window, 1, runs.DONE, "restored", rows=0)
            before = replace(before, started=commit.time)
        rows = (before.rows or 0) + commit.rows_in
        found[each.run] = replace(
            before, rows=rows, ended=commit.time, delta_version=commit.version
        )
    for run in found.values():
        runs.restore(connection, run)


def restore_stream(connection: Connection, session: Session, spec: JobSpec) -> None:
    """Bring back where a stream job stands, as its last commits tell; its lag is not known."""
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
