"""The point-in-time rule, which selects a row of a feature group for each label.

Engines compile this rule. Among the rows with the label's key that are *eligible* at the label's
time, it selects the maximum by (event time, created time, tie hash).

* A row becomes eligible at its event time. If the group declares a created time, it becomes
  eligible at the later of the two times, unless ``created_time_filter=False``; then the created
  time only breaks ties. Rows without these times are never eligible.
* If the event time of the selected row is older than ``ttl``, the label gets null. No older row
  replaces it.
* Null keys match nothing. A label without a time matches only groups without event time.
* A group without event time has one row per key for all labels: the maximum by the same order.

A row that becomes known late may be older than rows that are already eligible. Thus if the created
time is used, the last eligible row is not always the maximum, and engines compute a running maximum
(ADR 0011). If the log or the spec declares that keys and times are unique, there are no ties, and
no row is hashed.

``featurestore.testing.oracle`` implements the rule row by row, and every engine is compared with
it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featurestore.arrow.types import columns_width
from featurestore.errors import EngineError, InvalidPlan, listing
from featurestore.hashing import tie_hash
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.plan import FeaturePlan, Join
from featurestore.plugins.engine import Relation

# The column for the tie hash during comparison, as an integer with the same order.
TIE = "__fs_tie"
# Engines sort signed integers, so the highest bit is flipped to keep the order.
_SIGN = np.uint64(1 << 63)


@dataclass(frozen=True)
class FeatureSide:
    """A joined group of a plan, and the properties of its join under the point-in-time rule."""

    number: int
    join: Join
    plan: FeaturePlan

    @property
    def spec(self) -> FeatureGroupSpec:
        """The definition of the group."""
        return self.join.source.spec

    @property
    def keys(self) -> tuple[str, ...]:
        """Short names of the key columns, in the order of ``join.on``: ``k0, k1, ...``."""
        return tuple(f"k{index}" for index in range(len(self.join.on)))

    @property
    def times(self) -> tuple[tuple[str, str], ...]:
        """The (role, column) of each time that orders the rows of the group, by precedence."""
        declared = (("event", self.join.event_time), ("created", self.join.created_time))
        return tuple((role, column) for role, column in declared if column is not None)

    @property
    def eligibility_times(self) -> tuple[str, ...]:
        """The roles of the times at whose maximum a row becomes eligible.

        A row is never eligible if any of these times is null.
        """
        roles = []
        if self.join.event_time is not None:
            roles.append("event")
        if self.uses_created_time:
            roles.append("created")
        return tuple(roles)

    @property
    def uses_created_time(self) -> bool:
        """Whether rows become eligible only at their created time."""
        return self.join.created_time is not None and self.plan.created_time_filter

    @property
    def is_timed(self) -> bool:
        """Whether labels with the same key may get different rows."""
        return self.join.event_time is not None and self.plan.fixed_time is None

    @property
    def needs_running_maximum(self) -> bool:
        """Whether engines need a running maximum, since rows may become eligible out of order."""
        return self.is_timed and self.uses_created_time

    @property
    def is_unique(self) -> bool:
        """Whether ties are impossible, since keys are unique in the log and all of them are joined.

        The log does not guarantee that null times are unique. Without the created time filter, rows
        with a null created time may match.
        """
        nulls_count = self.join.created_time is not None and not self.uses_created_time
        return self.join.source.unique and bool(self.spec.primary_key) and not nulls_count

    @property
    def last_eligible_row_wins(self) -> bool:
        """Whether the last eligible row is always selected, since only event time orders rows."""
        return self.is_timed and self.is_unique and self.join.created_time is None

    @property
    def columns(self) -> tuple[str, ...]:
        """The group columns that the join needs: keys, times and outputs."""
        keys = [key for _, key in self.join.on]
        times = [time for _, time in self.times]
        return tuple(dict.fromkeys([*keys, *times, *[out.column for out in self.join.outputs]]))

    @property
    def bytes(self) -> int | None:
        """The approximate size of these columns in memory, in bytes; None if unknown."""
        rows = self.join.source.rows
        if rows is None:
            return None
        return rows * columns_width(self.spec.schema, self.columns)


def feature_sides(plan: FeaturePlan) -> list[FeatureSide]:
    """Return the groups that a plan joins, in join order."""
    return [FeatureSide(number, join, plan) for number, join in enumerate(plan.joins)]


def label_columns(plan: FeaturePlan) -> list[str]:
    """Return the left columns that a plan needs; at least one, so that rows can be counted."""
    needed_columns = [output.column for output in plan.left_outputs]
    for join in plan.all_joins:
        for label_column, _ in join.on:
            needed_columns.append(label_column)
    if plan.left_time is not None:
        needed_columns.append(plan.left_time)
    return list(dict.fromkeys(needed_columns)) or [plan.left_schema.names[0]]


def count_label_rows(plan: FeaturePlan) -> int | None:
    """Return the number of rows on the left side, or None if it is unknown."""
    if plan.left_source is not None:
        return plan.left_source.rows
    return plan.left_rows


def estimate_join_bytes(plan: FeaturePlan) -> int | None:
    """Estimate the size of both inputs of a join in bytes; return None if it is unknown."""
    rows = count_label_rows(plan)
    if rows is None:
        return None
    total = rows * columns_width(plan.left_schema, label_columns(plan))
    for side in feature_sides(plan):
        if side.bytes is None:
            return None
        total += side.bytes
    return total


def require_labels(plan: FeaturePlan, labels: Relation | None) -> Relation:
    """Return the labels of a plan.

    Raises:
        EngineError: The plan needs labels and they are missing.
        InvalidPlan: The labels lack a column that the plan uses.
    """
    if labels is None:
        raise EngineError(
            "The plan requires labels.", hint="pass the labels that it was planned for"
        )
    label_names = set(labels.schema.names)
    missing_columns = [name for name in label_columns(plan) if name not in label_names]
    if missing_columns:
        raise InvalidPlan(
            f"The feature plan uses the columns {listing(missing_columns)}, but the labels have "
            f"{listing(labels.schema.names)}."
        )
    return labels


def label_time_column(plan: FeaturePlan) -> str:
    """Return the left column with the label times of a plan with timed joins."""
    assert plan.left_time is not None  # ``FeaturePlan`` checks it
    return plan.left_time


def signed_tie_hash(rows: pa.RecordBatch | pa.Table) -> npt.NDArray[np.int64]:
    """Return the tie hashes of rows as signed integers with the same order."""
    return (tie_hash(rows) ^ _SIGN).view(np.int64)


@dataclass(frozen=True)
class AddTieHash:
    """A batch function that adds the tie hash, which the engine runs on its workers."""

    columns: tuple[str, ...]

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return ``columns`` of a batch and a hash of all columns."""
        signed = pa.array(signed_tie_hash(batch))
        selected_columns = batch.select(list(self.columns))
        schema = selected_columns.schema.append(pa.field(TIE, pa.int64()))
        return pa.RecordBatch.from_arrays([*selected_columns.columns, signed], schema=schema)
