"""One group of a plan on its way to its aggregates: what engines have to put into the stream."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import pyarrow as pa
import pyarrow.types as pat

from featurestore.aggregates.chunk import Aggregate
from featurestore.aggregates.stream import WindowFeatures
from featurestore.model.plan import FeaturePlan, WindowJoin

# What these answer depends on the order of rows, also of those of one moment.
_BY_ORDER = ("first", "last", "last_n")
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class WindowSide:
    """The aggregates of one group, and the columns of the stream that they need.

    ``values`` are the columns ``v0, v1, ...``, ``conditions`` those called ``w0, w1, ...``.
    """

    join: WindowJoin
    plan: FeaturePlan
    values: tuple[str, ...]
    conditions: tuple[str, ...]

    @classmethod
    def of(cls, join: WindowJoin, plan: FeaturePlan) -> WindowSide:
        """Return the side of one group."""
        values, conditions = [], []
        for output in join.outputs:
            values.append(output.column)
            if output.where is not None:
                conditions.append(output.where)
        return cls(join, plan, tuple(dict.fromkeys(values)), tuple(dict.fromkeys(conditions)))

    @property
    def waits(self) -> bool:
        """Whether a row counts only from its created time on."""
        return self.join.created_time is not None and self.plan.created_time_filter

    @property
    def needs_known(self) -> bool:
        """Whether created times decide what counts, or which version does."""
        return self.join.created_time is not None

    @property
    def needs_tie_hash(self) -> bool:
        """Whether rows of equal times may have to be told apart, as versions or as the last."""
        source = self.join.source
        # What the log claims leaves nulls out.
        nulls_count = self.needs_known and not self.waits
        is_unique = source.unique and bool(source.spec.primary_key) and not nulls_count
        by_order = any(output.function in _BY_ORDER for output in self.join.outputs)
        return not is_unique or (by_order and bool(self.join.members))

    @property
    def group_is_key(self) -> bool:
        """Whether the stream is sorted by the key itself, which one integer can be."""
        if len(self.join.on) != 1:
            return False
        kind = self.join.source.spec.schema.field(self.join.on[0][1]).type
        return bool(pat.is_signed_integer(kind))

    def features(self, left: pa.Schema) -> WindowFeatures:
        """Return what makes labels with aggregates of the sorted stream.

        Args:
            left: The label's columns, ``c0, c1, ...`` in the stream.
        """
        aggregates, fills = [], []
        fields = list(left)
        for output in self.join.outputs:
            over = condition = None
            if output.over is not None:
                over = output.over // _MICROSECOND
            if output.where is not None:
                condition = self.conditions.index(output.where)
            aggregates.append(
                Aggregate(
                    function=output.function,
                    values=self.values.index(output.column),
                    over=over,
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
            waits=self.waits,
            refuses_ties=not self.join.members and self.join.created_time is None,
            aggregates=tuple(aggregates),
            fills=tuple(fills),
            conditions=len(self.conditions),
            group=self.join.source.spec.name,
        )
