"""Rows and columns of Python objects as Arrow tables: dicts, lists, tuples, numpy arrays."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from featurestore.errors import InvalidName, UnsupportedDataframe, UnsupportedType, listing
from featurestore.model.arrays import column_of_cells, from_numpy
from featurestore.model.odd_columns import refusal


def table_of_rows(rows: Sequence[Any]) -> pa.Table:
    """Return rows (dicts, tuples, lists, arrays) as a table; without names ``col_0``, ``col_1``.

    Arrays of two dimensions or more, such as images, are the cells of one column ``col_0``.

    >>> table_of_rows([{"a": 1}, {"a": 2}]).to_pydict()
    {'a': [1, 2]}
    """
    if not rows:
        raise UnsupportedDataframe(
            "A list without rows has no columns.",
            hint="hand over an empty pyarrow Table or pandas DataFrame with types",
        )
    columns: dict[Any, list[Any]]
    if all(isinstance(row, Mapping) for row in rows):
        names = dict.fromkeys(itertools.chain.from_iterable(rows))
        columns = {}
        for name in names:
            columns[name] = [row.get(name) for row in rows]
    elif all(isinstance(row, np.ndarray) and row.ndim > 1 for row in rows):
        columns = {"col_0": list(rows)}
    elif all(isinstance(row, list | tuple) or hasattr(row, "tolist") for row in rows):
        columns = _columns_of_rows(rows)
    else:
        kinds = ", ".join(sorted({type(row).__name__ for row in rows}))
        raise UnsupportedDataframe(
            f"A list of {kinds} is not a dataframe.",
            hint="give a list of dicts, or of rows: [[1, 2.0], [3, 4.0]]",
        )
    return _table(columns)


def table_of_columns(columns: Mapping[Any, Any]) -> pa.Table:
    """Return a dict of columns (lists, numpy arrays, series, Arrow arrays) as a table.

    An array of shape (n, 28, 28, 1) is a column of n arrays of shape (28, 28, 1).

    >>> table_of_columns({"image": np.zeros((2, 3, 3)), "label": [0, 1]}).num_rows
    2

    Raises:
        UnsupportedDataframe: Values that are no columns, or columns of different lengths.
    """
    if not columns:
        raise UnsupportedDataframe("An empty dict has no columns.")
    scalars = [name for name, values in columns.items() if not _is_column(values)]
    if scalars:
        hint = "each value is a list or an array with one value a row"
        if len(scalars) == len(columns):
            hint = "one row is a list of one dict: [row]"
        raise UnsupportedDataframe(
            f"A dict is a dataframe when its values are columns; these are not: "
            f"{listing(scalars)}.",
            hint=hint,
        )
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name!r} has {count}" for name, count in lengths.items())
        raise UnsupportedDataframe(
            f"The columns have different lengths: {told}.", hint="give each one value a row"
        )
    return _table(columns)


def table_of_array(array: Any) -> pa.Table:
    """Return a numpy array: (rows, columns) as ``col_0``, ``col_1``; more axes as one ``col_0``.

    >>> table_of_array(np.zeros((3, 28, 28, 1))).column_names
    ['col_0']
    """
    if array.ndim < 2 or array.dtype.names is not None:
        raise UnsupportedDataframe(
            f"A numpy array of shape {array.shape} is not a dataframe; arrays have two "
            "dimensions, (rows, columns), or more: (rows, height, width).",
            hint="array.reshape(len(array), -1)",
        )
    if array.dtype.kind not in "biufUSM":
        raise UnsupportedType(
            f"A numpy array of {array.dtype} cannot be stored.", hint="array.astype('float64')"
        )
    if array.ndim > 2:
        return _table({"col_0": array})
    masks: Any = None
    if isinstance(array, np.ma.MaskedArray):
        masks = np.ma.getmaskarray(array)  # type: ignore[no-untyped-call]
    plain = np.asarray(array)
    if plain.dtype == np.float16:
        plain = plain.astype(np.float32)
    columns = {}
    for index in range(plain.shape[1]):
        mask = None
        if masks is not None:
            mask = masks[:, index]
        columns[f"col_{index}"] = pa.array(np.ascontiguousarray(plain[:, index]), mask=mask)
    if not columns:
        raise UnsupportedDataframe(f"A numpy array of shape {array.shape} has no columns.")
    return pa.table(columns)


def _table(columns: Mapping[Any, Any]) -> pa.Table:
    arrays = {}
    for title, values in columns.items():
        arrays[title] = _column(title, values)
    return pa.table(arrays)


def _columns_of_rows(rows: Iterable[Any]) -> dict[str, list[Any]]:
    plain = []
    for row in rows:
        if hasattr(row, "tolist"):
            row = row.tolist()
        plain.append(row)
    lengths = sorted(set(map(len, plain)))
    if len(lengths) != 1:
        raise UnsupportedDataframe(
            f"The rows have different lengths: {', '.join(map(str, lengths))}.",
            hint="give every row the same columns",
        )
    names = getattr(plain[0], "_fields", None) or getattr(plain[0], "__fields__", None)
    if not names:
        names = [f"col_{index}" for index in range(lengths[0])]
    columns = {}
    for index, title in enumerate(names):
        columns[title] = [row[index] for row in plain]
    return columns


def _column(name: object, values: Any) -> pa.Array | pa.ChunkedArray:
    if not isinstance(name, str):
        raise InvalidName(
            f"Column names must be texts; {name!r} is not.", hint=f"use {str(name)!r}"
        )
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if hasattr(values, "to_arrow"):  # a series of polars
        return values.to_arrow()
    if isinstance(values, np.ndarray) and values.ndim > 1:
        return _stacked(name, values)
    try:
        column = column_of_cells(values, name=name)
        if column is None:
            column = pa.array(values, from_pandas=_is_of_pandas(values))
        return column
    except (
        pa.ArrowInvalid,
        pa.ArrowTypeError,
        pa.ArrowNotImplementedError,
        OverflowError,
    ) as error:
        raise refusal(name, values, dtype=getattr(values, "dtype", None)) from error


def _stacked(name: str, values: Any) -> pa.Array:
    """Return an array of shape (rows, ...) as the column of its rows."""
    is_masked = isinstance(values, np.ma.MaskedArray) and bool(np.ma.getmaskarray(values).any())  # type: ignore[no-untyped-call]
    if values.dtype.kind not in "biuf" or is_masked or 0 in values.shape[1:]:
        given = "masked values" if is_masked else f"{values.dtype} and shape {values.shape}"
        raise UnsupportedType(
            f"Column {name!r} is an array of {given}, which cannot be stored.",
            hint="arrays hold numbers or booleans, none missing: array.astype('float32'), "
            "array.filled(0)",
        )
    return from_numpy(np.asarray(values))


def _is_of_pandas(values: Any) -> bool:
    return type(values).__module__.split(".")[0] == "pandas"


def _is_column(values: Any) -> bool:
    if isinstance(values, str | bytes | Mapping):
        return False
    if isinstance(values, np.ndarray):
        return values.ndim > 0
    return hasattr(values, "__len__") and hasattr(values, "__getitem__")
