"""A driver on a cluster that runs one operation of a store for each line of its input.

Prints the result of each operation as a line of JSON. Tests kill its executors meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

import featurestore
from featurestore_connectors.spark_delta import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from featurestore.store import FeatureStore

SPLITS = {"train": 0.75, "test": 0.25}
SHARDS = 12  # of each split
PATIENCE = 120


def export(store: FeatureStore, name: str, data_format: str = "tfrecord") -> None:
    """Export a group."""
    store.create_training_dataset(
        store.get_featuregroup("facts"),
        name,
        label="fare",
        data_format=data_format,
        splits=SPLITS,
        shards=SHARDS,
        statistics=False,
    )


def join(store: FeatureStore, name: str) -> None:
    """Export features of two groups as of each label's time."""
    features = ["facts.fare", "facts.c0", "facts.c1", "zones.size"]
    store.create_training_dataset(
        store.get_features(features, labels=store.get_featuregroup("labels")),
        name,
        label="y",
        splits=SPLITS,
        shards=SHARDS,
        statistics=False,
    )


def rides(session: SparkSession, first: int, last: int, fare: str) -> DataFrame:
    """Return a frame of rides."""
    return session.range(first, last, numPartitions=6).selectExpr(
        "id", "id % 50 as zone", f"cast({fare} as double) as fare"
    )


def insert(store: FeatureStore, folder: str, first: int, last: int) -> None:
    """Append rides from a frame whose function waits, in its tasks, for a file ``release``."""
    from pyspark.sql import SparkSession

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        open(os.path.join(folder, f"waiting-{os.getpid()}"), "w").close()
        while not os.path.exists(os.path.join(folder, "release")):
            time.sleep(0.01)
        yield from batches

    frame = rides(SparkSession.active(), first, last, "id / 4")
    store.insert_into_featuregroup(frame.mapInArrow(wait, frame.schema), "rides")


def insert_with_straggler(store: FeatureStore, first: int, last: int) -> None:
    """Append rides from a frame of which one task stops in its first attempt, amid its rows."""
    from pyspark import TaskContext
    from pyspark.sql import SparkSession

    def stop_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        is_straggler = (context.partitionId(), context.attemptNumber()) == (3, 0)
        for number, batch in enumerate(batches):
            if is_straggler and number == 1:
                time.sleep(PATIENCE)  # ends earlier, when Spark kills the worker process
            yield batch

    session = SparkSession.active()
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    frame = rides(session, first, last, "id / 4")
    store.insert_into_featuregroup(frame.mapInArrow(stop_once, frame.schema), "rides")


def upsert(store: FeatureStore, first: int, last: int) -> None:
    """Replace and add rides by key."""
    from pyspark.sql import SparkSession

    frame = rides(SparkSession.active(), first, last, "-id")
    store.insert_into_featuregroup(frame, "rides", mode="upsert")


OPERATIONS: dict[str, Callable[..., None]] = {
    "export": export,
    "join": join,
    "insert": insert,
    "insert_with_straggler": insert_with_straggler,
    "upsert": upsert,
}


def describe_executors(session: SparkSession) -> dict[str, int]:
    """Return the number of executors that were lost, and of tasks that failed or were copied."""
    status = session.sparkContext._jsc.sc().statusStore()
    executors = status.executorList(False)
    lost = failed = 0
    for number in range(executors.size()):
        lost += not executors.apply(number).isActive()
        failed += executors.apply(number).failedTasks()
    return {"lost": lost, "started": executors.size() - 1, "failed": failed}


def main(location: str) -> None:
    engine = SparkEngine()
    session = engine.session
    store = featurestore.connect(location, engine=engine)
    session.range(2).count()  # starts the executors
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        operation, *arguments = json.loads(line)
        with contextlib.redirect_stdout(sys.stderr):  # the roles of columns
            OPERATIONS[operation](store, *arguments)
        print(json.dumps(describe_executors(session)), flush=True)
    engine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
