"""Frames and series of polars as Arrow: objects and integers of 128 bits have no form of their own."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from featurestore.arrow.cells import array_of_cells
from featurestore.arrow.odd_columns import (
    CONVERSION_ERRORS,
    Unstorable,
    conversion_errors,
    unsupported_column,
)
from featurestore.errors import FeatureStoreError

_LONG_INTEGERS = ("Int128", "UInt128")


def table_from_polars(df: Any) -> pa.Table:
    """Return a frame of polars as a table.

    Raises:
        UnsupportedType: Names the column and the line to paste.
    """
    special = {}
    for series in df.get_columns():
        if _is_special(series):
            special[series.name] = column_from_polars(series, name=series.name, language="polars")
    plain = df.drop(list(special))
    try:
        # Its own stream would use string views, which pyarrow reads from version 16 on only.
        table = plain.to_arrow()
    except CONVERSION_ERRORS as error:
        raise _refused_series(plain, error) from error
    columns = {}
    for name in df.columns:
        columns[name] = special[name] if name in special else table[name]
    return pa.table(columns) if special else table


def column_from_polars(series: Any, *, name: str, language: str) -> pa.Array | pa.ChunkedArray:
    """Return a series of polars as an Arrow array.

    Integers of 128 bits become those of 64, which hold the same numbers or are refused.

    Raises:
        UnsupportedType: Names the column and the line to paste.
    """
    kind = str(series.dtype)
    if kind == "Object":
        return array_of_cells(series.to_list(), name=name, language=language)
    with conversion_errors(name, (), language=language):
        if kind not in _LONG_INTEGERS:
            return series.to_arrow()
        import polars

        target = polars.UInt64 if kind == "UInt128" else polars.Int64
        short = series.cast(target, strict=False)
        if short.null_count() > series.null_count():
            raise Unstorable(
                f"has integers of {kind} that 64 bits cannot hold",
                line=f"df = df.with_columns(pl.col({name!r}).cast(pl.String))",
            )
        return short.to_arrow()


def _is_special(series: Any) -> bool:
    return str(series.dtype) in ("Object", *_LONG_INTEGERS)


def _refused_series(df: Any, error: Exception) -> FeatureStoreError:
    """Return the error for the first column of a frame that Arrow refuses."""
    for series in df.get_columns():
        try:
            column_from_polars(series, name=series.name, language="polars")
        except FeatureStoreError as refused:
            return refused
    return unsupported_column("", Unstorable(f"cannot be stored ({error})"), language="polars")
