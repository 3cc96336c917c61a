"""The Spark engine on a real standalone cluster.

One application does all that the tests look at.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import featurestore
from featurestore import experiments
from tests.cluster import submitted_at_uris
from tests.conftest import SKIPPED_STORAGE
from tests.engines import job_engines
from tests.experiments import training_functions
from tests.hdfs_server import HdfsServer
from tests.object_server import ObjectServer
from tests.streams import kafka_server

if TYPE_CHECKING:
    from featurestore.store import FeatureStore

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
EXAMPLE = ROOT / "examples" / "schedules" / "spark_job.py"
PATH = os.pathsep.join([str(ROOT), *sys.path])
ROWS = 450_000
START = datetime(2024, 1, 1, tzinfo=UTC)
BETWEEN = (START.isoformat(), (START + timedelta(hours=2)).isoformat())
JOB = """
import featurestore
demand = featurestore.sql_job(
    "demand",
    sql="select zone, date_trunc('hour', t) + interval 1 hour as hour, count(*) as n from trips group by 1, 2",
    primary_key=["zone"], event_time="hour", schedule="0 * * * *", start="2024-01-01T00:00Z", inputs={"trips": "trips"},
)
"""


@dataclass(frozen=True)
class Application:
    """A finished application: its output and its directory."""

    master: str
    results: dict[str, Any]
    folder: Path


@pytest.fixture(scope="module")
def master(cluster: Any) -> str:
    """The URL of the running master."""
    url: str = cluster.url
    return url


@pytest.fixture(scope="module")
def application(
    standalone: Any, master: str, tmp_path_factory: pytest.TempPathFactory
) -> Application:
    """The program, submitted as documented, with one executor for each of the two cores."""
    from featurestore_connectors.spark_delta.jars import delta_package

    folder = tmp_path_factory.mktemp("submitted")
    prepare_store(folder / "store")
    program = [str(FOLDER / "submitted.py"), str(folder), str(folder / "store"), str(EXAMPLE)]
    command = [
        str(standalone.spark_home() / "bin" / "spark-submit"),
        *("--master", master, "--packages", delta_package(), "--conf", "spark.log.level=ERROR"),
        *standalone.EXECUTORS,
        *("--conf", "spark.sql.shuffle.partitions=4"),
        *("--conf", "spark.databricks.delta.snapshotPartitions=1"),
        *(*program, "demand", *BETWEEN),
    ]
    env = standalone.environment(
        FEATURESTORE_SPARK_STAGING=str(folder / "staging"),
        SPARK_DRIVER_MEMORY="1g",
        PYTHONPATH=PATH,
    )
    return Application(master, run_application(command, env), folder)


def prepare_store(location: Path) -> FeatureStore:
    """Create a store with a group and a registered job on the embedded engine."""
    (location.parent / "jobs.py").write_text(JOB)
    instants = [START + timedelta(minutes=7 * number) for number in range(200)]
    times = pa.array(instants, pa.timestamp("us", tz="UTC"))
    store = featurestore.connect(location, engine="duckdb")
    store.create_featuregroup(
        pa.table({"t": times, "zone": ["a", "b"] * 100}), "trips", event_time="t"
    )
    store.register_jobs(location.parent / "jobs.py")
    training_functions.sums_of(store)
    return store


def run_application(command: list[str], env: dict[str, str]) -> dict[str, Any]:
    process = subprocess.run(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    # spark-submit writes the program's errors to stdout.
    assert process.returncode == 0, process.stderr[-2000:] + process.stdout[-4000:]
    results: dict[str, Any] = json.loads(process.stdout.strip().splitlines()[-1])
    return results


def test_cluster_executors_process_rows(application: Application) -> None:
    results = application.results
    assert results["master"] == application.master
    assert results["version"] == 1
    assert results["count"] == results["streamed"] == ROWS
    assert results["total"] == results["total_of_files"] == ROWS * (ROWS - 1) // 2
    assert results["summed_by"] == 2
    assert not results["read_here"]
    shards = results["written"]
    assert [(shard["shard"], shard["rows"], shard["ordered"]) for shard in shards] == [
        (n, ROWS // 8, True) for n in range(8)
    ]
    assert len({shard["process"] for shard in shards}) == 2
    # Two attempts wrote shard 3; one complete file remains.
    assert results["files"] == ["failed-once", *(f"shard-{number:05d}" for number in range(8))]
    ids = np.fromfile(application.folder / "shards" / "shard-00003", dtype=np.int64)
    np.testing.assert_array_equal(ids, np.arange(3, ROWS, 8)[::-1])
    assert results["parked"] == []


def test_spark_submit_export_equals_embedded_bytes(
    application: Application, submitted: Any, tmp_path: Path
) -> None:
    store = featurestore.connect(tmp_path / "embedded", engine="duckdb")
    assert application.results["shards"] == submitted.export(store)


def test_spark_submit_job_rows_equal_embedded_rows(
    application: Application, tmp_path: Path
) -> None:
    embedded = prepare_store(tmp_path / "embedded")
    embedded.backfill_job("demand", *BETWEEN)
    tables = []
    for store in (embedded, featurestore.connect(application.folder / "store", engine="duckdb")):
        table = store.get_featuregroup("demand").to_arrow()
        tables.append(sorted(map(str, table.to_pylist())))
    assert len(tables[0]) == 4
    assert tables[0] == tables[1]


def test_barrier_tasks_train_like_local_processes(application: Application, tmp_path: Path) -> None:
    with featurestore.connect(tmp_path / "embedded") as store:
        local = experiments.collective_all_reduce(
            training_functions.regression, workers=2, dataset=training_functions.sums_of(store)
        )
    results = application.results["experiments"]
    losses = {str(step): loss for step, loss in local.history("loss").items()}
    assert results["killed"] == [losses, ["worker 1 was lost: killed by SIGKILL", None]]
    assert results["saved"] == ["artifacts/line.joblib", "metrics.jsonl"]
    assert results["best"] == {"x": 2}
    assert results["trials"] == {"1": ["finished", 2], "2": ["finished", 1]}
    assert "3 workers must run at the same time" in results["refused"]
    assert "has 2 free slots of 2" in results["refused"]
    assert results["refused_after"] < 60
    assert results["more_runs"] == 0


@pytest.mark.soak
def test_own_spark_session_runs_on_cluster(standalone: Any, master: str, tmp_path: Path) -> None:
    prepare_store(tmp_path / "store")
    env = standalone.environment(
        FEATURESTORE_SPARK_MASTER=master,
        PYSPARK_SUBMIT_ARGS=" ".join([*standalone.EXECUTORS, "pyspark-shell"]),
        FEATURESTORE_SPARK_STAGING=str(tmp_path / "staging"),
        FEATURESTORE_SPARK_DRIVER_MEMORY="1g",
        PYTHONPATH=PATH,
    )
    program = [str(FOLDER / "submitted.py"), str(tmp_path), str(tmp_path / "store"), str(EXAMPLE)]
    results = run_application([sys.executable, *program, "demand", *BETWEEN], env)
    assert (results["master"], results["count"], results["summed_by"]) == (master, ROWS, 2)


def test_sql_jobs_on_cluster_equal_embedded_jobs(application: Application, tmp_path: Path) -> None:
    embedded = job_engines.run_on("duckdb", tmp_path / "jobs", job_engines.SCOPES["some"])
    assert application.results["sql_jobs"] == embedded


@pytest.mark.soak
def test_sql_jobs_of_own_session_equal_embedded_jobs(
    standalone: Any, master: str, tmp_path: Path
) -> None:
    env = standalone.environment(
        FEATURESTORE_SPARK_MASTER=master,
        PYSPARK_SUBMIT_ARGS=" ".join([*standalone.EXECUTORS, "pyspark-shell"]),
        FEATURESTORE_SPARK_STAGING=str(tmp_path / "staging"),
        FEATURESTORE_SPARK_DRIVER_MEMORY="1g",
        PYTHONPATH=PATH,
    )
    program = [sys.executable, "-m", "tests.engines.job_engines"]
    on_spark = run_application([*program, str(tmp_path / "spark"), "all"], env)
    assert on_spark.pop("session") == "pyspark.sql.session"
    assert on_spark.pop("master") == master
    assert on_spark == job_engines.run_on("duckdb", tmp_path / "duckdb", job_engines.SCOPES["all"])


@pytest.mark.soak
def test_cluster_executors_write_s3_and_hdfs_stores(
    standalone: Any,
    master: str,
    tmp_path: Path,
    object_server: ObjectServer,
    hdfs_server: HdfsServer,
) -> None:
    from featurestore_connectors.spark_delta.jars import delta_package
    from featurestore_connectors.spark_delta.session import JVM_JAR

    s3a = kafka_server.spark_jars(kafka_server.S3A)
    if not s3a:
        pytest.skip(f"{SKIPPED_STORAGE}: the jars of hadoop-aws were not fetched")
    bucket = object_server.new_bucket("of-a-cluster")
    locations = [f"{bucket}/store", f"{hdfs_server.root}/of-a-cluster/store"]
    command = [
        str(standalone.spark_home() / "bin" / "spark-submit"),
        *("--master", master, "--packages", delta_package(), "--conf", "spark.log.level=ERROR"),
        *("--jars", ",".join(map(str, [*s3a, JVM_JAR]))),
        *("--conf", "spark.delta.logStore.s3.impl=featurestore.delta.S3LogStore"),
        *("--conf", "spark.sql.shuffle.partitions=4"),
        *("--conf", "spark.databricks.delta.snapshotPartitions=1"),
        *(str(FOLDER / "submitted_at_uris.py"), str(tmp_path), *locations),
    ]
    env = standalone.environment(
        FEATURESTORE_SPARK_STAGING=str(tmp_path / "staging"),
        SPARK_DRIVER_MEMORY="1g",
        PYTHONPATH=PATH,
        OPTIONS_OF_STORES=json.dumps([object_server.options, {}]),
    )
    results = run_application(command, env)
    assert results["master"] == master
    with featurestore.connect(tmp_path / "disk") as disk:
        ids = np.arange(submitted_at_uris.ROWS + 100)
        frame = pd.DataFrame({"id": ids, "zone": ids % 50, "fare": ids / 4})
        first, more = frame[:-100], frame[-200:].assign(fare=1.0)
        expected = submitted_at_uris.write(disk, first, more)
    assert [results[location] for location in locations] == [expected, expected]
    # Executors wrote the shards to the bucket; the staging folder is empty.
    paths = [path for path in (object_server.root / bucket[5:]).rglob("*") if path.is_file()]
    assert [path for path in paths if "_staging" in path.parts] == []
