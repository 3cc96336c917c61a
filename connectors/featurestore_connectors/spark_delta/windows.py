"""Window aggregates on Spark: rows and labels, shuffled and sorted by a key hash.

The semantics and the arithmetic are in ``featurestore.aggregates``, and run on the executors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from featurestore.aggregates.stream import AVAILABLE, GROUP, STREAM_TIME, TIE
from featurestore.aggregates.window_side import WindowSide
from featurestore.arrow.types import columns_width
from featurestore.model.plan import ROW, FeaturePlan
from featurestore.plugins.engine import Engine, Relation
from featurestore.retrieval.point_in_time import count_label_rows, label_columns
from featurestore_connectors.spark_delta import shards
from featurestore_connectors.spark_delta.point_in_time import (
    label_time,
    left_side,
    timestamp_of,
    with_tie_hash,
)
from featurestore_connectors.spark_delta.relations import map_in_arrow, relation
from featurestore_connectors.spark_delta.sqltext import column, label_key, spark_schema
from featurestore_connectors.spark_delta.tasks import MapSortedTask

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def retrieve(engine: Engine, plan: FeaturePlan, labels: Relation | None) -> Relation:
    """Return the labels of a plan with their aggregates, as a lazy relation."""
    needed_columns = label_columns(plan)
    if plan.keep_order:
        needed_columns = list(dict.fromkeys([*needed_columns, ROW]))
    left_rows = left_side(engine, plan, labels, needed_columns)
    fields = [left_rows.schema.field(name) for name in needed_columns]
    left = relation(left_rows.native.select(*map(column, needed_columns)), pa.schema(fields))
    for join in plan.windows:
        left = _with_aggregates(engine, WindowSide.from_join(join, plan), left)
    frame = left.native
    if plan.keep_order:
        frame = frame.orderBy(column(ROW))
    columns = [column(plan.left_column(name)).alias(name) for name in plan.columns]
    return relation(frame.select(*columns), plan.schema)


def _with_aggregates(engine: Engine, side: WindowSide, left: Relation) -> Relation:
    """Return the left side with the aggregates of one group."""
    schema = _stream_schema(side, left.schema)
    labels = _select_columns(left.native, schema, _label_values(side, left))
    rows = _select_columns(_read_rows(engine, side), schema, _row_values(side))
    size = _bytes_of_stream(side, schema)
    merged = shards.repartition_by_key(labels.union(rows), GROUP, size=size)
    # Equal keys are in one partition, so that a global sort is not necessary.
    ordered = merged.sortWithinPartitions(column(GROUP), column(STREAM_TIME))
    features = side.features(left.schema)
    task = MapSortedTask(features, schema, features.schema)
    native = map_in_arrow(ordered, schema.names, task, spark_schema(features.schema))
    return relation(native, features.schema)


def _bytes_of_stream(side: WindowSide, schema: pa.Schema) -> int | None:
    """Estimate the bytes of labels and rows; return None if unknown."""
    labels, rows = count_label_rows(side.plan), side.join.source.rows
    if labels is None or rows is None:
        return None
    return (labels + rows) * columns_width(schema, schema.names)


def _stream_schema(side: WindowSide, left: pa.Schema) -> pa.Schema:
    """Return the columns that rows and labels have in the sorted stream."""
    group_schema = side.join.source.spec.schema
    fields = [
        pa.field(GROUP, pa.int64()),
        pa.field(STREAM_TIME, pa.int64()),
    ]
    if side.needs_created_time:
        fields.append(pa.field(AVAILABLE, pa.int64()))
    if side.needs_tie_hash:
        fields.append(pa.field(TIE, pa.int64()))
    keys = []
    if not side.group_is_key:
        keys = [key for _, key in side.join.on]
    for letter, names in (("k", keys), ("m", side.join.members), ("v", side.values)):
        for number, name in enumerate(names):
            fields.append(group_schema.field(name).with_name(f"{letter}{number}"))
    for number in range(len(side.conditions)):
        fields.append(pa.field(f"w{number}", pa.bool_()))
    for number, field in enumerate(left):
        fields.append(field.with_name(f"c{number}"))
    return pa.schema(fields)


def _select_columns(frame: DataFrame, schema: pa.Schema, values: dict[str, Column]) -> Any:
    """Return a frame with the columns of the stream; columns without a value are null."""
    from pyspark.sql import functions as F

    columns = []
    for field in spark_schema(schema).fields:
        value = values.get(field.name)
        if value is None:
            value = F.lit(None)
        columns.append(value.cast(field.dataType).alias(field.name))
    return frame.select(*columns)


def _label_values(side: WindowSide, left: Relation) -> dict[str, Column]:
    """Return the stream columns of the labels by name."""
    from pyspark.sql import functions as F

    schema = side.join.source.spec.schema
    values: dict[str, Column] = {}
    for number, (label, key) in enumerate(side.join.on):
        label_type = side.plan.left_schema.field(label).type
        values[f"k{number}"] = label_key(label, label_type, schema.field(key).type)
    values[GROUP] = _sort_key(side, list(values.values()))
    time = label_time(side.plan, column)
    # Odd numbers for labels and even numbers for rows: a row at the label time sorts before the
    # label and counts.
    values[STREAM_TIME] = F.unix_micros(time) * 2 + 1
    for number, name in enumerate(left.schema.names):
        values[f"c{number}"] = column(name)
    return values


def _row_values(side: WindowSide) -> dict[str, Column]:
    """Return the stream columns of the group's rows by name."""
    from pyspark.sql import functions as F

    schema = side.join.source.spec.schema
    values: dict[str, Column] = {}
    for number, (_, key) in enumerate(side.join.on):
        values[f"k{number}"] = column(key)
    values[GROUP] = _sort_key(side, list(values.values()))
    for letter, names in (("m", side.join.members), ("v", side.values)):
        for number, name in enumerate(names):
            values[f"{letter}{number}"] = column(name)
    event, created = side.join.event_time, side.join.created_time
    values[STREAM_TIME] = F.unix_micros(timestamp_of(column(event), schema.field(event).type)) * 2
    if created is not None:
        created_time = timestamp_of(column(created), schema.field(created).type)
        values[AVAILABLE] = F.unix_micros(created_time)
    if side.needs_tie_hash:
        values[TIE] = column(TIE)
    for number, condition in enumerate(side.conditions):
        values[f"w{number}"] = F.expr(condition)
    return values


def _sort_key(side: WindowSide, keys: list[Column]) -> Column:
    """Return the sort key of the stream: the key, or a hash of the keys."""
    from pyspark.sql import functions as F

    return keys[0] if side.group_is_key else F.xxhash64(*keys)


def _read_rows(engine: Engine, side: WindowSide) -> DataFrame:
    """Read the rows that can contribute to a label, with tie hashes if needed."""
    source = side.join.source
    schema = source.spec.schema
    rows = engine.read_table(source.path, version=source.delta_version, schema=schema)
    frame = rows.native
    if side.needs_tie_hash:
        frame = with_tie_hash(engine, rows, schema.names)
    frame = frame.where(column(side.join.event_time).isNotNull())
    for _, key in side.join.on:
        frame = frame.where(column(key).isNotNull())
    return frame
