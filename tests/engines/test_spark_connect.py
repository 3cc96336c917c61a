"""A store with a Spark Connect session: DataFrames for the embedded engine, and the Spark engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.engines import job_engines
from tests.streams.kafka_server import free_port

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Spark Connect server from the jars of the pip package."""
    with _running_server(tmp_path_factory.mktemp("connect"), {}) as address:
        yield address


@pytest.fixture(scope="module")
def engine_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with the jar and the settings of the store."""
    from featurestore_connectors.spark_delta import jars, session

    paths = [jars.JVM_JAR, *jars.delta_jars()]
    settings = session.session_settings() | {
        "spark.jars": ",".join(map(str, paths)),
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    with _running_server(tmp_path_factory.mktemp("engine"), settings) as address:
        yield address


@contextmanager
def _running_server(folder: Path, settings: Mapping[str, str]) -> Iterator[str]:
    pytest.importorskip("grpc_status")
    import pyspark

    port = free_port()
    home = Path(pyspark.__file__).parent
    environment = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    command = [
        str(home / "bin" / "spark-submit"), "--master", "local[1]", "--driver-memory", "700m",
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--conf", "spark.ui.enabled=false",
        "--conf", f"spark.connect.grpc.binding.port={port}",
    ]  # fmt: skip
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    command.append("spark-internal")
    log = folder / "server.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            command, cwd=folder, env=os.environ | environment, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    try:
        _wait_for_start(server, log)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)


def _wait_for_start(server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while "Spark Connect server started" not in log.read_text():
        if server.poll() is not None or time.monotonic() > deadline:
            pytest.fail(log.read_text()[-2000:])
        time.sleep(0.1)


@pytest.fixture(scope="module")
def record(connect_server: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process with a session of the server saw."""
    return _run_client("connect_client", connect_server, str(tmp_path_factory.mktemp("store")))


def _run_client(program: str, *arguments: str) -> dict[str, Any]:
    finished = subprocess.run(
        [sys.executable, "-m", f"tests.engines.{program}", *arguments], cwd=ROOT,
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-3000:]
    result: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return result


def test_connect_frame_is_streamed_once(record: dict[str, Any]) -> None:
    # One row has the lengths of the lists.
    assert record["group_reads"] == [1, 5000]
    assert record["largest_batch"] == 1000
    assert record["label_reads"] == [4]


def test_connect_frame_keeps_types_and_values(record: dict[str, Any]) -> None:
    assert record["group_types"] == {
        "zone": "int64",
        "trips": "double",
        "small": "int16",
        "price": "decimal128(9, 2)",
        "at": "timestamp[us, tz=UTC]",
        "name": "string",
        "pair": "fixed_size_list<item: float>[2]",
        "matrix": "fixed_size_list<item: fixed_size_list<item: int64>[2]>[3]",
        "ragged": "list<item: int32>",
    }
    assert [row["name"] for row in record["rows"]] == [None, "z1", "z2", "z3"]
    assert [row["pair"] for row in record["rows"]] == [None, [1.0, 2.0], [2.0, 2.0], [3.0, 2.0]]
    assert record["rows"][0]["at"] == "2024-02-01 00:00:00+00:00"


def test_to_spark_returns_connect_frame(record: dict[str, Any]) -> None:
    assert record["module"] == "pyspark.sql.connect.dataframe"
    assert record["stored"] == record["joined"] == 5000
    assert record["changed"] == 0


def test_spark_engine_names_settings_that_server_lacks(record: dict[str, Any]) -> None:
    from featurestore_connectors.spark_delta.jars import JVM_JAR

    extensions = "io.delta.sql.DeltaSparkSessionExtension,featurestore.spark.StoreExtensions"
    for name in ("refused_group", "refused_frame"):
        assert "the Spark Connect server 127.0.0.1 lacks them" in record[name]
        settings = f"spark.jars={JVM_JAR} and spark.sql.extensions={extensions}"
        assert f"Hint: start the server with {settings}" in record[name]


@pytest.mark.parametrize("scope", ["some", pytest.param("all", marks=pytest.mark.soak)])
def test_spark_engine_on_connect_equals_embedded_engine(
    engine_server: str, tmp_path: Path, scope: str
) -> None:
    result = _run_client("connect_engine", engine_server, str(tmp_path), scope)
    assert result["module"] == "pyspark.sql.connect.dataframe"
    embedded, on_spark = result["duckdb"], result["spark"]
    assert "wider decimals needs Spark in this process" in result["refused"]
    assert result["commits"] == 0
    # The log store of the server adds the checksums.
    assert result["verified"].keys() >= {"trips version 1", "twins version 1", "zones version 1"}
    assert set(map(tuple, result["verified"].values())) == {()}
    assert result["changed"]
    assert set(embedded) == set(on_spark)
    assert embedded.get("function") != []
    for name, expected in embedded.items():
        assert on_spark[name] == expected, name


@pytest.mark.parametrize("scope", ["some", pytest.param("all", marks=pytest.mark.soak)])
def test_sql_jobs_on_connect_equal_embedded_jobs(
    engine_server: str, tmp_path: Path, scope: str
) -> None:
    embedded = job_engines.run_on("duckdb", tmp_path / "duckdb", job_engines.SCOPES[scope])
    on_spark = _run_client("job_engines", str(tmp_path / "spark"), scope, engine_server)
    assert on_spark.pop("session") == "pyspark.sql.connect.session"
    assert on_spark == embedded
