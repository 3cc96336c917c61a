"""About how many bytes values take in memory, from their types alone."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.types as pat

_UNBOUNDED_BYTES = 16


def width_of(kind: pa.DataType) -> int:
    """Return the bytes of a value of a type; those of any length count as short ones.

    >>> width_of(pa.int64()), width_of(pa.list_(pa.float32(), 3)), width_of(pa.string())
    (8, 12, 16)
    """
    if pat.is_fixed_size_list(kind):
        return int(kind.list_size) * width_of(kind.value_type)
    if pat.is_struct(kind):
        return sum(width_of(kind.field(index).type) for index in range(kind.num_fields))
    try:
        return max(int(kind.bit_width) // 8, 1)
    except ValueError:
        return _UNBOUNDED_BYTES


def is_unbounded(kind: pa.DataType) -> bool:
    """Return whether values of a type may have any length.

    >>> is_unbounded(pa.string()), is_unbounded(pa.list_(pa.float32(), 3))
    (True, False)
    """
    if pat.is_fixed_size_list(kind):
        return is_unbounded(kind.value_type)
    if pat.is_struct(kind):
        return any(is_unbounded(kind.field(index).type) for index in range(kind.num_fields))
    return bool(pat.is_string(kind) or pat.is_binary(kind) or pat.is_list(kind))


def width_of_columns(schema: pa.Schema, names: Iterable[str]) -> int:
    """Return the bytes of a row of some columns.

    >>> width_of_columns(pa.schema([("a", pa.int64()), ("b", pa.int8())]), ["a", "b", "a"])
    9
    """
    return sum(width_of(schema.field(name).type) for name in set(names))
