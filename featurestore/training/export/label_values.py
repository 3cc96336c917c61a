"""What the labels of a dataset must be: there, and of more than one value."""

from __future__ import annotations

from collections import Counter

from featurestore.errors import DataWarning, InvalidArgument
from featurestore.model.callers import warn_caller
from featurestore.model.manifest import Manifest


def check_labels(manifest: Manifest, labels: tuple[str, ...]) -> None:
    """Refuse labels that are null in every row; warn of a dataset without rows, and of one class.

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
