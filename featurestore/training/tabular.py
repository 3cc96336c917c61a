"""A split as in-memory arrays for tabular models, and the weights of its classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.types as pat

from featurestore.arrow.schemas import type_from_json
from featurestore.errors import InvalidArgument, UnsupportedType, listing
from featurestore.model.manifest import Manifest, ManifestColumn
from featurestore.readers.arrow_numpy import to_numpy
from featurestore.readers.class_weights import balanced_weights
from featurestore.readers.selection import value_form
from featurestore.readers.transformed import label_codes
from featurestore.training.reading import split_batches

if TYPE_CHECKING:
    from featurestore.transform.fitted import Transformations


class Matrix(NamedTuple):
    """The rows of a split: ``x`` (rows, inputs) float32, ``y`` (rows,), ``names`` of the inputs."""

    x: npt.NDArray[np.float32]
    y: npt.NDArray[Any] | None
    names: tuple[str, ...]


def matrix(
    directory: str,
    manifest: Manifest,
    split: str,
    *,
    columns: Sequence[str] | None = None,
    transform: Transformations | None = None,
) -> Matrix:
    """Return a split as arrays, rows in canonical order.

    Raises:
        UnsupportedType: Inputs are strings or times, which float32 cannot hold; lists all of them.
        NullsInColumns: Labels, or values inside lists, are null.
    """
    inputs = [
        _Input(column, _form(column, transform)) for column in _input_columns(manifest, columns)
    ]
    _check_numeric(inputs)
    labels = [column for column in manifest.columns if column.role == "label"]
    rows = manifest.split(split).rows
    x = np.empty((rows, sum(each.cells for each in inputs)), dtype=np.float32)
    label_batches: dict[str, list[npt.NDArray[Any]]] = {label.name: [] for label in labels}
    column_names = [*(each.column.name for each in inputs), *label_batches]
    start = 0
    for batch in split_batches(directory, manifest, split, columns=column_names):
        stop = start + batch.num_rows
        _fill(x[start:stop], batch, inputs, transform)
        for name, values in label_batches.items():
            values.append(_label(batch.column(name), name, transform))
        start = stop
    names = [name for each in inputs for name in each.names]
    return Matrix(x, _stack_labels(list(label_batches.values())), tuple(names))


@dataclass(frozen=True)
class _Input:
    """An input column, with the numpy type and shape of one value."""

    column: ManifestColumn
    form: tuple[np.dtype[Any], tuple[int, ...]]

    @property
    def cells(self) -> int:
        """The number of its columns in the matrix."""
        return int(np.prod(self.form[1], dtype=np.int64))

    @property
    def names(self) -> list[str]:
        """The names of its columns in the matrix."""
        if not self.form[1]:
            return [self.column.name]
        return [f"{self.column.name}_{cell}" for cell in range(self.cells)]

    @property
    def is_number(self) -> bool:
        """Whether its values fit float32 and have one shape."""
        dtype, shape = self.form
        return dtype.kind != "O" and -1 not in shape


def _form(
    column: ManifestColumn, transform: Transformations | None
) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the numpy type and shape of one value; times count as objects."""
    kind = type_from_json(column.type)
    transformed = None if transform is None else transform.form(column.name)
    if transformed is not None:
        return transformed
    dtype, shape = value_form(kind)
    while pat.is_fixed_size_list(kind):
        kind = kind.value_type
    return (np.dtype(object) if pat.is_timestamp(kind) else dtype), shape


def class_weights(manifest: Manifest, transform: Transformations | None) -> dict[Any, Any]:
    """Return the balanced weight of each class of the training split, by label if several.

    Raises:
        InvalidArgument: The dataset has no label, or its label has too many values.
    """
    labels = [column.name for column in manifest.columns if column.role == "label"]
    if not labels:
        raise InvalidArgument(
            f"Training dataset {manifest.name!r} has no label.",
            hint="create_training_dataset(..., label='column')",
        )
    weights = {label: balanced_weights(manifest, label, transform=transform) for label in labels}
    return weights[labels[0]] if len(labels) == 1 else weights


def _input_columns(manifest: Manifest, columns: Sequence[str] | None) -> list[ManifestColumn]:
    if columns is None:
        return [column for column in manifest.columns if column.role == "feature"]
    columns_by_name = {column.name: column for column in manifest.columns}
    unknown_names = [name for name in columns if name not in columns_by_name]
    if unknown_names or isinstance(columns, str):
        raise InvalidArgument(
            f"columns={columns!r}: unknown column {listing(unknown_names)}. Training dataset "
            f"{manifest.name!r} has {listing(columns_by_name, limit=50)}.",
            hint="columns=['name', ...]",
        )
    return [columns_by_name[name] for name in columns]


def _check_numeric(inputs: Sequence[_Input]) -> None:
    """Refuse strings, times and lists of varying length; the error lists all of them."""
    unsupported = [
        f"{each.column.name} ({type_from_json(each.column.type)})"
        for each in inputs
        if not each.is_number
    ]
    if unsupported:
        numeric_names = [each.column.name for each in inputs if each.is_number]
        raise UnsupportedType(
            f"A matrix of float32 cannot hold {listing(unsupported, limit=50)}.",
            hint=f"matrix(split, columns={numeric_names}), or convert them to numbers: "
            f"transformations={{{unsupported[0].split(' ')[0]!r}: t.one_hot()}}",
        )


def _fill(
    x: npt.NDArray[np.float32],
    batch: Any,
    inputs: Sequence[_Input],
    transform: Transformations | None,
) -> None:
    """Write the inputs of a batch into rows of the matrix; null is NaN."""
    position = 0
    for each in inputs:
        name = each.column.name
        values, present = to_numpy(batch.column(name), name=name)
        if transform is not None and name in transform:
            values = transform.apply_chain(name, values, present)
            if name in transform.null_handling:
                present = None
        cells = values.reshape(len(values), -1)
        target = x[:, position : position + cells.shape[1]]
        target[:] = cells
        if present is not None:
            target[~present] = np.nan
        position += cells.shape[1]


def _label(array: Any, name: str, transform: Transformations | None) -> npt.NDArray[Any]:
    if array.null_count:
        raise InvalidArgument(
            f"The label {name!r} has nulls.",
            hint=f"filter these rows: frame.filter('{name} is not null')",
        )
    if transform is not None and name in transform:
        values = transform.apply_chain(name, to_numpy(array, name=name)[0], None)
        return label_codes(transform, name, values)
    if pat.is_string(array.type):
        return np.array(array.to_pylist(), dtype=object)
    return to_numpy(array, name=name)[0]


def _stack_labels(label_batches: list[list[npt.NDArray[Any]]]) -> npt.NDArray[Any] | None:
    """Return one label as (rows,), several as (rows, labels)."""
    columns = [np.concatenate(batches) for batches in label_batches if batches]
    if not columns:
        return None
    if len(columns) == 1:
        return columns[0]
    return np.stack(columns, axis=1)
