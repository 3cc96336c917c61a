"""Python functions on rows in executors; only accumulator states and messages are collected."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from featurestore.arrow.spark_frames import is_connect_object
from featurestore.model.runtime import usable_cores
from featurestore.model.threads import independent_tasks
from featurestore.plugins.engine import Accumulator, BatchFunction, Relation, Result, State
from featurestore.storage.connections import options_of_connections
from featurestore_connectors.spark_delta import tasks
from featurestore_connectors.spark_delta.failures import translate_errors
from featurestore_connectors.spark_delta.parquet_rows import ParquetRows
from featurestore_connectors.spark_delta.relations import map_in_arrow, relation
from featurestore_connectors.spark_delta.session import default_parallelism, is_local
from featurestore_connectors.spark_delta.sqltext import column, spark_schema
from featurestore_connectors.spark_delta.staged import rows_of
from featurestore_connectors.spark_delta.tasks import (
    MESSAGE_FIELDS,
    STATE_FIELDS,
    AccumulateFilesTask,
    AccumulateTask,
    MapTask,
    StreamTask,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The number of states that one executor task merges.
_STATES_AT_ONCE = 32
# Up to this size, several partitions may be collected at once.
_FEW_ROWS = 10_000
# File bytes per task. On a single machine, the driver reads files up to this size itself, since
# starting Python workers takes longer.
_TASK_BYTES = 128 << 20


def map_batches(source: Relation, function: BatchFunction, *, schema: pa.Schema) -> Relation:
    """Return a relation that applies a function to each batch of feature types."""
    task = MapTask(function, source.schema, schema)
    native = map_in_arrow(source.native, source.schema.names, task, spark_schema(schema))
    return relation(native, schema)


def aggregate(source: Relation, accumulator: Accumulator[State, Result]) -> Result:
    """Return an accumulator's result; partition states are merged in partition order."""
    from pyspark.sql import functions as sf

    session, rows = source.native.sparkSession, rows_of(source)
    if rows is None:
        task = AccumulateTask(accumulator, source.schema)
        states = map_in_arrow(source.native, source.schema.names, task, STATE_FIELDS)
    elif is_local(session) and rows.bytes <= _TASK_BYTES:
        return _aggregate_in_driver(rows, accumulator)
    else:
        states = _accumulate_files(session, rows, accumulator)
    if not is_local(session):
        # A large table has thousands of partitions, so executors merge most states.
        group = sf.floor(sf.col("part") / _STATES_AT_ONCE)
        # Not a partial function: Spark 4.2 warns that it cannot resolve the type hints.
        states = states.groupBy(group).applyInArrow(
            lambda table: tasks.merge_table(accumulator, table), STATE_FIELDS
        )
    state_rows = states.collect()
    # In the order of partitions, so that float sums do not depend on which task ends first.
    in_order = sorted(state_rows, key=lambda row: row["part"])
    merged_state = tasks.merge_states(accumulator, (pickle.loads(row["state"]) for row in in_order))
    return accumulator.finish(merged_state)


def _aggregate_in_driver(rows: ParquetRows, accumulator: Accumulator[State, Result]) -> Result:
    """Aggregate files in the driver, with as many threads as the accumulator supports."""
    threads = min(accumulator.threads, usable_cores())

    def state_of(number: int) -> State | None:
        return tasks.accumulate_batches(accumulator, rows.part(number, threads))

    with independent_tasks(threads, "featurestore-aggregate") as pool:
        states = [state for state in pool.map(state_of, range(threads)) if state is not None]
    return accumulator.finish(tasks.merge_states(accumulator, iter(states)))


def _accumulate_files(
    session: SparkSession, rows: ParquetRows, accumulator: Accumulator[State, Any]
) -> Any:
    """Return a frame with the accumulator state of each file part."""
    task_count = max(default_parallelism(session), rows.bytes // _TASK_BYTES)
    task = AccumulateFilesTask(accumulator, rows, task_count, options_of_connections())
    return map_in_arrow(session.range(0, task_count, 1, task_count), ["id"], task, STATE_FIELDS)


def stream(source: Relation, *, batch_rows: int, limit: int | None) -> pa.RecordBatchReader:
    """Stream the rows, prefetching one partition; at most two partitions are in memory."""
    task = StreamTask(source.schema, batch_rows, limit)
    # Rows are sent as Arrow messages in a binary column, since collecting rows would convert each
    # value to a Python object.
    messages = map_in_arrow(source.native, source.schema.names, task, MESSAGE_FIELDS)
    # Spark Connect cannot run a job on some partitions only.
    if limit is not None and limit <= _FEW_ROWS and not is_connect_object(messages):
        message_stream = _first_messages(messages)
    else:
        message_stream = _all_messages(messages)
    return pa.RecordBatchReader.from_batches(
        source.schema, _read_messages(message_stream, source.schema, limit)
    )


def duplicates(
    source: Relation, key: Sequence[str], *, limit: int
) -> tuple[int, list[dict[str, Any]]]:
    """Return the number of duplicate keys, and the first duplicate keys with their counts."""
    from pyspark.sql import functions as sf

    columns = list(map(column, key))
    keys = source.native.select(*columns)
    for key_column in columns:
        keys = keys.where(key_column.isNotNull())
    repeated = keys.groupBy(*columns).agg(sf.count(sf.lit(1)).alias("n")).where(sf.col("n") > 1)
    repeated_count = repeated.count()
    if not repeated_count:
        return 0, []
    schema = pa.schema([*map(source.schema.field, key), pa.field("n", pa.int64())])
    examples = relation(repeated.orderBy(sf.desc("n"), *columns).limit(limit), schema)
    return repeated_count, stream(examples, batch_rows=limit, limit=limit).read_all().to_pylist()


def _all_messages(messages: DataFrame) -> Iterator[bytes]:
    for row in messages.toLocalIterator(prefetchPartitions=True):
        yield row[0]


def _first_messages(messages: DataFrame) -> Iterator[bytes]:
    """Yield the messages of the first partition, then of increasing numbers of partitions.

    The first partition often contains enough rows for a small limit.
    """
    rows = messages.rdd
    partitions = range(rows.getNumPartitions())
    read_count, batch_size = 0, 1
    while read_count < len(partitions):
        for row in rows.context.runJob(
            rows, list, partitions[read_count : read_count + batch_size]
        ):
            yield row[0]
        read_count, batch_size = read_count + batch_size, batch_size * 4


def _read_messages(
    messages: Iterator[bytes], schema: pa.Schema, limit: int | None
) -> Iterator[pa.RecordBatch]:
    batches = (tasks.read_message(message, schema) for message in messages)
    with translate_errors("stream"):
        yield from tasks.first_rows(batches, limit)
