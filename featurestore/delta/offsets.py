"""Where streams stand in a table: a transaction number for each partition of a topic.

The number is the offset of the next record, in the same commit as the rows, so that table and
position cannot part. A commit says from which numbers it goes on: whoever finds others there was
overtaken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from featurestore.delta.snapshot import Snapshot
from featurestore.errors import StreamOvertaken

Offsets = Mapping[str, tuple[int | None, int]]


def check_offsets(state: Snapshot, offsets: Offsets) -> None:
    """Raise StreamOvertaken where an application's number is not the one that the writer saw."""
    for app, (seen, _) in offsets.items():
        if state.transactions.get(app) != seen:
            raise overtaken(app)


def check_winner(transactions: Iterable[Mapping[str, Any]], offsets: Offsets) -> None:
    """Raise StreamOvertaken where a commit that came first moved one of the applications."""
    for each in transactions:
        if each["appId"] in offsets:
            raise overtaken(str(each["appId"]))


def overtaken(app: str) -> StreamOvertaken:
    """Return the error of a write whose records another writer committed first."""
    return StreamOvertaken(
        f"Another process committed records of {app!r} first; nothing of this write landed.",
        hint="read the position again, and go on from there",
    )


def next_offsets(state: Snapshot, offsets: Offsets) -> Offsets | None:
    """Return how a second table goes on to the numbers that a write brings; None for a repeat.

    It need not have been written to each time, so it may be behind the first table, never between
    its numbers.

    Raises:
        StreamOvertaken: The records that it has are not those that the write begins with.
    """
    moved = {}
    repeated = bool(offsets)
    for app, (_, number) in offsets.items():
        held = state.transactions.get(app)
        repeated = repeated and held == number
        moved[app] = (held, number)
    if repeated:
        return None
    for app, (seen, _) in offsets.items():
        held = moved[app][0]
        if held is not None and held > (seen or 0):
            raise overtaken(app)
    return moved
