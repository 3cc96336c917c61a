"""Variable-length lists as values and row splits."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.item_rows import is_item_rows, items_and_lengths
from featurestore.arrow.types import numpy_type


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
