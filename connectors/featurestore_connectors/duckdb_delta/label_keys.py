"""Keys of labels in the types of the keys that they meet."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.types import decimal_places
from featurestore_connectors.duckdb_delta.sqltext import column_type


def label_key(value: str, given: pa.DataType, wanted: pa.DataType) -> str:
    """Return a label's key as the type of a group's key; null, which has no row, beyond its values.

    >>> label_key("l.a", pa.int64(), pa.int32())
    'TRY_CAST(l.a AS INTEGER)'
    """
    if given == wanted:
        return value
    if pat.is_null(given):
        return f"CAST(NULL AS {column_type(wanted)})"
    cast = f"TRY_CAST({value} AS {column_type(wanted)})"
    if decimal_places(given) <= decimal_places(wanted):
        return cast
    # The cast rounds, so the result may be another number.
    return f"CASE WHEN TRY_CAST({cast} AS {column_type(given)}) = {value} THEN {cast} END"
