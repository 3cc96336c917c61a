"""Streams on Spark: what the embedded engine does, by Structured Streaming."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import featurestore
from featurestore.store import FeatureStore
from tests.streams import kafka_server
from tests.streams.killing import where_ids_are
from tests.streams.test_stream_kills import share, values
from tests.streams.topics import Broker, clicks, job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JobFile = Callable[[str], Path]

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(
        not kafka_server.spark_jars(),
        reason="Kafka suite skipped: python -m tests.streams.kafka_server fetches Spark's reader",
    ),
]


@pytest.fixture
def spark_store(spark: SparkSession, tmp_path: Path) -> FeatureStore:
    return featurestore.connect(tmp_path / "store", engine="spark")


def test_spark_reads_each_record_once_and_goes_on_from_the_table_of_either_engine(
    spark_store: FeatureStore, broker: Broker, job_file: JobFile
) -> None:
    topic = broker.topic(2)
    broker.send(topic, [*clicks(0, 7), b"poison 7", *clicks(8, 40)])
    spark_store.add_source("events", broker.uri)
    spark_store.register_jobs(job_file(job(topic, batch_records=25)))
    (run,) = spark_store.run_job("clicks")
    assert (run.state, run.rows) == ("done", 39)
    broker.send(topic, clicks(40, 50))
    embedded = featurestore.connect(spark_store.location, engine="duckdb")
    embedded.run_job("clicks")
    broker.send(topic, clicks(50, 60))
    (run,) = spark_store.run_job("clicks")
    assert run.rows == 10
    found = where_ids_are(embedded)
    assert found == dict.fromkeys(range(60), 1)
    assert spark_store.run_job("clicks") == []
    embedded.close()


_RUNNER = """
import sys, featurestore
from pyspark.sql import SparkSession
from featurestore_connectors.spark_delta import configure_session
location, jars, ready = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.jars", jars)
for key, value in {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1",
                   "spark.sql.shuffle.partitions": "1",
                   "spark.databricks.delta.snapshotPartitions": "1",
                   "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}.items():
    builder = builder.config(key, value)
configure_session(builder).getOrCreate().sparkContext.setLogLevel("ERROR")
store = featurestore.connect(location, engine="spark")
open(ready, "w").close()
while True:
    try:
        store.run_job("clicks")
    except featurestore.errors.FeatureStoreError:
        pass
"""


def kill_runners(
    store: FeatureStore, broker: Broker, file: JobFile, *, records: int, kills: int, batch: int
) -> None:
    """Kill Sparks while they work; the embedded engine finishes what they left."""
    topic = broker.topic(4)
    given = values(records)
    store.add_source("events", broker.uri)
    path = file(job(topic, statistics=False, batch_records=batch))
    store.register_jobs(path)
    jars = ",".join(map(str, kafka_server.spark_jars()))
    for number in range(kills):
        broker.send(topic, share(given, number, kills))
        ready = path.parent / f"ready-{number}"
        process = subprocess.Popen(
            [sys.executable, "-c", _RUNNER, store.location, jars, str(ready)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while not ready.exists() and process.poll() is None:
                time.sleep(0.1)
            time.sleep(3 + number * 0.37 % 9)
        finally:
            process.kill()
            process.wait()
    store.run_job("clicks")
    assert where_ids_are(store) == dict.fromkeys(range(records), 1)


@pytest.mark.slow
def test_a_killed_spark_loses_and_doubles_nothing(
    duckdb_store: FeatureStore, broker: Broker, job_file: JobFile
) -> None:
    kill_runners(duckdb_store, broker, job_file, records=1200, kills=1, batch=40)


@pytest.mark.soak
def test_a_hundred_killed_sparks_lose_and_double_nothing(
    duckdb_store: FeatureStore, broker: Broker, job_file: JobFile
) -> None:
    kill_runners(duckdb_store, broker, job_file, records=200_000, kills=100, batch=400)
