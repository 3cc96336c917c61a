"""The main loop of a stream run: find the position, commit micro-batches, record progress.

The position of a stream is stored only in its table, in the metadata of its commits. A process may
die at any time, and several processes may read the same partitions: a commit fails if another
process has advanced the offsets, and the run then continues from the new position.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import BadRecord, DefinitionMismatch, StreamOvertaken
from featurestore.featuregroups import WriteRequest, get_or_create, insert
from featurestore.featuregroups.table import OpenGroup, open_group
from featurestore.model import times
from featurestore.model.group_options import GroupOptions
from featurestore.model.job import StreamWork
from featurestore.plugins.source import MicroBatch, StreamSource, Topic
from featurestore.registry import featuregroups
from featurestore.registry import jobs as registered_jobs
from featurestore.session import Session
from featurestore.storage.failures import warn_after_publication
from featurestore.streams import opening
from featurestore.streams.micro_batches import Committed, RecordDecoder, commit_micro_batch
from featurestore.streams.opening import Position

_log = logging.getLogger("featurestore.jobs")
# Maximum number of consecutive times that other processes may overtake a run.
_MAX_OVERTAKEN = 50
# With fewer records, the fraction of bad records is not significant.
_MIN_RECORDS = 100
# Variable parts of error reasons: names, parentheses and numbers.
_VALUES = re.compile(r"'[^']*'|\([^)]*\)|[0-9]+")


@dataclass(frozen=True)
class StreamTarget:
    """The group of a stream, or None with the options of a group to create."""

    group: OpenGroup | None
    declared: GroupOptions


@dataclass
class Progress:
    """The cumulative counts of a stream run."""

    rows: int = 0
    bad: int = 0
    batches: int = 0
    records: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    delta_version: int | None = None
    version: int | None = None

    def add(self, committed: Committed) -> None:
        """Add the counts of a micro-batch."""
        self.rows += committed.rows
        self.bad += committed.bad
        self.records += committed.records
        for reason, count in committed.reasons.items():
            pattern = _VALUES.sub("", reason)
            self.examples.setdefault(pattern, reason)
            self.reasons[pattern] += count
        self.batches += 1
        self.delta_version = committed.delta_version


@dataclass
class _Run:
    """The fixed parts of a stream run, and its progress."""

    session: Session
    job: str
    work: StreamWork
    source: StreamSource
    decoding: RecordDecoder
    run_id: str
    check: Callable[[], None]
    after_commit: Callable[[], None]
    stop: threading.Event
    progress: Progress = field(default_factory=Progress)
    started: float = field(default_factory=time.monotonic)


def consume(
    session: Session,
    job: str,
    work: StreamWork,
    target: StreamTarget,
    *,
    run_id: str,
    check: Callable[[], None],
    after_commit: Callable[[], None],
    stop: threading.Event,
) -> Progress:
    """Write the new records of a topic into the job's group, and return the counts.

    Args:
        session: The connection.
        job: The name of the job.
        work: The work of the job.
        target: The group of the job.
        run_id: The run id, for the commit metadata.
        check: Called before each commit; raises if another process has taken over the job.
        after_commit: Called after each commit.
        stop: Ends the run after the current micro-batch.

    Raises:
        SourceUnavailable: No broker responds.
        OffsetsLost: Records were removed before they were read, or the topic was recreated.
        BadRecord: More records are unreadable than the job allows.
        ValidationFailed: Rows of a strict job violate its expectations.
    """
    stream = work.stream
    stream_source = opening.open_streams(session, stream)
    decoding = RecordDecoder(
        opening.make_decoder(stream_source, work), stream_source.decoded_schema(stream)
    )
    source = stream_source.stream()
    try:
        topic = source.topic(stream.topic)
        group = target.group
        # Offsets are stored in the table, so it must exist before the position can be read.
        if group is None:
            group = _create_group(session, work, target.declared)
        run = _Run(session, job, work, source, decoding, run_id, check, after_commit, stop)
        _read_up_to_now(run, group, topic)
        run.progress.version = group.spec.version
        return run.progress
    finally:
        source.close()


def _create_group(session: Session, work: StreamWork, declared: GroupOptions) -> OpenGroup:
    """Create the group of a job without rows, unless a concurrent process has created it."""
    empty_rows = work.stream.columns.empty_table()
    request = WriteRequest(work.target, options=declared)
    try:
        created = get_or_create(session, empty_rows, request)
    except DefinitionMismatch:  # the job's keys, times or partitions need the next version
        with session.registry.reading() as connection:
            number = max(featuregroups.versions(connection, work.target)) + 1
        request = WriteRequest(work.target, version=number, options=declared)
        created = get_or_create(session, empty_rows, request)
    return open_group(session, work.target, created.version)


def _read_up_to_now(run: _Run, group: OpenGroup, topic: Topic) -> None:
    """Read the new records of the topic; restart from the table's position if overtaken."""
    # The end offsets are read only once: a run ends although producers continue to write.
    ends = {number: partition.end for number, partition in topic.partitions.items()}
    with run.session.registry.reading() as connection:
        last_identity = registered_jobs.topic_id(connection, run.job)
    for _ in range(_MAX_OVERTAKEN):
        state = read_snapshot(group.path)
        opening.check_topic_identity(state, run.work.stream, topic, last_identity)
        partition_positions = opening.positions(state, run.work.stream, topic)
        _record_progress(
            run, topic, {number: position.start for number, position in partition_positions.items()}
        )
        try:
            # Without this commit, a run that dies before its first micro-batch would be followed by
            # a run that starts at a later end of the topic, and records in between would be lost.
            if run.work.stream.begin == "latest" and all(
                position.committed is None for position in partition_positions.values()
            ):
                _commit_start_offsets(run, group, partition_positions)
                continue
            owned = run.source.owned(run.work.stream, list(partition_positions))
            partition_positions = {
                number: position
                for number, position in partition_positions.items()
                if number in owned
            }
            if _read(run, group, topic, partition_positions, ends):
                return
        except StreamOvertaken as error:
            _log.info("%s", error.message)
    raise StreamOvertaken(
        f"Job {run.job!r} stopped, because other processes committed the same records first "
        f"{_MAX_OVERTAKEN} times.",
        hint="use one runner for the job, or set consumer_group=",
    )


def _read(
    run: _Run,
    group: OpenGroup,
    topic: Topic,
    partition_positions: Mapping[int, Position],
    ends: Mapping[int, int],
) -> bool:
    """Commit micro-batches; return True if the end offsets are reached or the run must stop."""
    start = {number: position.start for number, position in partition_positions.items()}
    committed_offsets = {
        number: position.committed for number, position in partition_positions.items()
    }
    spec = run.work.stream
    # Another runner may have committed records beyond the end offsets that this run has read.
    next_offsets = {number: max(ends[number], offset) for number, offset in start.items()}
    path = run.session.quarantine_path(group.spec.name, group.spec.version)
    quarantined = opening.find_quarantined_ends(path, run.work.stream, partition_positions)
    # The quarantine already contains the bad records of this micro-batch. Exactly its records are
    # committed again, so that the quarantine recognizes them by its offsets.
    if quarantined:
        first_offsets = {number: start[number] for number in quarantined}
        repeated_batch = run.source.batch(
            spec, first_offsets, quarantined, engine=run.session.engine
        )
        _commit(run, group, topic, repeated_batch, committed_offsets)
        return run.stop.is_set()
    if all(next_offsets[number] <= start[number] for number in start):
        return True
    for batch in run.source.batches(spec, start, next_offsets, engine=run.session.engine):
        _commit(run, group, topic, batch, committed_offsets)
        committed_offsets = {**committed_offsets, **batch.end}
        if run.stop.is_set():
            break
        # After a rebalance, another member reads the partitions that this runner has lost.
        if run.source.owned(spec, list(topic.partitions)) != frozenset(start):
            _log.info("the partitions were reassigned")
            return False
    return True


def _commit(
    run: _Run,
    group: OpenGroup,
    topic: Topic,
    batch: MicroBatch,
    committed_offsets: Mapping[int, int | None],
) -> None:
    """Commit one micro-batch, and record the progress in the registry."""
    run.check()
    metadata = {"job": run.job, "run": run.run_id, "topic": run.work.stream.topic}
    if topic.identity is not None:
        metadata["topic_id"] = topic.identity
    committed = commit_micro_batch(
        run.session,
        run.job,
        run.work,
        group,
        batch,
        previous_offsets=committed_offsets,
        decoding=run.decoding,
        commit_metadata=metadata,
    )
    run.progress.add(committed)
    run.progress.seconds = time.monotonic() - run.started
    # The micro-batch is committed, so an error of the registry must not fail the run.
    with warn_after_publication(f"Delta version {committed.delta_version} of {run.work.target!r}"):
        _record_progress(run, topic, batch.end, committed=committed)
    run.after_commit()
    # The check follows the commit, so that the bad records are in the quarantine and can be
    # replayed.
    _check_bad_records(run)


def _check_bad_records(run: _Run) -> None:
    """Fail a run with mostly bad records, which indicate a wrong schema.

    Raises:
        BadRecord: Contains the most frequent reason.
    """
    progress = run.progress
    if (
        progress.records < _MIN_RECORDS
        or progress.bad <= run.work.stream.most_bad * progress.records
    ):
        return
    pattern, count = progress.reasons.most_common(1)[0]
    raise BadRecord(
        f"Job {run.job!r}: {progress.bad:,} of {progress.records:,} records are unreadable, "
        f"more than most_bad={run.work.stream.most_bad}. The most frequent reason ({count:,} records): "
        f"{progress.examples[pattern]}.",
        hint=f"after a change of schema=: featurestore stream replay {run.job}",
    )


def _commit_start_offsets(
    run: _Run, group: OpenGroup, partition_positions: Mapping[int, Position]
) -> None:
    """Commit the start offsets of a topic that is not read from its first record."""
    offsets = {
        run.work.stream.app(number): (position.committed, position.start)
        for number, position in partition_positions.items()
    }
    request = WriteRequest(
        group.spec.name, version=group.spec.version, offsets=offsets, validation="off"
    )
    # The commit has no rows, only offsets; it fails if another runner has committed offsets first.
    insert(run.session, group.spec.schema.empty_table(), request)


def _record_progress(
    run: _Run, topic: Topic, offsets: Mapping[int, int], *, committed: Committed | None = None
) -> None:
    """Record the progress of the stream in the registry."""
    rate = None
    if run.progress.seconds > 0:
        rate = run.progress.rows / run.progress.seconds
    ends = {number: partition.end for number, partition in topic.partitions.items()}
    with run.session.registry.transaction() as connection:
        registered_jobs.record_offsets(connection, run.job, topic.name, offsets, ends=ends)
        registered_jobs.record_progress(
            connection,
            run.job,
            topic_id=topic.identity,
            rows_per_second=rate,
            bad_records=0 if committed is None else committed.bad,
            last_commit=None if committed is None else times.utc_now(),
            delta_version=None if committed is None else committed.delta_version,
        )
