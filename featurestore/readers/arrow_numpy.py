"""Arrow columns as the numpy arrays that readers yield, lists of variable length included."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.arrays import combine_chunks
from featurestore.arrow.batches import is_item_rows, items_and_lengths
from featurestore.arrow.casts import cast_bytes
from featurestore.arrow.types import numpy_type
from featurestore.errors import NullsInColumns

Values = tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]

_STRING_TYPES = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


class Ragged(NamedTuple):
    """The lists of a batch: row i is ``values[row_splits[i] : row_splits[i + 1]]``.

    Attributes:
        values: The concatenated items of all rows: an array, with PyTorch a tensor (for strings a
            list of bytes).
        row_splits: Start of each row, int64 of (rows + 1,); the last one is the number of items.

    >>> ragged = Ragged(np.array([1, 2, 3]), np.array([0, 2, 2, 3]))
    >>> [part.tolist() for part in np.split(ragged.values, ragged.row_splits[1:-1])]
    [[1, 2], [], [3]]
    """

    values: Any
    row_splits: Any


def item_dtype(kind: pa.DataType) -> np.dtype[Any] | None:
    """Return the numpy type of the items of variable-length lists, None for unsupported types.

    >>> item_dtype(pa.list_(pa.string())), item_dtype(pa.list_(pa.float32()))
    (dtype('O'), dtype('float32'))
    """
    if not (pat.is_list(kind) or pat.is_large_list(kind)):
        return None
    item = kind.value_type
    if pat.is_string(item) or pat.is_large_string(item) or pat.is_binary(item):
        return np.dtype(object)
    if pat.is_date(item) or pat.is_timestamp(item):
        return np.dtype(np.int64)
    if pat.is_boolean(item) or pat.is_integer(item) or pat.is_floating(item):
        return numpy_type(item)
    return None


def to_ragged(rows: npt.NDArray[Any], dtype: np.dtype[Any]) -> Ragged:
    """Return the rows of an object array of arrays as ``Ragged``; other cells are empty lists.

    Rows may also be those of ``item_rows``.

    >>> rows = np.empty(3, object)
    >>> rows[:] = [np.array([1, 2]), b"", np.array([3])]
    >>> to_ragged(rows, np.dtype(np.int64))
    Ragged(values=array([1, 2, 3]), row_splits=array([0, 2, 2, 3]))
    """
    if is_item_rows(rows):
        items, lengths = items_and_lengths(rows)
        return Ragged(items.astype(dtype, copy=False), np.cumsum(np.append(0, lengths)))
    item_arrays = [np.empty(0, dtype=dtype)]
    row_splits = np.zeros(len(rows) + 1, dtype=np.int64)
    for row, cell in enumerate(rows.tolist()):
        if isinstance(cell, np.ndarray):
            item_arrays.append(cell.astype(dtype, copy=False))
            row_splits[row + 1] = len(cell)
    return Ragged(np.concatenate(item_arrays), np.cumsum(row_splits))


def to_numpy(array: Any, *, name: str) -> Values:
    """Return values of shape (rows, *shape) and the mask of present rows (None: all are).

    Booleans, integers and floats keep their type; dates are int64 days and times int64 microseconds
    since 1970 UTC; strings, binaries and decimals are object arrays of bytes, and variable-length
    lists are object arrays of arrays. Absent rows are zeros, empty bytes or empty lists.

    >>> values, present = to_numpy(pa.array([1, None], pa.int32()), name="x")
    >>> values.tolist(), present.tolist()
    ([1, 0], [True, False])
    """
    if isinstance(array, pa.ChunkedArray):
        array = combine_chunks(array)
    if pat.is_fixed_size_list(array.type):
        return _fixed_size_rows(array, name=name)
    present = _valid_mask(array)
    if pat.is_list(array.type) or pat.is_large_list(array.type):
        return _ragged_rows(array, present, name=name), present
    return _flat_values(array, present), present


def _ragged_rows(
    array: Any, present: npt.NDArray[np.bool_] | None, *, name: str
) -> npt.NDArray[Any]:
    """Return variable-length lists as an object array of slices of one array."""
    items = array.flatten()  # excludes the items under null lists
    if items.null_count:
        raise NullsInColumns(
            f"Lists of column {name!r} have nulls inside.",
            hint="fill them before the dataset is created",
        )
    lengths = np.diff(array.offsets.to_numpy())
    if present is not None:
        lengths = np.where(present, lengths, 0)
    flat_items = _flat_values(items, None)
    rows = np.empty(len(array), dtype=object)
    start = 0
    for row, length in enumerate(lengths.tolist()):
        rows[row] = flat_items[start : start + length]
        start += length
    return rows


def _valid_mask(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Return the validity mask, None if there are no nulls."""
    if not array.null_count:
        return None
    valid: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _fixed_size_rows(array: Any, *, name: str) -> Values:
    """Return fixed-size lists as rows; the items under null rows become zeros."""
    rows, kind = len(array), array.type
    present = valid = _valid_mask(array)
    shape: tuple[int, ...] = ()
    while pat.is_fixed_size_list(kind):
        size = kind.list_size
        array = array.values.slice(array.offset * size, len(array) * size)
        shape, kind = (*shape, size), kind.value_type
        if valid is not None:
            valid = np.repeat(valid, size)
        items = _valid_mask(array)
        if items is not None and (valid is None or (valid & ~items).any()):
            raise NullsInColumns(
                f"Lists of column {name!r} have nulls inside.",
                hint="fill them before the dataset is created",
            )
    return _flat_values(array, valid).reshape(rows, *shape), present


def _flat_values(array: Any, present: npt.NDArray[np.bool_] | None) -> npt.NDArray[Any]:
    kind = array.type
    if pat.is_decimal(kind):
        return _decimal_bytes(array)
    if kind in _STRING_TYPES:
        return _bytes_objects(array, present)
    if pat.is_date(kind):
        array = array.cast(pa.date32()).view(pa.int32()).cast(pa.int64())
    elif pat.is_timestamp(kind):
        array = array.cast(pa.timestamp("us", tz=kind.tz)).view(pa.int64())
    if present is None:
        numbers: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
        return numbers
    values = array.fill_null(pa.scalar(0).cast(array.type)).to_numpy(zero_copy_only=False)
    # Values under null lists are undefined.
    return np.where(present, values, values.dtype.type(0))


def _bytes_objects(array: pa.Array, present: npt.NDArray[np.bool_] | None) -> npt.NDArray[Any]:
    raw = cast_bytes(array, pa.large_binary())
    if raw.null_count:
        raw = raw.fill_null(b"")
    texts: npt.NDArray[Any] = raw.to_numpy(zero_copy_only=False)
    if present is None:
        return texts
    return np.where(present, texts, b"")


def _decimal_bytes(array: pa.Array) -> npt.NDArray[Any]:
    """Return decimals as text, such as ``b"-12.30"``."""
    result = np.full(len(array), b"", dtype=object)
    for row, value in enumerate(array.to_pylist()):
        if value is not None:
            result[row] = format(value, "f").encode()
    return result
