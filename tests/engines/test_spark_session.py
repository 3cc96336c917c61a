"""Finding, checking and starting the Spark session with its Java and libraries."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from featurestore.errors import ConfigurationError, MissingExtra, MissingJava
from featurestore.model.runtime import usable_cores
from featurestore_connectors.spark_delta import jars, session
from featurestore_connectors.spark_delta.engine import SparkEngine
from tests.on_spark import QUICK_JAVA

FOLDER = Path(__file__).parent


def java_that_says(folder: Path, text: str, *, status: int = 0) -> Path:
    """Create a program that prints a ``java -version``."""
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit {status}\n")
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "21" 2023-09-19 LTS', 21),
        ('java version "1.8.0_401"', 8),
        ("command not found", None),
    ],
)
def test_versions_of_java_are_read(text: str, version: int | None) -> None:
    assert jars.parse_version(text) == version


def test_java_17_of_java_home_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "JAVA_HOME", str(java_that_says(tmp_path / "jdk", 'openjdk version "17.0.1"'))
    )
    assert jars.check_java() == 17


@pytest.mark.parametrize(
    ("text", "status"),
    [('java version "1.8.0_401"', 0), ('openjdk version "11.0.2"', 0), ("broken", 1)],
)
def test_unsupported_java_version_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, status: int
) -> None:
    home = java_that_says(tmp_path / "jdk", text, status=status)
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(MissingJava, match="needs Java 17 or 21") as caught:
        jars.check_java()
    assert str(home) in caught.value.message
    assert caught.value.message.count("\n") == 0
    assert "JAVA_HOME" in (caught.value.hint or "")


def test_missing_java_is_reported_before_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark")
    pytest.importorskip("delta")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(session, "find_session", lambda: None)
    with pytest.raises(MissingJava, match="no java on the PATH"):
        session.start_session()


@pytest.mark.parametrize(("module", "library"), [("pyspark", "pyspark"), ("delta", "delta-spark")])
def test_missing_library_error_has_install_command(
    monkeypatch: pytest.MonkeyPatch, module: str, library: str
) -> None:
    # Libraries that are not requested count as installed, also without Spark.
    module_spec = importlib.machinery.ModuleSpec("there", None)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == module else module_spec
    )
    with pytest.raises(
        MissingExtra, match=rf"'{library}'.*\nHint: pip install 'featurestore\[spark\]'"
    ):
        session.jars.check_libraries()


def test_unsupported_pair_error_names_supported_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"pyspark": "4.3.0", "delta-spark": "4.4.1"}
    monkeypatch.setattr(jars, "version", installed.__getitem__)
    with pytest.raises(
        ConfigurationError, match=r"pyspark 4\.3\.0 with delta-spark 4\.4\.1"
    ) as caught:
        jars.check_pair()
    for spark, (first, last) in jars.DELTA_OF_SPARK.items():
        assert f"pyspark {spark} with delta-spark {first}" in caught.value.message
        for delta in (first, last):
            installed |= {"pyspark": f"{spark}.1", "delta-spark": delta}
            jars.check_pair()
    assert caught.value.hint == "pip install 'pyspark==4.2.0' 'delta-spark==4.4.0'"


def test_active_session_is_reused_and_kept(spark: Any) -> None:
    spark.createDataFrame([], "a int")  # makes the session active again after other sessions
    engine = SparkEngine()
    assert engine.session is spark
    engine.close()
    assert spark.range(2).count() == 2


def test_a_session_of_another_time_zone_is_refused(spark: Any) -> None:
    new_session = spark.newSession()
    new_session.conf.set("spark.sql.session.timeZone", "America/New_York")
    with pytest.raises(ConfigurationError, match="America/New_York") as caught:
        SparkEngine(new_session).session.range(1)
    assert caught.value.hint == 'spark.conf.set("spark.sql.session.timeZone", "UTC")'


@pytest.mark.spark
def test_own_session_is_configured_for_delta() -> None:
    env = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("SPARK_", "PYSPARK_", "FEATURESTORE_"))
    }
    env |= {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "FEATURESTORE_SPARK_MASTER": "local[1]",
        "FEATURESTORE_SPARK_DRIVER_MEMORY": "700m",
    }
    # Another python3 on the PATH; workers must still run the interpreter of the driver.
    program = str(FOLDER / "spark_sessions.py")
    result = subprocess.run(
        [sys.executable, program], env=env, capture_output=True, text=True, timeout=540, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    report = json.loads(result.stdout.strip().splitlines()[-1])
    assert "not configured for Delta" in report["refused"]
    assert "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension" in report["hint"]
    assert report["settings"] == {
        "spark.master": "local[1]",
        "spark.driver.memory": "700m",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(2 * usable_cores()),
        "spark.ui.enabled": "false",
    }
    assert report["rows"] == [
        {"id": 0, "python": sys.executable},
        {"id": 1, "python": sys.executable},
    ]
    assert report["stopped"]
    assert report["left_running"]
    assert " WARN " not in result.stderr


_FIRST_START = """
import sys
from pyspark.sql import SparkSession
from featurestore_connectors.spark_delta import configure_session
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
session = configure_session(builder, location=sys.argv[1]).getOrCreate()
session.range(3).write.format("delta").save(sys.argv[2])
"""


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.parametrize("location", ["/store", "s3://bucket/prefix"])
def test_first_session_downloads_only_modules_that_spark_lacks(
    tmp_path: Path, location: str
) -> None:
    import pyspark

    # The description of a module without its jar, which Maven writes for modules that others require.
    described = tmp_path / ".m2" / "repository" / "org" / "slf4j" / "slf4j-api" / "2.0.13"
    described.mkdir(parents=True)
    (described / "slf4j-api-2.0.13.pom").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>org.slf4j</groupId>"
        "<artifactId>slf4j-api</artifactId><version>2.0.13</version></project>"
    )
    home = {"HOME": str(tmp_path), "JDK_JAVA_OPTIONS": f"{QUICK_JAVA} -Duser.home={tmp_path}"}
    command = [sys.executable, "-c", _FIRST_START, location, str(tmp_path / "table")]
    process = subprocess.run(
        command,
        env=os.environ | home | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    downloaded = {path.name for path in tmp_path.glob(".ivy2*/jars/*.jar")}
    assert {path.name for path in jars.delta_jars()} <= downloaded
    modules = {module_of(name.partition("_")[2]) for name in downloaded}
    s3_modules = {"hadoop-aws", "s3", "s3-transfer-manager", "sts"}
    assert s3_modules & modules == (s3_modules if location.startswith("s3:") else set())
    included = {module_of(path.name) for path in Path(pyspark.__path__[0], "jars").glob("*.jar")}
    # Another module in Spark; required by Delta 4.0; required by S3A.
    expected = {"annotations", "antlr4-runtime", "commons-codec", "httpclient", "httpcore"}
    assert modules & included <= expected


def module_of(jar: str) -> str:
    """Return the module of a jar, without its version."""
    return re.sub(r"-\d.*", "", jar)
