"""Assembly of batches: nulls filled or masked, padding, weights, packed transfer to TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from featurestore.arrow.batches import is_item_rows
from featurestore.errors import NullsInColumns
from featurestore.plugins.format import Plane
from featurestore.readers.arrow_numpy import Values
from featurestore.readers.order import PADDING, Rows
from featurestore.readers.selection import PADDING_WEIGHT, PRESENT, SelectedColumn
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


@dataclass(frozen=True)
class Packing:
    """The assignment of the outputs of a batch to packed arrays.

    Args:
        columns: Columns of the reader.
        weighted: Whether batches have padding weights.
        batch: Rows of a batch.
    """

    columns: tuple[SelectedColumn, ...]
    weighted: bool
    batch: int

    @cached_property
    def outputs(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Numpy type and shape of one value of each output, in order."""
        result: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        for column in self.columns:
            result[column.name] = column.dtype, column.shape
            if column.masked:
                result[column.name + PRESENT] = np.dtype(np.bool_), ()
        if self.weighted:
            result[PADDING_WEIGHT] = np.dtype(np.float32), ()
        return result

    @cached_property
    def groups(self) -> dict[np.dtype[Any], list[str]]:
        """The outputs that are packed together, by type."""
        result: dict[np.dtype[Any], list[str]] = {}
        for name, (dtype, shape) in self.outputs.items():
            if dtype.kind != "O" and not shape:
                result.setdefault(dtype, []).append(name)
        return result

    @cached_property
    def ungrouped(self) -> list[str]:
        """The other outputs: strings, lists, matrices."""
        grouped_names = set(chain.from_iterable(self.groups.values()))
        return [name for name in self.outputs if name not in grouped_names]

    @cached_property
    def planes(self) -> list[list[Plane | None]]:
        """The planes of the rows of the groups' arrays; None for weights, which files do not have."""
        planes_by_output: dict[str, Plane] = {}
        for column in self.columns:
            if column.masked:
                planes_by_output[column.name + PRESENT] = Plane(column.name, presence=True)
        for column in self.columns:
            planes_by_output[column.name] = Plane(column.name)
        return [list(map(planes_by_output.get, names)) for names in self.groups.values()]

    def rows_by_output(self, arrays: Sequence[npt.NDArray[Any]]) -> Arrays:
        """Return the rows of the groups' arrays by output."""
        rows: Arrays = {}
        for names, array in zip(self.groups.values(), arrays, strict=True):
            rows.update(zip(names, array, strict=True))
        return rows

    def pack(self, group_arrays: list[npt.NDArray[Any]], arrays: Arrays) -> list[npt.NDArray[Any]]:
        """Return the arrays to transfer.

        Groups as (columns, steps, batch), then the other outputs as (steps, batch, ...).
        """
        packed_arrays = [array.reshape(len(array), -1, self.batch) for array in group_arrays]
        for name in self.ungrouped:
            packed_arrays.append(arrays[name].reshape(-1, self.batch, *arrays[name].shape[1:]))
        return packed_arrays

    def unpack(
        self, tensors: Sequence[Any], split: Callable[[Any], Sequence[Any]]
    ) -> dict[str, Any]:
        """Return the outputs in order; ``split`` separates the columns of a group."""
        outputs: dict[str, Any] = {}
        for names, tensor in zip(self.groups.values(), tensors, strict=False):
            outputs.update(zip(names, split(tensor), strict=True))
        outputs.update(zip(self.ungrouped, tensors[len(self.groups) :], strict=True))
        return {name: outputs[name] for name in self.outputs}
