"""Concatenation of large binary arrays in memory that numpy allocates.

Allocating small pages costs four times as much as copying into them. numpy allocates large arrays in
huge pages; Arrow's pool does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

# From this size numpy uses huge pages.
_LARGE_BYTES = 1 << 22
_MAX_BYTES = 2**31 - 1  # the range of 32-bit offsets


def is_large_binary(arrays: Sequence[Any]) -> bool:
    """Return whether ``concat_binaries`` is faster than Arrow's concatenation.

    >>> is_large_binary([pa.array([b"few"])])
    False
    """
    if not pat.is_binary(arrays[0].type):
        return False
    return _LARGE_BYTES <= sum(map(_size, arrays)) <= _MAX_BYTES


def concat_binaries(arrays: Sequence[Any]) -> Any:
    """Concatenate binary arrays.

    >>> concat_binaries([pa.array([b"ab", None]), pa.array([b"c"])]).to_pylist()
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
    """Return a binary array of values stored back to back."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    bits = None
    if valid is not None:
        bits = valid.buffers()[1]
    buffers = [bits, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)
