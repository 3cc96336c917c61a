"""Class weights: the weight of a row by the class of its label, as sample weights of every reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow.types as pat

from featurestore.errors import InvalidArgument, ReaderConfigError, listing
from featurestore.model.arrow_json import type_from_json
from featurestore.model.manifest import Manifest, ManifestColumn
from featurestore.readers.selection import (
    PADDING_WEIGHT,
    PRESENT,
    SAMPLE_WEIGHT,
    SelectedColumn,
)
from featurestore.readers.steps import Arrays
from featurestore.readers.transformed import Transform, label_codes

# How manifests write labels that are no class.
_NO_CLASS = ("null", "nan")
BALANCED = "balanced"
ByClass: TypeAlias = Mapping[Any, float]
# "balanced", {class: weight}, or {label: one of these}.
ClassWeights: TypeAlias = str | Mapping[Any, Any]


@dataclass(frozen=True)
class LabelWeights:
    """The weights of the classes of one label, by the values that readers yield, ascending."""

    label: str
    classes: npt.NDArray[Any]
    weights: npt.NDArray[np.float32]

    def of_rows(self, values: npt.NDArray[Any], real: npt.NDArray[np.bool_]) -> Any:
        """Return the weight of each row, 0 where a row is not real.

        Raises:
            ReaderConfigError: A real row has a class without a weight.
        """
        if values.dtype == object:
            # One width for both sides: numpy would cut longer texts.
            values = values.astype(np.bytes_)
        index = np.searchsorted(self.classes, values).clip(max=len(self.classes) - 1)
        unknown = real & (self.classes[index] != values)
        if unknown.any():
            known = [_plain(each) for each in self.classes]
            value = _plain(values[unknown][0])
            example = dict.fromkeys([*known, value], 1.0)
            raise ReaderConfigError(
                f"The label {self.label!r} has the value {value!r}, which has "
                f"no class weight. Classes with a weight: {listing(map(str, known))}.",
                hint=f"class_weights={example!r}, with the weights that you want",
            )
        return np.where(real, self.weights[index], np.float32(0))


@dataclass(frozen=True)
class ClassWeighing:
    """Adds the weights of classes to decoded columns; a weight column is multiplied by them."""

    labels: tuple[LabelWeights, ...]
    weight: str | None

    @property
    def name(self) -> str:
        """The column that has the weights."""
        return self.weight or SAMPLE_WEIGHT

    def __call__(self, arrays: Arrays) -> Arrays:
        """Return the columns with weights: 0 for padding, and for rows whose label is null."""
        result = dict(arrays)
        total: Any = np.float32(1)
        padding = arrays.get(PADDING_WEIGHT)
        for each in self.labels:
            values = arrays[each.label]
            real = np.ones(len(values), dtype=np.bool_)
            if padding is not None:
                real &= padding > 0
            present = arrays.get(each.label + PRESENT)
            if present is not None:
                real &= present
            total = total * each.of_rows(values, real)
        if self.weight is not None:
            total = total * arrays[self.weight].astype(np.float32)
        result[self.name] = total.astype(np.float32)
        return result

    def columns(self, selected: tuple[SelectedColumn, ...]) -> tuple[SelectedColumn, ...]:
        """Return the columns as they are yielded with the weights."""
        others = tuple(column for column in selected if column.name != self.name)
        weight = SelectedColumn(self.name, np.dtype(np.float32), (), weight=True)
        return (*others, weight)


def class_weighing(
    manifest: Manifest,
    selected: tuple[SelectedColumn, ...],
    asked: ClassWeights,
    *,
    transform: Transform | None,
    label_values: Mapping[str, npt.NDArray[Any]] | None = None,
) -> ClassWeighing:
    """Return the weighing that ``class_weights=`` of a reader asks for.

    "balanced" weights are those of the rows of the training split, or of ``label_values``: the labels
    of the rows that are read, where these are a part of a split.

    Raises:
        InvalidArgument: There is no label, it has no classes, or the weights are not numbers.
    """
    labels = [column.name for column in selected if column.label]
    if not labels:
        raise InvalidArgument(
            "class_weights= needs a label among the columns that are read.",
            hint="create_training_dataset(..., label='column')",
        )
    by_label = _by_label(asked, labels)
    weight = next((column.name for column in selected if column.weight), None)
    if weight is None and any(column.name == SAMPLE_WEIGHT for column in selected):
        raise ReaderConfigError(
            f"The column {SAMPLE_WEIGHT!r} has the name of the weights that class_weights= adds.",
            hint="make the dataset with weight='sample_weight', or read without this column",
        )
    weighed = []
    for name, each in by_label.items():
        values = (label_values or {}).get(name)
        if isinstance(each, str) and values is not None:
            weights: ByClass = _balanced(values)
        else:
            weights = _weights_of(manifest, name, each, transform=transform)
        weighed.append(_label_weights(name, weights))
    return ClassWeighing(tuple(weighed), weight)


def _balanced(values: npt.NDArray[Any]) -> dict[Any, float]:
    """Return the balanced weights of labels as they are yielded."""
    classes, counts = np.unique(values, return_counts=True)
    weights = counts.sum() / (len(classes) * counts)
    return dict(zip(map(_plain, classes), weights.tolist(), strict=True))


def balanced_weights(
    manifest: Manifest, label: str, *, transform: Transform | None = None
) -> dict[Any, float]:
    """Return ``{class: rows / (classes * rows of the class)}`` of the training split.

    Classes are the values that readers yield: 0 and 1 for booleans, codes from 0 for a label with a
    vocabulary. Rows whose label is null or NaN do not count.

    Raises:
        InvalidArgument: The label has too many values to be classes.
    """
    column = manifest.column(label)
    counts = _counts(manifest, label)
    rows = sum(counts.values())
    weights = {text: rows / (len(counts) * count) for text, count in counts.items()}
    values = _yielded(column, list(weights), transform)
    return dict(sorted(zip(values, weights.values(), strict=True)))


def _counts(manifest: Manifest, label: str) -> dict[str, int]:
    """Return the rows of each class of the training split."""
    split = next((each for each in manifest.splits if each.name == "train"), manifest.splits[0])
    counts = split.label_counts.get(label)
    if counts is None:
        kind = type_from_json(manifest.column(label).type)
        raise InvalidArgument(
            f"The label {label!r} ({kind}) has too many values to be classes.",
            hint=f"class_weights={{value: weight}} by hand, or bins: "
            f"transformations={{{label!r}: t.quantile_bins(4)}}",
        )
    present = {
        text: count for text, count in counts.items() if count and text.lower() not in _NO_CLASS
    }
    if not present:
        raise InvalidArgument(
            f"The label {label!r} has no value in split {split.name!r}.",
            hint="class_weights={value: weight}",
        )
    return present


def _yielded(column: ManifestColumn, texts: list[str], transform: Transform | None) -> list[Any]:
    """Return what readers yield for values of a label as the manifest writes them."""
    kind = type_from_json(column.type)
    if pat.is_boolean(kind):
        raw: npt.NDArray[Any] = np.array([text == "true" for text in texts])
    elif pat.is_integer(kind):
        raw = np.array([int(text) for text in texts])
    elif pat.is_floating(kind):
        raw = np.array([float(text) for text in texts])
    else:
        raw = np.array([text.encode() for text in texts], dtype=object)
    if transform is not None and transform.form(column.name) is not None:
        raw = label_codes(transform, column.name, transform.apply_chain(column.name, raw, None))
    if raw.dtype == np.bool_:
        raw = raw.astype(np.int64)
    return [_plain(each) for each in raw]


def _weights_of(
    manifest: Manifest,
    label: str,
    asked: str | ByClass,
    *,
    transform: Transform | None,
) -> ByClass:
    if isinstance(asked, str):
        return balanced_weights(manifest, label, transform=transform)
    for value, weight in asked.items():
        is_number = isinstance(weight, (int, float, np.number)) and not isinstance(weight, bool)
        if not is_number or not np.isfinite(weight) or weight < 0:
            raise InvalidArgument(
                f"class_weights={{{value!r}: {weight!r}}} is not a weight.",
                hint=f"class_weights={{{value!r}: 1.0}}: a finite number that is not negative",
            )
    return asked


def _by_label(asked: ClassWeights, labels: list[str]) -> dict[str, str | ByClass]:
    if isinstance(asked, str):
        if asked != BALANCED:
            raise InvalidArgument(
                f"class_weights={asked!r} is unknown.", hint='class_weights="balanced"'
            )
        return dict.fromkeys(labels, BALANCED)
    if not isinstance(asked, Mapping) or not asked:
        raise InvalidArgument(
            f"class_weights={asked!r} is not a mapping of classes to weights.",
            hint='class_weights={0: 1.0, 1: 3.0}, or class_weights="balanced"',
        )
    nested = {name: each for name, each in asked.items() if isinstance(each, Mapping)}
    if len(nested) == len(asked):
        unknown = [name for name in nested if name not in labels]
        if unknown:
            raise InvalidArgument(
                f"class_weights= names {listing(unknown)}. Labels: {listing(labels)}.",
                hint=f"class_weights={{{labels[0]!r}: {{0: 1.0, 1: 3.0}}}}",
            )
        return dict(nested)
    if len(labels) > 1:
        raise InvalidArgument(
            f"class_weights= of several labels ({listing(labels)}) names the label.",
            hint=f"class_weights={{{labels[0]!r}: {dict(asked)!r}}}",
        )
    return {labels[0]: asked}


def _label_weights(label: str, weights: ByClass) -> LabelWeights:
    classes = list(weights)
    if any(isinstance(each, (str, bytes)) for each in classes):
        encoded = [each.encode() if isinstance(each, str) else each for each in classes]
        values = np.array(encoded, dtype=np.bytes_)
    else:
        values = np.array(classes)
        if values.dtype == np.bool_:
            values = values.astype(np.int64)
    order = np.argsort(values, kind="stable")
    numbers = np.array([weights[each] for each in classes], dtype=np.float32)
    return LabelWeights(label, values[order], numbers[order])


def _plain(value: Any) -> Any:
    """Return a value of numpy as Python's own."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value.item() if isinstance(value, np.generic) else value


def weights_to_json(asked: ClassWeights) -> Any:
    """Return class weights as a JSON value: keys of any type in lists of pairs."""
    if isinstance(asked, str):
        return asked
    return [
        [_plain(key), weights_to_json(each) if isinstance(each, Mapping) else float(each)]
        for key, each in asked.items()
    ]


def weights_from_json(data: Any) -> ClassWeights:
    """Return the class weights that ``weights_to_json`` wrote."""
    if isinstance(data, str):
        return BALANCED
    return {key: weights_from_json(each) if isinstance(each, list) else each for key, each in data}
