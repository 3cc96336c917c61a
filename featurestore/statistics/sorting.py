"""The order of a column's values.

Short values are sorted together with their positions, which is some times faster than to sort
positions by value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_WORD = 64
_FLOAT32_BITS = 32
_SIGN = np.int32(0x7FFFFFFF)


def ascending(values: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return the positions of numbers in ascending order, and the numbers in this order.

    >>> ascending(np.array([30, 10, 20]))
    (array([1, 2, 0]), array([10, 20, 30]))
    """
    bits = len(values).bit_length()
    words = _short_words(values, _WORD - bits)
    if words is None:
        order = np.argsort(values)
        return order, values[order]
    words <<= np.uint64(bits)
    words |= np.arange(len(values), dtype=np.uint64)
    words.sort()
    words &= np.uint64((1 << bits) - 1)
    order = words.view(np.int64)
    return order, values[order]


def _short_words(values: NDArray[Any], room: int) -> NDArray[np.uint64] | None:
    """Return words of at most ``room`` bits in the order of the values, None without such words."""
    if not len(values):
        return None
    if values.dtype.kind == "f":
        if room < _FLOAT32_BITS:
            return None
        return _words_of_floats(values)
    low, high = values.min(), values.max()
    if (int(high) - int(low)).bit_length() > room:
        return None
    if values.dtype.kind == "u":
        return values.astype(np.uint64) - np.uint64(low)
    return (values.astype(np.int64) - np.int64(low)).view(np.uint64)


def _words_of_floats(values: NDArray[Any]) -> NDArray[np.uint64] | None:
    """Return the bits of the values as float32, those of negative ones turned round.

    None where bits are lost.
    """
    with np.errstate(over="ignore"):
        short = values.astype(np.float32)
    if not np.array_equal(short, values):
        return None
    short += np.float32(0.0)  # -0.0 and 0.0 are one value
    bits = short.view(np.int32)
    bits ^= (bits >> np.int32(31)) & _SIGN
    return (bits.astype(np.int64) + np.int64(1 << 31)).view(np.uint64)
