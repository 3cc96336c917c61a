"""Where a stream goes on: the numbers of its table against the offsets that its topic has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from featurestore.delta.log import is_delta_table
from featurestore.delta.snapshot import Snapshot, read_snapshot
from featurestore.errors import OffsetsLost
from featurestore.model.stream import StreamSpec
from featurestore.plugins.stream import OffsetRange, Topic

# The application of a partition in a quarantine table, for records that could not be read.
BAD = "bad/"


@dataclass(frozen=True)
class Position:
    """Where a partition is read on; ``seen`` is the number that its table has, None for none."""

    seen: int | None
    start: int


def positions(state: Snapshot, stream: StreamSpec, topic: Topic) -> dict[int, Position]:
    """Return where each partition of a topic goes on.

    Raises:
        OffsetsLost: Records went before they were read, or the topic is another one of the name.
    """
    _check_partitions(state, stream, topic)
    held = {number: state.transactions.get(stream.app(number)) for number in topic.partitions}
    is_new = all(number is None for number in held.values())
    found = {}
    for number, offsets in topic.partitions.items():
        seen = held[number]
        if seen is not None:
            start = _checked(stream, number, seen, offsets)
        elif is_new and stream.begin == "latest":
            start = offsets.end
        else:  # also of a partition that was added later, whose records are all new
            start = offsets.first
        found[number] = Position(seen, start)
    return found


def quarantined_ends(
    path: str, stream: StreamSpec, found: Mapping[int, Position]
) -> dict[int, int]:
    """Return the ends of a micro-batch that the quarantine table has and the group has not.

    A process died between the two commits: the same records have to be read again, not more of
    them. Empty where there is no such micro-batch.
    """
    ends: dict[int, int] = {}
    if not is_delta_table(path):
        return ends
    transactions = read_snapshot(path).transactions
    for number, position in found.items():
        app = stream.app(number)
        end = max(transactions.get(app, 0), transactions.get(f"{BAD}{app}", 0))
        if end > position.start:
            ends[number] = end
    return ends


def check_identity(state: Snapshot, stream: StreamSpec, topic: Topic, known: str | None) -> None:
    """Refuse a topic that was made anew since this generation of it was read last.

    Raises:
        OffsetsLost: It is another one of the same name.
    """
    if known is None or topic.identity is None or stream.app(0) not in state.transactions:
        return
    if known != topic.identity:
        raise _recreated(stream, "it has another id than the one that was read before")


def _check_partitions(state: Snapshot, stream: StreamSpec, topic: Topic) -> None:
    known = 0
    while stream.app(known) in state.transactions:
        known += 1
    if known > len(topic.partitions):
        raise _recreated(
            stream, f"it has {len(topic.partitions)} partitions, and {known} of it were read"
        )


def _checked(stream: StreamSpec, number: int, seen: int, offsets: OffsetRange) -> int:
    if seen > offsets.end:
        raise _recreated(
            stream,
            f"partition {number} ends at offset {offsets.end}, and was read up to {seen}",
        )
    if seen >= offsets.first:
        return seen
    if stream.on_lost == "skip":
        return offsets.first
    raise OffsetsLost(
        f"Topic {stream.topic!r}: the records {seen} to {offsets.first - 1} of partition {number} "
        "were removed before they were read.",
        hint="keep them longer (retention.ms of the topic); on_lost='skip' goes on without them",
    )


def _recreated(stream: StreamSpec, why: str) -> OffsetsLost:
    return OffsetsLost(
        f"Topic {stream.topic!r} was made anew since it was read: {why}.",
        hint=f"generation={stream.generation + 1} reads the new topic from its beginning, beside "
        "what the group has",
    )
