"""The loop of a stream: where it stands, micro-batches up to now, and what is told of them.

All that says where a stream stands is in its table, in the commits of its rows. A process may die
at any time, and several may read the same partitions: a commit that finds another's numbers lands
nothing, and its records are looked at again.
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
from featurestore.featuregroups.create import get_or_create
from featurestore.featuregroups.definition import Declaration
from featurestore.featuregroups.table import OpenGroup, open_group
from featurestore.featuregroups.write import Write, insert
from featurestore.model import times
from featurestore.model.job import JobSpec
from featurestore.model.stream import StreamSpec
from featurestore.plugins.stream import MicroBatch, StreamSource, Topic
from featurestore.registry import featuregroups
from featurestore.registry import streams as registered
from featurestore.session import Session
from featurestore.storage.publication import after_publication
from featurestore.streams.landing import Decoding, Landed, land
from featurestore.streams.opening import decoder_of, streams_of
from featurestore.streams.positions import (
    Position,
    check_identity,
    positions,
    quarantined_ends,
)

_log = logging.getLogger("featurestore.jobs")
# How often a run may find that others were faster, one time after the other.
_MOST_OVERTAKEN = 50
# Of fewer records the share that cannot be read says nothing.
_FEWEST_RECORDS = 100
# Parts of reasons that differ from record to record.
_VALUES = re.compile(r"'[^']*'|\([^)]*\)|[0-9]+")


@dataclass(frozen=True)
class StreamTarget:
    """The group of a stream: opened, or None and how it is declared."""

    group: OpenGroup | None
    declared: Declaration


@dataclass
class Progress:
    """What a run of a stream has done so far."""

    rows: int = 0
    bad: int = 0
    batches: int = 0
    records: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    delta_version: int | None = None
    version: int | None = None

    def add(self, landed: Landed) -> None:
        """Count a micro-batch."""
        self.rows += landed.rows
        self.bad += landed.bad
        self.records += landed.records
        for reason, count in landed.reasons.items():
            kind = _VALUES.sub("", reason)
            self.examples.setdefault(kind, reason)
            self.reasons[kind] += count
        self.batches += 1
        self.delta_version = landed.delta_version


@dataclass
class _Run:
    session: Session
    spec: JobSpec
    stream: StreamSpec
    source: StreamSource
    decoding: Decoding
    run_id: str
    check: Callable[[], None]
    stop: threading.Event
    progress: Progress = field(default_factory=Progress)
    begun: float = field(default_factory=time.monotonic)


def consume(
    session: Session,
    spec: JobSpec,
    target: StreamTarget,
    *,
    run_id: str,
    check: Callable[[], None],
    stop: threading.Event,
) -> Progress:
    """Bring what a topic has now into the job's group, and return what that came to.

    Args:
        session: The connection.
        spec: The job.
        target: Its group.
        run_id: The run, for the commits.
        check: Raises where the job was taken over; called before each commit.
        stop: Ends the run after the micro-batch at work.

    Raises:
        SourceUnavailable: No broker answers.
        OffsetsLost: Records went before they were read, or the topic is another one.
        BadRecord: More records than the job allows cannot be read.
        ValidationFailed: Rows broke the expectations of a strict job.
    """
    stream = spec.stream
    assert stream is not None
    opened = streams_of(session, stream)
    decoding = Decoding(decoder_of(opened, spec), opened.decoded_schema(stream))
    source = opened.stream()
    try:
        topic = source.topic(stream.topic)
        group = target.group
        if group is None:
            group = _created(session, spec, target.declared)
        run = _Run(session, spec, stream, source, decoding, run_id, check, stop)
        _read_up_to_now(run, group, topic)
        run.progress.version = group.spec.version
        return run.progress
    finally:
        source.close()


def _created(session: Session, spec: JobSpec, declared: Declaration) -> OpenGroup:
    """Return the group of a job, made without rows, as its columns are known; others may be faster."""
    assert spec.stream is not None
    nothing = spec.stream.columns.empty_table()
    try:
        made = get_or_create(session, nothing, spec.target, declared=declared)
    except DefinitionMismatch:  # the job's keys, times or partitions call for the next version
        with session.registry.reading() as connection:
            number = max(featuregroups.versions(connection, spec.target)) + 1
        made = get_or_create(session, nothing, spec.target, declared=declared, version=number)
    return open_group(session, spec.target, made.version)


def _read_up_to_now(run: _Run, group: OpenGroup, topic: Topic) -> None:
    """Read what the topic has, again from where the table stands whenever others were faster."""
    ends = {number: each.end for number, each in topic.partitions.items()}
    with run.session.registry.reading() as connection:
        known = registered.topic_id(connection, run.spec.name)
    for _ in range(_MOST_OVERTAKEN):
        state = read_snapshot(group.path)
        check_identity(state, run.stream, topic, known)
        found = positions(state, run.stream, topic)
        _record(run, topic, {number: each.start for number, each in found.items()})
        try:
            if run.stream.begin == "latest" and all(each.seen is None for each in found.values()):
                _mark(run, group, found)
                continue
            mine = run.source.owned(run.stream, list(found))
            found = {number: each for number, each in found.items() if number in mine}
            if _read(run, group, topic, found, ends):
                return
        except StreamOvertaken as error:
            _log.info("%s", error.message)
    raise StreamOvertaken(
        f"Other processes were faster {_MOST_OVERTAKEN} times; job {run.spec.name!r} stops here.",
        hint="one runner a job is enough",
    )


def _read(
    run: _Run,
    group: OpenGroup,
    topic: Topic,
    found: Mapping[int, Position],
    ends: Mapping[int, int],
) -> bool:
    """Commit micro-batches; return whether the ends are reached, or the run is to stop."""
    start = {number: position.start for number, position in found.items()}
    seen = {number: position.seen for number, position in found.items()}
    spec = run.stream
    wanted = {number: max(ends[number], each) for number, each in start.items()}
    path = run.session.quarantine_path(group.spec.name, group.spec.version)
    again = quarantined_ends(path, run.stream, found)
    if again:
        begun = {number: start[number] for number in again}
        whole = run.source.batch(spec, begun, again, engine=run.session.engine)
        _commit(run, group, topic, whole, seen)
        return run.stop.is_set()
    if all(wanted[number] <= start[number] for number in start):
        return True
    for batch in run.source.batches(spec, start, wanted, engine=run.session.engine):
        _commit(run, group, topic, batch, seen)
        seen = {**seen, **batch.end}
        if run.stop.is_set():
            break
        if run.source.owned(spec, list(topic.partitions)) != frozenset(start):
            _log.info("the partitions were shared out anew")
            return False
    return True


def _commit(
    run: _Run,
    group: OpenGroup,
    topic: Topic,
    batch: MicroBatch,
    seen: Mapping[int, int | None],
) -> None:
    run.check()
    note = {"job": run.spec.name, "run": run.run_id, "topic": run.stream.topic}
    if topic.identity is not None:
        note["topic_id"] = topic.identity
    landed = land(run.session, run.spec, group, batch, seen=seen, decoding=run.decoding, note=note)
    run.progress.add(landed)
    run.progress.seconds = time.monotonic() - run.begun
    with after_publication(f"Delta version {landed.delta_version} of {run.spec.target!r}"):
        _record(run, topic, batch.end, landed=landed)
    _check_share(run)


def _check_share(run: _Run) -> None:
    """Fail a run of which most records cannot be read: the schema is wrong, not the records.

    Raises:
        BadRecord: Names the most frequent reason.
    """
    progress = run.progress
    if progress.records < _FEWEST_RECORDS or progress.bad <= run.stream.most_bad * progress.records:
        return
    kind, count = progress.reasons.most_common(1)[0]
    raise BadRecord(
        f"Job {run.spec.name!r}: {progress.bad:,} of {progress.records:,} records cannot be read, "
        f"more than most_bad={run.stream.most_bad}; {count:,} of them like this: "
        f"{progress.examples[kind]}.",
        hint=f"after a change of schema=: featurestore stream replay {run.spec.name}",
    )


def _mark(run: _Run, group: OpenGroup, found: Mapping[int, Position]) -> None:
    """Write down where a topic is begun that is not read from its first record on."""
    offsets = {run.stream.app(number): (each.seen, each.start) for number, each in found.items()}
    write = Write(offsets=offsets, validation="off")
    nothing = group.spec.schema.empty_table()
    insert(run.session, nothing, group.spec.name, version=group.spec.version, write=write)


def _record(
    run: _Run, topic: Topic, offsets: Mapping[int, int], *, landed: Landed | None = None
) -> None:
    """Tell the registry where the stream stands."""
    rate = None
    if run.progress.seconds > 0:
        rate = run.progress.rows / run.progress.seconds
    ends = {number: each.end for number, each in topic.partitions.items()}
    with run.session.registry.transaction() as connection:
        registered.record_offsets(connection, run.spec.name, topic.name, offsets, ends=ends)
        registered.record_progress(
            connection,
            run.spec.name,
            topic_id=topic.identity,
            rows_per_second=rate,
            bad_records=0 if landed is None else landed.bad,
            last_commit=None if landed is None else times.utc_now(),
            delta_version=None if landed is None else landed.delta_version,
        )
