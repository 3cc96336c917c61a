"""Iceberg, Delta and Parquet tables of AWS Glue, by moto's server, which has a data catalog and buckets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

pytest.importorskip("pyiceberg")
pytest.importorskip("moto.server")
from featurestore.errors import (
    FeatureStoreError,
    InvalidArgument,
    InvalidSourceFile,
    SourceError,
    SourceTableNotFound,
    SourceUnavailable,
)
from featurestore.plugins.engine import TimeRange
from featurestore.plugins.source import SourceConfig, SourceQuery, find_source
from featurestore.store import FeatureStore
from tests.object_server import free_port, wait_for

if TYPE_CHECKING:
    from pyiceberg.catalog.glue import GlueCatalog
    from pyiceberg.table import Table

REGION, KEY, SECRET = "eu-central-1", "glue-access-key", "glue-secret-key-7a20"
ORDERS = pa.table({"id": [1, 2], "total": [12.5, 99.0]})


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    # The Delta kernel holds the lock of the interpreter while it waits for a response, so the
    # server is another process.
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(port, process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=20)


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


def config_of(endpoint: str) -> SourceConfig:
    options = {"aws_endpoint_url": endpoint, "aws_access_key_id": KEY}
    return SourceConfig("lake", f"glue://{REGION}", options, lambda: SECRET)


@pytest.fixture
def lake_store(
    endpoint: str, empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> FeatureStore:
    monkeypatch.setenv("GLUE_SECRET", SECRET)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "of-the-environment")
    options = {"aws_endpoint_url": endpoint, "aws_access_key_id": KEY}
    empty_store.add_source("lake", f"glue://{REGION}", secret="env:GLUE_SECRET", options=options)
    return empty_store


def test_glue_tables_are_read_at_their_snapshots(table: Table, lake_store: FeatureStore) -> None:
    name = ".".join(table.name())
    first = table.current_snapshot().snapshot_id
    table.append(ORDERS.slice(0, 1).set_column(0, "id", [[3]]))
    # The properties of a table are untrusted: they do not change where its files are read. The
    # writer uses them, so that it cannot read the table after its commit.
    with pytest.raises(OSError, match=r"127\.0\.0\.1:1"), table.transaction() as changes:
        changes.set_properties({"s3.endpoint": "http://127.0.0.1:1"})
    assert name in [table.name for table in lake_store.check_source("lake").tables]
    frame = lake_store.read_source("lake", table=name)
    assert sorted(frame.to_arrow()["id"].to_pylist()) == [1, 2, 3]
    assert lake_store.read_source("lake", table=name, at=first).count() == 2
    group = lake_store.create_featuregroup(frame, "orders", primary_key="id")
    (read,) = group.history()[0].inputs.values()
    assert read["source"] == "source:lake"
    assert read["snapshot"].startswith(f"{name} snapshot ")
    for path in Path(lake_store.location).rglob("*"):
        assert SECRET.encode() not in (path.read_bytes() if path.is_file() else b"")


def add_table(
    client: GlueCatalog,
    name: str,
    location: str,
    *,
    partition_keys: dict[str, str] | None = None,
    partitions: dict[str, list[str]] | None = None,
    **described: Any,
) -> None:
    """Add a table to the database ``name.split(".")[0]``, as Glue's own clients do."""
    database, table = name.split(".")
    keys = [{"Name": key, "Type": key_type} for key, key_type in (partition_keys or {}).items()]
    storage = {"Location": location, **described.pop("StorageDescriptor", {})}
    description = {"Name": table, "StorageDescriptor": storage, "PartitionKeys": keys, **described}
    client.glue.create_table(DatabaseName=database, TableInput=description)
    for folder, values in (partitions or {}).items():
        client.glue.create_partition(
            DatabaseName=database,
            TableName=table,
            PartitionInput={"Values": values, "StorageDescriptor": {"Location": folder}},
        )


def upload(endpoint: str, folder: Path, location: str) -> str:
    """Copy the files of a folder to a location in a bucket, and return it."""
    import boto3

    bucket, _, prefix = location.removeprefix("s3://").partition("/")
    names = {"region_name": REGION, "aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
    s3 = boto3.client("s3", endpoint_url=endpoint, **names)
    for path in folder.rglob("*"):
        if path.is_file():
            s3.upload_file(str(path), bucket, f"{prefix}/{path.relative_to(folder)}")
    return location


PARQUET = {
    "StorageDescriptor": {
        "InputFormat": "org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat",
        "SerdeInfo": {
            "SerializationLibrary": "org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe"
        },
    },
    "Parameters": {"classification": "parquet"},
}


def test_delta_tables_of_glue_are_read_at_their_versions(
    endpoint: str, client: GlueCatalog, table: Table, lake_store: FeatureStore, tmp_path: Path
) -> None:
    database = table.name()[0]
    warehouse = client.properties["warehouse"]
    for rows in (ORDERS, ORDERS.slice(0, 1)):
        write_deltalake(tmp_path / "delta", rows, mode="append")
    location = upload(endpoint, tmp_path / "delta", f"{warehouse}/delta")
    # Crawlers and native tables of Athena describe Delta tables by parameters.
    add_table(client, f"{database}.crawled", location, Parameters={"classification": "delta"})
    # Spark writes a placeholder as the location of such a table.
    spark = {"Parameters": {"spark.sql.sources.provider": "delta"}}
    path = {"StorageDescriptor": {"SerdeInfo": {"Parameters": {"path": location}}}}
    add_table(client, f"{database}.spark", f"{warehouse}/x-__PLACEHOLDER__", **spark, **path)
    for name in (f"{database}.crawled", f"{database}.spark"):
        assert name in [table.name for table in lake_store.check_source("lake").tables]
        assert lake_store.read_source("lake", table=name, columns=["id"]).count() == 3
        assert lake_store.read_source("lake", table=name, at=0).count() == 2
    frame = lake_store.read_source("lake", table=f"{database}.spark")
    group = lake_store.create_featuregroup(frame, "orders")
    (read,) = group.history()[0].inputs.values()
    assert (read["source"], read["snapshot"]) == ("source:lake", f"{database}.spark version 1")
    with pytest.raises(SourceTableNotFound, match=rf"'{database}\.spark'.*version 7"):
        lake_store.read_source("lake", table=f"{database}.spark", at=7).count()


def test_parquet_tables_of_glue_have_the_rows_of_registered_partitions(
    endpoint: str, client: GlueCatalog, table: Table, lake_store: FeatureStore, tmp_path: Path
) -> None:
    database = table.name()[0]
    root = f"{client.properties['warehouse']}/parquet"
    start = datetime(2024, 1, 1, tzinfo=UTC)
    for day in range(4):
        folder = tmp_path / "rows" / (f"day=2024-01-0{day + 1}" if day < 3 else "late")
        folder.mkdir(parents=True)
        times = pa.array([start + timedelta(days=day)], pa.timestamp("us", tz="UTC"))
        # Athena writes files without an extension.
        pq.write_table(pa.table({"id": [day], "at": times}), folder / "20240101_090000_00012_abcde")
        (folder / "_SUCCESS").touch()
    upload(endpoint, tmp_path / "rows", root)
    name = f"{database}.events"
    registered = {f"{root}/day=2024-01-0{day}": [f"2024-01-0{day}"] for day in (1, 2)}
    registered[f"{root}/late/"] = ["2024-02-01"]
    keys = {"partition_keys": {"day": "date"}, "partitions": registered}
    add_table(client, name, f"{root}/", **keys, **PARQUET)
    assert name in [table.name for table in lake_store.check_source("lake").tables]
    frame = lake_store.read_source("lake", table=name)
    assert frame.schema.field("day").type == pa.date32()
    rows = sorted(frame.to_arrow().to_pylist(), key=lambda row: row["id"])
    # The partition day=2024-01-03 is not registered, so its files are not rows of the table.
    assert [(row["id"], str(row["day"])) for row in rows] == [
        (0, "2024-01-01"), (1, "2024-01-02"), (3, "2024-02-01"),
    ]  # fmt: skip
    group = lake_store.create_featuregroup(frame, "events", primary_key="id", event_time="at")
    (read,) = group.history()[0].inputs.values()
    assert read["snapshot"].startswith(f"{name} files ")
    snapshot = find_source("glue")(config_of(endpoint)).snapshot()
    window = TimeRange("at", start, start + timedelta(days=1), "left")
    query = SourceQuery(table=name, columns=("id",), window=window)
    assert snapshot.read(query).read_all().to_pydict() == {"id": [0]}
    snapshot.close()
    with pytest.raises(InvalidArgument, match=rf"Table '{database}\.events': at=0: Parquet files"):
        lake_store.read_source("lake", table=name, at=0).count()

    outside = {f"{client.properties['warehouse']}/elsewhere/d": ["2024-01-01"]}
    add_table(
        client, f"{database}.outside", root, partition_keys={"day": "date"}, partitions=outside,
        **PARQUET,
    )  # fmt: skip
    with pytest.raises(
        SourceError, match=rf"'{database}\.outside': the partition .*outside of the"
    ):
        lake_store.read_source("lake", table=f"{database}.outside").count()
    add_table(client, f"{database}.empty", f"{root}/nothing", **PARQUET)
    with pytest.raises(FeatureStoreError, match=rf"'{database}\.empty'"):
        lake_store.read_source("lake", table=f"{database}.empty").count()


def test_columns_of_glue_that_parquet_files_lack_are_null(
    endpoint: str, client: GlueCatalog, table: Table, lake_store: FeatureStore, tmp_path: Path
) -> None:
    """The partition has the value, else the column is null; a column that no one knows is refused."""
    name = f"{table.name()[0]}.events"
    root = f"{client.properties['warehouse']}/evolved"
    # The names of the catalog have no upper case.
    first = {"Id": [1], "total": pa.array([1.5], pa.float32())}
    files = [first, {"Id": [2]}, {"Id": [3], "total": [0.1], "kind": ["x"]}]
    for day, columns in enumerate(files, start=1):
        folder = tmp_path / "rows" / f"day={day}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table(columns), folder / "a.parquet")
    upload(endpoint, tmp_path / "rows", root)
    types = {
        "id": "bigint", "total": "double", "kind": "varchar(9)", "paid": "decimal(10,2)",
        "at": "timestamp", "odd": "map<string,int>",
    }  # fmt: skip
    columns = [{"Name": column, "Type": hive_type} for column, hive_type in types.items()]
    described = {
        **PARQUET,
        "StorageDescriptor": {**PARQUET["StorageDescriptor"], "Columns": columns},
    }
    partitions = {f"{root}/day={day}": [str(day)] for day in (1, 2, 3)}
    keys = {"partition_keys": {"day": "int"}, "partitions": partitions}
    add_table(client, name, root, **keys, **described)
    query = SourceQuery(table=name)
    snapshot = find_source("glue")(config_of(endpoint)).snapshot()
    rows = sorted(snapshot.read(query).read_all().to_pylist(), key=lambda row: row["day"])
    snapshot.close()
    nothing = {"total": None, "kind": None, "paid": None, "at": None}
    assert rows == [
        {**nothing, "Id": 1, "total": 1.5, "day": 1},
        {**nothing, "Id": 2, "day": 2},
        {**nothing, "Id": 3, "total": 0.1, "kind": "x", "day": 3},
    ]
    add_table(client, f"{name}_2", root, **keys, **PARQUET)
    snapshot = find_source("glue")(config_of(endpoint)).snapshot()
    with pytest.raises(InvalidSourceFile, match=r"day=2/a\.parquet lacks the columns 'total'"):
        snapshot.read(replace(query, table=f"{name}_2"))
    snapshot.close()


def test_other_tables_of_glue_are_not_listed(
    client: GlueCatalog, table: Table, lake_store: FeatureStore
) -> None:
    namespace = table.name()[0]
    symlinks = {"InputFormat": "org.apache.hadoop.hive.ql.io.SymlinkTextInputFormat"}
    unlisted_tables: dict[str, tuple[str, dict[str, Any]]] = {
        "plain": ("unknown", {}),
        "csv": ("csv", {"Parameters": {"classification": "csv"}}),
        # Their files contain rows that are not in the table.
        "hudi": ("hudi", {**PARQUET, "Parameters": {"spark.sql.sources.provider": "hudi"}}),
        "links": ("SymlinkTextInputFormat", {**PARQUET, "StorageDescriptor": symlinks}),
    }
    for name, (_, described) in unlisted_tables.items():
        add_table(client, f"{namespace}.{name}", "s3://bucket/plain", **described)
    tables = [table.name for table in lake_store.check_source("lake").tables]
    assert f"{namespace}.orders" in tables
    for name, (table_format, _) in unlisted_tables.items():
        assert f"{namespace}.{name}" not in tables
        shown = "parquet" if name == "links" else table_format
        with pytest.raises(SourceError, match=rf"'{namespace}\.{name}' has the format {shown}"):
            lake_store.read_source("lake", table=f"{namespace}.{name}")
    web = {"StorageDescriptor": {"SerdeInfo": {"Parameters": {"path": "https://evil/table"}}}}
    delta = {"Parameters": {"classification": "delta"}}
    add_table(client, f"{namespace}.web", "s3://bucket/plain", **web, **delta)
    with pytest.raises(SourceError, match=rf"'{namespace}\.web': the location 'https://evil"):
        lake_store.read_source("lake", table=f"{namespace}.web")
    for name in ("order", "orders.x"):
        with pytest.raises(SourceTableNotFound, match=rf"unknown table '{namespace}\.{name}'"):
            lake_store.read_source("lake", table=f"{namespace}.{name}")


def test_feature_groups_are_registered_in_glue(
    client: GlueCatalog, lake_store: FeatureStore
) -> None:
    schema = f"features_{uuid4().hex[:8]}"
    lake_store.create_featuregroup([{"id": 1}], "trips", iceberg=True)
    assert lake_store.register_in("lake", schema=schema).created == (f"{schema}.trips",)
    location = client.glue.get_table(DatabaseName=schema, Name="trips")["Table"]["Parameters"][
        "metadata_location"
    ]
    lake_store.insert_into_featuregroup([{"id": 2}], "trips")
    assert lake_store.register_in("lake", schema=schema).updated == (f"{schema}.trips",)
    assert lake_store.register_in("lake", schema=schema).unchanged == (f"{schema}.trips",)
    table = client.glue.get_table(DatabaseName=schema, Name="trips")["Table"]
    assert table["Parameters"]["metadata_location"] != location
    lake_store.delete_featuregroup("trips", version=1)
    assert lake_store.register_in("lake", schema=schema).removed == (f"{schema}.trips",)
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
    # The credentials of the environment are not used, and not sent to another address.
    with pytest.raises(InvalidArgument, match="AWS credentials of this machine"):
        source(f"glue://{REGION}")
    with pytest.raises(InvalidArgument, match="AWS credentials of this machine"):
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
