"""Arrow columns and arrays of readers as values of numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featurestore.errors import UnsupportedType
from featurestore.model.item_rows import is_item_rows, items_and_lengths
from featurestore.readers.arrow_numpy import to_numpy
from featurestore.transform.forms import Form, Kind, form_of
from featurestore.transform.ops import Lists, Value

_ITEMS: dict[Kind | None, Any] = {"number": np.float64, "whole": np.int64}


def value_of(column: pa.Array, *, name: str) -> Value:
    """Return an Arrow column as a value.

    >>> value_of(pa.array([1.5, None]), name="x").data.tolist()
    [1.5, nan]
    """
    form = form_of(column.type)
    if form.kind == "other":
        raise UnsupportedType(f"Column {name!r} is {column.type}, which no transformation takes.")
    data, present = to_numpy(column, name=name)
    return read_value(form, data, present)


def read_value(form: Form, data: npt.NDArray[Any], present: npt.NDArray[np.bool_] | None) -> Value:
    """Return values as readers have them, with their presence, as a value."""
    if form.kind == "list":
        return Value("list", lists_of(data, form.item), present)
    if form.kind != "number":
        return Value(form.kind, data, present)
    numbers = data.astype(np.float64, copy=False)
    if present is not None:
        shape = present.shape + (1,) * (numbers.ndim - present.ndim)
        numbers = np.where(present.reshape(shape), numbers, np.nan)
    return Value("number", numbers)


def lists_of(rows: npt.NDArray[Any], item: Kind | None) -> Lists:
    """Return an object array of arrays, a row each, as lists; other cells hold no items.

    Rows may also be those of ``item_rows``.

    >>> rows = np.empty(2, object)
    >>> rows[:] = [np.array([1, 2]), b""]
    >>> lists_of(rows, "whole").lengths.tolist()
    [2, 0]
    """
    dtype = _ITEMS.get(item, object)
    if is_item_rows(rows):
        items, counts = items_and_lengths(rows)
        return Lists(items.astype(dtype, copy=False), counts)
    parts = [np.empty(0, dtype=dtype)]
    lengths = np.zeros(len(rows), dtype=np.int64)
    for row, cell in enumerate(rows.tolist()):
        if isinstance(cell, np.ndarray):
            parts.append(cell.astype(dtype, copy=False))
            lengths[row] = len(cell)
    return Lists(np.concatenate(parts), lengths)
