"""Assembly of the columns of a batch: nulls filled or masked, padding, weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from featurestore.arrow.item_rows import is_item_rows
from featurestore.errors import NullsInColumns
from featurestore.readers.arrow_numpy import Values
from featurestore.readers.order import PADDING, Rows
from featurestore.readers.selection import PRESENT, SelectedColumn
from featurestore.readers.steps import Arrays


def padding_values(column: SelectedColumn, rows: int) -> Values:
    """Return a column of padding: zeros or empty bytes, not present."""
    values = np.full((rows, *column.shape), column.zero, dtype=column.dtype)
    if not column.masked:
        return values, None
    return values, np.zeros(rows, dtype=np.bool_)


def write_values(target: Values, start: int, source: Values) -> None:
    """Write values into a column from row ``start`` on."""
    values, present = target
    stop = start + len(source[0])
    values[start:stop] = source[0]
    if present is not None:
        present[start:stop] = True if source[1] is None else source[1]


def fill_nulls(column: SelectedColumn, values: Values, *, in_place: bool = False) -> Values:
    """Return values with nulls filled, and the mask of present rows."""
    array, present = values
    if present is None or present.all():
        return array, present
    if column.fill is not None and not is_item_rows(array):
        array = array if in_place else array.copy()
        array[~present] = column.fill
    elif column.fill is None and not column.masked:
        raise NullsInColumns(
            f"Column {column.name!r} has nulls, but its manifest lists none.",
            hint="TrainingDataset.open(path).verify() re-reads everything",
        )
    return array, present


def with_masks(columns: tuple[SelectedColumn, ...], values: Mapping[str, Values]) -> Arrays:
    """Return the arrays of columns by name, with ``<name>_present`` for masked columns."""
    arrays: Arrays = {}
    for column in columns:
        array, present = values[column.name]
        arrays[column.name] = array
        if column.masked:
            if present is None:
                present = np.ones(len(array), dtype=np.bool_)
            arrays[column.name + PRESENT] = present
    return arrays


def padding_weights(rows: Rows) -> npt.NDArray[np.float32]:
    """Return 1 for rows and 0 for padding.

    >>> padding_weights(np.array([5, -1])).tolist()
    [1.0, 0.0]
    """
    return (rows != PADDING).astype(np.float32)
