"""Columns that are transformed after they are decoded, before anything else sees them.

Readers know nothing of transformations but this: the form of what comes out, and a function over
the values of one column.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from featurestore.errors import ReaderConfigError
from featurestore.readers.packing import Packing
from featurestore.readers.recordblocks import RecordBlocks
from featurestore.readers.selection import PADDING_WEIGHT, PRESENT, SelectedColumn
from featurestore.readers.steps import Arrays, StepRange
from featurestore.readers.windowblocks import WindowBlocks

OfArrays = Callable[[Arrays], Arrays]


class Transform(Protocol):
    """What is done to columns; the same for the same values whatever batch they are in."""

    @property
    def sha256(self) -> str:
        """What tells it from every other."""
        ...

    @property
    def settled(self) -> tuple[str, ...]:
        """The columns whose missing values become values."""
        ...

    @property
    def padded(self) -> tuple[str, ...]:
        """The columns whose lists of varying length get one length."""
        ...

    @property
    def byte_rows(self) -> tuple[str, ...]:
        """The binary columns that are also taken as uint8 of (rows, bytes)."""
        ...

    def form(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
        """Return type and shape of a column's results; None where nothing is done to it."""
        ...

    def label_offset(self, name: str) -> int:
        """Return the code of the first class of a column; codes below are missing or unknown."""
        ...

    def apply_chain(
        self, name: str, data: npt.NDArray[Any], present: npt.NDArray[np.bool_] | None
    ) -> npt.NDArray[Any]:
        """Return the results of the values of a column."""
        ...


@dataclass(frozen=True)
class TransformedColumns:
    """What is read, and what is made of it.

    Attributes:
        stored: The columns as they are read, with masks where a transformation looks at them.
        columns: The columns as they are yielded.
        transform: What is done.
    """

    stored: tuple[SelectedColumn, ...]
    columns: tuple[SelectedColumn, ...]
    transform: Transform

    def __call__(self, arrays: Arrays) -> Arrays:
        """Return decoded arrays with the transformation applied."""
        result: Arrays = {}
        padding = arrays.get(PADDING_WEIGHT)
        for column in self.columns:
            present = arrays.get(column.name + PRESENT)
            values = self._values(column, arrays[column.name], present)
            if column.label and self.transform.form(column.name) is not None:
                values = label_codes(self.transform, column.name, values, padding=padding)
            result[column.name] = values
            if column.masked and present is not None:
                result[column.name + PRESENT] = present
        for name, array in arrays.items():
            if name not in result and not self._is_mask(name):
                result[name] = array  # weights of padding
        return result

    def _values(self, column: SelectedColumn, data: Any, present: Any | None) -> Any:
        if self.transform.form(column.name) is None:
            return data
        result = self.transform.apply_chain(column.name, data, present)
        if present is not None and column.name not in self.transform.settled:
            # As of columns that nothing is done to: what is masked or padding is 0.
            result[~present] = 0
        return result

    def _is_mask(self, name: str) -> bool:
        return any(name == column.name + PRESENT for column in self.stored if column.masked)


def label_codes(
    transform: Transform,
    name: str,
    codes: npt.NDArray[Any],
    *,
    padding: npt.NDArray[Any] | None = None,
) -> npt.NDArray[Any]:
    """Return the codes of a label from 0 on, as losses take them; padding rows are 0.

    Raises:
        ReaderConfigError: A label is missing, or not in the vocabulary.
    """
    offset = transform.label_offset(name)
    if not offset:
        return codes
    shifted = codes - codes.dtype.type(offset)
    outside = shifted < 0
    if padding is not None:
        shifted = np.where(padding > 0, shifted, codes.dtype.type(0))
        outside &= padding > 0
    if outside.any():
        raise ReaderConfigError(
            f"{int(outside.sum())} rows have a label {name!r} that is null or not in the vocabulary "
            "that was fitted on the training split.",
            hint=f"leave these rows out: frame.filter('{name} is not null'), or "
            f"stratify={name!r}, so that every class is in the training split",
        )
    return shifted


def transformed_columns(
    selected: tuple[SelectedColumn, ...], transform: Transform
) -> TransformedColumns:
    """Return what is read and what is yielded where some columns are transformed."""
    stored, columns = [], []
    for column in selected:
        form = transform.form(column.name)
        if form is None:
            stored.append(column)
            columns.append(column)
            continue
        looked_at = column.name in transform.settled and column.fill is None
        byte_rows = column.name in transform.byte_rows and column.fill is None
        masked = column.masked or looked_at
        stored.append(replace(column, masked=masked, byte_rows=byte_rows))
        dtype, shape = form
        columns.append(replace(column, dtype=dtype, shape=shape, fill=None))
    return TransformedColumns(tuple(stored), tuple(columns), transform)


@dataclass
class TransformedRecords:
    """Records of one width, transformed; serves many threads."""

    source: RecordBlocks
    transform: OfArrays

    def read(self, steps: StepRange) -> Arrays:
        """Return the columns as (steps * batch, ...)."""
        return self.transform(self.source.read(steps))

    def read_packed(self, steps: StepRange, packing: Packing) -> list[npt.NDArray[Any]]:
        """Return the same as the arrays of a packing."""
        arrays = self.read(steps)
        packed = []
        for names in packing.groups.values():
            packed.append(np.stack([arrays[name] for name in names]))
        return packing.crossing(packed, arrays)


@dataclass
class TransformedWindows:
    """Windows, transformed; read in the order in which they come."""

    source: WindowBlocks
    transform: OfArrays

    def read(self, steps: StepRange) -> Arrays:
        """Return the columns as (steps * batch, ...)."""
        return self.transform(self.source.read(steps))
