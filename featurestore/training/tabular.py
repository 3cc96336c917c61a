"""A split as arrays in memory, as tabular models take them, and the weights of its classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.types as pat

from featurestore.errors import InvalidArgument, UnsupportedType, listing
from featurestore.model.arrow_json import type_from_json
from featurestore.model.manifest import Manifest, ManifestColumn
from featurestore.readers.arrow_numpy import to_numpy
from featurestore.readers.selection import value_form
from featurestore.training.reading import split_batches

_NULL = "null"
ClassWeights = dict[Any, float]


class Matrix(NamedTuple):
    """The rows of a split: ``x`` (rows, inputs) float32, ``y`` (rows,), ``names`` of the inputs."""

    x: npt.NDArray[np.float32]
    y: npt.NDArray[Any] | None
    names: tuple[str, ...]


def matrix(
    directory: str, manifest: Manifest, split: str, *, columns: Sequence[str] | None = None
) -> Matrix:
    """Return a split as arrays, rows in canonical order.

    Raises:
        UnsupportedType: Inputs are texts or times, which are no float32; all are named.
        NullsInColumns: Labels, or values inside of lists, are null.
    """
    inputs = _inputs(manifest, columns)
    labels = [column for column in manifest.columns if column.role == "label"]
    names: list[str] = []
    for column in inputs:
        names += _cell_names(column)
    rows = manifest.split(split).rows
    x = np.empty((rows, len(names)), dtype=np.float32)
    parts: dict[str, list[npt.NDArray[Any]]] = {label.name: [] for label in labels}
    read = [column.name for column in (*inputs, *labels)]
    start = 0
    for batch in split_batches(directory, manifest, split, columns=read):
        stop = start + batch.num_rows
        _fill(x[start:stop], batch, inputs)
        for name, found in parts.items():
            found.append(_label(batch.column(name), name))
        start = stop
    return Matrix(x, _joined(list(parts.values())), tuple(names))


def class_weights(manifest: Manifest) -> ClassWeights | dict[str, ClassWeights]:
    """Return the balanced weight of each class of the first split, for ``class_weight=`` of Keras.

    Raises:
        InvalidArgument: There is no label, or one with too many values to count them.
    """
    labels = [column for column in manifest.columns if column.role == "label"]
    if not labels:
        raise InvalidArgument(
            f"Training dataset {manifest.name!r} has no label.",
            hint="create_training_dataset(..., label='column')",
        )
    found = {}
    for label in labels:
        weights = manifest.splits[0].label_weights.get(label.name)
        if weights is None:
            raise InvalidArgument(
                f"The label {label.name!r} has too many values to be classes, or is of another "
                f"kind: {type_from_json(label.type)}.",
            )
        found[label.name] = _by_class(label, weights)
    if len(found) == 1:
        return found[labels[0].name]
    return found


def _by_class(label: ManifestColumn, weights: Mapping[str, float]) -> ClassWeights:
    """Return weights by the values that readers yield: 0 and 1 for booleans, numbers, texts."""
    kind = type_from_json(label.type)
    result: ClassWeights = {}
    for text, weight in weights.items():
        if text == _NULL:
            continue
        value: Any = text
        if pat.is_boolean(kind):
            value = int(text == "true")
        elif pat.is_integer(kind):
            value = int(text)
        elif pat.is_floating(kind):
            value = float(text)
        result[value] = weight
    return dict(sorted(result.items()))


def _inputs(manifest: Manifest, columns: Sequence[str] | None) -> list[ManifestColumn]:
    if columns is None:
        chosen = [column for column in manifest.columns if column.role == "feature"]
    else:
        known = {column.name: column for column in manifest.columns}
        wrong = [name for name in columns if name not in known]
        if wrong or isinstance(columns, str):
            raise InvalidArgument(
                f"columns={columns!r}: there is no column {listing(wrong)}; training dataset "
                f"{manifest.name!r} has {listing(known, limit=50)}.",
                hint="columns=['name', ...]",
            )
        chosen = [known[name] for name in columns]
    refused, others = [], []
    for column in chosen:
        if _is_number(column):
            others.append(column.name)
        else:
            refused.append(f"{column.name} ({type_from_json(column.type)})")
    if refused:
        raise UnsupportedType(
            f"A matrix of float32 cannot hold {listing(refused, limit=50)}.",
            hint=f"matrix(split, columns={others}), or make numbers of them first",
        )
    return chosen


def _is_number(column: ManifestColumn) -> bool:
    kind = type_from_json(column.type)
    while pat.is_fixed_size_list(kind):
        kind = kind.value_type
    dtype, shape = value_form(kind)
    return dtype.kind != "O" and -1 not in shape and not pat.is_timestamp(kind)


def _cell_names(column: ManifestColumn) -> list[str]:
    """Return the names of the matrix's columns that a column becomes: one for each cell of it."""
    _, shape = value_form(type_from_json(column.type))
    if not shape:
        return [column.name]
    return [f"{column.name}_{cell}" for cell in range(int(np.prod(shape)))]


def _fill(x: npt.NDArray[np.float32], batch: Any, inputs: Sequence[ManifestColumn]) -> None:
    """Write the inputs of a batch into rows of the matrix; null is NaN."""
    position = 0
    for column in inputs:
        values, present = to_numpy(batch.column(column.name), name=column.name)
        cells = values.reshape(len(values), -1)
        target = x[:, position : position + cells.shape[1]]
        target[:] = cells
        if present is not None:
            target[~present] = np.nan
        position += cells.shape[1]


def _label(array: Any, name: str) -> npt.NDArray[Any]:
    if array.null_count:
        raise InvalidArgument(
            f"The label {name!r} has nulls.",
            hint=f"leave these rows out: frame.filter('{name} is not null')",
        )
    if pat.is_string(array.type):
        return np.array(array.to_pylist(), dtype=object)
    return to_numpy(array, name=name)[0]


def _joined(parts: list[list[npt.NDArray[Any]]]) -> npt.NDArray[Any] | None:
    """Return one label as (rows,), several as (rows, labels)."""
    columns = [np.concatenate(of_label) for of_label in parts if of_label]
    if not columns:
        return None
    if len(columns) == 1:
        return columns[0]
    return np.stack(columns, axis=1)
