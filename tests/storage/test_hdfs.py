"""Particularities of HDFS: unfinished files, blocks, forks, renames, namenode responses, settings."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import featurestore
from featurestore.errors import ConfigurationError, StorageError
from featurestore.storage import failures
from featurestore.storage.connections import object_store_for
from featurestore_connectors.hdfs import HdfsStorage, client
from tests.hdfs_server import HdfsServer
from tests.object_server import ROOT, free_port
from tests.storage.stores import Connect, export, labeled, names_below, rows


@pytest.fixture
def storage(hdfs_server: HdfsServer) -> HdfsStorage:
    return HdfsStorage(hdfs_server.root, {})


@pytest.fixture
def folder(hdfs_folder: str) -> str:
    return hdfs_folder.rpartition("/")[2]


def test_killed_hdfs_writer_leaves_no_listed_files(
    storage: HdfsStorage, folder: str, hdfs_folder: str, hdfs_server: HdfsServer
) -> None:
    storage.put(f"{folder}/inner/kept", b"1")
    program = (
        "import os, sys\n"
        "from featurestore_connectors.hdfs import HdfsStorage\n"
        "storage = HdfsStorage(sys.argv[1], {})\n"
        "with storage.writer(sys.argv[2] + '/alone/new') as writer:\n"
        "    writer.write(bytes(100_000))\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", program, hdfs_server.root, folder], timeout=60, check=False
    )
    assert killed.returncode == -9
    (unfinished_name,) = (name for name in names_below(hdfs_folder) if name.startswith("alone/"))
    assert unfinished_name.rpartition("/")[2].startswith(".")
    assert storage.children(folder) == ["inner"]
    assert [entry.name for entry in storage.list(folder)] == [f"{folder}/inner/kept"]
    now = datetime.now(UTC)
    assert storage.remove_unfinished(folder, before=now - timedelta(hours=1)) == 0
    assert unfinished_name in names_below(hdfs_folder)
    assert storage.remove_unfinished(folder, before=now + timedelta(hours=1)) == 1
    assert names_below(hdfs_folder) == ["inner/kept"]
    assert storage.remove_below(folder) == 1
    with pytest.raises(FileNotFoundError):
        list(storage._client.list_status(f"/{folder}"))


def test_hdfs_ranges_across_blocks_are_read(storage: HdfsStorage, folder: str) -> None:
    data = os.urandom(9 << 20)
    with storage.writer(f"{folder}/blocks") as writer:
        for start in range(0, len(data), 1 << 20):
            writer.write(memoryview(data)[start : start + (1 << 20)])
    block = 4 << 20
    request = [(block - 5, 10), (2 * block - 1, 1), (0, len(data)), (block, block), (100, 0)]
    actual = storage.ranges(f"{folder}/blocks", request)
    assert actual == [data[start : start + length] for start, length in request]


def test_forked_child_uses_hdfs(hdfs_folder: str, subtests: pytest.Subtests) -> None:
    """The parent is a separate process, since a child inherits the garbage of all libraries."""
    for case_name in ("reads_and_writes", "collects_no_garbage_of_its_parent"):
        program = [sys.executable, "-m", "tests.storage.forked_child", case_name, hdfs_folder]
        with subtests.test(case_name):
            ended = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=240)
            assert ended.returncode == 0, ended.stderr


def test_hdfs_rename_with_lost_response_succeeds(
    storage: HdfsStorage, folder: str, hdfs_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client retries; the namenode reports a missing source or an existing target."""
    rename = storage._client.rename

    def twice(source: str, target: str, overwrite: bool) -> None:
        rename(source, target, overwrite)
        rename(source, target, overwrite)

    monkeypatch.setattr(storage._client, "rename", twice)
    monkeypatch.setattr(failures, "_FIRST_PAUSE", 0.002)
    storage.put_new(f"{folder}/claim", b"mine")
    with pytest.raises(FileExistsError):
        storage.put_new(f"{folder}/claim", b"yours")
    storage.put(f"{folder}/object", b"1")
    with storage.writer(f"{folder}/object") as writer:
        writer.write(b"22")
    assert storage.read(f"{folder}/claim") == b"mine"
    assert storage.read(f"{folder}/object") == b"22"
    assert names_below(hdfs_folder) == ["claim", "object"]


def test_hdfs_transient_failures_are_retried(
    storage: HdfsStorage, folder: str, hdfs_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "_FIRST_PAUSE", 0.002)
    failed: list[str] = []
    for name in ("create", "rename", "read", "get_file_info", "list_status"):
        call = getattr(storage._client, name)

        def shaky(
            *arguments: object, _call: object = call, _name: str = name, **keywords: object
        ) -> object:
            if _name not in failed:
                failed.append(_name)
                error_class = "org.apache.hadoop.ipc.RetriableException"
                raise RuntimeError(f'RPCError("{error_class}", "namenode is starting")')
            return _call(*arguments, **keywords)  # type: ignore[operator]

        monkeypatch.setattr(storage._client, name, shaky)
    storage.put(f"{folder}/a", b"1")
    storage.put_new(f"{folder}/b", b"2")
    assert storage.read(f"{folder}/a") == b"1"
    assert [entry.name for entry in storage.list(folder)] == [f"{folder}/a", f"{folder}/b"]
    assert storage.remove(f"{folder}/a")
    assert len(failed) == 5
    monkeypatch.undo()
    assert names_below(hdfs_folder) == ["b"]


def test_hdfs_errors_name_object_action_and_hint(
    storage: HdfsStorage,
    folder: str,
    hdfs_server: HdfsServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(failures, "_FIRST_PAUSE", 0.002)
    storage.put(f"{folder}/file", b"1")
    secret = {"hadoop.security.some.password": "91bc44de"}
    unreachable = HdfsStorage(f"hdfs://127.0.0.1:{free_port()}", secret)
    unprivileged = HdfsStorage(hdfs_server.root, secret)
    with monkeypatch.context() as environment:  # read when the first call connects
        environment.setenv("HADOOP_USER_NAME", "nobody-special")
        assert unprivileged.find("none") is None
    refusals = (
        (unreachable, "some/name", "cannot be reached", "network"),
        (unprivileged, f"{folder}/new", "AccessControlException", "HADOOP_USER_NAME"),
        (storage, f"{folder}/at=12:30/file", "InvalidPathException", "':'"),
        (storage, f"{folder}/file/below", "a part of its path is a file", "another name"),
    )
    for target, name, reason, hint in refusals:
        for call in (target.put, target.put_new):
            with pytest.raises(StorageError, match=reason) as refused:
                call(name, b"2")
            assert f"{target.root}/{name}" in refused.value.message
            assert hint in str(refused.value.hint)
            assert "91bc44de" not in str(refused.value)
    with pytest.raises(StorageError, match=r"Cannot read .*cannot be reached"):
        unreachable.read("some/name")
    assert "91bc44de" not in caplog.text + repr(unreachable)


def test_hdfs_storage_options_must_be_hadoop_settings(hdfs_server: HdfsServer) -> None:
    with pytest.raises(ConfigurationError, match="aws_region"):
        HdfsStorage(hdfs_server.root, {"aws_region": "x"})
    with pytest.raises(StorageError, match="a-cluster-of-no-settings") as refused:
        HdfsStorage("hdfs://a-cluster-of-no-settings", {})
    assert "HADOOP_CONF_DIR" in str(refused.value.hint)
    cluster = {
        "dfs.ha.namenodes.here": "first,second",
        "dfs.namenode.rpc-address.here.first": f"127.0.0.1:{free_port()}",
        "dfs.namenode.rpc-address.here.second": hdfs_server.root.removeprefix("hdfs://"),
    }
    assert HdfsStorage("hdfs://here", cluster).find("none") is None


def test_hdfs_settings_are_read_from_hadoop_conf_dir(
    hdfs_server: HdfsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hdfs-site.xml").write_text(hdfs_server.site("cluster"))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert client.open_client("hdfs://cluster", {}).get_file_info("/").isdir


def test_hdfs_group_partitioned_by_time_is_read(connect_hdfs: Connect) -> None:
    store = connect_hdfs()
    store.create_featuregroup(rows(0, 30), "weather", primary_key="id", partition_by="at")
    table = store.get_featuregroup("weather").to_pandas()
    assert sorted(table["at"]) == sorted(rows(0, 30)["at"])


def test_vacuum_on_hdfs_removes_day_old_temporary_files(connect_hdfs: Connect) -> None:
    store = connect_hdfs()
    store.create_featuregroup(rows(0, 5), "weather")
    table = f"{store.location}/featuregroups/weather/v1"
    storage, name = object_store_for(table)
    hdfs_client = storage._client  # type: ignore[attr-defined]
    two_days_ago = int((time.time() - 2 * 86_400) * 1000)
    for digit in ("a", "b"):
        path = f"/{name}/city=x/.{digit * 32}.tmp"
        hdfs_client.create(path).close()
        if digit == "a":
            hdfs_client.set_times(path, two_days_ago, two_days_ago)
    store.vacuum_featuregroup("weather", version=1, retain=timedelta(0))
    temporary_files = [file for file in names_below(table) if file.endswith(".tmp")]
    assert temporary_files == [f"city=x/.{'b' * 32}.tmp"]
    assert store.get_featuregroup("weather").count() == 5


def test_hdfs_storage_option_values_are_never_stored(
    connect_hdfs: Connect, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "91bc44de-a7f3"
    store = connect_hdfs(storage_options={"hadoop.security.some.password": secret})
    store.create_featuregroup(labeled(50), "weather", primary_key="id")
    export(store)
    with pytest.raises(ConfigurationError, match="not a Hadoop setting") as refused:
        featurestore.connect(
            "hdfs://elsewhere/store",
            registry=f"sqlite:///{tmp_path / 'elsewhere.db'}",
            storage_options={"some.password": secret},
        )
    texts = [caplog.text, repr(store), repr(store.session), str(refused.value)]
    storage, _ = object_store_for(store.location)
    for name in names_below(store.location):
        path = f"{object_store_for(store.location)[1]}/{name}"
        texts.append(storage.read(path).decode("latin-1"))
    for folder in (tmp_path, Path(os.environ["XDG_STATE_HOME"])):
        for file in folder.rglob("*"):
            if file.is_file():
                texts.append(file.read_bytes().decode("latin-1"))
    assert len(texts) > 15
    assert not [text[:200] for text in texts if secret in text]
