"""Delta and Iceberg tables of Unity Catalog.

Unity Catalog's own server is not in the registries that tests use. ``UnityHandler`` returns the
documented responses of the endpoints that a reading client calls; tables and buckets are real.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from featurestore.errors import (
    InvalidArgument,
    SourceError,
    SourceTableNotFound,
    SourceUnavailable,
)
from featurestore.plugins.source import Source, SourceConfig, SourceQuery, find_source
from featurestore.store import FeatureStore
from featurestore.testing.source_conformance import SourceConformance
from tests.http_server import serve
from tests.object_server import ACCESS_KEY, SECRET_KEY, ObjectServer

API = "/api/2.1/unity-catalog/"
CATALOG_TOKEN = "dapi-token-6c1e"


class UnityHandler(BaseHTTPRequestHandler):
    """A catalog with the tables in ``locations``, by schema and name.

    ``registered`` are the bodies of the requests that registered tables, ``schemas`` the created
    schemas. ``vended`` are credentials other than those of S3, and ``iceberg`` the responses of the
    Iceberg REST service by schema and name.
    """

    locations: ClassVar[dict[str, str]] = {}
    registered: ClassVar[dict[str, dict[str, Any]]] = {}
    schemas: ClassVar[set[str]] = set()
    formats: ClassVar[dict[str, str]] = {}
    credentials: ClassVar[dict[str, str]] = {}
    vended: ClassVar[dict[str, dict[str, str]]] = {}
    iceberg: ClassVar[dict[str, dict[str, Any]] | None] = None
    iceberg_path: ClassVar[str] = "iceberg-rest"
    redirect: ClassVar[str | None] = None

    def do_GET(self) -> None:
        self._respond(b"")

    def do_POST(self) -> None:
        self._respond(self.rfile.read(int(self.headers["Content-Length"])))

    def do_DELETE(self) -> None:
        name = self.path.removeprefix(f"{API}tables/main.")
        if self.headers["Authorization"] != f"Bearer {CATALOG_TOKEN}":
            self._send(401, {})
            return
        del self.locations[name], self.registered[name]
        self.send_response(200)  # with an empty body, like some servers
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _respond(self, body: bytes) -> None:
        if self.redirect is not None:
            self.send_response(302)
            self.send_header("Location", self.redirect)
            self.end_headers()
            return
        if self.headers["Authorization"] != f"Bearer {CATALOG_TOKEN}":
            self._send(401, {"message": f"bad token {self.headers['Authorization']}"})
            return
        url = urlsplit(self.path)
        query, path = dict(parse_qsl(url.query)), url.path.removeprefix(API)
        if path in ("schemas", "tables") and body:
            self._create(path, json.loads(body))
        elif path.startswith("schemas/"):
            self._send(200 if path.removeprefix("schemas/main.") in self.schemas else 404, {})
        elif path == "schemas":
            names = sorted({name.split(".")[0] for name in self.locations})
            self._page("schemas", [{"name": name} for name in names], query)
        elif path == "tables":
            tables = [self._table(name) for name in sorted(self.locations)]
            schema_tables = [
                table for table in tables if table["schema_name"] == query["schema_name"]
            ]
            self._page("tables", schema_tables, query)
        elif path == "temporary-table-credentials":
            assert json.loads(body)["operation"] == "READ"
            credentials = {"aws_temp_credentials": self.credentials, **self.vended}
            self._send(200, {**credentials, "expiration_time": 1})
        elif self.iceberg is not None and path.startswith(f"{self.iceberg_path}/v1/"):
            self._load_iceberg(path.removeprefix(f"{self.iceberg_path}/v1/"), query)
        else:
            name = path.removeprefix("tables/main.")
            if name in self.locations:
                self._send(200, self._table(name))
            else:
                self._send(404, {"error_code": "NOT_FOUND"})

    def _create(self, path: str, body: dict[str, Any]) -> None:
        """Create a schema or a table from the documented fields, all of which are required."""
        assert body["catalog_name"] == "main"
        if path == "schemas":
            self.schemas.add(body["name"])
            self._send(200, body)
            return
        assert set(body) - {"comment"} == {
            "name", "catalog_name", "schema_name", "table_type", "data_source_format", "columns",
            "storage_location", "properties",
        }  # fmt: skip
        assert (body["table_type"], body["data_source_format"]) == ("EXTERNAL", "DELTA")
        name = f"{body['schema_name']}.{body['name']}"
        if body["schema_name"] not in self.schemas:
            self._send(404, {"error_code": "SCHEMA_NOT_FOUND"})
        elif name in self.locations:
            self._send(409, {"error_code": "TABLE_ALREADY_EXISTS"})
        else:
            self.locations[name], self.registered[name] = body["storage_location"], body
            self._send(200, body)

    def _load_iceberg(self, path: str, query: dict[str, str]) -> None:
        """Respond as the Iceberg REST service of the catalog."""
        assert self.iceberg is not None
        if path == "config":
            assert query == {"warehouse": "main"}
            self._send(200, {"defaults": {}, "overrides": {"prefix": "catalogs/main"}})
            return
        assert self.headers["X-Iceberg-Access-Delegation"] == "vended-credentials"
        _, schema, _, name = path.removeprefix("catalogs/main/").split("/")
        self._send(200, self.iceberg[f"{schema}.{name}"])

    def _table(self, full_name: str) -> dict[str, Any]:
        schema, name = full_name.split(".")
        return {
            **self.registered.get(full_name, {}),
            "name": name,
            "catalog_name": "main",
            "schema_name": schema,
            "table_type": "EXTERNAL",
            "data_source_format": self.formats.get(full_name, "DELTA"),
            "storage_location": self.locations[full_name],
            "table_id": full_name,
        }

    def _page(self, collection: str, rows: list[Any], query: dict[str, str]) -> None:
        """Send one object for each page."""
        first = int(query.get("page_token", 0))
        following = str(first + 1) if first + 1 < len(rows) else ""
        self._send(200, {collection: rows[first : first + 1], "next_page_token": following})

    def _send(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def catalog() -> Iterator[tuple[str, type[UnityHandler]]]:
    """The URI of a catalog, and its handler, whose tables a test sets."""
    empty: dict[str, Any] = {"locations": {}, "formats": {}, "credentials": {}}
    empty |= {"registered": {}, "schemas": set(), "vended": {}}
    handler = type("Handler", (UnityHandler,), empty)
    with serve(handler) as port:
        yield f"unity://127.0.0.1:{port}/main?tls=false", handler


def unity(uri: str, secret: str | None = CATALOG_TOKEN, **options: str) -> Source:
    reference = None if secret is None else lambda: secret
    return find_source("unity")(SourceConfig("lake", uri, options, reference))


class TestUnity(SourceConformance):
    @pytest.fixture(autouse=True)
    def _catalog(self, catalog: tuple[str, type[UnityHandler]]) -> None:
        self.uri, self.handler = catalog

    def source(self, rows: pa.Table, directory: Path) -> tuple[Source, SourceQuery]:
        write_deltalake(directory / "orders", rows)
        self.handler.locations["sales.orders"] = f"file://{directory}/orders/"
        return unity(self.uri, folder=str(directory)), SourceQuery(table="sales.orders")


def test_unity_tables_are_read_with_vended_credentials(
    catalog: tuple[str, type[UnityHandler]],
    empty_store: FeatureStore,
    object_server: ObjectServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uri, handler = catalog
    bucket = object_server.new_bucket(f"unity-{uuid4().hex[:8]}")
    settings = {**object_server.options, "aws_allow_http": "true"}
    for number in range(2):
        rows = pa.table({"id": [number], "total": [1.5]})
        write_deltalake(f"{bucket}/orders", rows, mode="append", storage_options=settings)
    handler.locations.update(
        {"sales.orders": f"{bucket}/orders/", "sales.other": "s3://b/o", "zoo.csv": "s3://b/i"}
    )
    handler.formats["zoo.csv"] = "CSV"
    handler.credentials.update(access_key_id=ACCESS_KEY, secret_access_key=SECRET_KEY)
    monkeypatch.setenv("LAKE_TOKEN", CATALOG_TOKEN)
    options = {"aws_endpoint_url": object_server.endpoint, "aws_region": "us-east-1"}
    empty_store.add_source("lake", uri, secret="env:LAKE_TOKEN", options=options)
    report = empty_store.check_source("lake")
    assert [table.name for table in report.tables] == ["sales.orders", "sales.other"]
    (problem,) = report.problems
    assert problem.startswith("Table 'sales.other'")  # a location that does not exist
    assert empty_store.read_source("lake", table="sales.orders", at=0).count() == 1
    frame = empty_store.read_source("lake", table="sales.orders", columns=["id"])
    group = empty_store.create_featuregroup(frame, "orders", primary_key="id")
    (read,) = group.history()[0].inputs.values()
    assert (read["source"], read["rows"]) == ("source:lake", 2)
    assert read["snapshot"] == "sales.orders version 1"
    for path in Path(empty_store.location).rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert SECRET_KEY.encode() not in content
        assert CATALOG_TOKEN.encode() not in content
    handler.credentials["secret_access_key"] = "wrong-vended-secret-0815"
    with pytest.raises(SourceUnavailable, match=r"'sales\.orders'") as caught:
        empty_store.read_source("lake", table="sales.orders")
    assert "0815" not in f"{caught.value!r} {caught.value}"


def test_unity_refusals_name_the_table(
    catalog: tuple[str, type[UnityHandler]], tmp_path: Path
) -> None:
    uri, handler = catalog
    handler.locations.update(
        {
            "a.web": "https://evil/table",
            "a.user": "s3://key@bucket/table",
            "a.unvended": "s3://bucket/table",
            "a.missing": f"file://{tmp_path}/missing",
            "a.iceberg": f"{tmp_path}",
            "a.csv": f"{tmp_path}",
            "a.gs": "gs://bucket/table",
            "a.azure": "abfss://files@shop.dfs.core.windows.net/table",
            "a.china": "abfss://files@shop.dfs.core.chinacloudapi.cn/table",
        }
    )
    handler.formats |= {"a.iceberg": "ICEBERG", "a.csv": "CSV"}
    snapshot = unity(uri, folder=str(tmp_path)).snapshot()
    for name, message in {
        "web": "neither a local path",
        "user": "neither a local path",
        "unvended": "no credentials",
        "iceberg": "has no Iceberg REST service",
        "csv": "has the format CSV",
        "gs": "no credentials",
        "azure": "no credentials",
        "china": "neither a local path",
    }.items():
        with pytest.raises(SourceError, match=message) as refused:
            snapshot.schema(SourceQuery(table=f"a.{name}"))
        assert f"'a.{name}'" in str(refused.value)
    with pytest.raises(SourceTableNotFound, match=r"'a\.missing'.*is not a Delta table"):
        snapshot.schema(SourceQuery(table="a.missing"))
    with pytest.raises(SourceTableNotFound, match=r"unknown table 'a\.wib'.*'a\.web'"):
        snapshot.schema(SourceQuery(table="a.wib"))
    snapshot.close()


def test_unity_token_is_sent_to_its_address_only(
    catalog: tuple[str, type[UnityHandler]], monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, handler = catalog
    for secret in ("wrong-token-0815", None):
        with pytest.raises(SourceUnavailable, match="rejects the user") as refused:
            unity(uri, secret).snapshot().tables()
        assert "0815" not in f"{refused.value!r} {refused.value}"
    handler.redirect = "http://127.0.0.1:1/elsewhere"
    with pytest.raises(SourceUnavailable, match="status 302"):
        unity(uri).snapshot().tables()
    for invalid in ("unity://host", "unity://me@host/main", "unity://host/main?tls=false"):
        with pytest.raises(InvalidArgument):
            unity(invalid)
