"""Checks of the labels of an export: missing labels, and labels that a model cannot or need not learn.

Warnings are issued once for each label, with what to look at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.repeated_columns import find_repeated, is_almost_unlabeled
from featurestore.arrow.schemas import type_from_json
from featurestore.errors import DataWarning, FeatureStoreError, InvalidArgument, listing
from featurestore.model.arguments import warn_caller
from featurestore.model.manifest import WEIGHT_ZERO, Manifest, ManifestSplit, MissingLabels
from featurestore.readers.transformed import bytes_label_hint
from featurestore.statistics import StatisticsState
from featurestore.training.export.request import ExportRequest
from featurestore.transform.fitted import Transformations
from featurestore.usersql import predicate
from featurestore.usersql.text import DIALECT, quote

_ROWS_PER_CLASS = 10  # average from which on contiguous numbers count as class codes
# Lines that remove rows without label, by dataframe library.
_DROP_NULLS = {
    "pandas": "df = df.dropna(subset=[{!r}])",
    "polars": "df = df.drop_nulls([{!r}])",
}


def check_labels(
    request: ExportRequest,
    splits: Sequence[ManifestSplit],
    missing_labels: MissingLabels | None,
    *,
    language: str | None,
) -> None:
    """Refuse rows without label, and warn about labels that no model can learn.

    Warnings concern datasets without rows, labels with a single class or NaN, labels that are null
    in almost all rows, and classes that are missing in the training split. ``language`` is the
    dataframe library of the rows, None for a FeatureFrame.

    Raises:
        InvalidArgument: A label is null in every row, or in some rows without a policy for them.
    """
    name = request.training.name
    rows = sum(split.rows for split in splits)
    dropped = 0
    if missing_labels is not None and missing_labels.policy != WEIGHT_ZERO:
        dropped = missing_labels.rows
    if not rows:
        if dropped:
            raise _empty_label_error(listing(request.labels), dropped)
        warn_caller(f"training dataset {name!r} has no rows", DataWarning)
        return
    if is_almost_unlabeled(rows, rows + dropped):
        _warn_unlabeled(name, listing(request.labels), dropped, rows + dropped, "were dropped")
    for label in request.labels:
        nulls = sum(split.nulls.get(label, 0) for split in splits)
        if nulls == rows:
            raise _empty_label_error(repr(label), rows)
        if nulls and request.training.missing_labels == "error":
            raise _missing_label_error(request, label, f"{nulls:,} of {rows:,} rows", language)
        if is_almost_unlabeled(rows - nulls, rows):
            _warn_unlabeled(name, repr(label), nulls, rows, "have the weight 0")
        _warn_about_classes(request, splits, label)


def _warn_unlabeled(dataset: str, label: str, nulls: int, rows: int, result: str) -> None:
    warn_caller(
        f"the label {label} of training dataset {dataset!r} is null in {nulls:,} of {rows:,} "
        f"rows, which {result}: look at the join that computes it, at the types of its keys, and "
        "at the times of the rows",
        DataWarning,
    )


def describe_text_labels(manifest: Manifest, transform: Transformations | None) -> str | None:
    """Describe which models take the labels that are text, None without such labels."""
    labels = [
        column.name
        for column in manifest.columns
        if column.role == "label"
        and pat.is_string(type_from_json(column.type))
        and (transform is None or column.name not in transform)
    ]
    if not labels:
        return None
    return (
        f"text:     {', '.join(labels)}; models of scikit-learn take it, and those of Keras and "
        f"PyTorch need\n          {bytes_label_hint(manifest, labels)}"
    )


def _empty_label_error(label: str, rows: int) -> InvalidArgument:
    return InvalidArgument(
        f"The label {label} is null in all {rows:,} rows.",
        hint="check the name of the label and the join that computes it",
    )


def _missing_label_error(
    request: ExportRequest, label: str, rows: str, language: str | None
) -> InvalidArgument:
    """Return the error for rows without label, with the line that removes them."""
    hint = 'missing_labels="drop", or missing_labels="weight_zero" to store these rows with the weight 0'
    line = None
    if language is None:
        condition = f"{label} is not null"
        try:
            predicate(condition, schema=request.schema, dialect=DIALECT)
        except FeatureStoreError:  # a reserved word of SQL
            condition = f"{quote(label)} is not null"
        line = f"frame = frame.filter({condition!r})"
    elif language in _DROP_NULLS:
        line = _DROP_NULLS[language].format(label)
    return InvalidArgument(
        f"The label {label!r} is null in {rows}, and a model would learn them as zeros.",
        hint=hint if line is None else f"{line}, or {hint}",
    )


def _warn_about_classes(
    request: ExportRequest, splits: Sequence[ManifestSplit], label: str
) -> None:
    """Warn about NaN labels, single classes, and classes that the training split lacks."""
    name, label_type = request.training.name, request.schema.field(label).type
    totals: Counter[str] = Counter()
    for split in splits:
        totals.update(split.value_counts(label) or {})
    classes = class_values(totals, label_type)
    nan_count = sum(totals.values()) - sum(classes.values())
    if nan_count:
        warn_caller(
            f"the label {label!r} of training dataset {name!r} is NaN in {nan_count:,} rows: "
            f"the loss and then the model become NaN; df.dropna(subset=[{label!r}]) "
            "removes them",
            DataWarning,
        )
    training_split = next((split for split in splits if split.name == "train"), splits[0])
    training_classes = class_values(training_split.value_counts(label) or {}, label_type)
    if len(training_classes) == 1:
        ((value, rows),) = training_classes.items()
        where = "" if len(classes) == 1 else f" in split {training_split.name!r}"
        warn_caller(
            f"the label {label!r} of training dataset {name!r} has a single value{where}: "
            f"{value} in {sum(classes.values()) if not where else rows:,} rows: look at the "
            "filters, the times and the join that select these rows",
            DataWarning,
        )
    if not training_classes or pat.is_temporal(label_type) or not _are_class_values(classes):
        return
    for split in splits:
        split_classes = class_values(split.value_counts(label) or {}, label_type)
        missing_classes = sorted(value for value in split_classes if value not in training_classes)
        if missing_classes:
            warn_caller(
                f"the label {label!r} of training dataset {name!r} has classes in split "
                f"{split.name!r} that are missing in the training split: {listing(missing_classes)}; "
                f"stratify={label!r} divides each class among the splits",
                DataWarning,
            )


def class_values(counts: Mapping[str, int], label_type: pa.DataType) -> dict[str, int]:
    """Return the counts of classes: all label values, except the NaN of a floating-point type."""
    return {
        value: count
        for value, count in counts.items()
        if not (value == "nan" and pat.is_floating(label_type))
    }


def _are_class_values(counts: Mapping[str, int]) -> bool:
    """Return whether label values are classes: strings, booleans, or the codes 0..n or 1..n.

    Times and other numbers are quantities. Codes with few rows each, such as ages, are quantities
    too, since a test split normally has some values that the training split lacks.
    """
    try:
        codes = sorted({float(value) for value in counts})
    except ValueError:
        return True
    contiguous = bool(codes) and codes[0] in (0, 1) and codes[-1] - codes[0] == len(codes) - 1
    return contiguous and sum(counts.values()) >= _ROWS_PER_CLASS * len(codes)


def find_repeated_labels(state: StatisticsState) -> dict[str, dict[str, str]]:
    """Return the features that repeat a label in the sample of a split, by label."""
    rows = state.sample.rows()
    features, labels = {}, {}
    for column in state.columns:
        # The sample has only the lengths of binary values and lists.
        if column.value_kind in ("binary", "list", "struct"):
            continue
        if column.role == "label":
            labels[column.name] = rows.column(column.name)
        elif column.role == "feature":
            features[column.name] = rows.column(column.name)
    return find_repeated(features, labels)


def warn_about_repeated_labels(dataset: str, repeated: Mapping[str, Mapping[str, str]]) -> None:
    """Warn about features from which a model can read the label, once for each label."""
    for label, correspondences in repeated.items():
        features = [f"{name!r} ({text})" for name, text in correspondences.items()]
        warn_caller(
            f"features of training dataset {dataset!r} repeat the label {label!r}: "
            f"{', '.join(features)}: look at how they are computed, and whether they are known "
            f"before the label; exclude={list(correspondences)} removes them",
            DataWarning,
        )
