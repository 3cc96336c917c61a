"""Shuffles of rows by key and by shard, and shard export on executors.

Each shard is sorted and written by one task, either by a Python function or by the JVM
(the data source ``featurestore-tfrecord``), without transferring rows to Python.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
import uuid
from base64 import b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.hashing import value_kind
from featurestore.plugins.engine import Relation, Result, ShardFunction
from featurestore.plugins.format import WrittenFile, WrittenShard
from featurestore.plugins.native import (
    NullMark,
    RecordPlan,
    RecordSlot,
    RecordTail,
    RecordTask,
    RowCounts,
    ValueLengths,
    format_label_value,
)
from featurestore.storage import storage_for
from featurestore.storage.connections import options_of_connections
from featurestore_connectors.spark_delta.relations import map_in_arrow
from featurestore_connectors.spark_delta.row_hashes import has_functions
from featurestore_connectors.spark_delta.session import default_parallelism, is_local
from featurestore_connectors.spark_delta.sqltext import column
from featurestore_connectors.spark_delta.tasks import RESULT_FIELDS, ShardsTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Approximate bytes that a task sorts. All its rows may be collected to the driver at once.
_TASK_BYTES = 128 << 20
# The driver tracks each pair of tasks before and after a shuffle.
_MAX_TASKS = 8_192
_TASKS_ON_CLUSTERS = 32
# The data source of ``jvm/RecordSource.java``.
_SOURCE = "featurestore-tfrecord"


def write_shards(
    source: Relation,
    *,
    shard: str,
    shard_count: int,
    order: Sequence[str],
    shard_ascends: bool,
    write: ShardFunction[Result],
) -> list[Result]:
    """Call ``write`` once per shard, on the executor that sorted its rows.

    Return the results by shard number.

    Shard s is in partition ``s % partitions``, so each shard has its own task if there are enough
    partitions. A retried task writes its shards again: ``write`` replaces files atomically with
    identical bytes.
    """
    keys = [shard, *order]
    if shard_ascends:
        # Spark sorts a single number without comparing rows.
        keys = list(order)
    rows = repartition_by_shard(source, shard, shard_count).sortWithinPartitions(*map(column, keys))
    # Executors have neither the options nor the environment of this process.
    task = ShardsTask(write, shard, source.schema, options_of_connections())
    result_rows = map_in_arrow(rows, source.schema.names, task, RESULT_FIELDS).collect()
    in_order = sorted(result_rows, key=lambda row: row["shard"])
    # Results come from this application's own executors, so they can be unpickled.
    return [pickle.loads(row["result"]) for row in in_order]


def repartition_by_shard(source: Relation, shard: str, shard_count: int) -> DataFrame:
    """Repartition rows so that shard s is in partition ``s % partitions``."""
    from pyspark.sql import functions as sf

    session = source.native.sparkSession
    max_partitions = 4 * default_parallelism(session)
    if not is_local(session):
        # A cluster with autoscaling starts with few cores.
        max_partitions = max(max_partitions, _TASKS_ON_CLUSTERS)
    # More partitions than shards would start tasks without rows.
    partitions = max(1, min(shard_count, max_partitions))
    # Spark partitions by the hash of a column, so each shard gets a key whose hash is known.
    keys = sf.array(*map(sf.lit, partition_keys(partitions)))
    key = sf.element_at(keys, (column(shard) % partitions + 1).cast("int"))
    return source.native.repartition(partitions, key)


def partition_keys(partitions: int) -> list[int]:
    """Return, for each partition, the smallest non-negative integer that Spark assigns to it."""
    key_of_partition: dict[int, int] = {}
    candidate = 0
    while len(key_of_partition) < partitions:
        key_of_partition.setdefault(hash_of_integer(candidate) % partitions, candidate)
        candidate += 1
    return [key_of_partition[partition] for partition in range(partitions)]


def hash_of_integer(value: int) -> int:
    """Return Spark's hash of an integer column, a signed 32-bit integer.

    It is Murmur3 for x86 with seed 42. If a later version of Spark uses another hash, only the
    balance of tasks is affected.

    >>> hash_of_integer(1)
    -559580957
    """
    mask = 0xFFFFFFFF
    mixed = _rotate_left(value * 0xCC9E2D51 & mask, 15) * 0x1B873593 & mask
    state = (_rotate_left(42 ^ mixed, 13) * 5 + 0xE6546B64) & mask
    state ^= 4  # the length in bytes
    state = (state ^ state >> 16) * 0x85EBCA6B & mask
    state = (state ^ state >> 13) * 0xC2B2AE35 & mask
    state ^= state >> 16
    return state - ((state & 0x80000000) << 1)


def _rotate_left(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & 0xFFFFFFFF


def repartition_by_key(frame: DataFrame, key: str, *, size: int | None) -> DataFrame:
    """Shuffle the rows so that equal keys are in one partition.

    Spark uses ``spark.sql.shuffle.partitions`` partitions and coalesces small partitions. On a
    single machine this setting is low, so large data gets more partitions.

    Args:
        frame: A Spark DataFrame.
        key: The key column.
        size: The approximate size of the rows in memory, in bytes; None if unknown.
    """
    default_partitions = frame.sparkSession.conf.get("spark.sql.shuffle.partitions")
    required = min(-(-(size or 0) // _TASK_BYTES), _MAX_TASKS)
    # Some clusters set this to "auto".
    if not default_partitions.isdigit() or required <= int(default_partitions):
        return frame.repartition(column(key))
    return frame.repartition(required, column(key))


def can_write_in_jvm(session: SparkSession, schema: pa.Schema, directory: str) -> bool:
    """Return whether the JVM supports all types of a schema and the directory is local."""
    all_supported = all(value_kind(dtype) is not None for dtype in schema.types)
    return all_supported and storage_for(directory).is_local and has_functions(session)


def write_in_jvm(source: Relation, task: RecordTask) -> dict[int, tuple[WrittenShard, RowCounts]]:
    """Sort the rows on the executors and write each shard in one task."""
    # Spark sorts a single number without comparing rows. Shard numbers ascend with it.
    rows = repartition_by_shard(source, task.shard, len(task.shards)).sortWithinPartitions(
        column(task.hash)
    )
    # Created once here, and not by each task.
    for folder in sorted({os.path.dirname(shard.path) for shard in task.shards}):
        storage_for(task.directory).make_directory(
            os.path.join(task.directory, folder), durable=True
        )
    # A write returns nothing, so the reports of the shards are read by the id of the write.
    write_id = uuid.uuid4().hex
    task_json = json.dumps(_describe_task(source.schema, task))
    writer = rows.write.format(_SOURCE).mode("append")
    reader = source.native.sparkSession.read.format(_SOURCE).option("id", write_id)
    writer.options(id=write_id, task=task_json).save()
    reports = [json.loads(row["report"]) for row in reader.load().collect()]
    return {report["shard"]: _parse_shard_report(report, source.schema, task) for report in reports}


def _describe_task(schema: pa.Schema, task: RecordTask) -> dict[str, Any]:
    """Return the parameters of ``RecordShards.java`` for a task, as JSON values."""
    columns = []
    for name in task.columns:
        dtype = schema.field(name).type
        is_label = name in task.labels and not pat.is_binary(dtype)
        columns.append({"name": name, "kind": value_kind(dtype), "label": is_label})
    return {
        "directory": os.path.abspath(task.directory),
        "shards": [(shard.path, shard.rows) for shard in task.shards],
        "shard": task.shard,
        "hash": task.hash,
        "columns": columns,
        "most_labels": task.max_labels + 1,  # one of them may be null
        "index_suffix": task.plan.index_suffix,
        "records": _describe_records(task.plan),
    }


def _describe_records(plan: RecordPlan) -> dict[str, Any]:
    slots, tails = [], []
    for slot in plan.slots:
        slots.append(
            {
                **_describe_slot(slot),
                "offset": slot.offset,
                "width": slot.width,
                "constant": slot.lengths is None,
                "filler": slot.filler,
                "filler_width": slot.filler_width,
                **_describe_lengths(slot.lengths),
            }
        )
    for tail in plan.tails:
        tails.append(
            {
                **_describe_slot(tail),
                "head": _encode_bytes(tail.head),
                **_describe_lengths(tail.lengths),
            }
        )
    return {
        "template": _encode_bytes(plan.template),
        "fixed": plan.fixed,
        "places": slots,
        "tails": tails,
    }


def _describe_slot(slot: RecordSlot | RecordTail) -> dict[str, Any]:
    mark = slot.null_mark or NullMark(0, 0)
    return {
        "name": slot.column,
        "nullable": slot.null_mark is not None,
        "key_offset": mark.offset,
        "masked": mark.value,
    }


def _describe_lengths(lengths: ValueLengths | None) -> dict[str, Any]:
    if lengths is None:
        return {}
    return {"lengths": lengths.positions, "length_width": lengths.width}


def _encode_bytes(data: bytes) -> str:
    return b64encode(data).decode()


def _parse_shard_report(
    report: dict[str, Any], schema: pa.Schema, task: RecordTask
) -> tuple[WrittenShard, RowCounts]:
    """Return the shard and the row counts of a report of ``RecordShards.java``."""
    path = task.shards[report["shard"]].path
    sidecars: tuple[WrittenFile, ...] = ()
    if "index" in report:
        sidecars = (_parse_file_report(path + task.plan.index_suffix, report["index"]),)
    labels = {
        name: _count_labels(schema.field(name).type, report["labels"].get(name), task.max_labels)
        for name in task.labels
    }
    written = WrittenShard(_parse_file_report(path, report["file"]), report["rows"], sidecars)
    hashes = [int(report[name]) for name in ("hash_sum", "first_hash", "last_hash")]
    return written, RowCounts(report["nulls"], labels, *hashes)


def _parse_file_report(path: str, report: dict[str, Any]) -> WrittenFile:
    return WrittenFile(path, report["bytes"], report["sha256"], tuple(report["prefixes"]))


def _count_labels(
    dtype: pa.DataType, pairs: Sequence[tuple[Any, int]] | None, max_values: int
) -> dict[str, int] | None:
    """Return the row counts of the values of a label, None for too many values."""
    if pairs is None:
        return None
    counts: dict[str, int] = {}
    for word, rows in pairs:
        if word is not None:  # counted among the nulls
            value = format_label_value(_decode_label(word, dtype))
            counts[value] = counts.get(value, 0) + rows
    return counts if len(counts) <= max_values else None


def _decode_label(word: Any, dtype: pa.DataType) -> object:
    """Decode a label value from Java; floats are encoded as their bits."""
    if pat.is_string(dtype):
        return word
    if pat.is_floating(dtype):
        # As bits, since JSON has no NaN and infinity.
        return struct.unpack("<d", struct.pack("<q", word))[0]
    if pat.is_date32(dtype):
        return pa.scalar(word, pa.int32()).cast(dtype).as_py()
    return pa.scalar(word, pa.int64()).cast(dtype).as_py()
