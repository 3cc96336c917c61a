"""Conversion of Arrow columns and of reader arrays to ``Value``."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featurestore.arrow.item_rows import is_item_rows, items_and_lengths
from featurestore.errors import UnsupportedType
from featurestore.readers.arrow_numpy import to_numpy
from featurestore.transform.forms import Form, Kind, form_of
from featurestore.transform.ops import Lists, Value

_ITEM_TYPES: dict[Kind | None, Any] = {"number": np.float64, "whole": np.int64}


def to_value(column: pa.Array, *, name: str) -> Value:
    """Return an Arrow column as a value.

    >>> to_value(pa.array([1.5, None]), name="x").data.tolist()
    [1.5, nan]
    """
    form = form_of(column.type)
    if form.kind == "other":
        raise UnsupportedType(f"Transformations do not support column {name!r} ({column.type}).")
    data, present = to_numpy(column, name=name)
    return read_value(form, data, present)


def read_value(form: Form, data: npt.NDArray[Any], present: npt.NDArray[np.bool_] | None) -> Value:
    """Return an array of readers and its mask as a value."""
    if form.kind == "list":
        return Value("list", to_lists(data, form.item), present)
    if form.kind != "number":
        return Value(form.kind, data, present)
    numbers = data.astype(np.float64, copy=False)
    if present is not None:
        shape = present.shape + (1,) * (numbers.ndim - present.ndim)
        numbers = np.where(present.reshape(shape), numbers, np.nan)
    return Value("number", numbers)


def to_lists(rows: npt.NDArray[Any], item: Kind | None) -> Lists:
    """Return the rows of an object array of arrays as ``Lists``; other cells are empty lists.

    Rows may also be those of ``item_rows``.

    >>> rows = np.empty(2, object)
    >>> rows[:] = [np.array([1, 2]), b""]
    >>> to_lists(rows, "whole").lengths.tolist()
    [2, 0]
    """
    dtype = _ITEM_TYPES.get(item, object)
    if is_item_rows(rows):
        items, counts = items_and_lengths(rows)
        return Lists(items.astype(dtype, copy=False), counts)
    item_arrays = [np.empty(0, dtype=dtype)]
    lengths = np.zeros(len(rows), dtype=np.int64)
    for row, cell in enumerate(rows.tolist()):
        if isinstance(cell, np.ndarray):
            item_arrays.append(cell.astype(dtype, copy=False))
            lengths[row] = len(cell)
    return Lists(np.concatenate(item_arrays), lengths)
