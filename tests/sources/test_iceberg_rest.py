"""Tables of an Iceberg REST catalog: lists, pinned reads, vended credentials, refused locations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import pyarrow as pa
import pytest

pytest.importorskip("pyiceberg")
from featurestore.errors import SourceError, SourceTableNotFound, SourceUnavailable
from featurestore.plugins.source import SourceConfig, SourceQuery, find_source
from featurestore.storage import storage_for
from featurestore.storage.connections import use_options_for_owner
from featurestore.store import FeatureStore
from tests.maven import NotFetched
from tests.object_server import ACCESS_KEY, SECRET_KEY, ObjectServer
from tests.sources import iceberg_rest_server
from tests.sources.iceberg_rest_server import TOKEN, RestCatalogServer
from tests.sources.source_writers import ICEBERG_TYPES
from tests.sources.test_iceberg_tables import append_deletes, orders


@pytest.fixture(scope="module")
def catalog(
    tmp_path_factory: pytest.TempPathFactory, object_server: ObjectServer
) -> Iterator[RestCatalogServer]:
    vended = {
        "s3.endpoint": object_server.endpoint,
        "s3.region": "us-east-1",
        "s3.access-key-id": ACCESS_KEY,
        "s3.secret-access-key": SECRET_KEY,
    }
    try:
        with iceberg_rest_server.serving(tmp_path_factory.mktemp("catalog"), vended) as server:
            yield server
    except NotFetched as error:
        pytest.skip(f"Iceberg REST skipped: {error}")


@pytest.fixture
def table(catalog: RestCatalogServer) -> Any:
    """A new table of the catalog without rows."""
    from pyiceberg.schema import Schema

    client = catalog.client()
    client.create_namespace_if_not_exists("sales")
    fields = [
        {
            "id": number,
            "name": field.name,
            "required": False,
            "type": ICEBERG_TYPES[str(field.type)],
        }
        for number, field in enumerate(orders(0, 1).schema, start=1)
    ]
    schema = Schema.model_validate({"type": "struct", "fields": fields})
    return client.create_table(f"sales.orders_{uuid4().hex[:8]}", schema=schema)


@pytest.fixture
def lake(
    catalog: RestCatalogServer, empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> FeatureStore:
    monkeypatch.setenv("CATALOG_TOKEN", TOKEN)
    options = {"folder": str(Path(catalog.root).parent)}
    empty_store.add_source(
        "lake", f"iceberg+{catalog.uri}", secret="env:CATALOG_TOKEN", options=options
    )
    return empty_store


def name_of(table: Any) -> str:
    return ".".join(table.name())


def append(
    table: Any, rows: pa.Table, location: str, object_server: ObjectServer, tmp_path: Path
) -> None:
    """Append rows as one data file at a location in a bucket."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    local = tmp_path / f"{uuid4().hex}.parquet"
    ids = {field.name: field.field_id for field in table.schema().fields}
    listed = ", ".join(f"'{name}': {ids[name]}" for name in rows.schema.names)
    with duckdb.connect() as database:
        database.execute("set timezone = 'UTC'")
        database.register("given", rows)
        database.execute(f"copy given to '{local}' (format parquet, field_ids {{{listed}}})")
    put(local, location, object_server)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows.num_rows,
        file_size_in_bytes=local.stat().st_size,
        column_sizes={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        lower_bounds={},
        upper_bounds={},
    )
    with table.transaction() as changes, changes.update_snapshot().fast_append() as appended:
        appended.append_data_file(file)


def put(local: Path, location: str, object_server: ObjectServer) -> None:
    if re.match("s3a?://[^@]+$", location):
        uri = location.replace("s3a://", "s3://")
        path = use_options_for_owner(uri, "writer", object_server.options)
        storage_for(path).write_atomically(path, local.read_bytes())


def test_rest_catalog_tables_are_read_with_vended_credentials(
    lake: FeatureStore, table: Any, object_server: ObjectServer, tmp_path: Path
) -> None:
    bucket = object_server.new_bucket(f"ice-{uuid4().hex[:8]}")
    append(table, orders(0, 10), f"{bucket}/data/a[1].parquet", object_server, tmp_path)
    second = f"{bucket.replace('s3:', 's3a:')}/data/b.parquet"
    append(table, orders(10, 10), second, object_server, tmp_path)
    name = name_of(table)
    report = lake.check_source("lake")
    assert name in [table.name for table in report.tables]
    frame = lake.read_source("lake", table=name)
    assert sorted(frame.to_arrow()["id"].to_pylist()) == list(range(20))
    snapshot = table.refresh().current_snapshot().snapshot_id
    assert frame.reads[0].snapshot == f"{name} snapshot {snapshot}"
    first = table.metadata.snapshots[0].snapshot_id
    pinned = lake.read_source("lake", table=name, at=first)
    group = lake.create_featuregroup(pinned, "orders", primary_key="id", event_time="at")
    (read,) = group.history()[0].inputs.values()
    assert (read["source"], read["rows"]) == ("source:lake", 10)
    assert read["snapshot"] == f"{name} snapshot {first}"
    lake.create_external_featuregroup("outside", source="lake", table=name, primary_key="id")
    assert lake.get_features(["outside.customer"]).count() == 20
    # Rows that are deleted by position in a file of the bucket.
    deleted = tmp_path / "deletes.parquet"
    with duckdb.connect() as database:
        database.execute(
            f"copy (select '{second}' as file_path, unnest([0, 3]) as pos) to '{deleted}' (format "
            "parquet, field_ids {file_path: 2147483546, pos: 2147483545})"
        )
    append_deletes(table, deleted, rows=2)
    ids = lake.read_source("lake", table=name).to_arrow()["id"].to_pylist()
    assert sorted(ids) == [number for number in range(20) if number not in (10, 13)]
    for path in Path(lake.location).rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert SECRET_KEY.encode() not in content
        assert TOKEN.encode() not in content


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("https://evil/a.parquet", "neither a local path"),
        ("s3://key@bucket/a", "neither a local path"),
        ("gs://b/a", "vends no credentials"),
        ("abfss://b@shop.dfs.core.windows.net/a", "vends no credentials"),
    ],
)
def test_unsupported_location_of_catalog_is_refused_by_table(
    lake: FeatureStore,
    table: Any,
    object_server: ObjectServer,
    tmp_path: Path,
    location: str,
    reason: str,
) -> None:
    append(table, orders(0, 1), location, object_server, tmp_path)
    with pytest.raises(SourceError, match=rf"table '{name_of(table)}'.*{reason}"):
        lake.read_source("lake", table=name_of(table))


def test_rest_catalog_errors_hide_credentials(
    catalog: RestCatalogServer,
    lake: FeatureStore,
    table: Any,
    object_server: ObjectServer,
    tmp_path: Path,
) -> None:
    bucket = object_server.new_bucket(f"ice-{uuid4().hex[:8]}")
    append(table, orders(0, 10), f"{bucket}/a.parquet", object_server, tmp_path)
    (object_server.root / bucket.removeprefix("s3://") / "a.parquet").unlink()
    with pytest.raises(SourceError, match="no longer exists") as caught:
        lake.read_source("lake", table=name_of(table)).to_arrow()
    assert SECRET_KEY not in f"{caught.value!r} {caught.value}"
    with pytest.raises(SourceTableNotFound, match=f"unknown table 'sales.order'.*{name_of(table)}"):
        lake.read_source("lake", table="sales.order")
    for secret in (None, "wrong-token-0815"):
        reference = None if secret is None else (lambda: "wrong-token-0815")
        config = SourceConfig("lake", f"iceberg+{catalog.uri}", {}, reference)
        with pytest.raises(SourceUnavailable) as refused:
            find_source("iceberg")(config).snapshot().schema(SourceQuery(table="sales.orders"))
        assert "0815" not in f"{refused.value!r} {refused.value}"
