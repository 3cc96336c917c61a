"""Iceberg tables of AWS Glue, by moto's server, which has a data catalog and buckets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pytest

pytest.importorskip("pyiceberg")
pytest.importorskip("moto.server")
from featurestore.errors import InvalidArgument, SourceTableNotFound, SourceUnavailable
from featurestore.plugins.source import SourceConfig, find_source
from featurestore.store import FeatureStore

if TYPE_CHECKING:
    from pyiceberg.catalog.glue import GlueCatalog
    from pyiceberg.table import Table

REGION, KEY, SECRET = "eu-central-1", "glue-access-key", "glue-secret-key-7a20"
ORDERS = pa.table({"id": [1, 2], "total": [12.5, 99.0]})


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def client(endpoint: str) -> GlueCatalog:
    """A client of pyiceberg, which writes into a new bucket."""
    import boto3
    from pyiceberg.catalog.glue import GlueCatalog

    bucket = f"lake-{uuid4().hex[:8]}"
    names = {"region_name": REGION, "aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
    boto3.client("s3", endpoint_url=endpoint, **names).create_bucket(
        Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": REGION}
    )
    properties = {"region": REGION, "access-key-id": KEY, "secret-access-key": SECRET}
    return GlueCatalog(
        "writer",
        warehouse=f"s3://{bucket}",
        **{f"client.{name}": value for name, value in properties.items()},
        **{"glue.endpoint": endpoint, "s3.endpoint": endpoint},
    )


@pytest.fixture
def table(client: GlueCatalog) -> Table:
    """A table with two rows, in a database with a new name."""
    namespace = f"sales_{uuid4().hex[:8]}"
    client.create_namespace(namespace)
    created = client.create_table(f"{namespace}.orders", schema=ORDERS.schema)
    created.append(ORDERS)
    return created


@pytest.fixture
def store(
    endpoint: str, duckdb_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> FeatureStore:
    monkeypatch.setenv("GLUE_SECRET", SECRET)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "of-the-environment")
    options = {"aws_endpoint_url": endpoint, "aws_access_key_id": KEY}
    duckdb_store.add_source("lake", f"glue://{REGION}", secret="env:GLUE_SECRET", options=options)
    return duckdb_store


def test_glue_tables_are_read_at_their_snapshots(table: Table, store: FeatureStore) -> None:
    name = ".".join(table.name())
    first = table.current_snapshot().snapshot_id
    table.append(ORDERS.slice(0, 1).set_column(0, "id", [[3]]))
    # The properties of a table are untrusted: they do not change where its files are read. The
    # writer uses them, so that it cannot read the table after its commit.
    with pytest.raises(OSError, match=r"127\.0\.0\.1:1"), table.transaction() as changes:
        changes.set_properties({"s3.endpoint": "http://127.0.0.1:1"})
    assert name in [each.name for each in store.check_source("lake").tables]
    frame = store.read_source("lake", table=name)
    assert sorted(frame.to_arrow()["id"].to_pylist()) == [1, 2, 3]
    assert store.read_source("lake", table=name, at=first).count() == 2
    group = store.create_featuregroup(frame, "orders", primary_key="id")
    (read,) = group.history()[0].inputs.values()
    assert read["source"] == "source:lake"
    assert read["snapshot"].startswith(f"{name} snapshot ")
    for path in Path(store.location).rglob("*"):
        assert SECRET.encode() not in (path.read_bytes() if path.is_file() else b"")


def test_other_tables_of_glue_are_not_listed(
    client: GlueCatalog, table: Table, store: FeatureStore
) -> None:
    namespace = table.name()[0]
    plain = {"Name": "plain", "StorageDescriptor": {"Location": "s3://b/plain"}, "Parameters": {}}
    client.glue.create_table(DatabaseName=namespace, TableInput=plain)
    tables = [each.name for each in store.check_source("lake").tables]
    assert f"{namespace}.orders" in tables
    assert f"{namespace}.plain" not in tables
    for name in ("plain", "order"):
        with pytest.raises(SourceTableNotFound, match=rf"unknown table '{namespace}\.{name}'"):
            store.read_source("lake", table=f"{namespace}.{name}")


def test_feature_groups_are_registered_in_glue(client: GlueCatalog, store: FeatureStore) -> None:
    schema = f"features_{uuid4().hex[:8]}"
    store.create_featuregroup([{"id": 1}], "trips", iceberg=True)
    assert store.register_in("lake", schema=schema).created == (f"{schema}.trips",)
    location = client.glue.get_table(DatabaseName=schema, Name="trips")["Table"]["Parameters"][
        "metadata_location"
    ]
    store.insert_into_featuregroup([{"id": 2}], "trips")
    assert store.register_in("lake", schema=schema).updated == (f"{schema}.trips",)
    assert store.register_in("lake", schema=schema).unchanged == (f"{schema}.trips",)
    table = client.glue.get_table(DatabaseName=schema, Name="trips")["Table"]
    assert table["Parameters"]["metadata_location"] != location
    store.delete_featuregroup("trips", version=1)
    assert store.register_in("lake", schema=schema).removed == (f"{schema}.trips",)
    assert client.list_tables(schema) == []


def test_glue_options_are_checked(endpoint: str) -> None:
    def source(uri: str, secret: str | None = None, **options: str) -> Any:
        reference = None if secret is None else lambda: secret
        return find_source("glue")(SourceConfig("lake", uri, options, reference))

    with pytest.raises(InvalidArgument, match="is not a region"):
        source("glue://user@host/x")
    with pytest.raises(InvalidArgument, match="Unknown options 'profile'"):
        source(f"glue://{REGION}", profile="admin")
    with pytest.raises(InvalidArgument, match="only one of access key and secret"):
        source(f"glue://{REGION}", aws_access_key_id="key")
    # The credentials of the environment are not sent to another address.
    with pytest.raises(InvalidArgument, match="needs an access key"):
        source(f"glue://{REGION}", aws_endpoint_url=endpoint)
    unreachable = source(
        f"glue://{REGION}",
        "secret-0815",
        aws_access_key_id="key",
        aws_endpoint_url="http://127.0.0.1:1",
    )
    with pytest.raises(SourceUnavailable) as refused:
        unreachable.snapshot().tables()
    assert "0815" not in f"{refused.value!r} {refused.value}"
