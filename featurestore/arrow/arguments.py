"""Arguments that are not dataframes, and the errors whose hint converts them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sized
from typing import Any

from featurestore.errors import UnsupportedDataframe

# Functions that create a dataframe from a dict of columns, by the library of the columns.
_MAKERS = {"pandas": "pd.DataFrame", "polars": "pl.DataFrame", "pyarrow": "pa.table"}
_SUPPORTED = (
    "pandas or polars DataFrame, pyarrow Table or RecordBatchReader, datasets.Dataset, "
    "anything with __arrow_c_stream__, "
    "numpy array of two axes or more, dict of columns, list of rows or of dicts, "
    "iterator of record batches, Spark DataFrame, "
    "DuckDB relation, "
    "FeatureFrame"
)


class Columns(dict[str, object]):
    """A dict of columns, which is a dataframe also as an item of an iterator."""


def library_name(df: object) -> str:
    """Return the name of the package that defines a dataframe's class.

    >>> library_name([{"a": 1}])
    'builtins'
    """
    return type(df).__module__.split(".")[0]


def is_duckdb_relation(df: object) -> bool:
    """Return whether an argument is a relation of DuckDB, by name, without importing DuckDB."""
    # Some DuckDB releases define their classes in ``_duckdb``.
    return library_name(df).endswith("duckdb") and hasattr(df, "fetch_arrow_reader")


def is_iterator(df: object) -> bool:
    """Return whether an argument yields dataframes, and is not itself a stream of Arrow data.

    >>> is_iterator(iter([])), is_iterator([])
    (True, False)
    """
    return isinstance(df, Iterator) and not hasattr(df, "__arrow_c_stream__")


def bare_array_error(df: object, values: str) -> UnsupportedDataframe:
    """Return the error for an Arrow array; ``values`` is the expression of a pyarrow array.

    >>> bare_array_error([1], "df").hint
    "df = pa.table({'col_0': df})"
    """
    return UnsupportedDataframe(
        f"An Arrow array of type {type(df).__name__} is one column, not a dataframe.",
        hint=f"df = pa.table({{'col_0': {values}}})",
    )


def row_iterator_line(first: Any) -> str | None:
    """Return the line for an iterator of rows or columns, or None for an iterator of dataframes.

    A row is not a dataframe, and its iterator would be read one row at a time.

    >>> row_iterator_line((1, "x")), row_iterator_line([{"id": 1}])
    ('df = list(df)', None)
    """
    if isinstance(first, Columns):
        return None
    if isinstance(first, Mapping):
        libraries = set(map(library_name, first.values()))
        are_columns = all(isinstance(values, Sized) for values in first.values())
        if are_columns and len(libraries) == 1 and libraries <= _MAKERS.keys():
            return f"df = map({_MAKERS[libraries.pop()]}, df)"
        return "df = list(df)  # or, for columns: df = map(pd.DataFrame, df)"
    if not isinstance(first, list | tuple) or hasattr(first, "__arrow_c_array__"):
        return None
    if isinstance(first, list) and first and not _is_plain_row(first[0]):
        return None  # rows with names, or images
    if first and isinstance(first[0], list | tuple):
        return "df = [row for chunk in df for row in chunk]  # or df = list(df)"
    return "df = list(df)"


def _is_plain_row(row: Any) -> bool:
    """Return whether a row has no names and is no image."""
    has_names = isinstance(row, Mapping) or hasattr(row, "_fields") or hasattr(row, "asDict")
    return not has_names and getattr(row, "ndim", 1) <= 1


def not_a_dataframe_error(df: object) -> UnsupportedDataframe:
    """Return the error for an argument that is not a dataframe.

    >>> not_a_dataframe_error("trips.parquet").hint
    "df = duckdb.read_parquet('trips.parquet')"
    """
    if library_name(df) == "pandas" and hasattr(df, "dtype"):
        return UnsupportedDataframe(
            f"A pandas {type(df).__name__} is not a dataframe.",
            hint="df = pd.DataFrame({'col_0': df})",
        )
    if isinstance(df, str | os.PathLike):
        path = os.fspath(df)
        return UnsupportedDataframe(
            f"{path!r} is a file name, not a dataframe: read the file first.",
            hint=_read_snippet(str(path)),
        )
    return UnsupportedDataframe(
        f"{df!r:.60} of type {type(df).__name__} is not a dataframe. Supported: {_SUPPORTED}.",
        hint="pass rows, such as [{'column': 1}]",
    )


def _read_snippet(path: str) -> str:
    """Return a code snippet that reads the file.

    >>> _read_snippet("trips.parquet")
    "df = duckdb.read_parquet('trips.parquet')"
    """
    ending = os.path.splitext(path)[1].lower()
    if ending in (".csv", ".tsv", ".txt", ".gz"):
        return f"df = pd.read_csv({path!r})  # or larger than memory: duckdb.read_csv({path!r})"
    if ending in (".json", ".jsonl", ".ndjson"):
        return f"df = duckdb.read_json({path!r})"
    if ending in (".xls", ".xlsx"):
        return f"df = pd.read_excel({path!r})"
    if ending in (".parquet", ".pq"):
        return f"df = duckdb.read_parquet({path!r})"
    return f"df = duckdb.read_parquet({path + '/*.parquet'!r})  # or pd.read_csv(...)"
