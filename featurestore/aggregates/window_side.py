"""The right side of a window join: the columns that engines add to the sorted stream."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import pyarrow as pa
import pyarrow.types as pat

from featurestore.aggregates.chunk import Aggregate
from featurestore.aggregates.stream import WindowFeatures
from featurestore.model.plan import FeaturePlan, WindowJoin

# Results of these depend on the order of rows, including rows of equal times.
_BY_ORDER = ("first", "last", "last_n")
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class WindowSide:
    """The aggregates of one group and the stream columns that they need.

    ``values`` are the columns ``v0, v1, ...``, ``conditions`` the columns ``w0, w1, ...``.
    """

    join: WindowJoin
    plan: FeaturePlan
    values: tuple[str, ...]
    conditions: tuple[str, ...]

    @classmethod
    def from_join(cls, join: WindowJoin, plan: FeaturePlan) -> WindowSide:
        """Return the side of a window join."""
        values, conditions = [], []
        for output in join.outputs:
            values.append(output.column)
            if output.where is not None:
                conditions.append(output.where)
        return cls(join, plan, tuple(dict.fromkeys(values)), tuple(dict.fromkeys(conditions)))

    @property
    def filters_created_time(self) -> bool:
        """Whether a row counts from its created time only."""
        return self.join.created_time is not None and self.plan.created_time_filter

    @property
    def needs_created_time(self) -> bool:
        """Whether created times determine which rows, or which versions, count."""
        return self.join.created_time is not None

    @property
    def needs_tie_hash(self) -> bool:
        """Whether the order of rows with equal times matters."""
        source = self.join.source
        # The uniqueness recorded in the log excludes nulls.
        nulls_count = self.needs_created_time and not self.filters_created_time
        is_unique = source.unique and bool(source.spec.primary_key) and not nulls_count
        by_order = any(output.function in _BY_ORDER for output in self.join.outputs)
        return not is_unique or (by_order and bool(self.join.members))

    @property
    def group_is_key(self) -> bool:
        """Whether the stream is sorted by the key itself, a single integer, instead of a hash."""
        if len(self.join.on) != 1:
            return False
        kind = self.join.source.spec.schema.field(self.join.on[0][1]).type
        return bool(pat.is_signed_integer(kind))

    def features(self, label_schema: pa.Schema) -> WindowFeatures:
        """Return the computation of labels with aggregates from the sorted stream.

        Args:
            label_schema: The label columns, ``c0, c1, ...`` in the stream.
        """
        aggregates, fills = [], []
        fields = list(label_schema)
        for output in self.join.outputs:
            length = condition = None
            if output.over is not None:
                length = output.over // _MICROSECOND
            if output.where is not None:
                condition = self.conditions.index(output.where)
            aggregates.append(
                Aggregate(
                    function=output.function,
                    values=self.values.index(output.column),
                    over=length,
                    offset=output.offset // _MICROSECOND,
                    condition=condition,
                    n=output.n,
                )
            )
            fills.append(output.fill_value)
            fields.append(pa.field(output.name, output.kind))
        return WindowFeatures(
            schema=pa.schema(fields),
            keys=0 if self.group_is_key else len(self.join.on),
            members=len(self.join.members),
            filters_created_time=self.filters_created_time,
            rejects_ties=not self.join.members and self.join.created_time is None,
            aggregates=tuple(aggregates),
            fills=tuple(fills),
            conditions=len(self.conditions),
            group=self.join.source.spec.name,
        )
