"""A warning for groups that give values to fewer than one label in a hundred.

The values are counted while rows are read or exported. Only for a nearly empty group a sample of
the labels is joined again, to explain the nulls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from featurestore.errors import FeatureStoreError
from featurestore.model.callers import warn_caller
from featurestore.model.plan import FeaturePlan
from featurestore.retrieval.coverage import coverage
from featurestore.retrieval.execution import Labels
from featurestore.session import Session

_MIN_COVERED = 0.01
_SAMPLE = 1000


class CoverageWarning(UserWarning):
    """A group gives values to no label, or to very few."""


def warn_of_empty_groups(
    session: Session,
    plan: FeaturePlan | None,
    reader: pa.RecordBatchReader,
    *,
    labels: Labels | None,
) -> pa.RecordBatchReader:
    """Return a reader that warns, once exhausted, of groups that gave nearly no values.

    Plans with filters or samples are not checked: these select rows on purpose.
    """
    if plan is None or plan.cuts_rows or not plan.joins:
        return reader
    batches = _counting_batches(session, plan, reader, labels)
    return pa.RecordBatchReader.from_batches(reader.schema, batches)


def warn_of_export(
    session: Session,
    plan: FeaturePlan,
    *,
    labels: Labels | None,
    rows: int,
    nulls: Mapping[str, int],
) -> None:
    """Warn of groups whose features are nearly all null in the rows of an export."""
    if plan.cuts_rows:
        return
    values = {}
    for group, names in _columns_by_group(plan).items():
        values[group] = max(rows - nulls.get(name, 0) for name in names)
    _warn(session, plan, labels, rows=rows, values=values)


def _columns_by_group(plan: FeaturePlan) -> dict[str, list[str]]:
    """Return the columns that each joined group gives to the result."""
    features: dict[str, list[str]] = {}
    for join in plan.joins:
        names = [output.name for output in join.outputs if output.name in plan.columns]
        if names:
            spec = join.source.spec
            features.setdefault(f"{spec.name}@v{spec.version}", []).extend(names)
    return features


def _counting_batches(
    session: Session, plan: FeaturePlan, reader: pa.RecordBatchReader, labels: Labels | None
) -> Iterator[pa.RecordBatch]:
    features = _columns_by_group(plan)
    values = dict.fromkeys(features, 0)
    rows = 0
    for batch in reader:
        rows += batch.num_rows
        for group, names in features.items():
            values[group] += _rows_with_value(batch, names)
        yield batch
    _warn(session, plan, labels, rows=rows, values=values)


def _rows_with_value(batch: pa.RecordBatch, names: Sequence[str]) -> int:
    """Return how many rows have a value in one of some columns."""
    has_value = np.zeros(batch.num_rows, bool)
    for name in names:
        column = batch.column(batch.schema.get_field_index(name))
        if not column.null_count:
            return int(batch.num_rows)
        if column.null_count < batch.num_rows:
            has_value |= column.is_valid().to_numpy(zero_copy_only=False)
    return int(has_value.sum())


def _warn(
    session: Session,
    plan: FeaturePlan,
    labels: Labels | None,
    *,
    rows: int,
    values: Mapping[str, int],
) -> None:
    nearly_empty = [group for group, count in values.items() if count < _MIN_COVERED * rows]
    dropped_all = not rows and plan.how == "inner" and plan.left_rows
    if dropped_all:
        nearly_empty = list(values)
    if not nearly_empty:
        return
    lines = []
    if dropped_all:
        lines.append("join='inner' dropped every label")
    for group in nearly_empty:
        lines.append(f"{group} gives {values[group] or 'no'} values to {rows:,} rows")
    try:
        report = coverage(session, plan, labels=labels, sample=_SAMPLE)
        lines.append(str(report).rstrip())
        if report.sampled:
            lines.append("frame.coverage() looks at more labels")
    except FeatureStoreError as error:
        lines.append(f"why is not known: {error.message}")
    warn_caller("\n".join(lines), CoverageWarning)
