"""Export of shards on executors: shuffle by shard, sort, and write each shard by one task."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from featurestore.plugins.engine import Relation, Result, ShardFunction
from featurestore.storage.connections import options_of_connections
from featurestore_connectors.spark_delta.failures import translated
from featurestore_connectors.spark_delta.relations import map_in_arrow
from featurestore_connectors.spark_delta.session import is_local
from featurestore_connectors.spark_delta.sqltext import column
from featurestore_connectors.spark_delta.tasks import RESULT_FIELDS, ShardsTask

_TASKS_ON_CLUSTERS = 32


def write_shards(
    source: Relation,
    *,
    shard: str,
    shard_count: int,
    order: Sequence[str],
    shard_ascends: bool,
    write: ShardFunction[Result],
) -> list[Result]:
    """Call ``write`` once for every shard on the executor that sorted its rows.

    Return the results by shard number.

    Shard s is in partition ``s mod P``, so with at most P shards each one has its own task. A
    retried task writes its shards again: ``write`` replaces files atomically with equal bytes.
    """
    keys = [shard, *order]
    if shard_ascends:
        # Spark sorts a single number without comparing rows.
        keys = list(order)
    rows = spread(source, shard, shard_count).sortWithinPartitions(*map(column, keys))
    task = ShardsTask(write, shard, source.schema, options_of_connections())
    with translated():
        result_rows = map_in_arrow(rows, source.schema.names, task, RESULT_FIELDS).collect()
    in_order = sorted(result_rows, key=lambda row: row["shard"])
    return [pickle.loads(row["result"]) for row in in_order]


def spread(source: Relation, shard: str, shard_count: int) -> Any:
    """Return a frame of the rows in which shard s is in partition ``s mod P``."""
    # More partitions than shards would start tasks without rows.
    partitions = max(1, min(shard_count, _max_partitions(source.native)))
    return source.native.repartition(partitions, _partition_key(shard, partitions))


def _max_partitions(frame: Any) -> int:
    session = frame.sparkSession
    tasks = 4 * int(session.sparkContext.defaultParallelism)
    if is_local(session):
        return tasks
    # A cluster with autoscaling starts with few cores.
    return max(tasks, _TASKS_ON_CLUSTERS)


def _partition_key(shard: str, partitions: int) -> Any:
    """Return a column that Spark's hashing sends to partition ``shard mod partitions``."""
    from pyspark.sql import functions as sf

    keys = sf.array(*map(sf.lit, partition_keys(partitions)))
    return sf.element_at(keys, (column(shard) % partitions + 1).cast("int"))


def partition_keys(partitions: int) -> list[int]:
    """Return for each partition the smallest non-negative integer that Spark hashes to it."""
    key_of_partition: dict[int, int] = {}
    candidate = 0
    while len(key_of_partition) < partitions:
        key_of_partition.setdefault(hash_of_integer(candidate) % partitions, candidate)
        candidate += 1
    return [key_of_partition[partition] for partition in range(partitions)]


def hash_of_integer(value: int) -> int:
    """Return Spark's hash of an integer column, a signed number of 32 bits.

    It is Murmur3 for x86 with the seed 42. If a later Spark uses another hash, only the balance of
    tasks suffers.

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
