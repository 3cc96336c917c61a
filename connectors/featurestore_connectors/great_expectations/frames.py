"""Arrow tables as the pandas frames that Great Expectations reads."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

if TYPE_CHECKING:
    import pandas as pd


_EXACT = 1 << 53


def to_frame(table: pa.Table) -> pd.DataFrame:
    """Return a frame in which missing values are missing and numbers are those of the table.

    Whole numbers with nulls become floats where these hold them exactly, else pandas' nullable
    integers, with which not every expectation can compare.
    """
    import pandas as pd

    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        mapper = None
        if column.null_count and not _fits_float(column):
            mapper = _nullable
        columns[name] = column.to_pandas(types_mapper=mapper, date_as_object=False)
    return pd.DataFrame(columns, index=range(table.num_rows), copy=False)


def _fits_float(column: pa.ChunkedArray) -> bool:
    if not pat.is_integer(column.type) or column.type.bit_width < 64:
        return True
    bounds = pc.min_max(column).as_py()
    return bounds["min"] is None or (bounds["min"] >= -_EXACT and bounds["max"] <= _EXACT)


def _nullable(kind: pa.DataType) -> Any:
    import pandas as pd

    if pat.is_unsigned_integer(kind):
        return pd.UInt64Dtype()
    return pd.Int64Dtype()


def with_times(expectation: Mapping[str, Any], schema: pa.Schema) -> Mapping[str, Any]:
    """Return an expectation whose ISO texts are times where its column holds times."""
    kwargs = expectation["kwargs"]
    name = kwargs.get("column")
    if name is None or name not in schema.names:
        return expectation
    kind = schema.field(name).type
    if not (pat.is_timestamp(kind) or pat.is_date(kind)):
        return expectation
    changed = dict(kwargs)
    for key in ("min_value", "max_value", "value_set"):
        if key in kwargs:
            changed[key] = _times(kwargs[key], kind)
    return {**expectation, "kwargs": changed}


def _times(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, list | tuple | set):
        return [_times(each, kind) for each in value]
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
