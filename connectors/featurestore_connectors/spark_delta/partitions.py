"""The number of tasks of a shuffle by key."""

from __future__ import annotations

from typing import Any

from featurestore_connectors.spark_delta.sqltext import column

# Approximate bytes that a task sorts; all its rows may be collected to the driver at once.
_TASK_BYTES = 128 << 20
# The driver tracks each pair of tasks before and after a shuffle.
_MAX_TASKS = 8_192


def by_key(frame: Any, key: str, *, size: int | None) -> Any:
    """Shuffle the rows so that equal keys are in one partition.

    Spark uses ``spark.sql.shuffle.partitions`` partitions and coalesces small ones. On one machine
    the setting is low, so large data gets more partitions.

    Args:
        frame: A Spark DataFrame.
        key: A column.
        size: The approximate bytes of the rows in memory; None if unknown.
    """
    default_partitions = frame.sparkSession.conf.get("spark.sql.shuffle.partitions")
    required = min(-(-(size or 0) // _TASK_BYTES), _MAX_TASKS)
    # Some clusters set it to "auto".
    if not default_partitions.isdigit() or required <= int(default_partitions):
        return frame.repartition(column(key))
    return frame.repartition(required, column(key))
