"""Buffers of the caller that are filled with the bytes of an object while they arrive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer


def total_bytes(buffers: Sequence[memoryview]) -> int:
    """Return the number of bytes that fill all buffers."""
    return sum(len(buffer) for buffer in buffers)


def fill(buffers: Sequence[memoryview], chunks: Iterable[Buffer]) -> bool:
    """Copy chunks into buffers, one after the other; return True if all buffers are full.

    >>> first, second = bytearray(2), bytearray(3)
    >>> fill([memoryview(first), memoryview(second)], [b"abc", b"de"])
    True
    >>> bytes(first), bytes(second)
    (b'ab', b'cde')
    """
    remaining_buffers = iter(buffers)  # no buffer is empty
    target = memoryview(b"")
    for chunk in chunks:
        source = memoryview(chunk)
        while source:
            if not target:
                target = next(remaining_buffers, target)
                if not target:
                    return True
            count = min(len(target), len(source))
            target[:count] = source[:count]
            target, source = target[count:], source[count:]
    return not target and next(remaining_buffers, None) is None
