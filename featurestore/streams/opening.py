"""Opening of a stream: its source, the job checks, and the position in its topic.

The position consists of the offsets in the table, which are validated against the topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from featurestore.arrow.fitting import can_widen
from featurestore.delta.log import is_delta_table
from featurestore.delta.snapshot import Snapshot, read_snapshot
from featurestore.errors import DataWarning, InvalidJob, OffsetsLost
from featurestore.external.reading import open_source
from featurestore.featuregroups.table import open_group
from featurestore.model.arguments import warn_caller
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.job import StreamWork
from featurestore.model.source import SourceSpec
from featurestore.model.stream import StreamSpec
from featurestore.plugins.engine import BatchFunction
from featurestore.plugins.source import (
    RECORD_COLUMNS,
    DecoderRequest,
    HasStreams,
    OffsetRange,
    Topic,
)
from featurestore.registry import featuregroups, sources
from featurestore.session import Session

# Application id prefix of a partition in a quarantine table, for bad records.
BAD = "bad/"


def open_streams(session: Session, stream: StreamSpec) -> HasStreams:
    """Create the source of a stream, without connecting to it.

    Raises:
        SourceNotFound: No source with this name is registered.
        InvalidJob: The source has no topics.
    """
    with session.registry.reading() as connection:
        registered = sources.get(connection, stream.source)
    return open_stream_source(session, registered)


def open_stream_source(session: Session, spec: SourceSpec) -> HasStreams:
    """Create a source with topics, without connecting to it; InvalidJob if it has no topics."""
    source = open_source(session, spec)
    if not isinstance(source, HasStreams):
        raise InvalidJob(
            f"Source {spec.name!r} is of kind {spec.kind!r}, which has no topics.",
            hint="featurestore.add_source('events', 'kafka://broker:9092')",
        )
    return source


def make_decoder(source: HasStreams, work: StreamWork) -> BatchFunction:
    """Create the decoder of a stream job; keys and times must not be null."""
    stream, options = work.stream, work.options
    # Readable rows can only be quarantined for these reasons.
    keep_values = bool(options.expectations) or stream.on_duplicates == "quarantine"
    request = DecoderRequest(options.primary_key, options.times, options.partition_by, keep_values)
    return source.decoder(stream, request)


def describe_column_changes(stream: StreamSpec, group: FeatureGroupSpec) -> list[str]:
    """Describe the removed or changed columns that require a new version of a group.

    New columns do not require a new version, nor do types that widen to the group's type.
    """
    declared = {field.name: field.type for field in stream.columns}
    differences = []
    for field in group.schema:
        dtype = declared.get(field.name)
        if dtype is None:
            differences.append(f"{field.name!r} is missing")
        elif not can_widen(dtype, field.type):
            differences.append(f"{field.name!r} is {dtype} instead of {field.type}")
    return differences


def check_stream_job(session: Session, job: str, work: StreamWork) -> None:
    """Raise an error if a job cannot run; the broker is queried for the topic.

    Raises:
        SourceNotFound: The source is not registered.
        SourceUnavailable: No broker responds.
        SourceTableNotFound: The topic does not exist.
        InvalidJob: The value format does not support the type of a column.
    """
    check_stream_definition(session, job, work)
    # Registration fails if the topic does not exist, instead of every run of the job.
    with session.registry.reading() as connection:
        registered = sources.get(connection, work.stream.source)
    check_topic(session, registered, work.stream.topic)


def check_stream_definition(session: Session, job: str, work: StreamWork) -> None:
    """Raise an error for a definition that cannot run, without a connection to the broker."""
    make_decoder(open_streams(session, work.stream), work)
    reserved = [name for name in work.stream.columns.names if name in RECORD_COLUMNS]
    if reserved:
        raise InvalidJob(
            f"Job {job!r}: the column name {reserved[0]!r} is reserved for its quarantine table.",
            hint="rename the column",
        )
    _warn_of_next_version(session, job, work)


def check_topic(session: Session, source: SourceSpec, topic: str) -> None:
    """Raise an error if a topic does not exist at its source."""
    connection = open_stream_source(session, source).stream()
    try:
        connection.topic(topic)
    finally:
        connection.close()


def _warn_of_next_version(session: Session, job: str, work: StreamWork) -> None:
    """Warn if the columns of a job require a new version of its group."""
    with session.registry.reading() as connection:
        registered = featuregroups.find(connection, work.target)
    if registered is None:
        return
    group = open_group(session, work.target).spec
    differences = describe_column_changes(work.stream, group)
    if differences:
        warn_caller(
            f"job {job!r} differs from feature group {group.name!r} version {group.version}: "
            f"{'; '.join(differences)}. Its next run creates version {group.version + 1}, and reads "
            "the topic from its first record",
            DataWarning,
        )


@dataclass(frozen=True)
class Position:
    """The next offset of a partition; ``committed`` is the offset in the table, None if missing."""

    committed: int | None
    start: int


def positions(state: Snapshot, stream: StreamSpec, topic: Topic) -> dict[int, Position]:
    """Return the position of each partition in a topic.

    Raises:
        OffsetsLost: Records were removed before they were read, or the topic was recreated.
    """
    _check_partitions(state, stream, topic)
    stored_offsets = {
        number: state.transactions.get(stream.app(number)) for number in topic.partitions
    }
    is_new = all(number is None for number in stored_offsets.values())
    partition_positions = {}
    for number, offsets in topic.partitions.items():
        committed = stored_offsets[number]
        if committed is not None:
            start = _check_offset(stream, number, committed, offsets)
        elif is_new and stream.begin == "latest":
            start = offsets.end
        else:  # includes partitions that were added later, whose records are all new
            start = offsets.first
        partition_positions[number] = Position(committed, start)
    return partition_positions


def find_quarantined_ends(
    path: str, stream: StreamSpec, partition_positions: Mapping[int, Position]
) -> dict[int, int]:
    """Return the end offsets of a micro-batch that was quarantined but not committed to the group.

    A process died between these two commits, so exactly these records must be read again. The
    result is empty if there is no such micro-batch.
    """
    ends: dict[int, int] = {}
    if not is_delta_table(path):
        return ends
    transactions = read_snapshot(path).transactions
    for number, position in partition_positions.items():
        app = stream.app(number)
        # Either bad records or rows that failed validation may have been quarantined.
        end = max(transactions.get(app, 0), transactions.get(f"{BAD}{app}", 0))
        if end > position.start:
            ends[number] = end
    return ends


def check_topic_identity(
    state: Snapshot, stream: StreamSpec, topic: Topic, last_identity: str | None
) -> None:
    """Raise an error if the topic was recreated since it was last read.

    Raises:
        OffsetsLost: The topic is a different one with the same name.
    """
    # Without offsets in the table, the recorded id belongs to an earlier generation of the stream.
    if last_identity is None or topic.identity is None or stream.app(0) not in state.transactions:
        return
    if last_identity != topic.identity:
        raise _recreated_error(stream, "its topic id has changed")


def _check_partitions(state: Snapshot, stream: StreamSpec, topic: Topic) -> None:
    """Raise an error if the topic has fewer partitions than were read."""
    partition_count = 0
    while stream.app(partition_count) in state.transactions:
        partition_count += 1
    # Kafka only adds partitions to a topic, so fewer partitions mean another topic.
    if partition_count > len(topic.partitions):
        raise _recreated_error(
            stream, f"it has {len(topic.partitions)} partitions, but {partition_count} were read"
        )


def _check_offset(stream: StreamSpec, number: int, committed: int, offsets: OffsetRange) -> int:
    """Return the next offset of a partition; raise an error if its records were removed."""
    # A topic that is not recreated never ends before an offset that was read.
    if committed > offsets.end:
        raise _recreated_error(
            stream,
            f"partition {number} ends at offset {offsets.end}, but was read up to {committed}",
        )
    if committed >= offsets.first:
        return committed
    if stream.on_lost == "skip":
        return offsets.first
    raise OffsetsLost(
        f"Topic {stream.topic!r}: the records {committed} to {offsets.first - 1} of partition {number} "
        "were removed before they were read.",
        hint="increase retention.ms of the topic; or on_lost='skip' to continue without them",
    )


def _recreated_error(stream: StreamSpec, why: str) -> OffsetsLost:
    return OffsetsLost(
        f"Topic {stream.topic!r} was recreated since it was read: {why}.",
        hint=f"generation={stream.generation + 1} reads the new topic from its beginning and keeps "
        "the rows of the group",
    )
