"""Folders and Delta tables in buckets and on HDFS as sources."""

from __future__ import annotations

import gzip
import os
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyarrow import parquet

from featurestore.errors import (
    ConfigurationError,
    FeatureStoreError,
    InvalidArgument,
    SourceChanged,
    SourceError,
    SourceTableNotFound,
    SourceUnavailable,
)
from featurestore.plugins.source import Source, SourceConfig, SourceQuery, find_source
from featurestore.storage import storage_for
from featurestore.storage.connections import object_store_for, use_options_for_owner
from featurestore.store import FeatureStore
from featurestore.testing.source_conformance import SourceConformance
from tests.hdfs_server import HdfsServer
from tests.http_server import serve
from tests.object_server import ACCESS_KEY, SECRET_KEY, ObjectServer
from tests.sources.source_writers import SOURCE_WRITERS

Put = Callable[[str, bytes], None]

ORDERS = b"id,total\n1,12.5\n2,99.0\n"
JSON_ORDERS = b'{"id": 1, "total": 12.5}\n{"id": 2, "total": 99.0}\n'
SOAK_FORMATS = [pytest.param(name, marks=pytest.mark.soak) for name in ("csv", "json lines")]


@pytest.fixture
def bucket(object_server: ObjectServer) -> str:
    return object_server.new_bucket(f"lake-{uuid4().hex[:12]}")


@pytest.fixture
def options(object_server: ObjectServer) -> dict[str, str]:
    """Return the options of a source without its secret."""
    result = {}
    for name, value in object_server.options.items():
        if "secret" not in name:
            result[name] = value
    return result


@pytest.fixture
def put(bucket: str, object_server: ObjectServer) -> Put:
    """Write an object into the bucket with another client."""
    location = use_options_for_owner(bucket, "writer", object_server.options)

    def write(name: str, data: bytes) -> None:
        storage_for(location).write_atomically(f"{location}/{name}", data)

    return write


@pytest.fixture
def lake(
    empty_store: FeatureStore,
    bucket: str,
    options: dict[str, str],
    put: Put,
    monkeypatch: pytest.MonkeyPatch,
) -> FeatureStore:
    """A store with a folder source in the bucket, with its own secret."""
    monkeypatch.setenv("LAKE_SECRET", SECRET_KEY)
    put("raw/a%20b/orders.csv", ORDERS)
    put("raw/gz/orders.csv.gz", gzip.compress(ORDERS))
    put("raw/json/orders.jsonl", JSON_ORDERS)
    put("raw/_temporary/orders.csv", b"half a")
    put("raw2/orders.csv", ORDERS)
    empty_store.add_source("lake", f"{bucket}/raw/", secret="env:LAKE_SECRET", options=options)
    return empty_store


class TestSourcesOnS3(SourceConformance):
    # The values of a format do not depend on the storage: two formats in every run.
    @pytest.fixture(autouse=True, params=["parquet", "delta", *SOAK_FORMATS])
    def _configure(
        self,
        request: pytest.FixtureRequest,
        bucket: str,
        options: dict[str, str],
        put: Put,
    ) -> None:
        self.storage_format = request.param
        self.bucket, self.options, self.put = bucket, options, put

    def source(self, rows: pa.Table, directory: Path) -> tuple[Source, SourceQuery]:
        _, query = SOURCE_WRITERS[self.storage_format](rows, directory)
        for path in directory.rglob("*"):
            if path.is_file():
                self.put(f"a lake/{path.relative_to(directory)}", path.read_bytes())
        uri, source_type = f"{self.bucket}/a lake", "file"
        if self.storage_format == "delta":
            uri, source_type = f"delta+{uri}/orders", "delta"
        inputs = dict(self.options)
        if self.storage_format == "csv":
            inputs["format"] = "csv"
        config = SourceConfig("shop", uri, inputs, lambda: SECRET_KEY)
        return find_source(source_type)(config), query


def test_bucket_folder_is_readable_and_secret_hidden(
    lake: FeatureStore,
) -> None:
    report = lake.check_source("lake")
    assert report.ok, report.problems
    assert [table.name for table in report.tables] == ["a%20b", "gz", "json"]
    for path in ("a%20b", "a%20b/orders.csv", "gz/", "json"):
        assert lake.read_source("lake", path=path).to_arrow()["total"].to_pylist() == [12.5, 99.0]
    group = lake.create_featuregroup(
        lake.read_source("lake", path="gz"), "orders", primary_key="id"
    )
    (read,) = group.history()[0].inputs.values()
    assert (read["source"], read["rows"]) == ("source:lake", 2)
    external = lake.create_external_featuregroup(
        "outside", source="lake", path="a%20b", primary_key="id"
    )
    assert lake.get_features([f"{external.name}.total"]).count() == 2
    for path in Path(lake.location).rglob("*"):
        assert not path.is_file() or SECRET_KEY.encode() not in path.read_bytes()


def test_path_outside_bucket_folder_is_refused(
    lake: FeatureStore, subtests: pytest.Subtests
) -> None:
    for path in ("../raw2", "a%20b/../../raw2", "/..", "a//b"):
        with (
            subtests.test(path),
            pytest.raises(InvalidArgument, match="is outside of the source"),
        ):
            lake.read_source("lake", path=path)


def test_changed_objects_during_read_raise(bucket: str, options: dict[str, str], put: Put) -> None:
    put("raw/orders.csv", ORDERS)
    config = SourceConfig("lake", f"{bucket}/raw", options, lambda: SECRET_KEY)
    snapshot = find_source("file")(config).snapshot()
    reader = snapshot.read(SourceQuery())
    put("raw/orders.csv", ORDERS.replace(b"99", b"98"))
    with pytest.raises(SourceChanged):
        reader.read_all()
    snapshot.close()


def test_delta_source_reads_versions_from_bucket(
    empty_store: FeatureStore,
    bucket: str,
    object_server: ObjectServer,
    options: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from deltalake import write_deltalake

    table, settings = f"{bucket}/orders", {**object_server.options, "aws_allow_http": "true"}
    for number in range(3):
        rows = pa.table({"id": [number]})
        write_deltalake(table, rows, mode="append", storage_options=settings)
    monkeypatch.setenv("LAKE_SECRET", SECRET_KEY)
    empty_store.add_source("table", f"delta+{table}", secret="env:LAKE_SECRET", options=options)
    assert empty_store.read_source("table", at=1).count() == 2
    assert empty_store.read_source("table", at=datetime.now(UTC)).count() == 3
    with pytest.raises(FeatureStoreError, match="Latest version: 2"):
        empty_store.read_source("table", at=7)


def test_unreachable_bucket_error_hides_secret(
    lake: FeatureStore, bucket: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_SECRET", "another-secret-pass-0815-word")
    with pytest.raises(SourceUnavailable, match="rejects the user") as caught:
        lake.read_source("lake", path="gz")
    assert "pass-0815-word" not in f"{caught.value!r} {caught.value}"
    monkeypatch.setenv("LAKE_SECRET", SECRET_KEY)
    for name, uri in {"nothing": f"{bucket}/absent", "no_bucket": "s3://no-such-bucket/x"}.items():
        lake.add_source(name, uri, secret="env:LAKE_SECRET", options=options)
        with pytest.raises(SourceUnavailable):
            lake.read_source(name)


def test_add_source_refuses_invalid_storage_options(
    empty_store: FeatureStore, tmp_path: Path
) -> None:
    add = empty_store.add_source
    with pytest.raises(ConfigurationError, match=r"Unknown option 'aws_regoin' in options="):
        add("a", "s3://lake/raw", options={"aws_regoin": "eu-west-1"})
    for arguments in ({"secret": "env:X"}, {"options": {"aws_access_key_id": ACCESS_KEY}}):
        with pytest.raises(InvalidArgument, match="only one of access key and secret"):
            add("a", "s3://lake/raw", **arguments)
    with pytest.raises(InvalidArgument, match="Available: 'format'"):
        add("a", str(tmp_path), options={"aws_region": "eu-west-1"})
    with pytest.raises(InvalidArgument, match="would be stored"):
        add("a", "s3://lake/raw", options={"aws_session_token": "t"})
    assert empty_store.get_sources() == []


@pytest.fixture
def recording_server() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server that records the headers of all requests and refuses them."""
    request_headers: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            request_headers.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(403)
            self.end_headers()

        do_HEAD = do_GET  # noqa: N815  # the library's name

        def log_message(self, *_: Any) -> None: ...

    with serve(Handler) as port:
        yield f"http://127.0.0.1:{port}", request_headers


def test_custom_endpoint_gets_no_environment_credentials(
    empty_store: FeatureStore,
    recording_server: tuple[str, list[dict[str, str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address, request_headers = recording_server
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-4711")
    monkeypatch.setenv("LAKE_SECRET", "of-the-source")
    add, options = empty_store.add_source, {"aws_endpoint_url": address}
    add("unsigned", "s3://lake/raw", options=options)
    options = {**options, "aws_access_key_id": "its-own"}
    add("signed", "s3://lake/raw", secret="env:LAKE_SECRET", options=options)
    for name in ("unsigned", "signed"):
        with pytest.raises(SourceUnavailable, match="403"):
            empty_store.read_source(name)
    signatures = [headers.get("authorization") for headers in request_headers]
    assert None in signatures
    assert any("its-own" in signature for signature in signatures if signature)
    assert ACCESS_KEY not in f"{request_headers}"
    assert "token-4711" not in f"{request_headers}"


def test_hdfs_folder_is_a_source(
    empty_store: FeatureStore, hdfs_server: HdfsServer, tmp_path: Path
) -> None:
    location = f"{hdfs_server.root}/lake-{uuid4().hex[:8]}"
    storage = storage_for(location)
    rows = pa.table({"id": [1, 2], "total": [12.5, 99.0]})
    parquet.write_table(rows, tmp_path / "rows.parquet")
    storage.write_atomically(
        f"{location}/a b/rows.parquet", (tmp_path / "rows.parquet").read_bytes()
    )
    storage.write_atomically(f"{location}/csv/orders.csv.gz", gzip.compress(ORDERS))
    storage.write_atomically(f"{location}/json/orders.jsonl", JSON_ORDERS)
    # The user of HDFS is that of the environment, or of its ticket.
    with pytest.raises(InvalidArgument, match="Kerberos ticket"):
        empty_store.add_source("lake", location)
    empty_store.add_source("lake", location, secret="environment")
    assert empty_store.check_source("lake").ok
    for path in ("a b", "csv", "json"):
        assert empty_store.read_source("lake", path=path).to_arrow().equals(rows)
    with pytest.raises(InvalidArgument, match="Unknown options 'aws_region'"):
        empty_store.add_source(
            "other", location, secret="environment", options={"aws_region": "eu"}
        )


def put_table(path: Path, location: str) -> None:
    """Copy a local table to HDFS."""
    for file in sorted(path.rglob("*")):
        if file.is_file() and not file.name.startswith("."):
            name = file.relative_to(path).as_posix()
            storage_for(location).write_atomically(f"{location}/{name}", file.read_bytes())


def test_delta_source_reads_versions_from_hdfs(
    empty_store: FeatureStore,
    hdfs_server: HdfsServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from deltalake import DeltaTable, write_deltalake

    path, location = tmp_path / "table", f"{hdfs_server.root}/lake-{uuid4().hex[:8]}/orders"
    rows = pa.table({"id": [1, 2, 3], "city": ["a/b c%", "é", "é"]})
    write_deltalake(path, rows, partition_by=["city"])
    write_deltalake(path, pa.table({"id": [4], "city": ["x"]}), mode="append")
    DeltaTable(path).delete("id = 2")
    put_table(path, location)
    # Files of other versions are not downloaded; they may be large or missing.
    old_file = sorted(set(DeltaTable(path, 1).file_uris()) - set(DeltaTable(path).file_uris()))[0]
    storage, name = object_store_for(f"{location}/{old_file.removeprefix(f'{path}/')}")
    assert storage.remove(name)
    empty_store.add_source("orders", f"delta+{location}", secret="environment")
    assert empty_store.check_source("orders").ok
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    features = empty_store.read_source("orders").to_arrow().sort_by("id")
    assert features.to_pydict() == {"id": [1, 3, 4], "city": ["a/b c%", "é", "x"]}
    frame = empty_store.read_source("orders", at=0, columns=["city"])
    with pytest.raises(SourceError, match="version 0"):
        frame.to_arrow()
    # The private folder of the user stays.
    private_folder = tmp_path / "temporary" / f"featurestore-{os.getuid()}"
    assert os.listdir(tmp_path / "temporary") in ([], [private_folder.name])
    assert not private_folder.exists() or os.listdir(private_folder) == []
    with pytest.raises(SourceTableNotFound, match="Latest version: 2"):
        empty_store.read_source("orders", at=7)
    empty_store.create_external_featuregroup("orders", source="orders", primary_key="id")
    assert empty_store.get_featuregroup("orders").count() == 3
