"""Columns that the leak check names besides leaks: repeated labels, and labels without information."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.repeated_columns import MIN_ROWS, find_repeated, is_almost_unlabeled
from featurestore.model.plan import FeaturePlan
from featurestore.retrieval.conversions import format_cell
from featurestore.retrieval.frame import FeatureFrame


def find_suspicious(
    frame: FeatureFrame, plan: FeaturePlan, labels: pa.Table, retrieved_rows: pa.Table
) -> list[str]:
    """Describe features that repeat a label, and labels with almost no information."""
    if labels.num_rows < MIN_ROWS:  # labels may be equal by chance
        return []
    label_columns = {
        name: labels.column(name).combine_chunks()
        for name in frame.view_labels or _unused_columns(plan, labels)
        if name in labels.column_names
    }
    features = {
        name: retrieved_rows.column(name).combine_chunks()
        for name in retrieved_rows.column_names
        if name not in labels.column_names
    }
    descriptions = []
    for label, correspondences in find_repeated(features, label_columns).items():
        for feature, correspondence in correspondences.items():
            descriptions.append(
                f"{feature} repeats the column {label!r} of the labels ({correspondence}). How is it "
                "computed, and is it known before the label?"
            )
    for name, column in label_columns.items():
        values = column.drop_null()
        if is_almost_unlabeled(len(values), len(column)):
            descriptions.append(
                f"the column {name!r} of the labels is null in {column.null_count:,} of "
                f"{len(column):,} rows. Look at the join that computes it"
            )
        elif not pat.is_nested(column.type) and len(values.unique()) == 1:
            value = format_cell(values[0].as_py())
            descriptions.append(
                f"the column {name!r} of the labels has a single value: {value}. Look at the rows "
                "that were selected"
            )
    return descriptions


def _unused_columns(plan: FeaturePlan, labels: pa.Table) -> list[str]:
    """Return the columns of the labels that are neither keys of a join nor times."""
    used = set()
    left_plan: FeaturePlan | None = plan
    while left_plan is not None:
        used |= {name for join in left_plan.all_joins for name, _ in join.on} | {
            left_plan.left_time
        }
        left_plan = left_plan.left_plan
    return [
        field.name
        for field in labels.schema
        if field.name not in used and not pat.is_temporal(field.type)
    ]
