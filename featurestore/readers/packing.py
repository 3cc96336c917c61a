"""Packed transfer of columns to TensorFlow: numbers of one type in one (columns, steps, batch) array.

Each array has a fixed cost of transfer, and an unaligned one is copied. Columns are decoded into
aligned buffers and split again by TensorFlow, where slices of a tensor are not copied, so that
hundreds of columns cost as much as one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from featurestore.plugins.format import Plane
from featurestore.readers.selection import PADDING_WEIGHT, PRESENT, SelectedColumn
from featurestore.readers.steps import Arrays


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
