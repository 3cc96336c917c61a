"""Conversion of pandas and polars dataframes, and of Python rows and columns, to Arrow tables.

Arrow converts plain columns directly; other columns are converted cell by cell.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

import numpy as np
import pyarrow as pa

from featurestore.arrow.cell_casts import suggest_cast
from featurestore.arrow.cells import interval_side
from featurestore.arrow.column_names import is_utf8_string, rename_hint, to_feature_names
from featurestore.arrow.columns import LONG_INTEGERS, convert_values, is_pandas, python_cells
from featurestore.arrow.unstorable import (
    CONVERSION_ERRORS,
    Cell,
    Column,
    Frame,
    Unstorable,
    describe_cells,
    from_library_error,
)
from featurestore.errors import (
    FeatureStoreError,
    InvalidName,
    UnsupportedDataframe,
    UnsupportedType,
    listing,
)

ColumnsByName = dict[Any, Column]

_PLAIN_UNITS = ("datetime64[s]", "datetime64[ms]", "datetime64[us]", "datetime64[ns]")
_WIDEST_FLOAT = 8
# pandas dtypes that Arrow converts without loss; dtypes with [unit, zone] are zoned times.
_PLAIN_EXTENSIONS = (
    "string",
    "str",
    "boolean",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    "float32",
    "float64",
    "datetime64[",
)


def table_from_pandas(df: Frame) -> pa.Table:
    """Convert a pandas dataframe with string column names to a table; arrays keep their shape.

    Raises:
        UnsupportedType: Names the column, the row, and the code that converts it.
    """
    special = {}
    for name, column in df.items():
        if not _is_plain_dtype(column.dtype):
            special[name] = array_from_values(column, name=name)
    plain = df.drop(columns=list(special)) if special else df
    try:
        table = pa.Table.from_pandas(plain, preserve_index=False)
    except CONVERSION_ERRORS as error:
        raise _find_error(plain.items(), pa.Array.from_pandas, error) from error
    if not special:
        # pandas adds metadata, by which schemas with equal types would differ.
        return table.replace_schema_metadata(None)
    columns = {}
    for name in df.columns:
        columns[name] = special[name] if name in special else table[name]
    return pa.table(columns)


def table_from_polars(df: Frame) -> pa.Table:
    """Convert a polars dataframe to a table.

    Raises:
        UnsupportedType: Names the column and the code that converts it.
    """
    special = {}
    for series in df.get_columns():
        # Arrow has no type for Python objects and 128-bit integers.
        if str(series.dtype) in ("Object", *LONG_INTEGERS):
            special[series.name] = array_from_values(series, name=series.name)
    plain = df.drop(list(special))
    try:
        # The Arrow stream of polars has string views, which pyarrow reads from version 16 on.
        table = plain.to_arrow()
    except CONVERSION_ERRORS as error:
        series = [(column.name, column) for column in plain.get_columns()]
        raise _find_error(series, convert_values, error) from error
    columns = {}
    for name in df.columns:
        columns[name] = special[name] if name in special else table[name]
    return pa.table(columns) if special else table


def columns_from_rows(rows: Sequence[Cell]) -> ColumnsByName:
    """Return the columns of rows (dicts, tuples, lists, arrays); default names are ``col_0``, ...

    Arrays of two dimensions or more, such as images, are the cells of one column ``col_0``.

    >>> columns_from_rows([{"a": 1}, {"a": 2}])
    {'a': [1, 2]}
    """
    if not rows:
        raise UnsupportedDataframe(
            "An empty list has no columns.",
            hint="pass an empty pyarrow Table or pandas DataFrame with types",
        )
    if all(isinstance(row, Mapping) for row in rows):
        # The names of all rows, since a row may lack some.
        names = dict.fromkeys(itertools.chain.from_iterable(rows))
        return {name: [row.get(name) for row in rows] for name in names}
    if all(isinstance(row, np.ndarray) and row.ndim > 1 for row in rows):
        return {"col_0": list(rows)}
    if all(isinstance(row, list | tuple) or hasattr(row, "tolist") for row in rows):
        return _rows_to_columns(rows)
    kinds = ", ".join(sorted({type(row).__name__ for row in rows}))
    raise UnsupportedDataframe(
        f"A list of {kinds} is not a dataframe.",
        hint="pass a list of dicts or a list of rows: [[1, 2.0], [3, 4.0]]",
    )


def check_columns(columns: Mapping[Any, Column]) -> ColumnsByName:
    """Return a dict of columns (lists, numpy arrays, series, Arrow arrays) of one length.

    An array of shape (n, 28, 28, 1) is a column of n arrays of shape (28, 28, 1).

    Raises:
        UnsupportedDataframe: Values are not columns, or columns have different lengths.
    """
    if not columns:
        raise UnsupportedDataframe("An empty dict has no columns.")
    scalars = [name for name, values in columns.items() if not _is_column(values)]
    if scalars:
        hint = "each value must be a list or an array with one item per row"
        if all(isinstance(columns[name], Iterator) for name in scalars):
            hint = "df = {name: list(values) for name, values in df.items()}"
        elif len(scalars) == len(columns):
            hint = "df = [df]  # one row"
        raise UnsupportedDataframe(
            f"The values of a dict must be columns; these are not: {listing(scalars)}.",
            hint=hint,
        )
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        lengths_text = ", ".join(f"{name!r} has {count}" for name, count in lengths.items())
        raise UnsupportedDataframe(
            f"The columns have different lengths: {lengths_text}.",
            hint="pass one value per row in each column",
        )
    return dict(columns)


def columns_from_array(array: Any) -> ColumnsByName:
    """Return one column per second-axis index of a numpy array, ``col_0``, ``col_1``.

    Arrays with more axes become a single column ``col_0``. The fields of a one-dimensional
    structured array become columns.

    >>> list(columns_from_array(np.zeros((3, 28, 28, 1))))
    ['col_0']
    """
    # The columns of a ``numpy.matrix`` have two dimensions.
    array = array if isinstance(array, np.ma.MaskedArray) else np.asarray(array)
    if array.dtype.names is not None and array.ndim == 1:
        return {name: array[name] for name in array.dtype.names}
    if array.ndim < 2 or array.dtype.names is not None:
        raise UnsupportedDataframe(
            f"A numpy array of shape {array.shape} is not a dataframe; arrays must have two "
            "dimensions (rows, columns) or more, such as (rows, height, width).",
            hint="df = df.reshape(-1, 1)",
        )
    if array.ndim > 2:
        return {"col_0": array}
    columns = {f"col_{index}": array[:, index] for index in range(array.shape[1])}
    if not columns:
        raise UnsupportedDataframe(f"A numpy array of shape {array.shape} has no columns.")
    return columns


def columns_in_memory(df: Frame) -> ColumnsByName | None:
    """Return the columns of rows, dicts and arrays; None for other dataframes.

    >>> columns_in_memory([(1, "x")])
    {'col_0': [1], 'col_1': ['x']}
    """
    if library_name(df) == "numpy":
        return columns_from_array(df)
    # The values of a dict of Hugging Face datasets are its splits.
    if isinstance(df, Mapping) and library_name(df) != "datasets":
        return check_columns(df)
    return columns_from_rows(df) if isinstance(df, list | tuple) else None


def table_from_columns(columns: ColumnsByName) -> pa.Table:
    """Convert columns of one length to a table.

    >>> table_from_columns({"image": np.zeros((2, 3, 3)), "label": [0, 1]}).num_rows
    2
    """
    invalid_names = [title for title in columns if not is_utf8_string(title)]
    if invalid_names:
        names = list(columns)
        raise InvalidName(
            f"Column names must be valid UTF-8 strings; {invalid_names[0]!r} is not.",
            hint=rename_hint(names, to_feature_names(names)),
        )
    return pa.table(
        {title: array_from_values(values, name=title) for title, values in columns.items()}
    )


def array_from_values(values: Column, *, name: str) -> pa.Array | pa.ChunkedArray:
    """Convert one column (a list, a numpy array, a series, an Arrow array) to an Arrow array.

    Raises:
        UnsupportedType: Names the column, the row, and the line that casts it.
    """
    try:
        return convert_values(values)
    except CONVERSION_ERRORS as error:
        raise unsupported_column(name, error, values) from error


def unsupported_column(name: str, error: Exception, values: Column) -> UnsupportedType:
    """Return the error for a column that cannot be stored.

    >>> print(unsupported_column("z", Unstorable("holds complex values", cells=[1j]), [1, 1j]))
    Column 'z' holds complex values: row 1 is complex (1j).
    Hint: df = featurestore.cast(df, {'z': 'float64[2]'})
    """
    cells = python_cells(values)
    problem = from_library_error(error, cells)
    hint = problem.line
    if hint is None:
        hint = suggest_cast(name, cells, target=problem.target)
    examples = describe_cells(problem.cells, cells)
    return UnsupportedType(f"{problem.subject} {name!r} {problem.problem}{examples}.", hint=hint)


def interval_sides(df: Frame) -> dict[Any, str]:
    """Return the side on which intervals are closed, for each column of intervals.

    >>> interval_sides({"id": [1, 2]})
    {}
    """
    if not isinstance(df, Mapping) and not is_pandas(df):
        return {}
    columns = df.items() if hasattr(df, "items") else ()
    sides = {name: interval_side(column) for name, column in columns}
    return {name: side for name, side in sides.items() if side is not None}


def _is_plain_dtype(dtype: Any) -> bool:
    """Return whether Arrow converts every column of a dtype without loss."""
    if isinstance(dtype, np.dtype):
        if dtype.kind == "M":
            return str(dtype) in _PLAIN_UNITS and dtype.isnative
        return dtype.kind in "biuf" and dtype.isnative and dtype.itemsize <= _WIDEST_FLOAT
    return str(dtype).lower().startswith(_PLAIN_EXTENSIONS) or hasattr(dtype, "pyarrow_dtype")


def _find_error(
    columns: Iterable[tuple[Any, Any]], convert: Callable[[Any], Any], error: Exception
) -> FeatureStoreError:
    """Return the error for the first column of a dataframe that Arrow refuses."""
    for name, values in columns:
        try:
            convert(values)
        except CONVERSION_ERRORS as refused:
            return unsupported_column(name, refused, values)
    return unsupported_column("", Unstorable(f"cannot be stored ({error})"), ())


def _rows_to_columns(rows: Iterable[Cell]) -> ColumnsByName:
    """Transpose rows to columns, with the names of named tuples or ``col_0``, ..."""
    plain = []
    for row in rows:
        # ``tolist`` returns times of nanoseconds as integers.
        has_times = getattr(getattr(row, "dtype", None), "kind", "") in ("M", "m", "V")
        if has_times:
            row = list(row)
        elif hasattr(row, "tolist"):
            row = row.tolist()
        plain.append(row)
    lengths = sorted(set(map(len, plain)))
    if len(lengths) != 1:
        raise UnsupportedDataframe(
            f"The rows have different lengths: {', '.join(map(str, lengths))}.",
            hint="use the same columns in every row",
        )
    # Named tuples have ``_fields``, and Spark rows have ``__fields__``.
    names = getattr(plain[0], "_fields", None) or getattr(plain[0], "__fields__", None)
    if not names:
        names = [f"col_{index}" for index in range(lengths[0])]
    columns = {}
    for index, title in enumerate(names):
        columns[title] = [row[index] for row in plain]
    return columns


def _is_column(values: Column) -> bool:
    if isinstance(values, str | bytes | Mapping):
        return False
    if isinstance(values, np.ndarray):
        return values.ndim > 0
    return hasattr(values, "__len__") and hasattr(values, "__getitem__")


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


def check_first_item(first: object) -> None:
    """Check that the first item of an iterator is a dataframe.

    Raises:
        UnsupportedDataframe: It is a row or a dict of columns.
    """
    line = row_iterator_line(first)
    if line is not None:
        raise UnsupportedDataframe(
            f"An iterator of {type(first).__name__} is not a dataframe; an iterator must yield "
            "dataframes or record batches.",
            hint=line,
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
    """Return whether a row has no names and is not an image."""
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
