"""kill -9 at random points of a Spark write, and eight concurrent writers.

Nothing is lost, nothing doubled.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import featurestore
from featurestore.delta.log import latest_version
from featurestore.errors import FeatureGroupNotFound
from featurestore.registry import featuregroups, intents
from tests.faults import verified_writes
from tests.faults.conftest import Server

if TYPE_CHECKING:
    from featurestore.store import FeatureStore

pytestmark = pytest.mark.services

WRITES = ("create", "append", "upsert", "overwrite")
SEED = 20_240_101


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the written group, copied for each trial."""
    location = tmp_path_factory.mktemp("template") / "store"
    with featurestore.connect(location) as store:
        verified_writes.prepare(store)
    return location


def check(location: Path, write: str) -> str:
    """Reopen the store; return "old" or "new", and fail for any other state."""
    with featurestore.connect(location) as store:
        outcome = _created(store) if write == "create" else _read_group_state(store, write)
        with store.session.registry.reading() as connection:
            assert intents.list_all(connection) == []
            for group in featuregroups.list_all(connection):
                path = store.session.featuregroup_path(group.name, group.version)
                assert group.delta_version == latest_version(path)
        staging = location / "_staging"
        assert not staging.exists() or not list(staging.iterdir())
        # The store is usable afterwards.
        store.insert_into_featuregroup(verified_writes.rows(10**6, 1, value=0), "g")
        assert store.featuregroup("g").statistics().rows == store.get_featuregroup("g").count()
    return outcome


def _created(store: FeatureStore) -> str:
    try:
        table = store.get_featuregroup("made").to_arrow()
    except FeatureGroupNotFound:
        assert (
            store.create_featuregroup(
                verified_writes.rows(0, 1, value=0), "made", version=1
            ).version
            == 1
        )
        return "old"
    assert table.num_rows == verified_writes.ROWS
    assert set(table["x"].to_pylist()) == {7}
    return "new"


def _read_group_state(store: FeatureStore, write: str) -> str:
    table = store.get_featuregroup("g").to_arrow()
    state = (table.num_rows, sum(table["x"].to_pylist()))
    assert state in (verified_writes.OLD, verified_writes.NEW[write])
    assert len(store.get_featuregroup_history("g")) == (1 if state == verified_writes.OLD else 2)
    return "old" if state == verified_writes.OLD else "new"


def test_eight_concurrent_writers_keep_each_row_once(
    ask: Server, template: Path, tmp_path: Path
) -> None:
    location = tmp_path / "store"
    shutil.copytree(template, location)
    assert ask.several(location, writers=8, rounds=4) == []
    with featurestore.connect(location) as store:
        ids = store.get_featuregroup("g").select("id").to_arrow()["id"].to_pylist()
        expected = {
            1_000_000 * (n + 1) + 1_000 * t + k
            for n in range(8)
            for t in range(4)
            for k in range(10)
        }
        assert len(ids) == len(set(ids)) == verified_writes.ROWS + len(expected)
        assert expected <= set(ids)
        with store.session.registry.reading() as connection:
            assert (
                featuregroups.get(connection, "g").delta_version
                == store.featuregroup("g").delta_version
                == 33
            )


# One Spark writes into several stores at once, so that one kill ends several writes, each somewhere
# else.
SPARK = """
import sys, threading
sys.path.insert(0, {folder!r})
import verified_writes
from pyspark.sql import SparkSession
from featurestore_connectors.spark_delta import configure_session
builder = SparkSession.builder.master("local[2]")
for key, value in {settings!r}.items():
    builder = builder.config(key, value)
configure_session(builder).getOrCreate().sparkContext.setLogLevel("OFF")
import featurestore
stores = {{write: featurestore.connect(path, engine="spark") for write, path in {locations!r}.items()}}
print("ready", flush=True)
writers = [threading.Thread(target=verified_writes.write, args=(stores[write], write)) for write in stores]
for writer in writers:
    writer.start()
for writer in writers:
    writer.join()
"""  # fmt: skip
SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.pyspark.python": sys.executable,
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
}


# The points at which writes are killed: the duration of a Spark write varies, so
# fixed times would not reach them.
POINTS = ("begun", "staged", "written", "committed")


def reached(location: Path, write: str, point: str) -> bool:
    """Return whether a write has reached a point.

    Its rows staged, its files in the table's folder, its commit there.
    """
    group = location / "featuregroups" / ("made" if write == "create" else "g") / "v1"
    if point == "staged":
        return any((location / "_staging").rglob("*.parquet"))
    if point == "written":
        return len(list(group.glob("*.parquet"))) > (0 if write == "create" else 1)
    if point == "committed":
        return (group / "_delta_log" / f"{1 if write == 'create' else 2:020d}.json").exists()
    return point == "begun"


def spark_trial(
    template: Path, folder: Path, write: str, *, point: str, after: float
) -> dict[str, str]:
    """Kill writers and their JVM some seconds after one reached a point.

    Return what each table is then.
    """
    locations = {name: folder / name for name in WRITES}
    for location in locations.values():
        shutil.copytree(template, location)
    program = SPARK.format(
        folder=str(Path(__file__).parent),
        locations={name: str(location) for name, location in locations.items()},
        settings=SETTINGS,
    )
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    errors = folder / "errors"
    with (
        errors.open("w") as log,
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True, env=environment, cwd=folder,
        ) as writer,
    ):  # fmt: skip
        assert writer.stdout is not None
        try:
            line = next((line for line in writer.stdout if line.startswith("ready")), "")
            assert line, errors.read_text()[-2000:]
            while writer.poll() is None and not reached(locations[write], write, point):
                time.sleep(0.005)
            time.sleep(after)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(writer.pid, signal.SIGKILL)
    committed = {name for name in WRITES if reached(locations[name], name, "committed")}
    outcomes = {name: check(locations[name], name) for name in WRITES}
    print(f"killed {after:.2f} s after {write} had {point}: {outcomes}", flush=True)
    assert {name for name in WRITES if outcomes[name] == "new"} == committed
    for location in locations.values():
        shutil.rmtree(location)
    return outcomes


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("write", "point"),
    [("append", "committed"), pytest.param("upsert", "written", marks=pytest.mark.soak)],
)
def test_killed_spark_write_leaves_old_or_new_tables(
    template: Path, tmp_path: Path, write: str, point: str
) -> None:
    after = random.Random(f"{SEED}/spark/{write}").uniform(0, 0.5)
    spark_trial(template, tmp_path, write, point=point, after=after)


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_forty_killed_spark_writes_leave_old_or_new_tables(template: Path, tmp_path: Path) -> None:
    rng = random.Random(f"{SEED}/spark/soak")
    outcomes = []
    for number in range(10):
        folder = tmp_path / str(number)
        folder.mkdir()
        write, point = WRITES[number % len(WRITES)], POINTS[number % 3 + number % 2]
        actual = spark_trial(template, folder, write, point=point, after=rng.uniform(0, 2))
        outcomes += actual.values()
    assert {"old", "new"} == set(outcomes)
