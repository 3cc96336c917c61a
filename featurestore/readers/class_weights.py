"""Sample weights that depend on the label: class weights, and the weight 0 of missing labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.schemas import type_from_json
from featurestore.arrow.values import (
    BEYOND_FLOAT32,
    ConversionError,
    from_json,
    from_text,
    to_array,
)
from featurestore.errors import InvalidArgument, ReaderConfigError, listing
from featurestore.model.manifest import Manifest, ManifestColumn
from featurestore.model.window_features import value_from_json, value_to_json
from featurestore.readers.batches import Arrays
from featurestore.readers.columns import (
    PADDING_WEIGHT,
    SAMPLE_WEIGHT,
    NumpyArray,
    SelectedColumn,
    to_numpy,
)
from featurestore.readers.fills import parse_fill
from featurestore.readers.transformed import Transform, zero_based_label_codes

BALANCED = "balanced"
# A value of a label: a number, a string, bytes, a date or a time.
ClassValue: TypeAlias = Any
ByClass: TypeAlias = Mapping[ClassValue, float]
# "balanced", {class: weight}, or {label: either of these}.
ClassWeights: TypeAlias = str | Mapping[ClassValue, Any]


@dataclass(frozen=True)
class LabelWeights:
    """The class weights of one label; ``classes`` are the yielded label values, ascending."""

    label: str
    classes: NumpyArray
    weights: npt.NDArray[np.float32]

    def row_weights(self, values: NumpyArray, real: npt.NDArray[np.bool_]) -> Any:
        """Return the weight of each row, and 0 for rows that ``real`` excludes.

        Raises:
            ReaderConfigError: A label value has no class weight.
        """
        if values.dtype == object:
            # Give both sides the same fixed width, since numpy would truncate longer strings.
            values = values.astype(np.bytes_)
        # For values above the last class, ``searchsorted`` returns an index out of bounds.
        classes = self.classes
        if values.dtype.kind == "u" and classes.dtype.kind == "i":
            # numpy compares int64 and uint64 as floats. Classes of unsigned labels are not negative.
            classes = classes.astype(np.uint64)
        index = np.searchsorted(classes, values).clip(max=len(classes) - 1)
        is_unknown = real & (classes[index] != values)
        if is_unknown.any():
            known_classes = [_to_python_value(class_value) for class_value in self.classes]
            value = _to_python_value(values[is_unknown][0])
            if value != value:
                raise ReaderConfigError(
                    f"The label {self.label!r} is NaN in some rows, which is not a class.",
                    hint="remove these rows before the dataset is created",
                )
            example = dict.fromkeys([*known_classes, value], 1.0)
            raise ReaderConfigError(
                f"The label {self.label!r} has the value {value!r}, which has "
                f"no class weight. Classes with a weight: {listing(map(str, known_classes))}.",
                hint=f"class_weights={example!r}, with your own weights",
            )
        return np.where(real, self.weights[index], np.float32(0))


@dataclass(frozen=True)
class ClassWeighting:
    """A function that multiplies the weight column by class weights, or adds such a column.

    ``masked_labels`` are the labels whose missing values have the weight 0; their masks are removed.
    """

    labels: tuple[LabelWeights, ...]
    weight: str | None
    masked_labels: tuple[SelectedColumn, ...] = ()

    @property
    def name(self) -> str:
        """Name of the weight column."""
        return self.weight or SAMPLE_WEIGHT

    def __call__(self, arrays: Arrays) -> Arrays:
        """Return the columns with row weights, which are 0 for padding rows and missing labels."""
        result = dict(arrays)
        real = np.ones(len(next(iter(arrays.values()))), dtype=np.bool_)
        padding = arrays.get(PADDING_WEIGHT)
        if padding is not None:
            real &= padding > 0
        for label in self.masked_labels:
            real &= result.pop(label.mask)
        total: Any = real.astype(np.float32)
        for label_weights in self.labels:
            total = total * label_weights.row_weights(arrays[label_weights.label], real)
        if self.weight is not None:
            # A weight that is NaN must not reach the rows that do not count.
            total = total * arrays[self.weight].astype(np.float32)
            total[~real] = 0
        result[self.name] = total.astype(np.float32)
        return result

    def columns(self, selected: tuple[SelectedColumn, ...]) -> tuple[SelectedColumn, ...]:
        """Return the selected columns, with the weight column appended or replaced."""
        other_columns = tuple(
            replace(column, masked=False) if column.label else column
            for column in selected
            if column.name != self.name
        )
        weight = SelectedColumn(self.name, np.dtype(np.float32), (), weight=True)
        return (*other_columns, weight)


def build_class_weighting(
    manifest: Manifest,
    selected: tuple[SelectedColumn, ...],
    class_weights: ClassWeights | None,
    *,
    transform: Transform | None,
    label_values: Mapping[str, NumpyArray] | None = None,
) -> ClassWeighting | None:
    """Build the class weighting for the ``class_weights=`` argument of a reader.

    "balanced" weights are computed from the training split. If a reader reads only part of a split,
    they are computed from ``label_values``, the labels of those rows. Without class weights, only
    missing labels need weights; None if no label may be missing.

    Raises:
        InvalidArgument: No label is read, the label has no classes, or a weight is not a number.
    """
    labels = [column.name for column in selected if column.label]
    masked_labels = tuple(column for column in selected if column.label and column.masked)
    if class_weights is None and not masked_labels:
        return None
    if not labels:
        raise InvalidArgument(
            "class_weights= needs a label among the columns that are read.",
            hint="create_training_dataset(..., label='column')",
        )
    weight = next((column.name for column in selected if column.weight), None)
    if weight is None and any(column.name == SAMPLE_WEIGHT for column in selected):
        reason = "class_weights= adds" if class_weights is not None else "rows without label need"
        raise ReaderConfigError(
            f"Column {SAMPLE_WEIGHT!r} conflicts with the weight column that {reason}.",
            hint="create the dataset with weight='sample_weight', or read without this column",
        )
    if class_weights is None:
        return ClassWeighting((), weight, masked_labels)
    label_weights = []
    for name, requested in _weights_by_label(class_weights, labels).items():
        values = (label_values or {}).get(name)
        if isinstance(requested, str) and values is not None:
            weights: ByClass = _balanced_class_weights(values)
        else:
            weights = _class_weights_for_label(manifest, name, requested, transform=transform)
        label_weights.append(_build_label_weights(name, weights))
    return ClassWeighting(tuple(label_weights), weight, masked_labels)


def _balanced_class_weights(values: NumpyArray) -> dict[ClassValue, float]:
    """Compute balanced class weights from yielded label values; NaN is not a class."""
    if values.dtype.kind == "f":
        values = values[~np.isnan(values)] + values.dtype.type(0)  # -0.0 is the class 0.0
    classes, counts = np.unique(values, return_counts=True)
    return _balance(zip(map(_to_python_value, classes), counts.tolist(), strict=True))


def compute_balanced_weights(
    manifest: Manifest, label: str, *, transform: Transform | None = None
) -> dict[ClassValue, float]:
    """Compute ``{class: rows / (classes * rows of the class)}`` for the training split.

    Classes are yielded label values: 0 and 1 for booleans, days since 1970 for dates, float64 as
    the files store it, and codes from 0 for a label with a vocabulary. Rows with a null or NaN
    label are ignored.

    Raises:
        InvalidArgument: The label has too many values to be classes.
    """
    counts = _class_counts(manifest, label)
    values = _yielded_values(manifest.column(label), list(counts), transform)
    return _balance(zip(values, counts.values(), strict=True))


def _balance(counts: Iterable[tuple[ClassValue, int]]) -> dict[ClassValue, float]:
    """Return the balanced weight of each class; different labels may be read as one class."""
    totals: dict[ClassValue, int] = {}
    for value, count in counts:
        totals[value] = totals.get(value, 0) + count
    rows = sum(totals.values())
    return {
        value: rows / (len(totals) * totals[value]) for value in sorted(totals, key=_encode_text)
    }


def _class_counts(manifest: Manifest, label: str) -> dict[str, int]:
    """Return the number of rows of each class in the training split."""
    split = next(
        (manifest_split for manifest_split in manifest.splits if manifest_split.name == "train"),
        manifest.splits[0],
    )
    counts = split.value_counts(label)
    dtype = type_from_json(manifest.column(label).type)
    # Manifests count the values only of labels with few distinct values.
    if counts is None:
        raise InvalidArgument(
            f"The label {label!r} ({dtype}) has too many values to be classes.",
            hint=f"explicit class_weights={{value: weight}}, or bins: "
            f"transformations={{{label!r}: t.quantile_bins(4)}}",
        )
    if pat.is_floating(dtype):
        counts = {text: count for text, count in counts.items() if text != "nan"}
    if not counts:
        raise InvalidArgument(
            f"The label {label!r} has no value in split {split.name!r}.",
            hint="class_weights={value: weight}",
        )
    return counts


def _yielded_values(
    column: ManifestColumn, strings: list[str], transform: Transform | None
) -> list[ClassValue]:
    """Convert label values from the manifest to the values that a reader yields."""
    dtype = type_from_json(column.type)
    parsed = to_array([from_text(string, dtype) for string in strings], dtype)
    label_values = _stored_values(parsed, column)
    if transform is not None and transform.form(column.name) is not None:
        label_values = zero_based_label_codes(
            transform, column.name, transform.apply_chain(column.name, label_values, None)
        )
    if label_values.dtype == np.bool_:
        label_values = label_values.astype(np.int64)
    elif label_values.dtype.kind == "f":
        label_values = label_values + label_values.dtype.type(0)  # -0.0 is the class 0.0
    return [_to_python_value(label_value) for label_value in label_values]


def _stored_values(values: pa.Array, column: ManifestColumn) -> NumpyArray:
    """Convert values of a column to numpy, rounded as the files store them."""
    label_values, _ = to_numpy(values, name=column.name)
    if column.loss is not None and label_values.dtype.kind == "f":
        # The reader yields the type of the column.
        label_values = label_values.astype(np.float32).astype(label_values.dtype)
    return label_values


def _requested_class(value: ClassValue, column: ManifestColumn, transform: Transform | None) -> Any:
    """Convert a class that the caller wrote to a value that the reader yields.

    A class is a value that a write to the label's column accepts, or has the form that the reader
    yields; floats are rounded to the label's type. Codes of transformed labels are unchanged.

    Raises:
        InvalidArgument: The label's type has no such value.
    """
    dtype = type_from_json(column.type)
    is_encoded = transform is not None and transform.form(column.name) is not None
    if is_encoded or pat.is_nested(dtype):
        return value
    try:
        if value is None:
            raise ConversionError(value, dtype)
        if isinstance(value, float) and pat.is_floating(dtype):
            value = from_json(value, dtype)
            if column.loss is not None:
                # The files have float32; the reader yields the type of the column.
                value = from_json(value, pa.float32())
        if pat.is_boolean(dtype) and value in (0, 1):
            typed_value: Any = bool(value)
        else:
            # Readers yield decimals and binary values as text.
            is_text = isinstance(value, str) and (pat.is_decimal(dtype) or pat.is_binary(dtype))
            typed_value = parse_fill(value.encode() if is_text else value, dtype)
        array = to_array([typed_value], dtype)
        return _to_python_value(_stored_values(array, column)[0])
    except ConversionError as error:
        raise InvalidArgument(
            f"class_weights= has the class {value!r}, but the label {column.name!r} is {dtype}.",
            hint="class_weights=dataset.class_weights",
        ) from error


def _class_weights_for_label(
    manifest: Manifest, label: str, class_weights: str | ByClass, *, transform: Transform | None
) -> ByClass:
    """Return balanced weights, or explicit weights after checking them."""
    if isinstance(class_weights, str):
        return compute_balanced_weights(manifest, label, transform=transform)
    for value, weight in class_weights.items():
        is_number = isinstance(weight, (int, float, np.number)) and not isinstance(weight, bool)
        if not is_number or not 0 <= weight < BEYOND_FLOAT32:
            raise InvalidArgument(
                f"class_weights={{{value!r}: {weight!r}}} is not a valid weight.",
                hint=f"class_weights={{{value!r}: 1.0}}: a finite number of at least 0, as float32",
            )
    column = manifest.column(label)
    return {
        _requested_class(value, column, transform): weight
        for value, weight in class_weights.items()
    }


def _weights_by_label(class_weights: ClassWeights, labels: list[str]) -> dict[str, str | ByClass]:
    """Return the class weights of each label from the ``class_weights=`` argument."""
    if isinstance(class_weights, str):
        if class_weights != BALANCED:
            raise InvalidArgument(
                f"class_weights={class_weights!r} is not supported.",
                hint='class_weights="balanced"',
            )
        return dict.fromkeys(labels, BALANCED)
    if not isinstance(class_weights, Mapping) or not class_weights:
        raise InvalidArgument(
            f"class_weights={class_weights!r} is not a mapping of classes to weights.",
            hint='class_weights={0: 1.0, 1: 3.0}, or class_weights="balanced"',
        )
    by_label = {
        name: weights
        for name, weights in class_weights.items()
        if isinstance(weights, (str, Mapping))
    }
    if by_label:
        _check_labels(class_weights, by_label, labels)
        return by_label
    if len(labels) > 1:
        raise InvalidArgument(
            f"class_weights= must name the label, since there are several: {listing(labels)}.",
            hint=f"class_weights={{{labels[0]!r}: {dict(class_weights)!r}}}",
        )
    return {labels[0]: class_weights}


def _check_labels(
    class_weights: ByClass, by_label: Mapping[ClassValue, str | ByClass], labels: list[str]
) -> None:
    """Check that ``class_weights=`` has the weights of existing labels, and of nothing else."""
    classes = [name for name in class_weights if name not in by_label]
    unknown = [name for name in by_label if name not in labels]
    invalid = {
        name: weights
        for name, weights in by_label.items()
        if isinstance(weights, str) and weights != BALANCED
    }
    problem = None
    if invalid:
        problem = f"class_weights={invalid!r} is not supported."
    elif classes:
        problem = (
            f"class_weights= has labels ({listing(by_label)}) and classes ({listing(classes)})."
        )
    elif unknown:
        problem = (
            f"Unknown labels in class_weights=: {listing(unknown)}. Available: {listing(labels)}."
        )
    if problem is not None:
        raise InvalidArgument(problem, hint=f"class_weights={{{labels[0]!r}: {BALANCED!r}}}")


def _build_label_weights(label: str, weights: ByClass) -> LabelWeights:
    classes = list(weights)
    if any(isinstance(class_value, (str, bytes)) for class_value in classes):
        values = np.array(list(map(_encode_text, classes)), dtype=np.bytes_)
    else:
        # numpy makes floats of integers of which some exceed int64.
        is_unsigned = all(isinstance(value, int) for value in classes) and max(classes) >= 2**63
        values = np.array(classes, np.uint64 if is_unsigned else None)
        if values.dtype == np.bool_:
            values = values.astype(np.int64)
    # ``row_weights`` uses a binary search, which needs ascending classes.
    order = np.argsort(values, kind="stable")
    sorted_weights = np.array([weights[class_value] for class_value in classes], dtype=np.float32)
    return LabelWeights(label, values[order], sorted_weights[order])


def _to_python_value(value: ClassValue) -> Any:
    """Convert a numpy scalar to a Python value, and bytes to a string if they are UTF-8."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return bytes(value)
    return value.item() if isinstance(value, np.generic) else value


def _encode_text(class_value: ClassValue) -> Any:
    """Return a string as UTF-8, so that it is sorted by bytes; other classes are unchanged."""
    return class_value.encode() if isinstance(class_value, str) else class_value


def weights_to_json(class_weights: ClassWeights) -> Any:
    """Convert class weights to JSON: lists of pairs, since JSON object keys must be strings."""
    if isinstance(class_weights, str):
        return class_weights
    pairs = []
    for key, weights in class_weights.items():
        is_label = isinstance(weights, (str, Mapping))
        pairs.append([value_to_json(key), weights_to_json(weights) if is_label else float(weights)])
    return pairs


def weights_from_json(data: Any) -> ClassWeights:
    """Parse class weights from the JSON that ``weights_to_json`` returned."""
    if isinstance(data, str):
        return BALANCED
    return {
        value_from_json(key): weights if isinstance(weights, float) else weights_from_json(weights)
        for key, weights in data
    }
