"""Checks of the label values of a dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pyarrow.types as pat

from featurestore.arrow.schemas import type_from_json
from featurestore.errors import DataWarning, InvalidArgument, listing
from featurestore.model.callers import warn_caller
from featurestore.model.manifest import Manifest, ManifestSplit

_ROWS_PER_CLASS = 10  # average from which on contiguous numbers count as class codes


def check_labels(manifest: Manifest, labels: tuple[str, ...]) -> None:
    """Refuse labels that are null in every row; warn about labels that no model can learn.

    Warns about no rows, a single class, NaN, and classes that are missing in the training split.

    Raises:
        InvalidArgument: A label is null in every row.
    """
    rows = sum(split.rows for split in manifest.splits)
    if not rows:
        warn_caller(f"training dataset {manifest.name!r} has no rows", DataWarning)
        return
    for label in labels:
        nulls = sum(split.nulls.get(label, 0) for split in manifest.splits)
        if nulls == rows:
            raise InvalidArgument(
                f"The label {label!r} is null in all {rows:,} rows.",
                hint=f"inspect the column: df[{label!r}].value_counts(dropna=False)",
            )
        counts: Counter[str] = Counter()
        for split in manifest.splits:
            counts.update(split.label_counts.get(label, {}))
        if len(counts) == 1 and nulls == 0:
            (value,) = counts
            warn_caller(
                f"the label {label!r} of training dataset {manifest.name!r} has a single value: "
                f"{value} in {rows:,} rows",
                DataWarning,
            )
        _warn_about_classes(manifest, label)


def _warn_about_classes(manifest: Manifest, label: str) -> None:
    """Warn about NaN labels, and about classes that are missing in the training split."""
    nan_count = 0
    training_classes: set[str] | None = None
    for split in manifest.splits:
        counts = split.label_counts.get(label, {})
        nan_count += sum(count for value, count in counts.items() if value.lower() == "nan")
        if split is _training_split(manifest):
            training_classes = {value for value, count in counts.items() if count}
    if nan_count:
        warn_caller(
            f"the label {label!r} of training dataset {manifest.name!r} is NaN in {nan_count:,} rows: "
            f"the loss and then the model become NaN; df.dropna(subset=[{label!r}]) "
            "removes them",
            DataWarning,
        )
    totals: Counter[str] = Counter()
    for split in manifest.splits:
        totals.update(split.label_counts.get(label, {}))
    kind = type_from_json(manifest.column(label).type)
    if not training_classes or pat.is_temporal(kind) or not _are_classes(totals):
        return
    for split in manifest.splits:
        counts = split.label_counts.get(label, {})
        missing_classes = sorted(
            value for value, count in counts.items() if count and value not in training_classes
        )
        if missing_classes:
            warn_caller(
                f"the label {label!r} of training dataset {manifest.name!r} has classes in split "
                f"{split.name!r} that are missing in the training split: {listing(missing_classes)}; "
                f"stratify={label!r} divides each class among the splits",
                DataWarning,
            )


def _are_classes(counts: Mapping[str, int]) -> bool:
    """Return whether values are classes: strings, booleans, or the codes 0..n or 1..n.

    Times and other numbers are quantities. So are codes with few rows each, such as ages: it is
    normal that a test split has some of them that the training split lacks.
    """
    try:
        codes = sorted({float(value) for value in counts if value.lower() != "nan"})
    except ValueError:
        return True
    contiguous = bool(codes) and codes[0] in (0, 1) and codes[-1] - codes[0] == len(codes) - 1
    return contiguous and sum(counts.values()) >= _ROWS_PER_CLASS * len(codes)


def _training_split(manifest: Manifest) -> ManifestSplit:
    """Return the split named train, or the first one."""
    return next((each for each in manifest.splits if each.name == "train"), manifest.splits[0])
