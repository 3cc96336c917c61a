"""Arrow columns as the numpy arrays that readers yield."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import NullsInColumns

Values = tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]


def to_numpy(array: Any, *, name: str) -> Values:
    """Return values of shape (rows, *shape) and which rows are present (None: all are).

    Booleans, integers and floats keep their type; dates are int64 days and times int64 microseconds since 1970
    UTC; texts, binaries and decimals are object arrays of bytes. Absent rows hold zeros or empty bytes.

    >>> values, present = to_numpy(pa.array([1, None], pa.int32()), name="x")
    >>> values.tolist(), present.tolist()
    ([1, 0], [True, False])
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if pat.is_fixed_size_list(array.type):
        return _matrix(array, name=name)
    present = None
    if array.null_count:
        present = array.is_valid().to_numpy(zero_copy_only=False)
    return _flat(array, present), present


def _matrix(array: Any, *, name: str) -> Values:
    """Return lists of one size as rows; what null rows hide becomes zeros."""
    rows, kind = len(array), array.type
    present = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
    shape: tuple[int, ...] = ()
    valid = present
    while pat.is_fixed_size_list(kind):
        size = kind.list_size
        array = array.values.slice(array.offset * size, len(array) * size)
        shape, kind = (*shape, size), kind.value_type
        valid = None if valid is None else np.repeat(valid, size)
        inside = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
        if inside is not None and (inside if valid is None else inside & valid).any():
            raise NullsInColumns(
                f"Lists of column {name!r} have nulls inside.",
                hint="fill them before the dataset is made",
            )
    return _flat(array, valid).reshape(rows, *shape), present


def _flat(array: Any, present: npt.NDArray[np.bool_] | None) -> npt.NDArray[Any]:
    kind = array.type
    if pat.is_decimal(kind):
        return _objects(
            [b"" if each is None else format(each, "f").encode() for each in array.to_pylist()]
        )
    if (
        pat.is_string(kind)
        or pat.is_large_string(kind)
        or pat.is_binary(kind)
        or pat.is_large_binary(kind)
    ):
        raw = array.cast(pa.large_binary())
        if raw.null_count:
            raw = raw.fill_null(b"")
        texts: npt.NDArray[Any] = raw.to_numpy(zero_copy_only=False)
        return texts if present is None else np.where(present, texts, b"")
    if pat.is_date(kind):
        array = array.cast(pa.date32()).view(pa.int32()).cast(pa.int64())
    elif pat.is_timestamp(kind):
        array = array.cast(pa.timestamp("us", tz=kind.tz)).view(pa.int64())
    if present is not None:
        array = array.fill_null(False if pat.is_boolean(array.type) else 0)
    values: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    # Under null lists anything may stand.
    return values if present is None else np.where(present, values, values.dtype.type(0))


def _objects(values: list[bytes]) -> npt.NDArray[Any]:
    result = np.empty(len(values), dtype=object)
    result[:] = values
    return result
