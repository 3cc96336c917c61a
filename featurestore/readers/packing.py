"""Columns that cross to TensorFlow together.

Numbers of one type travel in one array (columns, steps, batch).

An array costs time on its way, whatever it holds, and unless its memory is aligned it is copied.
Decoded straight into aligned memory and cut on the other side, where a part of a tensor is no copy,
hundreds of columns cross like one.
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
    """Which outputs of a batch travel together.

    Args:
        columns: What a reader yields.
        weighted: Whether there are weights.
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
        """The outputs that travel together, by type."""
        result: dict[np.dtype[Any], list[str]] = {}
        for name, (dtype, shape) in self.outputs.items():
            if dtype.kind != "O" and not shape:
                result.setdefault(dtype, []).append(name)
        return result

    @cached_property
    def alone(self) -> list[str]:
        """The other outputs: texts, lists, matrices."""
        together = set(chain.from_iterable(self.groups.values()))
        return [name for name in self.outputs if name not in together]

    @cached_property
    def planes(self) -> list[list[Plane | None]]:
        """What is read from files into the rows of the groups' arrays; weights are not."""
        known: dict[str, Plane] = {}
        for column in self.columns:
            if column.masked:
                known[column.name + PRESENT] = Plane(column.name, presence=True)
        for column in self.columns:
            known[column.name] = Plane(column.name)
        return [list(map(known.get, names)) for names in self.groups.values()]

    def parts(self, arrays: Sequence[npt.NDArray[Any]]) -> Arrays:
        """Return the outputs that the rows of the groups' arrays are."""
        result: Arrays = {}
        for names, array in zip(self.groups.values(), arrays, strict=True):
            result.update(zip(names, array, strict=True))
        return result

    def crossing(self, packed: list[npt.NDArray[Any]], rest: Arrays) -> list[npt.NDArray[Any]]:
        """Return what crosses.

        Groups as (columns, steps, batch), then the other outputs as (steps, batch, ...).
        """
        result = [array.reshape(len(array), -1, self.batch) for array in packed]
        for name in self.alone:
            result.append(rest[name].reshape(-1, self.batch, *rest[name].shape[1:]))
        return result

    def unpack(
        self, tensors: Sequence[Any], split: Callable[[Any], Sequence[Any]]
    ) -> dict[str, Any]:
        """Return the outputs in order; ``split`` cuts a group into its columns."""
        found: dict[str, Any] = {}
        for names, tensor in zip(self.groups.values(), tensors, strict=False):
            found.update(zip(names, split(tensor), strict=True))
        found.update(zip(self.alone, tensors[len(self.groups) :], strict=True))
        return {name: found[name] for name in self.outputs}
