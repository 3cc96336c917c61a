"""What the labels of a dataset must be: there, and of more than one value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pyarrow.types as pat

from featurestore.arrow.arrow_json import type_from_json
from featurestore.errors import DataWarning, InvalidArgument, listing
from featurestore.model.callers import warn_caller
from featurestore.model.manifest import Manifest, ManifestSplit

_ROWS_PER_CLASS = 10  # on average, for numbers to be codes of classes


def check_labels(manifest: Manifest, labels: tuple[str, ...]) -> None:
    """Refuse labels that are null in every row; warn of labels that a model cannot learn from.

    Warnings: no rows, one class only, NaN, and classes that the training split does not have.

    Raises:
        InvalidArgument: Names the label and the number of rows.
    """
    rows = sum(split.rows for split in manifest.splits)
    if not rows:
        warn_caller(f"training dataset {manifest.name!r} has no rows", DataWarning)
        return
    for label in labels:
        nulls = sum(split.nulls.get(label, 0) for split in manifest.splits)
        if nulls == rows:
            raise InvalidArgument(
                f"The label {label!r} is null in all {rows:,} rows, so there is nothing to learn.",
                hint=f"look at the column: df[{label!r}].value_counts(dropna=False)",
            )
        counts: Counter[str] = Counter()
        for split in manifest.splits:
            counts.update(split.label_counts.get(label, {}))
        if len(counts) == 1 and nulls == 0:
            (value,) = counts
            warn_caller(
                f"the label {label!r} of training dataset {manifest.name!r} has one value only: "
                f"{value} in {rows:,} rows",
                DataWarning,
            )
        _warn_of_classes(manifest, label)


def _warn_of_classes(manifest: Manifest, label: str) -> None:
    """Warn of NaN among the labels, and of classes that are in other splits than the training one."""
    nan = 0
    known: set[str] | None = None
    for split in manifest.splits:
        counts = split.label_counts.get(label, {})
        nan += sum(count for value, count in counts.items() if value.lower() == "nan")
        if split is _training_split(manifest):
            known = {value for value, count in counts.items() if count}
    if nan:
        warn_caller(
            f"the label {label!r} of training dataset {manifest.name!r} is NaN in {nan:,} rows: "
            f"their loss is NaN, and so is the model after them; df.dropna(subset=[{label!r}]) "
            "leaves them out",
            DataWarning,
        )
    totals: Counter[str] = Counter()
    for split in manifest.splits:
        totals.update(split.label_counts.get(label, {}))
    kind = type_from_json(manifest.column(label).type)
    if not known or pat.is_temporal(kind) or not _are_classes(totals):
        return
    for split in manifest.splits:
        counts = split.label_counts.get(label, {})
        others = sorted(value for value, count in counts.items() if count and value not in known)
        if others:
            warn_caller(
                f"the label {label!r} of training dataset {manifest.name!r} has classes in split "
                f"{split.name!r} that the training split does not have: {listing(others)}; "
                f"stratify={label!r} divides each class among the splits",
                DataWarning,
            )


def _are_classes(counts: Mapping[str, int]) -> bool:
    """Return whether values are classes: texts, truth values, or the codes 0..n or 1..n.

    Times and other numbers are quantities, and so are codes with few rows each, such as ages: a test split has
    some of them that the training split does not have.
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
