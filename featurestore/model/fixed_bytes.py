"""Bytes of one length as bytes of any length, also where Arrow's own cast would end the process."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pat


def cast_bytes(array: Any, kind: pa.DataType) -> Any:
    """Return bytes or texts as another type of bytes or texts.

    pyarrow 14 reads beyond the array, and ends the process, when it casts a slice of bytes of one length that has no
    nulls; so the offset of such a slice is removed first.

    >>> letters = pa.array([b"ab", b"cd", b"ef"], pa.binary(2))
    >>> cast_bytes(letters.slice(1), pa.large_binary()).to_pylist()
    [b'cd', b'ef']
    """
    if pat.is_fixed_size_binary(array.type) and array.offset and array.buffers()[0] is None:
        width = array.type.byte_width
        data = array.buffers()[1].slice(array.offset * width, len(array) * width)
        array = pa.Array.from_buffers(array.type, len(array), [None, data])
    return array.cast(kind)
