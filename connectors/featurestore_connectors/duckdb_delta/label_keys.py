"""Casts of label keys to the types of group keys."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.types import decimal_places
from featurestore_connectors.duckdb_delta.sqltext import column_type


def label_key(value: str, label_type: pa.DataType, key_type: pa.DataType) -> str:
    """Return a label's key cast to the type of a group's key; null (no match) if out of range.

    >>> label_key("l.a", pa.int64(), pa.int32())
    'TRY_CAST(l.a AS INTEGER)'
    """
    if label_type == key_type:
        return value
    if pat.is_null(label_type):
        return f"CAST(NULL AS {column_type(key_type)})"
    cast = f"TRY_CAST({value} AS {column_type(key_type)})"
    if decimal_places(label_type) <= decimal_places(key_type):
        return cast
    # The cast rounds, so compare the result with the original value.
    return f"CASE WHEN TRY_CAST({cast} AS {column_type(label_type)}) = {value} THEN {cast} END"
