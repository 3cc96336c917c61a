"""Conversion of one column of any library to an Arrow array, or to a list of Python objects.

A column is a list, a numpy array, a series, index or array of pandas, a series of polars, or an
Arrow array. Values that Arrow cannot represent raise ``Unstorable`` or one of ``CONVERSION_ERRORS``.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from featurestore.arrow.arrays import from_numpy, numbers_to_arrow, to_plain_array
from featurestore.arrow.cells import cells_to_array
from featurestore.arrow.unstorable import CONVERSION_ERRORS, Cell, Column, Unstorable

LONG_INTEGERS = ("Int128", "UInt128")
# The beginnings of pandas dtypes without a feature type, and the types that preserve their values.
_UNSUPPORTED_DTYPES = {"complex": "float64[2]", "timedelta": "int64", "period": "timestamp"}
# The array of a pandas column of numpy values, by release of pandas.
_NUMPY_WRAPPERS = ("NumpyExtensionArray", "PandasArray")


def convert_values(values: Column, *, nan_is_null: bool = False) -> pa.Array | pa.ChunkedArray:
    """Convert a column to an Arrow array; ``nan_is_null`` as in ``cells_to_array``.

    >>> convert_values(np.array([1, 2], ">i8")).to_pylist()
    [1, 2]

    Raises:
        Unstorable: The values cannot be stored. Arrow raises one of ``CONVERSION_ERRORS`` for other
            values.
    """
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if hasattr(values, "to_arrow"):  # a series of polars
        return _convert_polars(values)
    if isinstance(values, np.ndarray):
        return _convert_numpy(values, nan_is_null=nan_is_null)
    if is_pandas(values):
        return _convert_pandas(values)
    return cells_to_array(list(values), nan_is_null=nan_is_null)


def python_cells(values: Column) -> list[Cell]:
    """Return a column as one object per row, None for masked values.

    >>> python_cells(np.ma.masked_equal([1, 2], 2))
    [np.int64(1), None]
    """
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return list(values.to_pylist())
    if hasattr(values, "to_arrow"):
        return list(values.to_list())
    if is_pandas(values):
        return list(values.tolist())
    if isinstance(values, np.ma.MaskedArray) and values.ndim == 1:
        mask = np.ma.getmaskarray(values)
        return [
            None if is_masked else cell for cell, is_masked in zip(values.data, mask, strict=True)
        ]
    return list(values)


def is_pandas(values: object) -> bool:
    """Return whether an object is one of pandas."""
    return type(values).__module__.split(".")[0] == "pandas"


def _convert_polars(series: Column) -> pa.Array | pa.ChunkedArray:
    """Convert a polars series; 128-bit integers become integers of 64 bits."""
    type_name = str(series.dtype)
    if type_name == "Object":
        return cells_to_array(series.to_list())
    if type_name not in LONG_INTEGERS:
        return series.to_arrow()
    import polars

    # Values that do not fit become null.
    target = polars.UInt64 if type_name == "UInt128" else polars.Int64
    short = series.cast(target, strict=False)
    if short.null_count() > series.null_count():
        raise Unstorable(f"has {type_name} integers that do not fit 64 bits", target="string")
    return short.to_arrow()


def _convert_numpy(values: Column, *, nan_is_null: bool) -> pa.Array:
    """Convert a numpy array of any shape to a column with one cell per row."""
    is_masked = isinstance(values, np.ma.MaskedArray) and bool(np.ma.getmaskarray(values).any())
    if values.ndim > 1:
        # Fixed-size lists of size 0 have no feature type.
        if 0 in values.shape[1:]:
            raise Unstorable(
                f"is an array of {values.dtype} and shape {values.shape}, whose rows have no values",
                line="use arrays without empty axes",
            )
        if values.dtype.kind not in "biuf" or is_masked:
            return cells_to_array(list(values))
        return from_numpy(to_plain_array(np.asarray(values)))
    if values.dtype.kind in "OSUT":
        # Arrow truncates fixed-width strings and bytes at the first NUL; numpy's cells are
        # complete.
        return cells_to_array(values.tolist(), nan_is_null=nan_is_null)
    return numbers_to_arrow(to_plain_array(values), nan_is_null=nan_is_null)


def _convert_pandas(values: Column) -> pa.Array | pa.ChunkedArray:
    """Convert a pandas series, index or array; NaN becomes null."""
    dtype = values.dtype
    categories = getattr(dtype, "categories", None)
    type_name = str(dtype if categories is None else categories.dtype).lower()
    # Arrow would convert a period to a plain number.
    for beginning, target in _UNSUPPORTED_DTYPES.items():
        if type_name.startswith(beginning):
            raise Unstorable(f"has type {dtype}, which cannot be stored", target=target)
    if str(dtype).startswith("Sparse") or type(values).__name__ in _NUMPY_WRAPPERS:
        values = np.asarray(values)
    if isinstance(values.dtype, np.dtype):
        return _convert_numpy(np.asarray(values), nan_is_null=True)
    if categories is None:
        return pa.array(values, from_pandas=True)
    try:
        options = convert_values(categories)
    except CONVERSION_ERRORS:
        # The message can name rows only for the original cells.
        return cells_to_array(values.tolist(), nan_is_null=True)
    if isinstance(options, pa.ExtensionArray):
        options = options.storage
    categorical: Column = getattr(values, "array", values)
    codes = np.asarray(categorical.codes)
    # pandas encodes a missing category as -1.
    return options.take(pa.array(codes, mask=codes < 0))
