"""Each shard has its own Spark task, and no task waits for a missing shard."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyspark.sql.functions as sf
import pytest

from featurestore_connectors.spark_delta import SparkEngine
from featurestore_connectors.spark_delta.shards import repartition_by_shard


@pytest.mark.parametrize("shard_count", [1, 3, 8, 100])
def test_partition_count_is_at_most_shard_count(spark: Any, shard_count: int) -> None:
    engine = SparkEngine(spark)
    most = 4 * spark.sparkContext.defaultParallelism  # on a local master
    labels = engine.from_arrow(
        pa.table({"shard": pa.array(range(shard_count), pa.int32())}).to_reader()
    )
    frame = repartition_by_shard(labels, "shard", shard_count)
    partitions = min(shard_count, most)
    assert frame.rdd.getNumPartitions() == partitions
    table = frame.select("shard", sf.spark_partition_id()).collect()
    assert sorted(map(tuple, table)) == [
        (number, number % partitions) for number in range(shard_count)
    ]
