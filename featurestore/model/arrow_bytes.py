"""Binaries of many bytes, joined in memory that costs little.

To get memory from the system in small pages costs four times as much as to copy bytes into it. So
the result lies in memory of numpy, for which there are large pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

# From here on the system has large pages for numpy.
_MANY_BYTES = 1 << 22
_MOST_BYTES = 2**31 - 1  # what offsets of 32 bits reach


def has_many_bytes(arrays: Sequence[Any]) -> bool:
    """Tell whether arrays are binaries that are better joined here than by Arrow.

    >>> has_many_bytes([pa.array([b"few"])])
    False
    """
    if not pat.is_binary(arrays[0].type):
        return False
    return _MANY_BYTES <= sum(map(_size, arrays)) <= _MOST_BYTES


def joined_bytes(arrays: Sequence[Any]) -> Any:
    """Return binaries of several arrays as one.

    >>> joined_bytes([pa.array([b"ab", None]), pa.array([b"c"])]).to_pylist()
    [b'ab', None, b'c']
    """
    lengths = np.concatenate([np.diff(_offsets(array)) for array in arrays])
    data, end = np.empty(int(lengths.sum()), np.uint8), 0
    for array in arrays:
        begin, end = end, end + _size(array)
        data[begin:end] = _data(array)
    valid = None
    if any(array.null_count for array in arrays):
        valid = pa.concat_arrays([array.is_valid() for array in arrays])
    return _binary(lengths, data, valid)


def _offsets(array: Any) -> npt.NDArray[np.int32]:
    if len(array) == 0:
        return np.zeros(1, np.int32)
    return np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset)


def _size(array: Any) -> int:
    offsets = _offsets(array)
    return int(offsets[-1]) - int(offsets[0])


def _data(array: Any) -> npt.NDArray[np.uint8]:
    first, data = int(_offsets(array)[0]), array.buffers()[2]
    if data is None:
        return np.zeros(0, np.uint8)
    return np.frombuffer(data, np.uint8, _size(array), first)


def _binary(
    lengths: npt.NDArray[np.int32], data: npt.NDArray[np.uint8], valid: pa.Array | None
) -> Any:
    """Return bytes that lie one after the other as binaries."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    bits = None
    if valid is not None:
        bits = valid.buffers()[1]
    buffers = [bits, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)
