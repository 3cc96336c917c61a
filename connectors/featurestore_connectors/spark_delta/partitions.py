"""How many tasks a shuffle by a key has."""

from __future__ import annotations

from typing import Any

from featurestore_connectors.spark_delta.sqltext import column

# A task sorts about so many bytes, and its rows may all be on their way to the driver at once.
_TASK_BYTES = 128 << 20
# The driver knows of each pair of tasks before and after a shuffle whether it has rows.
_MAX_TASKS = 8_192


def by_key(frame: Any, key: str, *, size: int | None) -> Any:
    """Return the rows with those of a key in one partition.

    Spark makes ``spark.sql.shuffle.partitions`` of them and puts small ones together. On one
    machine these are few: rows that are too many for them get more.

    Args:
        frame: Of Spark.
        key: A column.
        size: About how many bytes the rows have in memory; None where nobody knows.
    """
    default_partitions = frame.sparkSession.conf.get("spark.sql.shuffle.partitions")
    required = min(-(-(size or 0) // _TASK_BYTES), _MAX_TASKS)
    # Some clusters have "auto" there, and decide by themselves.
    if not default_partitions.isdigit() or required <= int(default_partitions):
        return frame.repartition(column(key))
    return frame.repartition(required, column(key))
