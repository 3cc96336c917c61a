"""Conversion of pandas and polars dataframes, and of Python rows and columns, to Arrow tables.

Arrow converts plain columns directly; other columns are converted cell by cell.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from featurestore.arrow.arrays import from_numpy, numbers_to_arrow, to_plain_array
from featurestore.arrow.cells import cells_to_array, interval_side
from featurestore.arrow.column_lines import detect_language, rename_line
from featurestore.arrow.column_names import to_feature_names
from featurestore.arrow.json_text import is_utf8_string
from featurestore.arrow.unstorable import (
    CONVERSION_ERRORS,
    Unstorable,
    check_dtype,
    translate_conversion_errors,
    unsupported_column,
)
from featurestore.errors import (
    FeatureStoreError,
    InvalidName,
    UnsupportedDataframe,
    UnsupportedType,
    listing,
)

_TEXT_OF_POLARS = "df = df.with_columns(pl.col({c!r}).cast(pl.String))"
_LONG_INTEGERS = ("Int128", "UInt128")

# The array of a pandas column of numpy values, by release of pandas.
_NUMPY_WRAPPERS = ("NumpyExtensionArray", "PandasArray")
_PLAIN_UNITS = ("datetime64[s]", "datetime64[ms]", "datetime64[us]", "datetime64[ns]")
_WIDEST_FLOAT = 8
# pandas dtypes that Arrow converts without loss; dtypes with [unit, zone] are zoned times.
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
    """Convert a pandas dataframe with string column names to a table; arrays keep their shape.

    Raises:
        UnsupportedType: Names the column, the row, and the code that converts it.
    """
    special = {}
    for name, column in df.items():
        if not _is_plain_dtype(column.dtype):
            special[name] = array_from_values(column, name=name, language="pandas")
    plain = df.drop(columns=list(special)) if special else df
    try:
        table = pa.Table.from_pandas(plain, preserve_index=False)
    except CONVERSION_ERRORS as error:
        raise _find_pandas_error(plain, error) from error
    if not special:
        # pandas adds metadata, by which schemas with equal types would differ.
        return table.replace_schema_metadata(None)
    columns = {}
    for name in df.columns:
        columns[name] = special[name] if name in special else table[name]
    return pa.table(columns)


def table_from_polars(df: Any) -> pa.Table:
    """Convert a polars dataframe to a table.

    Raises:
        UnsupportedType: Names the column and the code that converts it.
    """
    special = {}
    for series in df.get_columns():
        # Arrow has no type for Python objects and 128-bit integers.
        if str(series.dtype) in ("Object", *_LONG_INTEGERS):
            special[series.name] = column_from_polars(series, name=series.name, language="polars")
    plain = df.drop(list(special))
    try:
        # The Arrow stream of polars has string views, which pyarrow reads from version 16 on.
        table = plain.to_arrow()
    except CONVERSION_ERRORS as error:
        raise _find_polars_error(plain, error) from error
    columns = {}
    for name in df.columns:
        columns[name] = special[name] if name in special else table[name]
    return pa.table(columns) if special else table


def table_from_rows(rows: Sequence[Any]) -> pa.Table:
    """Convert rows (dicts, tuples, lists, arrays) to a table; default names are ``col_0``, ...

    Arrays of two dimensions or more, such as images, are the cells of one column ``col_0``.

    >>> table_from_rows([{"a": 1}, {"a": 2}]).to_pydict()
    {'a': [1, 2]}
    """
    if not rows:
        raise UnsupportedDataframe(
            "An empty list has no columns.",
            hint="pass an empty pyarrow Table or pandas DataFrame with types",
        )
    columns: dict[Any, list[Any]]
    if all(isinstance(row, Mapping) for row in rows):
        # The names of all rows, since a row may lack some.
        names = dict.fromkeys(itertools.chain.from_iterable(rows))
        columns = {}
        for name in names:
            columns[name] = [row.get(name) for row in rows]
    elif all(isinstance(row, np.ndarray) and row.ndim > 1 for row in rows):
        columns = {"col_0": list(rows)}
    elif all(isinstance(row, list | tuple) or hasattr(row, "tolist") for row in rows):
        columns = _rows_to_columns(rows)
    else:
        kinds = ", ".join(sorted({type(row).__name__ for row in rows}))
        raise UnsupportedDataframe(
            f"A list of {kinds} is not a dataframe.",
            hint="pass a list of dicts or a list of rows: [[1, 2.0], [3, 4.0]]",
        )
    return _table_from_columns(columns, language=detect_language(rows))


def table_from_columns(columns: Mapping[Any, Any]) -> pa.Table:
    """Convert a dict of columns (lists, numpy arrays, series, Arrow arrays) to a table.

    An array of shape (n, 28, 28, 1) is a column of n arrays of shape (28, 28, 1).

    >>> table_from_columns({"image": np.zeros((2, 3, 3)), "label": [0, 1]}).num_rows
    2

    Raises:
        UnsupportedDataframe: Values are not columns, or columns have different lengths.
    """
    if not columns:
        raise UnsupportedDataframe("An empty dict has no columns.")
    scalars = [name for name, values in columns.items() if not _is_column(values)]
    if scalars:
        hint = "each value must be a list or an array with one item per row"
        if all(isinstance(columns[name], Iterator) for name in scalars):
            hint = "; ".join(f"columns[{name!r}] = list(columns[{name!r}])" for name in scalars)
        elif len(scalars) == len(columns):
            hint = "rows = [columns]  # one row"
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
    return _table_from_columns(columns, language="columns")


def table_from_array(array: Any) -> pa.Table:
    """Convert a numpy array to a table with one column per second-axis index, ``col_0``, ``col_1``.

    Arrays with more axes become a single column ``col_0``. The fields of a one-dimensional
    structured array become columns.

    >>> table_from_array(np.zeros((3, 28, 28, 1))).column_names
    ['col_0']
    """
    array = _without_subclass(array)
    if array.dtype.names is not None and array.ndim == 1:
        columns = {name: array[name] for name in array.dtype.names}
        return _table_from_columns(columns, language=detect_language(array))
    if array.ndim < 2 or array.dtype.names is not None:
        raise UnsupportedDataframe(
            f"A numpy array of shape {array.shape} is not a dataframe; arrays must have two "
            "dimensions (rows, columns) or more, such as (rows, height, width).",
            hint="array = array.reshape(-1, 1)",
        )
    if array.ndim > 2:
        return _table_from_columns({"col_0": array}, language=detect_language(array))
    columns = {f"col_{index}": array[:, index] for index in range(array.shape[1])}
    if not columns:
        raise UnsupportedDataframe(f"A numpy array of shape {array.shape} has no columns.")
    return _table_from_columns(columns, language="numpy")


def array_from_values(
    values: Any, *, name: str, language: str, nan_is_null: bool = False
) -> pa.Array | pa.ChunkedArray:
    """Convert one column (a list, a numpy array, a series, an Arrow array) to an Arrow array.

    Arguments are the same as in ``cells.cells_to_array``.

    >>> array_from_values(np.array([1, 2], ">i8"), name="a", language="columns").to_pylist()
    [1, 2]

    Raises:
        UnsupportedType: Names the column, the row, and the code that converts it.
    """
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if hasattr(values, "to_arrow"):  # a series of polars
        return column_from_polars(values, name=name, language=language)
    if isinstance(values, np.ndarray):
        return _array_from_numpy(values, name=name, language=language, nan_is_null=nan_is_null)
    if type(values).__module__.split(".")[0] == "pandas":
        return _array_from_pandas(values, name=name, language=language)
    return cells_to_array(list(values), name=name, language=language, nan_is_null=nan_is_null)


def column_from_polars(series: Any, *, name: str, language: str) -> pa.Array | pa.ChunkedArray:
    """Convert a polars series to an Arrow array.

    128-bit integers are converted to 64 bits; values that do not fit are refused.

    Raises:
        UnsupportedType: Names the column and the code that converts it.
    """
    kind = str(series.dtype)
    if kind == "Object":
        return cells_to_array(series.to_list(), name=name, language=language)
    with translate_conversion_errors(name, (), language=language):
        if kind not in _LONG_INTEGERS:
            return series.to_arrow()
        import polars

        target = polars.UInt64 if kind == "UInt128" else polars.Int64
        # Values that do not fit become null.
        short = series.cast(target, strict=False)
        if short.null_count() > series.null_count():
            raise Unstorable(
                f"has {kind} integers that do not fit 64 bits",
                line=_TEXT_OF_POLARS.format(c=name) if language == "polars" else None,
            )
        return short.to_arrow()


def interval_sides(df: Any) -> dict[Any, str]:
    """Return the side on which intervals are closed, for each column of intervals.

    >>> interval_sides({"id": [1, 2]})
    {}
    """
    if not isinstance(df, Mapping) and type(df).__module__.split(".")[0] != "pandas":
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


def _find_pandas_error(df: Any, error: Exception) -> FeatureStoreError:
    """Return the error for the first column of a dataframe that Arrow refuses."""
    for name, column in df.items():
        try:
            with translate_conversion_errors(name, column.tolist(), language="pandas"):
                pa.Array.from_pandas(column)
        except FeatureStoreError as refused:
            return refused
    return unsupported_column("", Unstorable(f"cannot be stored ({error})"), language="pandas")


def _find_polars_error(df: Any, error: Exception) -> FeatureStoreError:
    """Return the error for the first column of a dataframe that Arrow refuses."""
    for series in df.get_columns():
        try:
            column_from_polars(series, name=series.name, language="polars")
        except FeatureStoreError as refused:
            return refused
    return unsupported_column("", Unstorable(f"cannot be stored ({error})"), language="polars")


def _rows_to_columns(rows: Iterable[Any]) -> dict[str, list[Any]]:
    """Transpose rows to columns, with the names of named tuples or ``col_0``, ..."""
    plain = []
    for row in rows:
        if hasattr(row, "tolist"):
            row = _array_to_row(row)
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


def _array_to_row(array: Any) -> Any:
    """Return the cells of an array; ``tolist`` returns times of nanoseconds as integers."""
    is_numbers = getattr(getattr(array, "dtype", None), "kind", "") not in ("M", "m", "V")
    return array.tolist() if is_numbers else list(array)


def _table_from_columns(columns: Mapping[Any, Any], *, language: str) -> pa.Table:
    invalid_names = [title for title in columns if not is_utf8_string(title)]
    if invalid_names:
        names = list(columns)
        raise InvalidName(
            f"Column names must be valid UTF-8 strings; {invalid_names[0]!r} is not.",
            hint=rename_line(language, names, to_feature_names(names)),
        )
    arrays = {}
    for title, values in columns.items():
        arrays[title] = array_from_values(values, name=title, language=language)
    return pa.table(arrays)


def _is_column(values: Any) -> bool:
    if isinstance(values, str | bytes | Mapping):
        return False
    if isinstance(values, np.ndarray):
        return values.ndim > 0
    return hasattr(values, "__len__") and hasattr(values, "__getitem__")


def _array_from_numpy(values: Any, *, name: str, language: str, nan_is_null: bool) -> pa.Array:
    """Convert a numpy array of any shape to a column."""
    if values.ndim > 1:
        return _array_to_column(name, values, language=language)
    if values.dtype.kind in "OSUT":
        # Arrow truncates fixed-width strings and bytes at the first NUL; numpy's cells are
        # complete.
        cells = values.tolist()
        return cells_to_array(cells, name=name, language=language, nan_is_null=nan_is_null)
    with translate_conversion_errors(name, (), language=language):
        return numbers_to_arrow(to_plain_array(values), nan_is_null=nan_is_null)


def _without_subclass(array: Any) -> Any:
    """Return an array whose columns have one dimension, unlike those of ``numpy.matrix``."""
    return array if isinstance(array, np.ma.MaskedArray) else np.asarray(array)


def _array_to_column(name: str, values: Any, *, language: str) -> pa.Array:
    """Convert an array of shape (rows, ...) to a column with one cell per row."""
    # Fixed-size lists of size 0 have no feature type.
    if 0 in values.shape[1:]:
        raise UnsupportedType(
            f"Column {name!r} is an array of {values.dtype} and shape {values.shape}, whose rows "
            "have no values.",
            hint="use arrays without empty axes",
        )
    is_masked = isinstance(values, np.ma.MaskedArray) and bool(np.ma.getmaskarray(values).any())
    if values.dtype.kind not in "biuf" or is_masked:
        return cells_to_array(list(values), name=name, language=language)
    with translate_conversion_errors(name, (), language=language):
        return from_numpy(to_plain_array(np.asarray(values)))


def _array_from_pandas(values: Any, *, name: str, language: str) -> pa.Array | pa.ChunkedArray:
    """Convert a pandas series, index or array to an Arrow array; NaN becomes null."""
    dtype = values.dtype
    # Arrow would convert a period to a plain number.
    check_dtype(name, dtype, language=language)
    if str(dtype).startswith("Sparse") or type(values).__name__ in _NUMPY_WRAPPERS:
        values = np.asarray(values)
    if isinstance(values.dtype, np.dtype):
        array = np.asarray(values)
        return array_from_values(array, name=name, language=language, nan_is_null=True)
    categories = getattr(dtype, "categories", None)
    if categories is not None:
        try:
            options = array_from_values(categories, name=name, language=language)
        except UnsupportedType:
            # The message can name rows only for the original cells.
            return cells_to_array(values.tolist(), name=name, language=language, nan_is_null=True)
        if isinstance(options, pa.ExtensionArray):
            options = options.storage
        codes = np.asarray(getattr(values, "array", values).codes)
        # pandas encodes a missing category as -1.
        return options.take(pa.array(codes, mask=codes < 0))
    with translate_conversion_errors(name, values.tolist(), language=language):
        return pa.array(values, from_pandas=True)
