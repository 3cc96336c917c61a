"""Clients of a served store read the same rows as the local store, within their role."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import resource
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import uvicorn
from starlette.testclient import TestClient

import featurestore
from featurestore import transform
from featurestore.errors import (
    DuplicateKeys,
    FeatureGroupExists,
    FeatureGroupNotFound,
    FeatureNotFound,
    InvalidArgument,
    InvalidExpectation,
    InvalidSql,
    NoJoinKey,
    NotAllowed,
    NotSignedIn,
    QueryEnded,
    SchemaMismatch,
    ServerUnavailable,
    TrainingDatasetNotFound,
    UnsupportedRemotely,
)
from featurestore.featuregroups import FeatureGroup
from featurestore.featuregroups.discovery import Match
from featurestore.model.featuregroup import Commit
from featurestore.plugins.remote import RETRIEVAL
from featurestore.registry import audit_log
from featurestore.registry.audit_log import Actor
from featurestore.retrieval import FeatureFrame
from featurestore.server import ServerSettings, create_app, uploads
from featurestore.server.access import changes
from featurestore.server.featuregroups import commit_authors
from featurestore.server.rows import ChunkProducer, Retrieval, stream_chunks
from featurestore.store import FeatureStore
from featurestore.store.remote import RemoteTrainingDataset
from featurestore.store.remote_handles import parse_record
from featurestore.training.verification import DatasetProblem, VerifyReport
from featurestore_connectors.duckdb_delta.relations import relation
from featurestore_connectors.duckdb_delta.time_limits import _RUNNING_QUERIES
from featurestore_connectors.remote import HttpClient, request_body
from tests.ingest.pasting import pasted

NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)
ROOT = Actor("root", "test")
ENDLESS = "select sum(a.range * b.range % 7) s from range(1000000) a, range(1000000) b"


@contextmanager
def served(store: FeatureStore, *, upload: int = 1 << 30) -> Iterator[str]:
    """Yield the address of a served store."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    app = create_app(store, ServerSettings(auth=True, port=port, upload=upload))
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(60)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeatureStore]:
    with featurestore.connect(tmp_path_factory.mktemp("remote") / "store") as store:
        rows = 20_000
        numbers = pa.table(
            {
                "k": pa.array(np.arange(rows) % 500),
                "at": pa.array([NOON + timedelta(seconds=n) for n in range(rows)]),
                "x": pa.array(np.random.default_rng(0).random(rows)),
                "text": pa.array([f"t{n}" for n in range(rows)]),
                "pixels": pa.array([[n, n + 1] for n in range(rows)], pa.list_(pa.int32(), 2)),
            }
        )
        store.create_featuregroup(
            numbers, "numbers", primary_key="k", event_time="at", tags={"team": "a"},
            descriptions={"x": "random"}, description="Numbers",
        )  # fmt: skip
        store.create_featuregroup(numbers.slice(0, 10), "numbers", primary_key=["k", "at"])
        store.create_featuregroup([{"k": 1, "pay": 2.0}], "salaries", primary_key="k")
        rows = store.get_featuregroup("numbers", version=1)
        store.create_training_dataset(
            rows, "wins", data_format="parquet", exclude="text",
            transformations={"x": transform.min_max()}, tags={"team": "a"}, description="Who wins",
            progress=False,
        )  # fmt: skip
        store.create_training_dataset(store.get_featuregroup("salaries"), "pays", progress=False)
        changes.add_user(store.session, ROOT, "rea")
        changes.set_private(store.session, ROOT, "salaries", True)
        yield store


@pytest.fixture(scope="module")
def address(local: FeatureStore) -> Iterator[str]:
    with served(local) as address:
        yield address


@pytest.fixture(scope="module")
def token(local: FeatureStore) -> str:
    text, _ = changes.make_token(local.session, ROOT, "rea")
    return text


@pytest.fixture(scope="module")
def remote(address: str, token: str) -> Iterator[FeatureStore]:
    with featurestore.connect(address, token=token) as store:
        yield store


def labels(rows: int = 300) -> pa.Table:
    keys = np.random.default_rng(1).integers(0, 520, rows)
    times = [NOON + timedelta(seconds=int(n)) for n in np.arange(rows) * 60]
    return pa.table({"k": keys, "asked": times, "good": keys % 2 == 0})


def test_remote_get_features_equals_local_rows(local: FeatureStore, remote: FeatureStore) -> None:
    features = ["numbers@v1.x", "numbers@v1.text as words", "numbers@v1.pixels"]
    twice = featurestore.feature("twice", "2 * x + k")
    window_sum = featurestore.window(
        "numbers@v1.x", "sum", over="2h", where="x > 0.5", fill_value=0.0
    )
    for ask in (
        lambda store: store.get_features(features, labels=labels()),
        lambda store: store.get_features(features, labels=labels(), join="inner"),
        lambda store: store.get_features(["numbers@v1.x|max|1h"], labels=labels()),
        lambda store: store.get_features([window_sum], labels=labels()),
        lambda store: store.get_features(["numbers@v1.x", twice], labels=labels()),
        lambda store: store.get_features(["numbers.x"], include_keys=True, versions={"numbers": 1}),
        lambda store: store.get_featuregroup("numbers", version=1, as_of=1),
        lambda store: store.get_feature("numbers.x"),
    ):
        local_frame, remote_frame = ask(local), ask(remote)
        assert remote_frame.schema == local_frame.schema
        assert remote_frame.to_arrow().equals(local_frame.to_arrow())
        assert remote_frame.count() == local_frame.count()
        assert remote_frame.head(3).equals(local_frame.head(3))
    assert (
        remote.get_features(features, labels=labels())
        .to_pandas()
        .equals(local.get_features(features, labels=labels()).to_pandas())
    )


def test_remote_label_key_type_hint_makes_keys_match(remote: FeatureStore) -> None:
    texts = pa.table({"k": ["1", "one"], "asked": [NOON + timedelta(days=1)] * 2})
    with pytest.raises(NoJoinKey) as refused:
        remote.get_features(["numbers@v1.x"], labels=texts, label_time="asked")
    # The server has no rows of the labels, so it cannot know whether all keys have an equal.
    assert refused.value.hint == "df = featurestore.cast(df, {'k': 'int64'}, inexact='null')"
    keys = pasted(texts, refused.value.hint)
    frame = remote.get_features(["numbers@v1.x"], labels=keys, label_time="asked")
    assert frame.to_arrow()["x"].is_valid().to_pylist() == [True, False]


def test_remote_frame_operations_run_on_server(local: FeatureStore, remote: FeatureStore) -> None:
    def cut(store: FeatureStore) -> pa.Table:
        frame = store.get_featuregroup("numbers", version=1)
        frame = frame.filter("x > 0.25 and text != 't7'").sample(fraction=0.5, seed=3, by="k")
        return frame.drop("pixels", "at").select("text", "k").to_arrow()

    assert cut(remote).equals(cut(local))
    frame = remote.get_featuregroup("numbers", version=1)
    assert [batch.num_rows for batch in frame.to_batches(rows=8_000)] == [8_000, 8_000, 4_000]
    for wrong in ("nothing = 1", "x >", "(select 1) = 1"):
        with pytest.raises((InvalidSql, FeatureNotFound)):
            frame.filter(wrong)


def test_remote_group_metadata_equals_local(local: FeatureStore, remote: FeatureStore) -> None:
    local_group, remote_group = (
        store.featuregroup("numbers", version=1) for store in (local, remote)
    )
    for name in ("schema", "primary_key", "event_time", "created_time", "delta_version",
                 "description", "descriptions", "tags", "name", "version"):  # fmt: skip
        assert getattr(remote_group, name) == getattr(local_group, name), name
    rows = [
        (commit.delta_version, commit.rows, commit.timestamp) for commit in remote_group.history()
    ]
    assert rows == [
        (commit.delta_version, commit.rows, commit.timestamp) for commit in local_group.history()
    ]
    assert remote_group.statistics().to_json() == local_group.statistics().to_json()
    report = local.verify_featuregroup("numbers", version=remote_group.version)
    assert remote.verify_featuregroup("numbers", version=remote_group.version) == report
    assert [str(group) for group in remote.get_featuregroups()] == ["numbers v1", "numbers v2"]
    assert remote.get_latest_featuregroup_version("numbers") == 2
    assert remote.get_latest_featuregroup_version("absent") == 0
    assert remote.search("random") == [
        match for match in local.search("random") if match.group == "numbers"
    ]
    assert "numbers.x" in remote.get_features_list()
    assert "salaries.pay" not in remote.get_features_list()


def test_remote_forbidden_calls_raise_clear_errors(
    remote: FeatureStore, address: str, token: str
) -> None:
    with pytest.raises(FeatureGroupNotFound, match="not found or not allowed"):
        remote.get_featuregroup("salaries")
    with pytest.raises(FeatureGroupNotFound, match="not found or not allowed"):
        remote.get_features(["salaries.pay"], labels=labels())
    with pytest.raises((InvalidSql, FeatureNotFound)):
        remote.get_features([featurestore.feature("f", "(select 1)")], labels=labels())
    with pytest.raises(NotSignedIn):
        featurestore.connect(address)
    with pytest.raises(NotSignedIn):
        featurestore.connect(address, token=f"{token}x")
    for ask in (
        lambda: remote.delete_featuregroup("numbers", version=2),
        lambda: remote.get_featuregroup("numbers", dataframe_type="spark"),
        lambda: remote.get_featuregroup("numbers").native(),
        lambda: remote.get_jobs(),
        lambda: remote.sql("select * from numbers"),
        lambda: remote.create_training_dataset(remote.get_featuregroup("numbers"), "d"),
    ):
        with pytest.raises(UnsupportedRemotely, match=r"127\.0\.0\.1"):
            ask()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ServerUnavailable, match="is unavailable"):
        featurestore.connect(nobody, token=token)


def endless(store: FeatureStore) -> FeatureFrame:
    """Return a frame whose first row never arrives."""
    engine = store.session.engine
    native = engine.database.connection.sql(ENDLESS)  # type: ignore[attr-defined]
    return FeatureFrame(store.session, relation(native, pa.schema([("s", pa.int64())])))


@pytest.mark.parametrize(("seconds", "is_gone"), [(0.3, False), (600.0, True)])
def test_query_ends_at_timeout_or_disconnect(
    local: FeatureStore, seconds: float, is_gone: bool
) -> None:
    request = Retrieval.model_validate({"read": {"kind": "featuregroup", "name": "numbers"}})
    ended = []

    async def is_disconnected() -> bool:
        return is_gone and bool(_RUNNING_QUERIES)

    producer = ChunkProducer(
        stream_chunks(endless(local), request),
        interrupt=local.session.engine.interrupt,
        is_disconnected=is_disconnected,
        seconds=seconds,
        cleanup=lambda: ended.append(True),
    )
    with pytest.raises(QueryEnded):
        asyncio.run(producer.begin())
    assert ended == [True]
    assert not _RUNNING_QUERIES


def test_page_query_over_time_limit_returns_503(
    local: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FeatureGroup, "read", lambda *_, **__: endless(local))
    app = create_app(local, ServerSettings(query_seconds=0.3))
    client = TestClient(app, base_url="http://localhost")
    page = client.get("/groups/numbers/1/rows")
    assert page.status_code == 503
    assert "cancelled after 0.3 seconds" in page.text
    response = client.get("/api/v1/featuregroups/numbers/1/rows")
    assert (response.status_code, response.json()["title"]) == (503, "QueryEnded")
    assert "--query-seconds" in response.json()["hint"]
    assert not _RUNNING_QUERIES


def files_in(folder: Path) -> int:
    """Return the number of open files of this process in a folder, including deleted ones."""
    result = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            result += str(link.readlink()).startswith(str(folder))
    return result


def test_client_disconnect_removes_temporary_files(
    remote: FeatureStore, address: str, token: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    host, port = address.removeprefix("http://").split(":")
    read = {"kind": "features", "features": ["numbers@v1.text", "numbers@v1.x"], "uploaded": True}
    body = b"".join(request_body({"read": read, "batch_rows": 100}, labels(20_000).to_reader()))
    head = f"POST /api/v1/rows HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert b"200 OK" in connection.recv(1000)
        assert files_in(tmp_path) > 0
    until = time.monotonic() + 60
    while files_in(tmp_path) and time.monotonic() < until:
        time.sleep(0.05)
    assert files_in(tmp_path) == 0
    # The private folder of the user stays.
    assert [path.name for path in tmp_path.iterdir()] in ([], [f"featurestore-{os.getuid()}"])
    assert not _RUNNING_QUERIES
    assert remote.get_featuregroup("numbers", version=2).count() == 10


def test_remote_labels_and_rows_are_streamed(local: FeatureStore, remote: FeatureStore) -> None:
    rows = iter(remote.get_featuregroup("numbers", version=1).to_batches(rows=100))
    assert next(rows).num_rows == 100
    del rows  # the rest is not requested
    many = labels(5_000)
    frame = remote.get_features(["numbers@v1.x"], labels=many).to_arrow()
    assert frame.column("k").equals(many.column("k"))


def test_remote_labels_are_sent_by_client_with_many_open_files(remote: FeatureStore) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1_400:
        pytest.skip(f"this process may open {hard} files only")
    with contextlib.ExitStack() as open_files:
        open_files.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1_400), hard))
        while open_files.enter_context(Path("/dev/null").open("rb")).fileno() < 1_100:
            pass
        frame = remote.get_features(["numbers@v1.x"], labels=labels(5_000))
        assert frame.count() == 5_000


def test_aborted_response_raises_server_unavailable(tmp_path: Path) -> None:
    table = pa.table({"x": list(range(1000))})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=100):
            writer.write_batch(batch)
    content = sink.getvalue().to_pybytes()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def send_truncated() -> None:
            for end in (len(content) // 2, len(content) - 8):
                connection, _ = listening.accept()
                connection.recv(65_536)
                chunk = content[:end]
                connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                connection.sendall(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
                connection.close()

        thread = threading.Thread(target=send_truncated)
        thread.start()
        client = HttpClient(f"http://127.0.0.1:{listening.getsockname()[1]}", token="t")
        for _ in range(2):
            with pytest.raises(ServerUnavailable, match="was aborted"):
                client.rows({}).read_all()
        thread.join()


def test_rows_request_oversized_or_damaged_is_refused(
    remote: FeatureStore, address: str, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def post_rows(body: Iterable[bytes]) -> tuple[int, str]:
        connection = http.client.HTTPConnection(address.removeprefix("http://"))
        headers = {"Authorization": f"Bearer {token}", "Content-Type": RETRIEVAL}
        connection.request("POST", "/api/v1/rows", b"".join(body), headers)
        response = connection.getresponse()
        with contextlib.closing(connection):
            return response.status, response.read().decode()

    read = {"kind": "features", "features": ["numbers@v1.x"], "uploaded": True}
    offsets = np.array([0, 1 << 30, 4], np.int32)  # a text that ends far beyond the letters
    columns = [None, pa.py_buffer(offsets), pa.py_buffer(b"abcd")]
    wild = pa.table({"k": pa.Array.from_buffers(pa.string(), 2, columns)})
    assert post_rows(request_body({"read": read}, wild.to_reader()))[0] == 400
    garbage = post_rows([json.dumps({"read": read}).encode(), b"\nno stream"])
    assert garbage[0] == 400
    assert "not an Arrow stream" in garbage[1]
    assert post_rows([b'{"read": {"kind": "folder"}}\n'])[0] == 400
    monkeypatch.setattr(uploads, "_MAX_LINE_BYTES", 1000)
    assert post_rows([b"x" * 100_000])[0] == 400


def test_upload_over_limit_is_refused(local: FeatureStore, token: str) -> None:
    frame_of = [f"numbers@v1.{name}" for name in ("x", "text")]
    with (
        served(local, upload=100_000) as address,
        featurestore.connect(address, token=token) as store,
    ):
        frame = store.get_features(frame_of, labels=labels(1_000_000))
        with pytest.raises(ServerUnavailable, match="Rows too long"):
            frame.to_arrow()
        assert store.get_features(frame_of, labels=labels(100)).count() == 100


def test_remote_training_dataset_is_read_and_downloaded(
    local: FeatureStore, remote: FeatureStore, token: str, tmp_path: Path
) -> None:
    local_dataset = local.get_training_dataset("wins")
    dataset = remote.get_training_dataset("wins")
    assert (dataset.manifest, dataset.tags, dataset.description) == (
        local_dataset.manifest, {"team": "a"}, "Who wins",
    )  # fmt: skip
    assert [str(handle) for handle in remote.get_training_datasets()] != []
    assert remote.get_latest_training_dataset_version("wins") == 1
    assert remote.get_latest_training_dataset_version("win") == 0
    assert dataset.read("train").to_arrow().equals(local_dataset.read("train").to_arrow())
    assert dataset.statistics("train").to_json() == local_dataset.statistics("train").to_json()
    assert dataset.verify() == local_dataset.verify()
    assert dataset.roles == local_dataset.roles
    copy = dataset.download(tmp_path / "wins")
    assert copy.verify().ok
    assert copy.read("train").to_arrow().equals(local_dataset.read("train").to_arrow())
    for refused in (
        lambda: dataset.reader("train", global_batch_size=2),
        lambda: dataset.matrix("train"),
        lambda: dataset.path_of("train"),
    ):
        with pytest.raises(UnsupportedRemotely, match=r"dataset\.download\("):
            refused()
    assert isinstance(dataset, RemoteTrainingDataset)
    for path in ("../../../registry.db", "manifest.json.tmp", "train"):
        with pytest.raises((TrainingDatasetNotFound, ServerUnavailable)):
            list(dataset.client.file_chunks(f"/training-datasets/wins/1/files/{path}"))
    with pytest.raises(TrainingDatasetNotFound, match="not found or not allowed"):
        remote.get_training_dataset("pays")


def test_download_resumes_after_broken_connection(
    remote: FeatureStore, address: str, token: str, tmp_path: Path
) -> None:
    """Each connection breaks after some bytes."""
    dataset = remote.get_training_dataset("wins")
    most = 30_000
    size = max(shard.bytes for split in dataset.manifest.splits for shard in split.shards)
    assert size > 2 * most
    with cutting(address, most) as (cut, requests):
        client = HttpClient(cut, token=token)
        through = RemoteTrainingDataset(dataset.path, dataset.manifest, client=client)
        through.download(tmp_path / "wins")
    assert featurestore.TrainingDataset.open(tmp_path / "wins").verify().ok
    offsets = [int(offset) for offset in re.findall(r"[Rr]ange: bytes=(\d+)-", "".join(requests))]
    assert len(offsets) >= 2
    assert all(offsets)


@contextmanager
def cutting(address: str, most: int) -> Iterator[tuple[str, list[str]]]:
    """Yield a proxy address that forwards some bytes of each response, and its requests."""
    host, port = address.removeprefix("http://").split(":")
    requests: list[str] = []

    def serve(connection: socket.socket) -> None:
        with connection, socket.create_connection((host, int(port))) as server:
            request = connection.recv(65_536)
            requests.append(request.decode())
            server.sendall(request.replace(cut.encode(), f"{host}:{port}".encode()))
            passed = 0
            while passed < most and (chunk := server.recv(min(65_536, most - passed))):
                connection.sendall(chunk)
                passed += len(chunk)

    def listen() -> None:
        while True:
            connection, _ = listening.accept()
            if ended.is_set():
                connection.close()
                return
            threading.Thread(target=serve, args=(connection,)).start()

    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        cut = f"127.0.0.1:{listening.getsockname()[1]}"
        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield f"http://{cut}", requests
        finally:
            ended.set()
            socket.create_connection(listening.getsockname()).close()
            thread.join()


def test_command_line_accepts_server_address(
    local: FeatureStore,
    address: str,
    token: str,
    tmp_path: Path,
    command_line: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run_json(location: str, *words: str) -> Any:
        printed = command_line("--location", location, *words, "--output", "json").out
        return json.loads(printed)

    monkeypatch.setenv("FEATURESTORE_TOKEN", token)
    for words in (
        ("fg", "show", "numbers@v1"),
        ("fg", "head", "numbers", "-n", "2"),
        ("fg", "history", "numbers@v1"),
        ("fg", "stats", "numbers@v1"),
        ("td", "list"),
        ("features", "get", "numbers@v1.x", "-n", "3"),
    ):
        local_output, remote_output = run_json(local.location, *words), run_json(address, *words)
        if words == ("td", "list"):
            local_output = [item for item in local_output if item["name"] != "pays"]
        assert remote_output == local_output, words
    shown = run_json(address, "td", "show", "wins")
    assert (
        shown["transformations"]
        == run_json(local.location, "td", "show", "wins")["transformations"]
    )
    groups = run_json(address, "fg", "list")
    assert groups == [group for group in run_json(local.location, "fg", "list") if group in groups]
    assert len(groups) == 2
    out = str(tmp_path / "rows.parquet")
    assert run_json(address, "features", "get", "numbers@v1.x", "--out", out)["rows"] == 20_000
    explained = ("features", "get", "numbers.x", "--explain")
    result = command_line("--location", address, *explained, code=1)
    assert f"{address}/basket?feature=numbers.x" in result.err
    monkeypatch.delenv("FEATURESTORE_TOKEN")
    assert "signed in" in command_line("--location", address, "fg", "list", code=1).err
    assert run_json(address, "--token", token, "fg", "list") == groups


def test_remote_writes_pass_validation(
    capsys: pytest.CaptureFixture[str], local: FeatureStore, remote: FeatureStore, address: str
) -> None:
    changes.add_user(local.session, ROOT, "wil", role="writer")
    writes, _ = changes.make_token(local.session, ROOT, "wil", scope="write")
    reads, _ = changes.make_token(local.session, ROOT, "wil", scope="read")
    first = pa.table({"k": range(5), "at": [NOON] * 5, "x": [0.5] * 5, "box": [[1.0, 2.0]] * 5})
    second = pa.table({"k": [4, 5], "at": [NOON] * 2, "x": [9.0, 8.0], "box": [[0.0, 0.0]] * 2})
    declared: dict[str, Any] = {"primary_key": "k", "event_time": "at", "ttl": timedelta(days=2)}
    with featurestore.connect(address, token=writes) as writer:
        new_group = writer.create_featuregroup(first, "made", tags={"team": "b"}, **declared)
        assert local.featuregroup("made")._details() == new_group._details()
        assert new_group._details()["ttl"] == "2d"
        assert writer.create_featuregroup(first, "made", **declared).version == 1
        assert "version 1 already has this definition" in capsys.readouterr().out
        with pytest.raises(FeatureGroupExists, match="exists, with version 1"):
            writer.create_featuregroup(first, "made", if_exists="error")
        commit = writer.insert_into_featuregroup(
            second, "made", mode="upsert", transaction=("a", 1)
        )
        assert commit == local.get_featuregroup_history("made")[0]
        again = new_group.insert(second, mode="upsert", transaction=("a", 1))
        assert (again.applied, again.delta_version) == (False, commit.delta_version)
        assert local.get_featuregroup("made").count() == 6
        assert writer.get_or_create_featuregroup(first, "made", **declared).version == 1
        doubled = pa.concat_tables([second, second])
        compared = {"column": "k", "feature": "salaries.k"}
        in_salaries = {"type": "expect_column_values_to_be_in_feature", "kwargs": compared}
        for error, ask in (
            (DuplicateKeys, lambda: new_group.insert(doubled, mode="upsert")),
            (
                SchemaMismatch,
                lambda: new_group.insert(second.rename_columns(["k", "at", "y", "box"])),
            ),
            (FeatureGroupExists, lambda: writer.create_featuregroup(first, "made", version=1)),
            (InvalidArgument, lambda: writer.create_featuregroup(first, "other", primary_kye="k")),
            (InvalidSql, lambda: writer.delete_from_featuregroup("made", "(select 1) = 1")),
            (FeatureGroupNotFound, lambda: writer.insert_into_featuregroup(first, "salaries")),
            (FeatureGroupNotFound, lambda: writer.create_featuregroup(first, "salaries")),
            (
                InvalidExpectation,  # as for a missing group
                lambda: writer.create_featuregroup(first, "other", expectations=[in_salaries]),
            ),
            (
                FeatureGroupNotFound,
                lambda: writer.create_featuregroup(first, "other", inputs=["salaries"]),
            ),
        ):
            with pytest.raises(error):
                ask()
        assert local.get_featuregroup_history("made")[0] == commit
        copied = writer.get_featuregroup("made", dataframe_type="pandas")
        writer.create_featuregroup(copied, "copied", inputs=new_group)
        [made_of] = local.get_featuregroup_history("copied")[0].inputs.values()
        assert (made_of["featuregroup"], made_of["version"]) == ("made", 1)
        deleted = writer.delete_from_featuregroup("made", "x < 1 and k != 0")
        assert (deleted.rows, deleted.rows_out) == (3, 3)
        writer.add_featuregroup_tag("made", "tier", "gold")
        writer.remove_featuregroup_tag("made", "team")
        assert local.get_featuregroup_tags("made") == {"tier": "gold"}
    with featurestore.connect(address, token=reads) as reader:
        for store in (reader, remote):
            for forbidden in (
                lambda store=store: store.create_featuregroup(first, "mine"),
                lambda store=store: store.insert_into_featuregroup(first, "made"),
                lambda store=store: store.delete_from_featuregroup("made", "true"),
                lambda store=store: store.add_featuregroup_tag("made", "a", "b"),
            ):
                with pytest.raises(NotAllowed, match="role writer"):
                    forbidden()
    assert local.get_featuregroup("made").count() == 3
    with local.session.registry.reading() as connection:
        logged = [entry for entry in audit_log.entries(connection, limit=100) if entry.who == "wil"]
    actions = [
        "create",
        "create",
        "insert",
        "insert",
        "create",
        "create",
        "delete rows",
        "tag",
        "tag",
    ]
    assert sorted(entry.action for entry in logged) == sorted(actions)
    assert {entry.subject for entry in logged} == {"made", "made@v1", "copied"}
    local.delete_featuregroup("copied", version=1)
    group = local.featuregroup("made")
    commits = dict.fromkeys([1, commit.delta_version, deleted.delta_version], "wil")
    assert commit_authors(local, group, group.history()) == commits
    local.delete_featuregroup("made", version=1)
    again = local.create_featuregroup(first, "made", **declared)
    assert commit_authors(local, again, again.history()) == {}
    local.delete_featuregroup("made", version=1)


@pytest.mark.parametrize("record_type", [Commit, Match, DatasetProblem, VerifyReport])
def test_record_as_other_release_reads_or_raises(record_type: Any) -> None:
    arguments = {field.name: field.name for field in fields(record_type)}
    assert parse_record(record_type, {**arguments, "told_by_newer_servers": 1}) == record_type(
        **arguments
    )
    del arguments[fields(record_type)[0].name]
    with pytest.raises(ServerUnavailable, match=record_type.__name__) as refused:
        parse_record(record_type, arguments)
    assert "pip install --upgrade" in str(refused.value.hint)
