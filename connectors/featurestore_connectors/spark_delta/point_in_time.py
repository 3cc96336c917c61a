"""Feature plans on Spark: a running maximum over the sorted union of labels and rows.

The semantics are defined in ``featurestore.retrieval.point_in_time``. Rows are ordered by the time
from which they are eligible, so the match of a label is the greatest preceding row with its key.
Groups that are joined on the same columns share one shuffle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pat

from featurestore.model.plan import ROW, FeaturePlan
from featurestore.plugins.engine import Engine, Relation
from featurestore.retrieval import point_in_time
from featurestore.retrieval.point_in_time import TIE, AddTieHash, FeatureSide
from featurestore_connectors.spark_delta import row_hashes, shards
from featurestore_connectors.spark_delta.relations import relation
from featurestore_connectors.spark_delta.sqltext import column, label_key, timestamp

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PART = "part"
_DAY = 86_400_000_000
# Groups with equal left columns and key types share one sort.
_SharedKeys = tuple[tuple[str, str], ...]


def retrieve(engine: Engine, plan: FeaturePlan, labels: Relation | None) -> Relation:
    """Return the rows of a feature plan as a lazy relation."""
    if plan.left_source is not None and not plan.joins:
        # Columns of a pinned feature group, as a relation over its files.
        columns = {output.name: output.column for output in plan.left_outputs}
        group_rows = left_side(engine, plan, None, point_in_time.label_columns(plan))
        return replace(engine.select(group_rows, columns), schema=plan.schema)
    left = _LabelSide.of(engine, plan, labels)
    frame = left.frame
    sides = list(map(_SideFrame, point_in_time.feature_sides(plan)))
    clusters: dict[_SharedKeys, list[_SideFrame]] = {}
    # Groups with the same join columns share one shuffle and one sort of the labels.
    for side in sides:
        if side.rule.is_timed:
            clusters.setdefault(side.shared_keys, []).append(side)
        else:
            frame = _join_on_key(frame, side, left, side.rows(engine))
    for cluster in clusters.values():
        rows = [side.rows(engine) for side in cluster]
        frame = _join_as_of(frame, cluster, left, rows)
    return relation(_select_result(frame, plan, left, sides), plan.schema)


@dataclass(frozen=True)
class _LabelSide:
    """The left side with short column names ``c0, c1, ...``; ``names`` maps the original names."""

    frame: DataFrame
    plan: FeaturePlan
    names: dict[str, str]

    @classmethod
    def of(cls, engine: Engine, plan: FeaturePlan, labels: Relation | None) -> _LabelSide:
        needed_columns = point_in_time.label_columns(plan)
        if plan.keep_order:
            needed_columns = list(dict.fromkeys([*needed_columns, ROW]))
        left_rows = left_side(engine, plan, labels, needed_columns)
        names = {}
        columns = []
        for index, name in enumerate(needed_columns):
            names[name] = f"c{index}"
            columns.append(column(name).alias(names[name]))
        return cls(left_rows.native.select(*columns), plan, names)

    def column(self, name: str) -> Column:
        return column(self.names[name])

    def key(self, name: str, dtype: pa.DataType) -> Column:
        """Return a left column cast for comparison with a key of a feature type."""
        return label_key(self.names[name], self.plan.left_schema.field(name).type, dtype)

    @property
    def time(self) -> Column:
        """The label time."""
        return label_time(self.plan, self.column)


def left_side(
    engine: Engine, plan: FeaturePlan, labels: Relation | None, columns: Sequence[str]
) -> Relation:
    """Return the left side of a plan with at least the columns ``columns``."""
    source = plan.left_source
    if source is None:
        return point_in_time.require_labels(plan, labels)
    schema, version = source.spec.schema, source.delta_version
    return engine.read_table(source.path, version=version, schema=schema, columns=columns)


def label_time(plan: FeaturePlan, value: Callable[[str], Column]) -> Column:
    """Return the time of a label; ``value`` returns a column by name."""
    if plan.fixed_time is not None:
        return timestamp(plan.fixed_time)
    name = point_in_time.label_time_column(plan)
    return timestamp_of(value(name), plan.left_schema.field(name).type)


@dataclass(frozen=True)
class _SideFrame:
    """The rows of a group before the join, with keys ``k0, k1, ...``, ``since`` and ``row``."""

    rule: FeatureSide

    @property
    def shared_keys(self) -> _SharedKeys:
        schema = self.rule.spec.schema
        shared = [(left, str(schema.field(key).type)) for left, key in self.rule.join.on]
        return tuple(shared)

    @property
    def keys(self) -> list[str]:
        return list(self.rule.keys)

    @property
    def match_column(self) -> str:
        """The column with the matching row."""
        return f"w{self.rule.number}"

    def greatest(self, until: Column) -> Column:
        """Return the greatest row in a window."""
        from pyspark.sql import functions as F

        if self.rule.last_eligible_row_wins:
            # Without ties, the last row is the greatest one, and structs do not have to be
            # compared.
            best = F.last(self.match_column, ignorenulls=True)
        else:
            best = F.max(self.match_column)
        return best.over(until).alias(self.match_column)

    def rows(self, engine: Engine) -> DataFrame:
        """Return the rows that can match a label: keys, ``since``, and ``row`` in match order."""
        from pyspark.sql import functions as F

        frame = self._read_rows(engine)
        times = {}
        for role, name in self.rule.times:
            times[role] = self._time(name)
        for _, key in self.rule.join.on:
            # Null keys match nothing, and would all be in one partition.
            frame = frame.where(column(key).isNotNull())
        for role in self.rule.eligibility_times:
            frame = frame.where(times[role].isNotNull())
        selected_columns = self._keys()
        since = self._eligible_since(times)
        if since is not None:
            if self.rule.plan.fixed_time is not None:
                frame = frame.where(since <= timestamp(self.rule.plan.fixed_time))
            selected_columns.append(since.alias("since"))
        return frame.select(*selected_columns, F.struct(*self._row_fields(times)).alias("row"))

    def _eligible_since(self, times: dict[str, Column]) -> Column | None:
        """Return the time from which a row is eligible, or None for groups without event time."""
        from pyspark.sql import functions as F

        if "event" not in times:
            return None
        eligible = [times[role] for role in self.rule.eligibility_times]
        if len(eligible) == 1:
            return eligible[0]
        return F.greatest(*eligible)

    def _row_fields(self, times: dict[str, Column]) -> list[Column]:
        """Return the fields of the struct ``row``: the ordering fields, followed by the outputs."""
        from pyspark.sql import functions as F

        fields = []
        if "event" in times and not (
            self.rule.last_eligible_row_wins and self.rule.join.ttl is None
        ):
            fields.append(times["event"].alias("event"))
        if "created" in times:
            fields.append(times["created"].alias("created"))
        if not self.rule.is_unique:
            fields.append(column(TIE).alias("tie"))
        for index, output in enumerate(self.rule.join.outputs):
            fields.append(column(output.column).alias(f"o{index}"))
        # A struct whose fields are all null is not null itself, which distinguishes it from no
        # match. A struct needs at least one field.
        return fields or [F.lit(True).alias("matched")]

    def _keys(self) -> list[Column]:
        """Return the key columns with short names."""
        keys = [
            column(key).alias(name)
            for name, (_, key) in zip(self.keys, self.rule.join.on, strict=True)
        ]
        return keys

    def _read_rows(self, engine: Engine) -> DataFrame:
        """Return the columns of the group that the join needs, with tie hashes if necessary."""
        source, names = self.rule.join.source, self.rule.columns
        schema, version = source.spec.schema, source.delta_version
        if self.rule.is_unique:
            rows = engine.read_table(source.path, version=version, schema=schema, columns=names)
            return rows.native
        all_rows = engine.read_table(source.path, version=version, schema=schema)
        return with_tie_hash(engine, all_rows, names)

    def _time(self, name: str) -> Column:
        return timestamp_of(column(name), self.rule.spec.schema.field(name).type)


def with_tie_hash(engine: Engine, rows: Relation, names: Sequence[str]) -> DataFrame:
    """Return the given columns and a hash of the whole row, used as a tiebreaker."""
    hashed = row_hashes.with_tie_hash(rows, name=TIE)
    if hashed is not None:
        return hashed.native.select(*map(column, [*names, TIE]))
    schema = pa.schema([*map(rows.schema.field, names), pa.field(TIE, pa.int64())])
    return engine.map_batches(rows, AddTieHash(tuple(names)), schema=schema).native


def _join_as_of(
    frame: DataFrame, sides: list[_SideFrame], left: _LabelSide, rows: list[DataFrame]
) -> DataFrame:
    """Return the frame with the greatest row of each group that is eligible at the label time."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    first = sides[0]
    key_types = first.rule.spec.schema
    types = {}
    for side, side_rows in zip(sides, rows, strict=True):
        types[side.match_column] = side_rows.schema["row"].dataType
    # All label columns travel in one struct, so that rows and labels have the same columns in the
    # union.
    label = F.struct(*map(column, frame.columns))
    label_type = frame.select(label.alias("label")).schema["label"].dataType

    def stream(*, time: Column, side: _SideFrame | None) -> list[Column]:
        """Return the stream columns of labels (if ``side`` is None) or of a side's rows."""
        label_value = label
        if side is not None:
            label_value = F.lit(None).cast(label_type)
        columns = [
            time.alias("at"),
            F.lit(side is None).alias("is_label"),
            label_value.alias("label"),
        ]
        for name, dtype in types.items():
            value = F.lit(None)
            if side is not None and side.match_column == name:
                value = F.col("row")
            columns.append(value.cast(dtype).alias(name))
        return columns

    keys = [
        left.key(name, key_types.field(key).type).alias(alias)
        for (name, key), alias in zip(first.rule.join.on, first.keys, strict=True)
    ]
    merged = frame.select(*keys, *stream(time=left.time, side=None))
    for side, side_rows in zip(sides, rows, strict=True):
        merged = merged.union(side_rows.select(*side.keys, *stream(time=F.col("since"), side=side)))
    until = (
        Window.partitionBy(_PART, *first.keys)
        # False sorts before true: rows precede labels of the same time, so that a row at the label
        # time matches.
        .orderBy("at", "is_label")
        .rowsBetween(Window.unboundedPreceding, 0)
    )
    best = [side.greatest(until) for side in sides]
    ordered = _presort(merged, first.keys, size=point_in_time.estimate_join_bytes(left.plan))
    matched_labels = ordered.select("is_label", "label", *best).where("is_label")
    return matched_labels.select("label.*", *types)


def _presort(merged: DataFrame, keys: list[str], *, size: int | None) -> DataFrame:
    """Shuffle the stream by key hash, and sort it by an integer that combines hash and seconds.

    Spark sorts single integers without comparing rows. The window's sort by all keys and times,
    which accesses memory randomly, then gets almost sorted input. Seconds before 1970 and after
    2106 are not in order, which costs time but does not affect the result.
    """
    from pyspark.sql import functions as F

    second = F.unix_seconds("at").bitwiseAND(F.lit(0xFFFFFFFF))
    partitioned = shards.repartition_by_key(
        merged.withColumn(_PART, F.hash(*keys)), _PART, size=size
    )
    return partitioned.sortWithinPartitions(
        F.shiftleft(F.col(_PART).cast("bigint"), 32).bitwiseOR(second)
    )


def _join_on_key(
    frame: DataFrame, side: _SideFrame, left: _LabelSide, rows: DataFrame
) -> DataFrame:
    """Return the frame with the greatest row of each key, independent of the label time."""
    from pyspark.sql import functions as F

    # A group without event time and with unique keys has at most one row per key.
    if not (side.rule.is_unique and side.rule.join.event_time is None):
        rows = rows.groupBy(*side.keys).agg(F.max("row").alias("row"))
    schema = side.rule.spec.schema
    names, renamed = [], []
    matches = F.lit(True)
    for short, (label, key) in zip(side.keys, side.rule.join.on, strict=True):
        name = f"{side.match_column}_{short}"
        names.append(name)
        renamed.append(F.col(short).alias(name))
        matches = matches & (left.key(label, schema.field(key).type) == F.col(name))
    keyed_rows = rows.select(*renamed, F.col("row").alias(side.match_column))
    return frame.join(keyed_rows, matches, "left").drop(*names)


def _select_result(
    frame: DataFrame, plan: FeaturePlan, left: _LabelSide, sides: list[_SideFrame]
) -> DataFrame:
    """Return the result columns in order, without labels that an inner join drops."""
    from pyspark.sql import functions as F

    values = {}
    for output in plan.left_outputs:
        values[output.name] = left.column(output.column)
    for side in sides:
        match, ttl = F.col(side.match_column), side.rule.join.ttl
        is_matched, fresh = match.isNotNull(), None
        if ttl is not None:
            # An expired row counts as no match: its values are null, and an inner join drops the
            # label.
            age = F.unix_micros(left.time) - F.unix_micros(match["event"])
            is_matched = fresh = age <= F.lit(ttl // timedelta(microseconds=1))
        for index, output in enumerate(side.rule.join.outputs):
            value = match[f"o{index}"]
            if fresh is not None:
                value = F.when(fresh, value)
            values[output.name] = value
        if plan.how == "inner":
            frame = frame.where(is_matched)
    if plan.keep_order:
        frame = frame.orderBy(left.column(ROW))
    columns = [values[name].alias(name) for name in plan.columns]
    return frame.select(*columns)


def timestamp_of(value: Column, dtype: pa.DataType) -> Column:
    """Return a time column as a timestamp.

    A date is converted to midnight in UTC, independent of the session's time zone.
    """
    from pyspark.sql import functions as F

    if pat.is_date(dtype):
        return F.timestamp_micros(F.unix_date(value) * _DAY)
    return value
