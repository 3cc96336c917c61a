"""Positions of a stream: offsets in its table, checked against the offsets of its topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from featurestore.delta.log import is_delta_table
from featurestore.delta.snapshot import Snapshot, read_snapshot
from featurestore.errors import OffsetsLost
from featurestore.model.stream import StreamSpec
from featurestore.plugins.source import OffsetRange, Topic

# The prefix of a partition's application id in a quarantine table, for bad records.
BAD = "bad/"


@dataclass(frozen=True)
class Position:
    """The next offset of a partition; ``committed`` is the offset in its table, None if it has none."""

    committed: int | None
    start: int


def positions(state: Snapshot, stream: StreamSpec, topic: Topic) -> dict[int, Position]:
    """Return the position of each partition of a topic.

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
            start = _checked_offset(stream, number, committed, offsets)
        elif is_new and stream.begin == "latest":
            start = offsets.end
        else:  # includes partitions that were added later, whose records are all new
            start = offsets.first
        partition_positions[number] = Position(committed, start)
    return partition_positions


def quarantined_ends(
    path: str, stream: StreamSpec, partition_positions: Mapping[int, Position]
) -> dict[int, int]:
    """Return the ends of a micro-batch that is in the quarantine table but not in the group.

    A process died between the two commits: exactly these records have to be read again. Empty if
    no such micro-batch exists.
    """
    ends: dict[int, int] = {}
    if not is_delta_table(path):
        return ends
    transactions = read_snapshot(path).transactions
    for number, position in partition_positions.items():
        app = stream.app(number)
        end = max(transactions.get(app, 0), transactions.get(f"{BAD}{app}", 0))
        if end > position.start:
            ends[number] = end
    return ends


def check_identity(
    state: Snapshot, stream: StreamSpec, topic: Topic, last_identity: str | None
) -> None:
    """Refuse a topic that was recreated since it was last read.

    Raises:
        OffsetsLost: It is another topic of the same name.
    """
    if last_identity is None or topic.identity is None or stream.app(0) not in state.transactions:
        return
    if last_identity != topic.identity:
        raise _recreated(stream, "its id differs from the one that was read before")


def _check_partitions(state: Snapshot, stream: StreamSpec, topic: Topic) -> None:
    partition_count = 0
    while stream.app(partition_count) in state.transactions:
        partition_count += 1
    if partition_count > len(topic.partitions):
        raise _recreated(
            stream, f"it has {len(topic.partitions)} partitions, and {partition_count} were read"
        )


def _checked_offset(stream: StreamSpec, number: int, committed: int, offsets: OffsetRange) -> int:
    if committed > offsets.end:
        raise _recreated(
            stream,
            f"partition {number} ends at offset {offsets.end}, and was read up to {committed}",
        )
    if committed >= offsets.first:
        return committed
    if stream.on_lost == "skip":
        return offsets.first
    raise OffsetsLost(
        f"Topic {stream.topic!r}: the records {committed} to {offsets.first - 1} of partition {number} "
        "were removed before they were read.",
        hint="keep them longer (retention.ms of the topic); on_lost='skip' skips them",
    )


def _recreated(stream: StreamSpec, why: str) -> OffsetsLost:
    return OffsetsLost(
        f"Topic {stream.topic!r} was recreated since it was read: {why}.",
        hint=f"generation={stream.generation + 1} reads the new topic from its beginning and keeps "
        "the rows of the group",
    )
