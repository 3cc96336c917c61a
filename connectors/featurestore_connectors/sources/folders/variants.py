"""Variants in Parquet files: two binary columns, and further columns of a shredded variant.

DuckDB rebuilds the two binary columns of a shredded variant. It does so without loss only for the
types that are checked in this module
(https://github.com/apache/parquet-format/blob/master/VariantShredding.md).
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

_TYPED, _UNTYPED = "typed_value", "value"
_PLAIN = (
    pat.is_boolean,
    pat.is_signed_integer,
    pat.is_floating,
    pat.is_decimal128,
    pat.is_date32,
    pat.is_string,
    pat.is_binary,
)
_UUID_BYTES = 16


def is_shredded(dtype: pa.DataType) -> bool:
    """Return whether the struct of a variant has values outside of the two binary columns."""
    return pat.is_struct(dtype) and dtype.get_field_index(_TYPED) >= 0


def find_unreadable_part(dtype: pa.DataType) -> str | None:
    """Return a description of the part of a variant that DuckDB does not read exactly, or None.

    >>> time = pa.timestamp("ns", tz="UTC")
    >>> fields = [("metadata", pa.binary()), ("value", pa.binary()), ("typed_value", time)]
    >>> find_unreadable_part(pa.struct(fields))
    'timestamp[ns, tz=UTC]'
    """
    if not is_shredded(dtype):
        return None
    if dtype.get_field_index(_UNTYPED) < 0:
        return f"no column {_UNTYPED!r}"
    typed = dtype.field(_TYPED).type
    member_types = []
    if pat.is_list(typed):
        member_types = [typed.value_type]
    elif pat.is_struct(typed):
        member_types = [typed.field(index).type for index in range(typed.num_fields)]
    elif not _is_exact(typed):
        return str(typed)
    unreadable_parts = filter(None, map(find_unreadable_part, member_types))
    return next(unreadable_parts, None)


def _is_exact(dtype: pa.DataType) -> bool:
    """Return whether DuckDB keeps the values of a shredded type."""
    if isinstance(dtype, pa.BaseExtensionType):
        dtype = dtype.storage_type
    if pat.is_fixed_size_binary(dtype):
        return bool(dtype.byte_width == _UUID_BYTES)
    if pat.is_timestamp(dtype):
        return dtype.unit == "us" or (dtype.unit == "ns" and dtype.tz is None)
    if pat.is_time64(dtype):
        return bool(dtype.unit == "us")
    return any(is_type(dtype) for is_type in _PLAIN)
