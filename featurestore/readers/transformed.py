"""Transformation of decoded columns into model inputs.

Readers use transformations only through the ``Transform`` protocol, which defines output types and
shapes and a function that transforms the values of a column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow.types as pat

from featurestore.arrow.hints import cast_hint
from featurestore.arrow.schemas import type_from_json
from featurestore.errors import ReaderConfigError, UnsupportedType, listing
from featurestore.model.manifest import Manifest
from featurestore.readers.batches import Arrays, Packing, StepRange
from featurestore.readers.blocks import RecordBlocks, WindowBlocks
from featurestore.readers.columns import (
    PADDING_WEIGHT,
    Nulls,
    NumpyArray,
    NumpyDtype,
    SelectedColumn,
    select_columns,
)

Forms = dict[str, tuple[NumpyDtype, tuple[int | None, ...]]]


ArraysFunction = Callable[[Arrays], Arrays]


class Transform(Protocol):
    """A fitted transformation of columns, whose results do not depend on batch boundaries."""

    @property
    def sha256(self) -> str:
        """Content hash of the transformation."""
        ...

    @property
    def null_handling(self) -> tuple[str, ...]:
        """The columns whose missing values are replaced."""
        ...

    @property
    def padded(self) -> tuple[str, ...]:
        """The columns whose variable-length lists are padded to a fixed length."""
        ...

    @property
    def byte_rows(self) -> tuple[str, ...]:
        """The binary columns that are also accepted as uint8 arrays of shape (rows, bytes)."""
        ...

    def form(self, name: str) -> tuple[NumpyDtype, tuple[int, ...]] | None:
        """Return type and shape of a transformed column, or None if it is not transformed."""
        ...

    def label_offset(self, name: str) -> int:
        """Return the code of the first class; lower codes are missing or unknown values."""
        ...

    def apply_chain(
        self, name: str, data: NumpyArray, present: npt.NDArray[np.bool_] | None
    ) -> NumpyArray:
        """Return the transformed values of a column."""
        ...


@dataclass(frozen=True)
class TransformedColumns:
    """The columns before and after a transformation.

    Attributes:
        file_columns: The columns to read, with masks if the transformation needs them.
        columns: The yielded columns.
        transform: The transformation.
    """

    file_columns: tuple[SelectedColumn, ...]
    columns: tuple[SelectedColumn, ...]
    transform: Transform

    def __call__(self, arrays: Arrays) -> Arrays:
        """Return decoded arrays with the transformation applied."""
        result: Arrays = {}
        padding = arrays.get(PADDING_WEIGHT)
        for column, file_column in zip(self.columns, self.file_columns, strict=True):
            present = arrays[column.mask] if file_column.masked else None
            values = self._values(column, arrays[column.name], present)
            if column.label and self.transform.form(column.name) is not None:
                real = None if padding is None else padding > 0
                if present is not None and column.masked:  # rows with weight 0
                    real = present if real is None else real & present
                values = zero_based_label_codes(self.transform, column.name, values, real=real)
            result[column.name] = values
            if column.masked and present is not None:
                result[column.mask] = present
        for name, array in arrays.items():
            if name not in result and not self._is_mask(name):
                result[name] = array  # padding weights
        return result

    def _values(self, column: SelectedColumn, data: Any, present: Any | None) -> Any:
        if self.transform.form(column.name) is None:
            return data
        result = self.transform.apply_chain(column.name, data, present)
        if present is not None and column.name not in self.transform.null_handling:
            # Set masked values and padding to 0, as in columns without a transformation.
            result[~present] = 0
        return result

    def _is_mask(self, name: str) -> bool:
        return any(name == column.mask for column in self.file_columns if column.masked)


def zero_based_label_codes(
    transform: Transform, name: str, codes: NumpyArray, *, real: npt.NDArray[np.bool_] | None = None
) -> NumpyArray:
    """Shift label codes so that they start at 0, as loss functions require.

    Rows that ``real`` excludes (padding, and rows with weight 0) get the code 0.

    Raises:
        ReaderConfigError: A label is missing or is not in the vocabulary.
    """
    offset = transform.label_offset(name)
    if not offset:
        return codes
    shifted_codes = codes - codes.dtype.type(offset)
    is_outside = shifted_codes < 0
    if real is not None:
        shifted_codes = np.where(real, shifted_codes, codes.dtype.type(0))
        is_outside &= real
    if is_outside.any():
        raise ReaderConfigError(
            f"{int(is_outside.sum())} rows have a label {name!r} that is null or not in the vocabulary "
            "that was fitted on the training split.",
            hint='create_training_dataset(..., missing_labels="drop"), or '
            f"stratify={name!r}, so that every class is in the training split",
        )
    return shifted_codes


def has_bytes_labels(columns: Sequence[SelectedColumn]) -> bool:
    """Return whether readers yield labels as bytes: strings, decimals or binary values."""
    return any(column.label and column.dtype == object for column in columns)


def refuse_bytes_labels(manifest: Manifest, columns: Sequence[SelectedColumn]) -> None:
    """Refuse labels that Keras would refuse inside its graph, after it has compiled the model.

    Raises:
        UnsupportedType: Labels are strings, decimals or binary values.
    """
    labels = [column.name for column in columns if column.label and column.dtype == object]
    if labels:
        raise UnsupportedType(
            f"Keras has no loss for labels that are read as bytes: {listing(labels)}.",
            hint=bytes_label_hint(manifest, labels),
        )


def bytes_label_hint(manifest: Manifest, labels: Sequence[str]) -> str:
    """Return the line that exports labels as numbers instead of bytes."""
    kinds = {label: type_from_json(manifest.column(label).type) for label in labels}
    chains = [f"{label!r}: t.vocabulary()" for label in labels if pat.is_string(kinds[label])]
    if chains:
        return f"create_training_dataset(..., transformations={{{', '.join(chains)}}})"
    return f"{cast_hint(dict.fromkeys(kinds, 'float64'))}  # before the export"


def plan_transformed_columns(
    selected: tuple[SelectedColumn, ...], transform: Transform
) -> TransformedColumns:
    """Determine the columns to read and to yield for a transformation."""
    file_columns, columns = [], []
    for column in selected:
        form = transform.form(column.name)
        if form is None:
            file_columns.append(column)
            columns.append(column)
            continue
        # A transformation that replaces nulls must know where they are.
        needs_mask = column.name in transform.null_handling and column.fill is None
        byte_rows = column.name in transform.byte_rows and column.fill is None
        masked = column.masked or needs_mask
        file_columns.append(replace(column, masked=masked, byte_rows=byte_rows))
        dtype, shape = form
        columns.append(replace(column, dtype=dtype, shape=shape, fill=None))
    return TransformedColumns(tuple(file_columns), tuple(columns), transform)


@dataclass
class TransformedRecords:
    """A block reader that transforms fixed-width records. Thread-safe."""

    source: RecordBlocks
    transform: ArraysFunction
    # A transformation may replace values by longer ones.
    short_strings: frozenset[str] = frozenset()

    def read(self, steps: StepRange) -> Arrays:
        """Return the transformed columns of a step range, of shape (steps * batch, ...)."""
        return self.transform(self.source.read(steps))

    def read_packed(self, steps: StepRange, packing: Packing) -> list[NumpyArray]:
        """Return the transformed columns of a step range as packed arrays."""
        arrays = self.read(steps)
        packed = [
            np.stack(list(map(arrays.__getitem__, names))) for names in packing.groups.values()
        ]
        return packing.pack(packed, arrays)


@dataclass
class TransformedWindows:
    """A block reader that transforms windows, which must be read in order."""

    source: WindowBlocks
    transform: ArraysFunction

    def read(self, steps: StepRange) -> Arrays:
        """Return the transformed columns of a step range, of shape (steps * batch, ...)."""
        return self.transform(self.source.read(steps))


def feature_forms(
    manifest: Manifest, *, columns: Sequence[str] | None, nulls: Nulls, transform: Transform | None
) -> Forms:
    """Return the numpy type and shape of each model input, without labels and weights.

    Variable-length lists have the shape (None,) and the type of their items.
    """
    null_handling: tuple[str, ...] = ()
    padded: tuple[str, ...] = ()
    if transform is not None:
        null_handling, padded = transform.null_handling, transform.padded
    split = manifest.splits[0]
    selected = select_columns(
        manifest, split, columns=columns, nulls=nulls, null_handling=null_handling, padded=padded
    )
    if transform is not None:
        selected = plan_transformed_columns(selected, transform).columns
    forms: Forms = {}
    for column in selected:
        if column.label or column.weight:
            continue
        forms[column.name] = column.dtype, column.shape
        if column.items is not None:
            forms[column.name] = column.items, (None,)
        if column.masked:
            forms[column.mask] = np.dtype(np.bool_), ()
    return forms
