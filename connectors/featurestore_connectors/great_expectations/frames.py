"""Conversion of Arrow tables to the pandas frames that Great Expectations reads."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

if TYPE_CHECKING:
    import pandas as pd


_MAX_EXACT = 1 << 53


def to_frame(table: pa.Table) -> pd.DataFrame:
    """Convert a table without loss of nulls or precision.

    Integers with nulls become floats if these are exact, else pandas' nullable integers, which some
    expectations cannot compare.
    """
    import pandas as pd

    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        mapper = None
        if column.null_count and not _fits_float(column):
            mapper = _nullable_dtype
        columns[name] = column.to_pandas(types_mapper=mapper, date_as_object=False)
    return pd.DataFrame(columns, index=range(table.num_rows), copy=False)


def _fits_float(column: pa.ChunkedArray) -> bool:
    if not pat.is_integer(column.type) or column.type.bit_width < 64:
        return True
    bounds = pc.min_max(column).as_py()
    return bounds["min"] is None or (bounds["min"] >= -_MAX_EXACT and bounds["max"] <= _MAX_EXACT)


def _nullable_dtype(kind: pa.DataType) -> Any:
    import pandas as pd

    if pat.is_unsigned_integer(kind):
        return pd.UInt64Dtype()
    return pd.Int64Dtype()


def with_times(expectation: Mapping[str, Any], schema: pa.Schema) -> Mapping[str, Any]:
    """Convert ISO texts in the arguments of an expectation to times if its column has times."""
    kwargs = expectation["kwargs"]
    name = kwargs.get("column")
    if name is None or name not in schema.names:
        return expectation
    kind = schema.field(name).type
    if not (pat.is_timestamp(kind) or pat.is_date(kind)):
        return expectation
    converted = dict(kwargs)
    for key in ("min_value", "max_value", "value_set"):
        if key in kwargs:
            converted[key] = _parse_times(kwargs[key], kind)
    return {**expectation, "kwargs": converted}


def _parse_times(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, list | tuple | set):
        return [_parse_times(each, kind) for each in value]
    if not isinstance(value, str):
        return value
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return value
    if pat.is_date(kind):
        return datetime(time.year, time.month, time.day)
    if time.tzinfo is None:
        return time.replace(tzinfo=UTC)
    return time
