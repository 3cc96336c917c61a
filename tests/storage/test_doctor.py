"""``featurestore doctor`` for object stores and HDFS."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from featurestore.storage import connections, failures, storage_for
from featurestore.storage.objects import ObjectStorage
from tests.hdfs_server import HdfsServer
from tests.object_server import SECRET_KEY, ObjectServer, free_port
from tests.storage.stores import StoreLocation, on_servers

# The text about a Spark session of each location.
SPARK_WORDS = {
    "s3": ("org.apache.hadoop:hadoop-aws:", "featurestore.delta.S3LogStore", ".jar"),
    "gs": ("gcs-connector", "featurestore.delta.GcsLogStore", ".jar"),
    "hdfs": (),
}


@on_servers("s3", "hdfs", "gs", "az")
def test_doctor_by_uri_checks_required_operations(
    store_location: StoreLocation,
    command_line: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Connections of this test do not outlast its environment.
    monkeypatch.setattr(connections, "open_connections", {})
    for name, value in store_location.environment.items():
        monkeypatch.setenv(name, value)
    location = f"{store_location.folder}/team a"
    registry = f"sqlite:///{tmp_path}/cache.db"
    words = ("--location", location, "--registry", registry, "--output", "json", "doctor")
    document = {entry["check"]: entry for entry in json.loads(command_line(*words).out)}
    # Settings for Spark, if it is installed and supports the location.
    sessions = document.pop("location: spark sessions", None)
    states = {
        name: entry["state"] for name, entry in document.items() if name.startswith("location: ")
    }
    names = ("reach", "write", "conditional put", "clock", "delete")
    assert states == {f"location: {name}": "ok" for name in names}
    if store_location.scheme == "hdfs":
        assert document["hdfs-native"]["state"] == "ok"
    storage, folder = connections.object_store_for(location)
    assert list(storage.list(folder)) == []
    if importlib.util.find_spec("delta") is not None and store_location.scheme in SPARK_WORDS:
        assert sessions is not None
        assert sessions["state"] == "ok"
        for word in SPARK_WORDS[store_location.scheme]:
            assert word in sessions["detail"]
    # Executors on other machines get the settings of this environment.
    (options,) = connections.options_of_connections().values()
    for name in store_location.environment:
        monkeypatch.delenv(name)
    connections.use_options(location, options)
    assert storage_for(location).list_directory(location) == []


@pytest.fixture
def environment(object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in object_server.options.items():
        monkeypatch.setenv(key.upper(), value)


def test_doctor_s3_wrong_credentials_prints_hint(
    bucket: str,
    environment: None,
    command_line: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"{SECRET_KEY}-wrong")
    words = ("--location", f"{bucket}/a", "--output", "json", "doctor")
    document = {entry["check"]: entry for entry in json.loads(command_line(*words, code=1).out)}
    assert document["location: reach"]["state"] == "problem"
    assert "SignatureDoesNotMatch" in document["location: reach"]["detail"]
    assert "credentials" in document["location: reach"]["hint"]
    assert "postgresql://" in document["registry"]["hint"]


def test_doctor_reports_missing_conditional_put(
    bucket: str, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections.use_options(bucket, object_server.options)
    monkeypatch.setattr(ObjectStorage, "put_new", ObjectStorage.put)
    actual = {check.check: check for check in connections.check_location(f"{bucket}/a")}
    assert not actual["conditional put"].passed
    assert "If-None-Match" in str(actual["conditional put"].hint)


def test_doctor_hdfs_reports_problems(
    hdfs_server: HdfsServer,
    command_line: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failures, "_FIRST_PAUSE", 0.002)
    monkeypatch.setenv("HADOOP_USER_NAME", "nobody-special")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    (tmp_path / "hdfs-site.xml").write_text(hdfs_server.site("of-others"))

    def problem(location: str, check: str) -> str:
        words = ("--location", location, "--output", "json", "doctor")
        entries = {entry["check"]: entry for entry in json.loads(command_line(*words, code=1).out)}
        assert entries[check]["state"] == "problem"
        return f"{entries[check]['detail']} {entries[check]['hint']}"

    # Another name of the same namenode, to avoid an existing connection.
    denied = problem("hdfs://of-others/folder-of-root", "location: write")
    assert "AccessControlException" in denied
    assert "HADOOP_USER_NAME" in denied
    unreachable = problem(f"hdfs://127.0.0.1:{free_port()}/a", "location: reach")
    assert "cannot be reached" in unreachable
    assert "network" in unreachable
