"""Frames of pandas as Arrow tables: plain columns all at once, others cell by cell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from featurestore.arrow.odd_columns import (
    CONVERSION_ERRORS,
    Unstorable,
    conversion_errors,
    unsupported_column,
)
from featurestore.arrow.python_columns import array_from_values
from featurestore.errors import FeatureStoreError

_PLAIN_UNITS = ("datetime64[s]", "datetime64[ms]", "datetime64[us]", "datetime64[ns]")
_WIDEST_FLOAT = 8
# Types of pandas that Arrow converts without loss; those with [unit, zone] are its zoned times.
_PLAIN_EXTENSIONS = (
    "string",
    "str",
    "boolean",
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    "float32",
    "float64",
    "datetime64[",
)


def table_from_pandas(df: Any) -> pa.Table:
    """Return a frame of pandas, whose names are texts, as a table; arrays keep their shape.

    Raises:
        UnsupportedType: Names the column, the row, and the line to paste.
    """
    special = {}
    for name, column in df.items():
        if not _is_plain(column.dtype):
            special[name] = array_from_values(column, name=name, language="pandas")
    plain = df.drop(columns=list(special)) if special else df
    try:
        table = pa.Table.from_pandas(plain, preserve_index=False)
    except CONVERSION_ERRORS as error:
        raise _refused_column(plain, error) from error
    if not special:
        return table.replace_schema_metadata(None)
    columns = {}
    for name in df.columns:
        columns[name] = special[name] if name in special else table[name]
    return pa.table(columns)


def _is_plain(dtype: Any) -> bool:
    """Return whether all columns of a type are converted by Arrow without loss."""
    if isinstance(dtype, np.dtype):
        if dtype.kind == "M":
            return str(dtype) in _PLAIN_UNITS and dtype.isnative
        return dtype.kind in "biuf" and dtype.isnative and dtype.itemsize <= _WIDEST_FLOAT
    return str(dtype).lower().startswith(_PLAIN_EXTENSIONS) or hasattr(dtype, "pyarrow_dtype")


def _refused_column(df: Any, error: Exception) -> FeatureStoreError:
    """Return the error for the first column of a frame that Arrow refuses."""
    for name, column in df.items():
        try:
            with conversion_errors(name, column.tolist(), language="pandas"):
                pa.Array.from_pandas(column)
        except FeatureStoreError as refused:
            return refused
    return unsupported_column("", Unstorable(f"cannot be stored ({error})"), language="pandas")
