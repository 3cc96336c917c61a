"""Executors and workers that are killed or decommissioned while the store uses them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import featurestore
from featurestore.delta.snapshot import read_snapshot
from featurestore.store import FeatureStore
from tests.cluster.operations import PATIENCE, SHARDS, SPLITS, export, join
from tests.cluster.standalone import StandaloneCluster, environment

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FOLDER = Path(__file__).parent
PATH = os.pathsep.join([str(FOLDER.parents[1]), *sys.path])
ROWS = 150_000
RIDES = 60_000


def facts(rows: int) -> pa.Table:
    """Return rows of trips: three for each id, in the order of their times."""
    ids = np.arange(rows) % (rows // 3)
    times = np.datetime64("2024-01-01", "us") + np.arange(rows) * np.timedelta64(1, "s")
    columns = {f"c{number}": np.sin(np.arange(rows) + number) for number in range(8)}
    return pa.table(
        {"id": ids, "at": pa.array(times, pa.timestamp("us", "UTC")), "fare": ids / 4, **columns}
    )


def rides(first: int, last: int, fares: Callable[[Any], Any]) -> pa.Table:
    """Return the rows of ``operations.rides``."""
    ids = np.arange(first, last)
    return pa.table({"id": ids, "zone": ids % 50, "fare": fares(ids).astype(np.float64)})


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeatureStore]:
    """A store of the embedded engine, with groups and the datasets of undisturbed exports."""
    store = featurestore.connect(tmp_path_factory.mktemp("prepared") / "store", engine="duckdb")
    table = facts(ROWS)
    store.create_featuregroup(
        table, "facts", primary_key="id", event_time="at", validation="off", statistics=False
    )
    labels = table.slice(ROWS // 2).select(["id", "at"])
    zones = np.arange(ROWS // 3) % 50
    labels = labels.append_column("zone", pa.array(np.resize(zones, len(labels))))
    labels = labels.append_column("y", pa.array(np.arange(len(labels)) % 2))
    store.create_featuregroup(labels, "labels", primary_key="id", event_time="at", statistics=False)
    sizes = pa.table({"zone": np.arange(50), "size": np.arange(50) * 1.5})
    store.create_featuregroup(sizes, "zones", primary_key="zone", statistics=False)
    first = rides(0, RIDES, lambda ids: ids / 4)
    store.create_featuregroup(first, "rides", primary_key="id", statistics=False)
    export(store, "undisturbed")
    yield store
    store.close()


class Driver:
    """A program on the cluster that runs operations of a store."""

    def __init__(
        self, cluster: StandaloneCluster, location: str, folder: Path, *settings: str
    ) -> None:
        confs = ["spark.sql.shuffle.partitions=8", "spark.databricks.delta.snapshotPartitions=1"]
        # No task waits for the executor with its rows, so that each gets some.
        confs += ["spark.executor.cores=1", "spark.locality.wait=0s"]
        confs += ["spark.driver.host=127.0.0.1", *settings]
        arguments = [f"--conf {conf}" for conf in confs]
        self.log = folder / "driver.log"
        env = environment(
            FEATURESTORE_SPARK_MASTER=cluster.url,
            FEATURESTORE_SPARK_STAGING=str(folder / "staging"),
            FEATURESTORE_SPARK_DRIVER_MEMORY="1g",
            PYSPARK_SUBMIT_ARGS=" ".join([*arguments, "pyspark-shell"]),
            PYTHONPATH=PATH,
        )
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(FOLDER / "operations.py"), location],
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def start(self, operation: str, *arguments: Any) -> None:
        """Start an operation."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([operation, *arguments]).encode() + b"\n")
        self.process.stdin.flush()

    def is_done(self) -> bool:
        """Return whether the operation has ended."""
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition while an operation runs."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert not self.is_done(), f"ended before:\n{self.log.read_text()[-4000:]}"
            assert time.monotonic() < deadline, self.log.read_text()[-4000:]
            time.sleep(0.002)
        assert not self.is_done()

    def result(self) -> Any:
        """Wait for the end of an operation and return its result."""
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], PATIENCE)[0], self.log.read_text()[
            -4000:
        ]
        line = self.process.stdout.readline()
        assert line, self.log.read_text()[-8000:]
        return json.loads(line)

    def close(self) -> None:
        """End the program."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


@contextmanager
def driver_of(
    cluster: StandaloneCluster, store: FeatureStore, folder: Path, *settings: str
) -> Iterator[Driver]:
    """Yield a running driver."""
    running = Driver(cluster, store.location, folder, *settings)
    try:
        assert running.result() == "ready"
        yield running
    finally:
        running.close()


@pytest.fixture
def driver(cluster: StandaloneCluster, prepared: FeatureStore, tmp_path: Path) -> Iterator[Driver]:
    """A driver with two executors."""
    with driver_of(cluster, prepared, tmp_path, "spark.cores.max=2") as running:
        yield running


@pytest.fixture(autouse=True)
def restored(cluster: StandaloneCluster) -> Iterator[None]:
    """Start the workers that a test killed."""
    yield
    cluster.restore(2)


def published(store: FeatureStore, name: str) -> int:
    """Return the number of shards of a running export."""
    folder = Path(store.location, "trainingdatasets", name)
    return sum(not path.name.startswith(".") for path in folder.glob("v*/*/*-of-*"))


def shuffle_files(cluster: StandaloneCluster) -> list[Path]:
    """Return the files of rows that tasks wrote for the tasks of a next stage."""
    return list((cluster.folder / "local").glob("*/*/blockmgr-*/*/shuffle_*.data"))


def table_files(store: FeatureStore) -> list[Path]:
    """Return the data files of the rides."""
    return list(Path(store.location, "featuregroups", "rides").rglob("part-*.parquet"))


def commits(store: FeatureStore) -> list[Path]:
    """Return the commits of the rides."""
    return list(Path(store.location, "featuregroups", "rides").glob("v1/_delta_log/*.json"))


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def two_executors(cluster: StandaloneCluster) -> list[int]:
    """Wait until two executors run, and return their process ids."""
    wait_until(lambda: len(cluster.executors()) == 2)
    return cluster.executors()


def assert_equal(store: FeatureStore, name: str, expected_name: str = "undisturbed") -> None:
    """Check that two datasets have the same bytes, and no other files."""
    datasets = [store.get_training_dataset(dataset_name) for dataset_name in (name, expected_name)]
    shards = [
        [
            (split.name, shard.rows, shard.sha256)
            for split in dataset.manifest.splits
            for shard in split.shards
        ]
        for dataset in datasets
    ]
    assert len(shards[0]) == SHARDS * len(SPLITS)
    assert shards[0] == shards[1]
    assert datasets[0].verify(recompute=True).problems == ()
    files = [
        sorted(str(path.relative_to(dataset.path)) for path in Path(dataset.path).rglob("*"))
        for dataset in datasets
    ]
    assert files[0] == files[1]
    assert not os.listdir(Path(store.location, "_staging"))


def test_export_equals_undisturbed_after_executors_and_worker_are_killed(
    cluster: StandaloneCluster, prepared: FeatureStore, driver: Driver
) -> None:
    executors = two_executors(cluster)
    driver.start("export", "killed_twice")
    for executor, shards in zip(executors, (1, SHARDS), strict=True):
        driver.wait_until(lambda least=shards: published(prepared, "killed_twice") >= least)
        os.kill(executor, signal.SIGKILL)
        assert published(prepared, "killed_twice") < SHARDS * len(SPLITS)
    first = driver.result()
    assert_equal(prepared, "killed_twice")
    two_executors(cluster)
    driver.start("export", "without_worker")
    driver.wait_until(lambda: published(prepared, "without_worker") >= 1)
    cluster.kill_worker()
    assert published(prepared, "without_worker") < SHARDS * len(SPLITS)
    second = driver.result()
    assert_equal(prepared, "without_worker")
    assert (first["lost"], second["lost"]) == (2, 3)


@pytest.mark.soak
def test_parquet_export_equals_undisturbed_after_kills(
    cluster: StandaloneCluster, prepared: FeatureStore, driver: Driver
) -> None:
    export(prepared, "parquet_undisturbed", "parquet")
    executors = two_executors(cluster)
    driver.start("export", "parquet_killed", "parquet")
    for executor, shards in zip(executors, (1, SHARDS), strict=True):
        driver.wait_until(lambda least=shards: published(prepared, "parquet_killed") >= least)
        os.kill(executor, signal.SIGKILL)
    driver.result()
    assert_equal(prepared, "parquet_killed", "parquet_undisturbed")


@pytest.mark.soak
def test_point_in_time_join_equals_undisturbed_after_worker_is_killed(
    cluster: StandaloneCluster, prepared: FeatureStore, driver: Driver
) -> None:
    join(prepared, "joined_undisturbed")
    two_executors(cluster)
    before = set(shuffle_files(cluster))
    driver.start("join", "joined_without_worker")
    driver.wait_until(lambda: set(shuffle_files(cluster)) - before)
    cluster.kill_worker()
    assert published(prepared, "joined_without_worker") == 0
    driver.result()
    assert_equal(prepared, "joined_without_worker", "joined_undisturbed")


@pytest.mark.soak
def test_writes_equal_undisturbed_after_worker_is_killed(
    cluster: StandaloneCluster, prepared: FeatureStore, driver: Driver, tmp_path: Path
) -> None:
    # Killed while the tasks of the user's function write the rows of an insert.
    two_executors(cluster)
    driver.start("insert", str(tmp_path), RIDES, 2 * RIDES)
    driver.wait_until(lambda: len(list(tmp_path.glob("waiting-*"))) == 2)
    cluster.kill_worker()
    (tmp_path / "release").touch()
    driver.result()
    prepared_rides = prepared.get_featuregroup("rides")
    assert prepared_rides.count() == 2 * RIDES
    cluster.restore(2)
    # Killed after the tasks of an upsert wrote their first file of the new version.
    two_executors(cluster)
    before = set(table_files(prepared))
    driver.start("upsert", RIDES // 2, 3 * RIDES)
    driver.wait_until(lambda: set(table_files(prepared)) - before)
    versions = len(commits(prepared))
    cluster.kill_worker()
    driver.result()
    assert len(commits(prepared)) <= versions + 1
    expected = featurestore.connect(tmp_path / "expected", engine="duckdb")
    expected.create_featuregroup(
        rides(0, 2 * RIDES, lambda ids: ids / 4), "rides", primary_key="id", statistics=False
    )
    expected.insert_into_featuregroup(
        rides(RIDES // 2, 3 * RIDES, lambda ids: -ids), "rides", mode="upsert"
    )
    hashes = [
        store.create_training_dataset(
            store.get_featuregroup("rides"), "all_rides", label="fare"
        ).manifest.content_hash
        for store in (prepared, expected)
    ]
    expected.close()
    assert hashes[0] == hashes[1]
    assert not os.listdir(Path(prepared.location, "_staging"))


@pytest.mark.soak
def test_dynamic_allocation_export_equals_undisturbed(
    cluster: StandaloneCluster, prepared: FeatureStore, tmp_path: Path
) -> None:
    settings = (
        "spark.dynamicAllocation.enabled=true",
        "spark.dynamicAllocation.shuffleTracking.enabled=true",
        "spark.dynamicAllocation.executorIdleTimeout=2s",
        "spark.dynamicAllocation.shuffleTracking.timeout=2s",
    )
    with driver_of(cluster, prepared, tmp_path, *settings) as driver:
        wait_until(lambda: not cluster.executors())  # idle
        driver.start("export", "allocated")
        driver.wait_until(lambda: published(prepared, "allocated") >= 1)
        os.kill(cluster.executors()[0], signal.SIGKILL)
        assert driver.result()["lost"] >= 2
        assert_equal(prepared, "allocated")


@pytest.mark.soak
def test_export_equals_undisturbed_after_worker_is_decommissioned(
    cluster: StandaloneCluster, prepared: FeatureStore, tmp_path: Path
) -> None:
    settings = (
        "spark.cores.max=2",
        "spark.decommission.enabled=true",
        "spark.storage.decommission.enabled=true",
        "spark.storage.decommission.shuffleBlocks.enabled=true",
    )
    with driver_of(cluster, prepared, tmp_path, *settings) as driver:
        leaving = two_executors(cluster)[0]
        driver.start("export", "decommissioned")
        driver.wait_until(lambda: published(prepared, "decommissioned") >= 1)
        cluster.decommission_worker()
        driver.result()
        assert_equal(prepared, "decommissioned")
        wait_until(lambda: leaving not in cluster.executors())


SPECULATION = (
    "spark.cores.max=2",
    "spark.speculation=true",
    "spark.speculation.interval=50ms",
    "spark.speculation.quantile=0.5",
    "spark.speculation.multiplier=1.5",
    "spark.speculation.minTaskRuntime=200ms",
    "spark.eventLog.enabled=true",
    "spark.eventLog.compress=false",
    # One task reads the group, so one executor has all rows of the shuffle.
    "spark.sql.files.minPartitionNum=1",
    "spark.sql.files.maxPartitionBytes=1g",
)


def speculative_copies(events: Path) -> list[tuple[int, int, str]]:
    """Return the stage, partition and end reason of the copies of tasks in an event log."""
    return [
        (event["Stage ID"], event["Task Info"]["Index"], event["Task End Reason"]["Reason"])
        for file in events.rglob("events_*")
        for event in map(json.loads, file.read_text().splitlines())
        if event["Event"] == "SparkListenerTaskEnd" and event["Task Info"]["Speculative"]
    ]


def newest_shuffle(executor: int) -> int:
    """Return the number of the last shuffle of which an executor has rows, or -1."""
    variables = Path("/proc", str(executor), "environ").read_bytes().split(b"\0")
    (folders,) = [
        variable for variable in variables if variable.startswith(b"SPARK_EXECUTOR_DIRS=")
    ]
    folder = Path(os.fsdecode(folders.partition(b"=")[2]))
    names = [path.name for path in folder.rglob("shuffle_*.data")]
    return max((int(name.split("_")[1]) for name in names), default=-1)


@pytest.mark.soak
def test_export_with_speculative_copies_equals_undisturbed(
    cluster: StandaloneCluster, prepared: FeatureStore, tmp_path: Path
) -> None:
    events = tmp_path / "events"
    events.mkdir()
    settings = (*SPECULATION, f"spark.eventLog.dir={events.as_uri()}")
    with driver_of(cluster, prepared, tmp_path, *settings) as driver:
        executors = two_executors(cluster)
        driver.start("export", "copied")
        driver.wait_until(lambda: published(prepared, "copied") >= 1)
        # The executor that only writes shards, so that all rows stay readable.
        (before, slow), (last, _) = sorted((newest_shuffle(pid), pid) for pid in executors)
        assert before < last
        os.kill(slow, signal.SIGSTOP)
        try:
            assert published(prepared, "copied") < SHARDS * len(SPLITS)
            driver.result()
            assert_equal(prepared, "copied")
        finally:
            os.kill(slow, signal.SIGCONT)
        # The first attempt goes on in the published dataset until it is killed.
        time.sleep(5)
        assert_equal(prepared, "copied")
    assert_equal(prepared, "copied")
    assert [reason for *_, reason in speculative_copies(events) if reason == "Success"]


@pytest.mark.soak
def test_insert_with_speculative_copy_writes_each_row_once(
    cluster: StandaloneCluster, prepared: FeatureStore, tmp_path: Path
) -> None:
    events = tmp_path / "events"
    events.mkdir()
    settings = (*SPECULATION, f"spark.eventLog.dir={events.as_uri()}")
    group = prepared.get_featuregroup("rides")
    first, count, files_before = 10 * RIDES, group.count(), set(table_files(prepared))
    with driver_of(cluster, prepared, tmp_path, *settings) as driver:
        two_executors(cluster)
        driver.start("insert_with_straggler", first, first + RIDES)
        driver.result()
    copies = speculative_copies(events)
    assert {partition for _, partition, reason in copies if reason == "Success"} == {3}, copies
    ids = prepared.sql(f"SELECT id FROM rides WHERE id >= {first}").to_arrow()["id"]
    assert sorted(ids.to_pylist()) == list(range(first, first + RIDES))
    assert prepared.get_featuregroup("rides").count() == count + RIDES
    table = Path(prepared.location, "featuregroups", "rides", "v1")
    listed_files = {table / file.path for file in read_snapshot(str(table)).files}
    assert set(table_files(prepared)) - files_before == listed_files - files_before
    assert not os.listdir(Path(prepared.location, "_staging"))
