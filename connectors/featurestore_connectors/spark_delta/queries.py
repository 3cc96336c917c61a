"""Functions over the rows: run on the executors, with states or messages as all that comes back."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from featurestore.plugins.engine import Accumulator, BatchFunction, Relation, Result, State
from featurestore_connectors.spark_delta.batches import (
    MESSAGE_FIELDS,
    STATE_FIELDS,
    AccumulateTask,
    MapTask,
    StreamTask,
    merge_states,
    merge_table,
    read_message,
)
from featurestore_connectors.spark_delta.failures import translated
from featurestore_connectors.spark_delta.relations import column, relation
from featurestore_connectors.spark_delta.session import is_local
from featurestore_connectors.spark_delta.types import spark_schema

# More states than this are merged by executors first.
_STATES_AT_ONCE = 32
# Up to this many rows of every partition may come at once.
_FEW_ROWS = 10_000


def map_batches(given: Relation, function: BatchFunction, *, schema: pa.Schema) -> Relation:
    """Return the relation with a function applied to each batch of feature types."""
    native = given.native.mapInArrow(MapTask(function, given.schema, schema), spark_schema(schema))
    return relation(native, schema)


def aggregate(given: Relation, accumulator: Accumulator[State, Result]) -> Result:
    """Return what an accumulator makes of all rows. States: one a partition, merged in the order of the partitions."""
    from pyspark.sql import functions as sf

    states = given.native.mapInArrow(AccumulateTask(accumulator, given.schema), STATE_FIELDS)
    if not is_local(given.native.sparkSession):
        # A large table has thousands of partitions: executors merge most of their states.
        group = sf.floor(sf.col("part") / _STATES_AT_ONCE)
        states = states.groupBy(group).applyInArrow(partial(merge_table, accumulator), STATE_FIELDS)
    with translated():
        found = sorted(
            ((row[0], bytes(row[1])) for row in states.collect()), key=lambda pair: pair[0]
        )
    merged = merge_states(accumulator, (pickle.loads(state) for _, state in found))
    return accumulator.finish(merged)


def stream(given: Relation, *, batch_rows: int, limit: int | None) -> pa.RecordBatchReader:
    """Return the rows as a reader that fetches one partition ahead and holds no more than two."""
    task = StreamTask(given.schema, batch_rows, limit)
    messages = given.native.mapInArrow(task, MESSAGE_FIELDS)
    few = limit is not None and limit <= _FEW_ROWS
    batches = _first(messages) if few else _all(messages)
    return pa.RecordBatchReader.from_batches(given.schema, _read(batches, given.schema, limit))


def duplicates(
    given: Relation, key: Sequence[str], *, limit: int
) -> tuple[int, list[dict[str, Any]]]:
    """Return how many keys occur more than once, and the first few of them with their count."""
    from pyspark.sql import functions as sf

    columns = [column(name) for name in key]
    present = given.native.select(*columns).dropna(subset=list(key))
    many = present.groupBy(*columns).agg(sf.count(sf.lit(1)).alias("n")).where(sf.col("n") > 1)
    with translated():
        found = many.count()
    if not found:
        return 0, []
    schema = pa.schema([*(given.schema.field(name) for name in key), pa.field("n", pa.int64())])
    examples = relation(many.orderBy(sf.desc("n"), *columns).limit(limit), schema)
    return found, stream(examples, batch_rows=limit, limit=limit).read_all().to_pylist()


def stage(given: Relation, directory: str) -> Relation:
    """Write the rows once as Parquet and return them from there."""
    with translated():
        given.native.write.mode("overwrite").parquet(directory)
    session = given.native.sparkSession
    return relation(
        session.read.schema(spark_schema(given.schema)).parquet(directory), given.schema
    )


def _all(messages: Any) -> Iterator[bytes]:
    for row in messages.toLocalIterator(prefetchPartitions=True):
        yield row[0]


def _first(messages: Any) -> Iterator[bytes]:
    """Yield the messages of the first partition, then of ever more at once: a few rows are often in the first."""
    rows = messages.rdd
    partitions = range(rows.getNumPartitions())
    done, ahead = 0, 1
    while done < len(partitions):
        yield from (
            row[0] for row in rows.context.runJob(rows, list, partitions[done : done + ahead])
        )
        done, ahead = done + ahead, ahead * 4


def _read(
    messages: Iterator[bytes], schema: pa.Schema, limit: int | None
) -> Iterator[pa.RecordBatch]:
    left = limit
    with translated():
        while left is None or left > 0:
            message = next(messages, None)
            if message is None:
                return
            batch = read_message(message, schema)
            batch = batch if left is None else batch.slice(0, left)
            left = None if left is None else left - batch.num_rows
            yield batch
