"""Stream positions in a table: a transaction number for each partition of a topic.

The number is the offset of the next record and is committed with the rows, so that table and
position cannot diverge. A commit requires the numbers at its start; a writer that sees other numbers
was overtaken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from featurestore.delta.snapshot import Snapshot
from featurestore.errors import StreamOvertaken

Offsets = Mapping[str, tuple[int | None, int]]


def check_offsets(state: Snapshot, offsets: Offsets) -> None:
    """Raise StreamOvertaken if the number of an application differs from the one that was read."""
    for app, (expected, _) in offsets.items():
        if state.transactions.get(app) != expected:
            raise overtaken(app)


def check_winner(transactions: Iterable[Mapping[str, Any]], offsets: Offsets) -> None:
    """Raise StreamOvertaken if a concurrent commit advanced one of the applications."""
    for each in transactions:
        if each["appId"] in offsets:
            raise overtaken(str(each["appId"]))


def overtaken(app: str) -> StreamOvertaken:
    """Return the error for a write whose records another writer committed first."""
    return StreamOvertaken(
        f"Another process committed records of {app!r} first; this write was not committed.",
        hint="read the position again, and continue from there",
    )


def next_offsets(state: Snapshot, offsets: Offsets) -> Offsets | None:
    """Return the offsets of a write for a second table, None if the write is a repetition.

    Not every write goes to the second table, so its numbers may be lower, but they must be numbers
    of the first table.

    Raises:
        StreamOvertaken: The second table already has records of this write.
    """
    next_numbers = {}
    repeated = bool(offsets)
    for app, (_, number) in offsets.items():
        current = state.transactions.get(app)
        repeated = repeated and current == number
        next_numbers[app] = (current, number)
    if repeated:
        return None
    for app, (expected, _) in offsets.items():
        current = next_numbers[app][0]
        if current is not None and current > (expected or 0):
            raise overtaken(app)
    return next_numbers
