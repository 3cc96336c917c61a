"""``featurestore doctor`` for object stores and HDFS."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from featurestore.storage import connections, failures
from featurestore.storage.objects import ObjectStorage
from tests.hdfs_server import HdfsServer
from tests.object_server import SECRET_KEY, ObjectServer, free_port


@pytest.fixture
def environment(object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in object_server.options.items():
        monkeypatch.setenv(key.upper(), value)


def test_doctor_s3_checks_required_operations(
    bucket: str, environment: None, command_line: Callable[..., Any], tmp_path: Path
) -> None:
    location = f"{bucket}/team a"
    registry = f"sqlite:///{tmp_path}/cache.db"
    words = ("--location", location, "--registry", registry, "--output", "json", "doctor")
    document = {entry["check"]: entry for entry in json.loads(command_line(*words).out)}
    sessions = document.pop("location: spark sessions", None)
    tried = {
        name: entry["state"] for name, entry in document.items() if name.startswith("location")
    }
    assert tried == {
        "location: reach": "ok",
        "location: write": "ok",
        "location: conditional put": "ok",
        "location: clock": "ok",
        "location: delete": "ok",
    }
    storage, folder = connections.object_store_for(location)
    assert list(storage.list(folder)) == []
    if importlib.util.find_spec("delta") is not None:
        assert sessions is not None
        for word in ("org.apache.hadoop:hadoop-aws:", "featurestore.delta.S3LogStore", ".jar"):
            assert word in sessions["detail"]


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


def test_doctor_hdfs_checks_required_operations(
    hdfs_folder: str, command_line: Callable[..., Any], tmp_path: Path
) -> None:
    registry = f"sqlite:///{tmp_path}/cache.db"
    words = ("--location", hdfs_folder, "--registry", registry, "--output", "json", "doctor")
    document = {entry["check"]: entry["state"] for entry in json.loads(command_line(*words).out)}
    tried = [state for name, state in document.items() if name.startswith("location: ")]
    with_spark = importlib.util.find_spec("pyspark") is not None
    assert tried == ["ok"] * (6 if with_spark else 5)
    assert document["hdfs-native"] == "ok"
    storage, folder = connections.object_store_for(hdfs_folder)
    assert list(storage.list(folder)) == []


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
