"""The point-in-time rule: the row of a feature group that a label gets. Engines compile this rule.

Of the rows of a group whose key equals the label's and that are *eligible* at the label's time, the
label gets the greatest by (event time, created time, tie hash).

* A row is eligible from its event time on; where the group declares a created time, from the later
  of the two (unless ``created_time_filter=False``: then created time only decides ties). Rows
  without these times never are.
* The row counts as missing when its event time is older than ``ttl``; no older row replaces it.
* Keys that are null match nothing; a label without a time matches only groups without event time.
* A group without event time has one row per key, the greatest by the same order, for every label.

A row that becomes known late may be older than one that is eligible already. So where created time
counts, the last eligible row is not always the greatest: engines then take a running maximum (ADR
0011). If the log or the spec declares keys and times unique, no two rows tie, and no row is hashed.

``featurestore.testing.oracle`` implements the rule row by row, and every engine is compared with
it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from featurestore.arrow.types import width_of_columns
from featurestore.errors import EngineError
from featurestore.hashing import tie_hash
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.plan import FeaturePlan, Join
from featurestore.plugins.engine import Relation

# The column that holds the tie hash while rows are compared, as an integer of the same order.
TIE = "__fs_tie"
_SIGN = np.uint64(1 << 63)


@dataclass(frozen=True)
class FeatureSide:
    """One joined group of a plan, and the properties of its join under the rule."""

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
        """The group's times that order its rows, the first one first: (role, column)."""
        declared = (("event", self.join.event_time), ("created", self.join.created_time))
        return tuple((role, column) for role, column in declared if column is not None)

    @property
    def eligible_from(self) -> tuple[str, ...]:
        """The roles of the times that make a row eligible: it counts from the latest of them on.

        A row with a null there is never eligible.
        """
        roles = []
        if self.join.event_time is not None:
            roles.append("event")
        if self.counts_when_known:
            roles.append("created")
        return tuple(roles)

    @property
    def counts_when_known(self) -> bool:
        """Whether a row counts only from its created time on."""
        return self.join.created_time is not None and self.plan.created_time_filter

    @property
    def is_timed(self) -> bool:
        """Whether labels of one key may get different rows."""
        return self.join.event_time is not None and self.plan.fixed_time is None

    @property
    def waits(self) -> bool:
        """Whether the last eligible row of a label may be another than the greatest."""
        return self.is_timed and self.counts_when_known

    @property
    def is_unique(self) -> bool:
        """Whether no two rows can tie: keys are unique in the log and all of them are joined.

        The log's claim excludes nulls, and without the filter rows of unknown created time count.
        """
        nulls_count = self.join.created_time is not None and not self.counts_when_known
        return self.join.source.unique and bool(self.spec.primary_key) and not nulls_count

    @property
    def last_is_greatest(self) -> bool:
        """Whether the row that became eligible last wins: only event time orders the rows."""
        return self.is_timed and self.is_unique and self.join.created_time is None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the group that the join needs: keys, times, outputs."""
        keys = [key for _, key in self.join.on]
        times = [time for _, time in self.times]
        return tuple(dict.fromkeys([*keys, *times, *[out.column for out in self.join.outputs]]))

    @property
    def bytes(self) -> int | None:
        """The approximate size of these columns in memory, in bytes; None if unknown."""
        rows = self.join.source.rows
        if rows is None:
            return None
        return rows * width_of_columns(self.spec.schema, self.columns)


def feature_sides(plan: FeaturePlan) -> list[FeatureSide]:
    """Return the groups that a plan joins, in its order."""
    return [FeatureSide(number, join, plan) for number, join in enumerate(plan.joins)]


def label_columns(plan: FeaturePlan) -> list[str]:
    """Return the columns of the left side that a plan needs; at least one, to count the rows."""
    needed_columns = [output.column for output in plan.left_outputs]
    for join in plan.every_join:
        for label_column, _ in join.on:
            needed_columns.append(label_column)
    if plan.left_time is not None:
        needed_columns.append(plan.left_time)
    return list(dict.fromkeys(needed_columns)) or [plan.left_schema.names[0]]


def label_rows(plan: FeaturePlan) -> int | None:
    """Return how many rows the left side has; None if unknown."""
    if plan.left_source is not None:
        return plan.left_source.rows
    return plan.left_rows


def joined_bytes(plan: FeaturePlan) -> int | None:
    """Return the approximate input size of a join in bytes, both sides; None if unknown."""
    rows = label_rows(plan)
    if rows is None:
        return None
    total = rows * width_of_columns(plan.left_schema, label_columns(plan))
    for side in feature_sides(plan):
        if side.bytes is None:
            return None
        total += side.bytes
    return total


def require_labels(labels: Relation | None) -> Relation:
    """Return the labels of a plan.

    Raises:
        EngineError: The plan needs labels and they are missing.
    """
    if labels is None:
        raise EngineError(
            "The plan needs labels and got none.", hint="pass the labels that it was planned for"
        )
    return labels


def label_time_column(plan: FeaturePlan) -> str:
    """Return the left column that holds the label's time.

    Raises:
        EngineError: The plan has no time column.
    """
    if plan.left_time is None:
        raise EngineError("The plan joins as of a time and names none.", hint="label_time=")
    return plan.left_time


@dataclass(frozen=True)
class AddTieHash:
    """The step that adds the tie hash to batches; the engine runs it on its workers."""

    columns: tuple[str, ...]

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return ``columns`` of a batch and the hash of all its columns."""
        signed = pa.array((tie_hash(batch) ^ _SIGN).view(np.int64))
        selected_columns = batch.select(list(self.columns))
        schema = selected_columns.schema.append(pa.field(TIE, pa.int64()))
        return pa.RecordBatch.from_arrays([*selected_columns.columns, signed], schema=schema)
