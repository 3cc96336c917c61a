"""A program for spark-submit that uses the library.

Prints what it saw as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import featurestore
from featurestore.plugins.engine import Accumulator, Relation, TableWrite
from featurestore_connectors.spark_delta import SparkEngine
from tests.cluster import barrier_runs
from tests.engines import job_engines

if TYPE_CHECKING:
    from featurestore.store import FeatureStore

ROWS = 450_000  # too many for a plan, so that they are staged
SCHEMA = pa.schema([("id", pa.int64()), ("shard", pa.int32()), ("key", pa.uint64())])


@dataclass(frozen=True)
class Sum(Accumulator[tuple[int, frozenset[int]], tuple[int, frozenset[int]]]):
    """Sum ids and collect the ids of the processes that computed the sum."""

    def start(self) -> tuple[int, frozenset[int]]:
        return 0, frozenset()

    def update(
        self, state: tuple[int, frozenset[int]], batch: pa.RecordBatch
    ) -> tuple[int, frozenset[int]]:
        return state[0] + int(batch.column(0).to_numpy().sum()), state[1] | {os.getppid()}

    def merge(
        self, left: tuple[int, frozenset[int]], right: tuple[int, frozenset[int]]
    ) -> tuple[int, frozenset[int]]:
        return left[0] + right[0], left[1] | right[1]

    def finish(self, state: tuple[int, frozenset[int]]) -> tuple[int, frozenset[int]]:
        return state


@dataclass(frozen=True)
class Write:
    """Write the ids of a shard atomically.

    Shard 3 fails at its first attempt, after its file is there.
    """

    folder: str

    def __call__(self, number: int, batches: Iterator[pa.RecordBatch]) -> dict[str, Any]:
        ids = np.concatenate([batch.column(0).to_numpy() for batch in batches])
        path = os.path.join(self.folder, f"shard-{number:05d}")
        temporary = f"{path}.{os.getpid()}.tmp"
        ids.tofile(temporary)
        os.replace(temporary, path)
        mark = os.path.join(self.folder, "failed-once")
        if number == 3 and not os.path.exists(mark):
            open(mark, "w").close()
            raise OSError("this attempt dies")
        return {
            "shard": number,
            "rows": len(ids),
            "ordered": bool((np.diff(ids) < 0).all()),
            "process": os.getppid(),
        }


def batches() -> Iterator[pa.RecordBatch]:
    for start in range(0, ROWS, 50_000):
        ids = np.arange(start, start + 50_000)
        columns = [
            pa.array(ids),
            pa.array((ids % 8).astype(np.int32)),
            pa.array((ROWS - ids).astype(np.uint64)),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def work(engine: SparkEngine, folder: str) -> dict[str, Any]:
    """Write, count, sum, stream and export through the engine interface."""
    path = os.path.join(folder, "table")
    engine.create_table(path, schema=SCHEMA, partition_by=(), properties={}, commit_metadata={})
    parked = pa.RecordBatchReader.from_batches(SCHEMA, batches())
    version = engine.write(path, engine.from_arrow(parked), TableWrite("append"))
    relation = engine.read_table(path, schema=SCHEMA)
    spread = Relation("spark", relation.native.repartition(34), SCHEMA)
    total, summed_by = engine.aggregate(spread, Sum())
    total_of_files, read_by = engine.aggregate(relation, Sum())
    shards = os.path.join(folder, "shards")
    os.mkdir(shards)
    shard_reports = engine.write_shards(
        relation, shard="shard", shard_count=8, order=["key"], write=Write(shards)
    )
    return {
        "master": engine.session.sparkContext.master,
        "version": version,
        "count": engine.count(relation),
        "total": total,
        "summed_by": len(summed_by),
        "total_of_files": total_of_files,
        "read_here": os.getppid() in read_by,
        "streamed": sum(batch.num_rows for batch in engine.stream(relation)),
        "written": shard_reports,
        "files": sorted(os.listdir(shards)),
    }


def export(store: FeatureStore) -> dict[str, list[str]]:
    """Create a training dataset and return the checksums of its shards."""
    rows = [{"zone": number % 50, "trips": number, "fare": number / 4} for number in range(2000)]
    table = pa.Table.from_pylist(rows)
    store.create_featuregroup(table, "fares", validation="off", statistics=False)
    dataset = store.create_training_dataset(
        store.get_featuregroup("fares"),
        "fares",
        label="fare",
        splits={"train": 0.8, "test": 0.2},
        shards=4,
        seed=7,
        statistics=False,
    )
    return {
        split.name: [shard.sha256 for shard in split.shards] for split in dataset.manifest.splits
    }


def main(folder: str, location: str, example: str, *job: str) -> None:
    """Run everything in one Spark application.

    The engine, a training dataset, experiments, the program of the example, and SQL jobs.
    """
    engine = SparkEngine()
    results = work(engine, folder)
    store = featurestore.connect(location, engine=engine)
    results["shards"] = export(store)
    with contextlib.redirect_stdout(sys.stderr):
        results["experiments"] = barrier_runs.run(store.get_training_dataset("sums"))
        runpy.run_path(example)["main"](location, *job)
        results["sql_jobs"] = job_engines.run_on(
            engine, Path(folder, "sql_jobs"), job_engines.SCOPES["some"]
        )
    engine.close()
    results["parked"] = os.listdir(os.environ["FEATURESTORE_SPARK_STAGING"])
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
