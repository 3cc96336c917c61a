"""The columns of a batch as readers yield them: nulls filled or masked, padding, weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from featurestore.errors import NullsInColumns
from featurestore.model.item_rows import is_item_rows
from featurestore.readers.arrow_numpy import Values
from featurestore.readers.order import PADDING, Rows
from featurestore.readers.selection import PRESENT, SelectedColumn
from featurestore.readers.steps import Arrays


def padding(column: SelectedColumn, rows: int) -> Values:
    """Return a column of padding: zeros or empty texts, nothing present."""
    values = np.full((rows, *column.shape), column.zero, dtype=column.dtype)
    if not column.masked:
        return values, None
    return values, np.zeros(rows, dtype=np.bool_)


def put(target: Values, start: int, found: Values) -> None:
    """Write values into a column from row ``start`` on."""
    values, present = target
    stop = start + len(found[0])
    values[start:stop] = found[0]
    if present is not None:
        present[start:stop] = True if found[1] is None else found[1]


def finish(column: SelectedColumn, values: Values, *, in_place: bool = False) -> Values:
    """Return values with nulls filled, and which rows are present."""
    array, present = values
    if present is None or present.all():
        return array, present
    if column.fill is not None and not is_item_rows(array):
        array = array if in_place else array.copy()
        array[~present] = column.fill
    elif column.fill is None and not column.masked:
        raise NullsInColumns(
            f"Column {column.name!r} has nulls, the manifest knows of none.",
            hint="TrainingDataset.open(path).verify() re-reads everything",
        )
    return array, present


def named(columns: tuple[SelectedColumn, ...], values: Mapping[str, Values]) -> Arrays:
    """Return the columns under the names that readers yield.

    Masked ones with ``<name>_present``.
    """
    result: Arrays = {}
    for column in columns:
        array, present = values[column.name]
        result[column.name] = array
        if column.masked:
            if present is None:
                present = np.ones(len(array), dtype=np.bool_)
            result[column.name + PRESENT] = present
    return result


def weights(rows: Rows) -> npt.NDArray[np.float32]:
    """Return 1 for rows and 0 for padding.

    >>> weights(np.array([5, -1])).tolist()
    [1.0, 0.0]
    """
    return (rows != PADDING).astype(np.float32)
