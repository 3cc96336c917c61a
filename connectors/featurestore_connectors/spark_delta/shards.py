"""Shards written on the executors: rows are shuffled by shard, sorted, and each shard is written by one task."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from featurestore.plugins.engine import Relation, Result, ShardFunction
from featurestore_connectors.spark_delta.batches import RESULT_FIELDS, ShardTask
from featurestore_connectors.spark_delta.failures import translated
from featurestore_connectors.spark_delta.relations import column
from featurestore_connectors.spark_delta.session import is_local

_TASKS_ON_CLUSTERS = 32


def write_shards(
    given: Relation, *, shard: str, order: Sequence[str], write: ShardFunction[Result]
) -> list[Result]:
    """Call ``write`` once for every shard on the executor that sorted its rows; return the results by shard number.

    Shard s goes to partition ``s mod P``, so with no more shards than partitions each is a task of its own and none
    shares a task by chance. A task that is repeated writes its shards again: ``write`` replaces files atomically
    with equal bytes, so that leaves one file.
    """
    partitions = _partitions(given.native)
    spread = given.native.repartition(partitions, _place(shard, partitions))
    rows = spread.sortWithinPartitions(column(shard), *(column(name).asc() for name in order))
    task = ShardTask(write, shard, given.schema)
    with translated():
        answers = rows.mapInArrow(task, RESULT_FIELDS).collect()
    return [pickle.loads(result) for _, result in sorted((row[0], row[1]) for row in answers)]


def _partitions(frame: Any) -> int:
    session = frame.sparkSession
    tasks = 4 * int(session.sparkContext.defaultParallelism)
    # A cluster that grows with its work begins with few cores.
    return tasks if is_local(session) else max(tasks, _TASKS_ON_CLUSTERS)


def _place(shard: str, partitions: int) -> Any:
    """Return a column that Spark's hash partitioning sends to partition ``shard mod partitions``."""
    from pyspark.sql import functions as sf

    keys = sf.array(*map(sf.lit, keys_of_partitions(partitions)))
    return sf.element_at(keys, (column(shard) % partitions + 1).cast("int"))


def keys_of_partitions(partitions: int) -> list[int]:
    """Return for each partition the least non-negative integer that Spark's hash partitioning sends there."""
    found: dict[int, int] = {}
    candidate = 0
    while len(found) < partitions:
        found.setdefault(hash_of_integer(candidate) % partitions, candidate)
        candidate += 1
    return [found[partition] for partition in range(partitions)]


def hash_of_integer(value: int) -> int:
    """Return Spark's hash of an integer column (Murmur3, x86, 32 bits, seed 42), as an unsigned number.

    Should a later Spark hash otherwise, shards would share tasks unevenly, and nothing else.

    >>> hash_of_integer(1) - 2**32
    -559580957
    """
    mask = 0xFFFFFFFF
    mixed = _rotated(value * 0xCC9E2D51 & mask, 15) * 0x1B873593 & mask
    state = (_rotated(42 ^ mixed, 13) * 5 + 0xE6546B64) & mask
    state ^= 4  # the length in bytes
    state = (state ^ state >> 16) * 0x85EBCA6B & mask
    state = (state ^ state >> 13) * 0xC2B2AE35 & mask
    return state ^ state >> 16


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & 0xFFFFFFFF
