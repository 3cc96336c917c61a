"""Tables of Unity Catalog in Google Cloud Storage and Azure, with the credentials that it vends."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlencode
from uuid import uuid4

import duckdb
import hypothesis.strategies as st
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given

pytest.importorskip("pyiceberg")
from featurestore.errors import (
    FeatureStoreError,
    SourceError,
    SourceTableNotFound,
    SourceUnavailable,
)
from featurestore.storage.objects import ObjectStorage
from featurestore.store import FeatureStore
from featurestore_connectors.sources import locations
from featurestore_connectors.sources.iceberg_catalogs import TableFiles
from tests import gcs_server as gcs
from tests.azure_server import ACCOUNT, ACCOUNT_KEY, AzureServer
from tests.gcs_server import GcsServer
from tests.http_server import serve
from tests.object_server import ACCESS_KEY, SECRET_KEY, ObjectServer
from tests.sources.test_unity_catalog import CATALOG_TOKEN, UnityHandler

GOOGLE_TOKEN = "ya29.vended-token-3f61"


@pytest.fixture
def catalog(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, type[UnityHandler]]]:
    """The URI of a catalog, and its handler, whose tables a test sets."""
    monkeypatch.setenv("LAKE_TOKEN", CATALOG_TOKEN)
    empty: dict[str, Any] = {"locations": {}, "formats": {}, "credentials": {}}
    empty |= {"registered": {}, "schemas": set(), "vended": {}, "iceberg": {}}
    handler = type("Handler", (UnityHandler,), empty)
    with serve(handler) as port:
        yield f"unity://127.0.0.1:{port}/main?tls=false", handler


@pytest.fixture
def guarded_bucket(gcs_server: GcsServer) -> Iterator[str]:
    """The address of the server, which accepts only requests with the vended token."""

    class Guarded(gcs._Handler):
        backend = gcs_server.backend
        uploads: ClassVar[dict[str, dict[int, bytes]]] = {}

        def _handle(self) -> None:
            if self.headers["Authorization"] == f"Bearer {GOOGLE_TOKEN}":
                super()._handle()
            else:
                self._respond(401, body=b"<Error><Code>AuthenticationRequired</Code></Error>")

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle  # noqa: N815

    with serve(Guarded) as port:
        yield f"http://127.0.0.1:{port}"


def upload(folder: Path, root: str, prefix: str, options: dict[str, str]) -> None:
    """Copy the files of a folder to a prefix in a bucket."""
    storage = ObjectStorage(root, options)
    for path in folder.rglob("*"):
        if path.is_file():
            storage.put_new(f"{prefix}/{path.relative_to(folder)}", path.read_bytes())


def delta_rows(folder: Path) -> Path:
    for number in range(2):
        write_deltalake(folder, pa.table({"id": [number], "total": [1.5]}), mode="append")
    return folder


def account_sas() -> str:
    """Return a token that allows to read the objects of the account for an hour."""
    expiry = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    fields = {"sp": "rl", "ss": "b", "srt": "sco", "st": "", "se": expiry, "sip": "", "spr": ""}
    text = "\n".join([ACCOUNT, *fields.values(), "2021-08-06", "", ""])
    signature = hmac.new(base64.b64decode(ACCOUNT_KEY), text.encode(), hashlib.sha256).digest()
    query = {name: value for name, value in fields.items() if value} | {"sv": "2021-08-06"}
    return urlencode({**query, "sig": base64.b64encode(signature).decode()})


def assert_no_secret(store: FeatureStore, *secrets: str) -> None:
    for path in Path(store.location).rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        for secret in secrets:
            assert secret.encode() not in content


@pytest.mark.xdist_group("gs")
def test_unity_delta_table_is_read_with_vended_google_token(
    catalog: tuple[str, type[UnityHandler]],
    gcs_server: GcsServer,
    guarded_bucket: str,
    empty_store: FeatureStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uri, handler = catalog
    # The settings of the environment belong to another identity.
    for name, value in gcs_server.environment.items():
        monkeypatch.setenv(name, value)
    bucket = gcs_server.new_bucket(f"unity-{uuid4().hex[:8]}")
    upload(delta_rows(tmp_path / "orders"), bucket, "orders", gcs_server.options)
    handler.locations["sales.orders"] = f"{bucket}/orders"
    handler.vended["gcp_oauth_token"] = {"oauth_token": GOOGLE_TOKEN}
    options = {"google_base_url": guarded_bucket}
    empty_store.add_source("lake", uri, secret="env:LAKE_TOKEN", options=options)
    assert empty_store.read_source("lake", table="sales.orders", at=0).count() == 1
    frame = empty_store.read_source("lake", table="sales.orders")
    group = empty_store.create_featuregroup(frame, "orders", primary_key="id")
    (read,) = group.history()[0].inputs.values()
    assert (read["rows"], read["snapshot"]) == (2, "sales.orders version 1")
    assert_no_secret(empty_store, GOOGLE_TOKEN, CATALOG_TOKEN)
    handler.vended["gcp_oauth_token"] = {"oauth_token": "wrong-vended-0815"}
    with pytest.raises(SourceUnavailable, match=r"'sales\.orders'") as caught:
        empty_store.read_source("lake", table="sales.orders")
    assert "0815" not in f"{caught.value!r} {caught.value}"


@pytest.mark.xdist_group("az")
@pytest.mark.parametrize("has_other_key", [True, False])
def test_unity_delta_table_is_read_with_vended_azure_sas(
    catalog: tuple[str, type[UnityHandler]],
    azure_server: AzureServer,
    empty_store: FeatureStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_other_key: bool,
) -> None:
    uri, handler = catalog
    # The account of the environment is not that of the table.
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "elsewhere")
    if has_other_key:
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", base64.b64encode(b"wrong").decode())
    container = azure_server.new_bucket(f"unity-{uuid4().hex[:8]}")
    upload(delta_rows(tmp_path / "orders"), container, "orders", azure_server.options)
    host = f"{ACCOUNT}.dfs.core.windows.net"
    location = f"abfss://{container.removeprefix('az://')}@{host}/orders"
    handler.locations["sales.orders"] = location
    sas = account_sas()
    handler.vended["azure_user_delegation_sas"] = {"sas_token": sas}
    options = {"azure_endpoint": azure_server.options["endpoint"]}
    empty_store.add_source("lake", uri, secret="env:LAKE_TOKEN", options=options)
    assert empty_store.read_source("lake", table="sales.orders", at=0).count() == 1
    frame = empty_store.read_source("lake", table="sales.orders")
    group = empty_store.create_featuregroup(frame, "orders", primary_key="id")
    (read,) = group.history()[0].inputs.values()
    assert (read["rows"], read["snapshot"]) == (2, "sales.orders version 1")
    signature = sas.rpartition("sig=")[2]
    assert_no_secret(empty_store, signature, CATALOG_TOKEN)
    wrong = sas.replace(signature, "d3Jvbmc0815")
    handler.vended["azure_user_delegation_sas"] = {"sas_token": wrong}
    with pytest.raises(SourceUnavailable, match=r"'sales\.orders'") as caught:
        empty_store.read_source("lake", table="sales.orders")
    assert "0815" not in f"{caught.value!r} {caught.value}"


def add_iceberg_table(
    handler: type[UnityHandler], folder: Path, warehouse: str, properties: dict[str, str]
) -> dict[str, Any]:
    """Add an Iceberg table with two rows, which pyiceberg writes; return its response."""
    from pyiceberg.catalog.sql import SqlCatalog

    uri = f"sqlite:///{folder}/writer.db"
    client = SqlCatalog("writer", uri=uri, warehouse=warehouse, **properties)
    client.create_namespace("sales")
    rows = pa.table({"id": [1, 2]})
    table = client.create_table("sales.orders", schema=rows.schema)
    table.append(rows)
    handler.locations["sales.orders"] = table.location()
    handler.formats["sales.orders"] = "ICEBERG"
    assert handler.iceberg is not None
    metadata = json.loads(table.metadata.model_dump_json())
    response = {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}
    handler.iceberg["sales.orders"] = response
    client.close()
    return response


@pytest.mark.parametrize("path", ["iceberg-rest", "iceberg"])
def test_unity_iceberg_table_is_read_by_its_rest_service(
    catalog: tuple[str, type[UnityHandler]],
    empty_store: FeatureStore,
    object_server: ObjectServer,
    tmp_path: Path,
    path: str,
) -> None:
    uri, handler = catalog
    handler.iceberg_path = path
    bucket = object_server.new_bucket(f"unity-{uuid4().hex[:8]}")
    vended = {"s3.access-key-id": ACCESS_KEY, "s3.secret-access-key": SECRET_KEY}
    server = {"s3.endpoint": object_server.endpoint, "s3.region": "us-east-1"}
    response = add_iceberg_table(handler, tmp_path, f"{bucket}/lake", {**vended, **server})
    response["config"] = vended
    options = {"aws_endpoint_url": object_server.endpoint, "aws_region": "us-east-1"}
    empty_store.add_source("main", uri, secret="env:LAKE_TOKEN", options=options)
    report = empty_store.check_source("main")
    assert ([table.name for table in report.tables], report.problems) == (["sales.orders"], ())
    frame = empty_store.read_source("main", table="sales.orders")
    group = empty_store.create_featuregroup(frame, "orders", primary_key="id")
    (read,) = group.history()[0].inputs.values()
    assert read["rows"] == 2
    assert re.fullmatch(r"sales\.orders snapshot \d+", read["snapshot"])
    snapshot = int(read["snapshot"].split()[-1])
    assert empty_store.read_source("main", table="sales.orders", at=snapshot).count() == 2
    with pytest.raises(SourceTableNotFound, match=r"'sales\.orders' has no snapshot at 7"):
        empty_store.read_source("main", table="sales.orders", at=7)
    assert_no_secret(empty_store, SECRET_KEY, CATALOG_TOKEN)
    response["config"] = {**vended, "s3.secret-access-key": "wrong-0815"}
    with pytest.raises(FeatureStoreError, match=r"'sales\.orders'") as caught:
        empty_store.read_source("main", table="sales.orders").count()
    assert "0815" not in f"{caught.value!r} {caught.value}"


@pytest.mark.xdist_group("gs")
def test_unity_iceberg_table_is_read_with_vended_google_token(
    catalog: tuple[str, type[UnityHandler]],
    gcs_server: GcsServer,
    guarded_bucket: str,
    empty_store: FeatureStore,
    tmp_path: Path,
) -> None:
    uri, handler = catalog
    bucket = gcs_server.new_bucket(f"unity-{uuid4().hex[:8]}")
    writer = {
        "gcs.service.host": f"http://127.0.0.1:{gcs_server.backend}",
        "gcs.oauth2.token": "writer",
        "gcs.oauth2.token-expires-at": "9999999999999",
    }
    response = add_iceberg_table(handler, tmp_path, f"{bucket}/lake", writer)
    response["config"] = {"gcs.oauth2.token": GOOGLE_TOKEN}
    options = {"google_base_url": guarded_bucket}
    empty_store.add_source("main", uri, secret="env:LAKE_TOKEN", options=options)
    rows = empty_store.read_source("main", table="sales.orders").to_arrow()
    assert sorted(rows["id"].to_pylist()) == [1, 2]
    response["config"] = {}
    with pytest.raises(SourceError, match=r"'sales\.orders': the catalog vends no credentials"):
        empty_store.read_source("main", table="sales.orders").count()


NAMES = st.from_regex(r"[a-z0-9][a-z0-9 ._=%-]{0,12}", fullmatch=True)
LOCATIONS = st.one_of(
    st.builds(lambda name: f"file:///data/{name}", NAMES),
    st.builds(lambda name: f"/data/{name}", NAMES),
    st.builds("{}://bucket/{}".format, st.sampled_from(["s3", "s3a", "s3n", "gs"]), NAMES),
    st.builds(
        "{}://files@{}.{}.core.windows.net/{}".format,
        st.sampled_from(["abfs", "abfss", "wasbs"]),
        st.from_regex(r"[a-z0-9]{3,12}", fullmatch=True),
        st.sampled_from(["dfs", "blob"]),
        NAMES,
    ),
)


@given(location=LOCATIONS)
def test_locations_in_delete_files_equal_paths_of_data_files(location: str) -> None:
    files = TableFiles("Source 'lake', table 't'", lambda *_: {}, folder="/data")
    path = files.locate(location)
    with duckdb.connect() as connection:
        query = f"select {files.sql_path('location')} from (select ? as location)"
        assert connection.execute(query, [location]).fetchone() == (path,)
    assert (locations.remove_owner(path) == path) == path.startswith("/")
