"""Memory of the caller that is filled with the bytes of an object as they come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer


def bytes_of(targets: Sequence[memoryview]) -> int:
    """Return how many bytes fill all targets."""
    return sum(len(target) for target in targets)


def fill(targets: Sequence[memoryview], pieces: Iterable[Buffer]) -> bool:
    """Copy pieces into targets, one after the other; tell whether all targets are full.

    >>> first, second = bytearray(2), bytearray(3)
    >>> fill([memoryview(first), memoryview(second)], [b"abc", b"de"])
    True
    >>> bytes(first), bytes(second)
    (b'ab', b'cde')
    """
    waiting = iter(targets)  # none of them empty
    room = memoryview(b"")
    for piece in pieces:
        left = memoryview(piece)
        while left:
            if not room:
                room = next(waiting, room)
                if not room:
                    return True
            count = min(len(room), len(left))
            room[:count] = left[:count]
            room, left = room[count:], left[count:]
    return not room and next(waiting, None) is None
