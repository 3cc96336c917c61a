"""From Arrow to the dataframes that people work in."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import InvalidArgument, UnsupportedType, listing, missing_extra

if TYPE_CHECKING:
    from featurestore.retrieval.frame import FeatureFrame

DataframeType = Literal["pandas", "polars", "arrow", "numpy", "python", "spark"]


def convert(frame: FeatureFrame, dataframe_type: DataframeType | None) -> Any:
    """Return a frame as ``dataframe_type=`` asks; None leaves it lazy.

    Raises:
        InvalidArgument: No such type; lists those there are.
    """
    if dataframe_type is None:
        return frame
    ways = {
        "pandas": frame.to_pandas,
        "polars": frame.to_polars,
        "arrow": frame.to_arrow,
        "numpy": frame.to_numpy,
        "python": lambda: frame.to_arrow().to_pylist(),
        "spark": frame.to_spark,
    }
    if dataframe_type not in ways:
        raise InvalidArgument(
            f"dataframe_type={dataframe_type!r} is not one of {listing(ways)} or None.",
            hint='dataframe_type="pandas"',
        )
    return ways[dataframe_type]()


def check_dataframe_type(dataframe_type: str | None) -> None:
    """Refuse an unknown ``dataframe_type`` before any work is done."""
    known = ("pandas", "polars", "arrow", "numpy", "python", "spark")
    if dataframe_type is not None and dataframe_type not in known:
        raise InvalidArgument(
            f"dataframe_type={dataframe_type!r} is not one of {listing(known)} or None.",
            hint='dataframe_type="pandas"',
        )


def to_pandas(table: pa.Table) -> Any:
    """Return a pandas DataFrame."""
    try:
        import pandas  # noqa: F401
    except ImportError as error:
        raise missing_extra("pandas", "pandas") from error
    with warnings.catch_warnings():
        # An older pyarrow reaches for a name that pandas 2 has deprecated; neither is the caller's
        # doing.
        warnings.filterwarnings("ignore", "DatetimeTZBlock is deprecated", DeprecationWarning)
        return table.to_pandas()


def to_polars(table: pa.Table) -> Any:
    """Return a polars DataFrame."""
    try:
        import polars
    except ImportError as error:
        raise missing_extra("polars", "polars") from error
    return polars.from_arrow(table)


def to_numpy(table: pa.Table) -> np.ndarray[Any, Any]:
    """Return a 2-D array, one row a row, in the common type of the columns.

    Nulls become NaN in numeric columns and None elsewhere. Fixed-size lists of numbers spread over
    their own columns. Texts, times and mixtures give an array of objects.

    >>> to_numpy(pa.table({"a": [1, 2], "b": [0.5, None]}))
    array([[1. , 0.5],
           [2. , nan]])
    """
    if not table.num_columns:
        return np.empty((table.num_rows, 0))
    parts = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        array = column.combine_chunks()
        if isinstance(array, pa.ChunkedArray):  # some releases of pyarrow combine into one chunk
            array = pa.concat_arrays(array.chunks)
        parts.append(_as_array(array, name))
    if any(part.dtype.kind not in "biuf" for part in parts):
        parts = [part.astype(object) for part in parts]
    return np.concatenate(parts, axis=1)


def _as_array(array: pa.Array, name: str) -> np.ndarray[Any, Any]:
    kind = array.type
    if pat.is_fixed_size_list(kind) and _is_number(kind.value_type):
        if array.null_count:
            raise UnsupportedType(
                f"Column {name!r} has missing lists, which a 2-D array cannot hold.",
                hint="use to_arrow()",
            )
        values = _numbers(array.flatten())
        return values.reshape(len(array), kind.list_size)
    if _is_number(kind):
        return _numbers(array).reshape(-1, 1)
    result = np.empty((len(array), 1), dtype=object)
    result[:, 0] = array.to_pylist()
    return result


def _numbers(array: pa.Array) -> np.ndarray[Any, Any]:
    if pat.is_boolean(array.type) and array.null_count:
        array = array.cast(pa.float32())
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pat.is_integer(kind) or pat.is_floating(kind) or pat.is_boolean(kind))
