"""Casts of bytes of one length, which Arrow's own cast reads wrongly in slices."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pat


def cast_bytes(array: Any, kind: pa.DataType) -> Any:
    """Return an array as another type, as ``array.cast`` does.

    pyarrow 14 reads beyond the array, and ends the process, when it casts a slice of bytes of one
    length that has no nulls, alone or inside lists and structs; so such an array is copied first,
    which removes its offset.

    >>> letters = pa.array([b"ab", b"cd", b"ef"], pa.binary(2))
    >>> cast_bytes(letters.slice(1), pa.large_binary()).to_pylist()
    [b'cd', b'ef']
    """
    if _holds_fixed_bytes(array.type):
        array = pa.concat_arrays([array, array.slice(0, 0)])
    return array.cast(kind)


def _holds_fixed_bytes(kind: pa.DataType) -> bool:
    if pat.is_fixed_size_binary(kind):
        return True
    return any(_holds_fixed_bytes(kind.field(number).type) for number in range(kind.num_fields))
