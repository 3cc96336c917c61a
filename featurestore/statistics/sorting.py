"""Sort order of numeric columns.

Each value is packed with its position, in the last bits, into a word; sorting these words is
several times faster than an argsort. If the values need more bits than available, their first bits
are sorted, then the ties.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
_WORD = 64
_SIGN = np.uint64(1 << 63)


def ascending(values: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return the positions of numbers in ascending order, and the numbers in this order.

    >>> ascending(np.array([30, 10, 20]))
    (array([1, 2, 0]), array([10, 20, 30]))
    """
    if not len(values):
        return np.empty(0, dtype=np.int64), values
    bits = len(values).bit_length()
    words = _sortable_words(values)
    dropped_bits = int(words.max()).bit_length() + bits - _WORD
    if dropped_bits > 0:
        words >>= np.uint64(dropped_bits)
    words <<= np.uint64(bits)
    words |= np.arange(len(values), dtype=np.uint64)
    words.sort()
    order = (words & np.uint64((1 << bits) - 1)).view(np.int64)
    ordered = values[order]
    if dropped_bits > 0 and (ordered[1:] < ordered[:-1]).any():
        _sort_ties(order, words >> np.uint64(bits), values)
        ordered = values[order]
    return order, ordered


def _sortable_words(values: NDArray[Any]) -> Words:
    """Return words in the order of the values, 0 for the minimum."""
    if values.dtype.kind == "f":
        words = _float_words(values)
    elif values.dtype.kind == "u":
        words = values.astype(np.uint64)
    else:
        words = values.astype(np.int64).view(np.uint64) ^ _SIGN
    words -= words.min()
    return words


def _float_words(values: NDArray[Any]) -> Words:
    """Return words in the order of the floats: their bits, inverted for negative values.

    float32 is used if it represents all values: it needs fewer bits.
    """
    with np.errstate(over="ignore"):
        short = values.astype(np.float32)
    if np.array_equal(short, values):
        short += np.float32(0.0)  # -0.0 and 0.0 are one value
        bits = short.view(np.int32).astype(np.int64)
        bits ^= (bits >> np.int64(31)) & np.int64(0x7FFFFFFF)
    else:
        bits = (values.astype(np.float64) + 0.0).view(np.int64)
        bits ^= (bits >> np.int64(63)) & np.int64(0x7FFFFFFFFFFFFFFF)
    return bits.view(np.uint64) ^ _SIGN


def _sort_ties(order: NDArray[np.int64], words: Words, values: NDArray[Any]) -> None:
    """Sort the positions of values with equal words, in place."""
    is_equal = words[1:] == words[:-1]
    tied = np.flatnonzero(np.append(is_equal, False) | np.append(False, is_equal))
    positions = order[tied]
    order[tied] = positions[np.lexsort((values[positions], words[tied]))]
