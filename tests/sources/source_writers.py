"""Rows stored in every kind of source."""

from __future__ import annotations

import io
import json
import sqlite3
import tarfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from pyarrow import csv, parquet

from featurestore.plugins.source import Source, SourceConfig, SourceQuery, find_source

COLUMNS = ("id", "customer", "total", "created_at")
ORDERS = "create table orders (id {id}, customer {text}, total {float}, created_at {time})"


def open_source(source_type: str, uri: str, **options: str) -> Source:
    return find_source(source_type)(SourceConfig("shop", uri, options))


def sqlite(rows: pa.Table, directory: Path) -> tuple[Source, SourceQuery]:
    path = directory / "shop.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(ORDERS.format(id="integer", text="text", float="real", time="timestamp"))
        values = []
        for row in rows.to_pylist():
            values.append((*list(row.values())[:3], row["created_at"].isoformat()))
        database.executemany("insert into orders values (?, ?, ?, ?)", values)
    return open_source("sqlite", f"sqlite:///{path}"), SourceQuery(table="orders")


def duckdb_file(rows: pa.Table, directory: Path) -> tuple[Source, SourceQuery]:
    path = directory / "shop.duckdb"
    with duckdb.connect(str(path)) as database:
        database.register("given", rows)
        database.execute("create table orders as select * from given")
    return open_source("duckdb", f"duckdb:///{path}"), SourceQuery(table="orders")


def parquet_folder(rows: pa.Table, directory: Path) -> tuple[Source, SourceQuery]:
    (directory / "orders").mkdir()
    parquet.write_table(rows.slice(0, 40), directory / "orders" / "a[1].parquet")
    parquet.write_table(rows.slice(40), directory / "orders" / "b.parquet")
    return open_source("file", str(directory)), SourceQuery(path="orders")


def csv_folder(rows: pa.Table, directory: Path) -> tuple[Source, SourceQuery]:
    (directory / "lake").mkdir()
    csv.write_csv(rows, directory / "lake" / "orders.csv")
    return open_source("file", str(directory / "lake"), format="csv"), SourceQuery()


def huggingface_folder(rows: pa.Table, directory: Path) -> tuple[Source, SourceQuery]:
    folder = directory / "orders"
    folder.mkdir()
    # Later files may have a dictionary of their own.
    customers = rows["customer"].dictionary_encode()
    rows = rows.set_column(1, "customer", customers)
    for name, part in {"data-0.arrow": rows.slice(0, 40), "data-1.arrow": rows.slice(40)}.items():
        with pa.ipc.new_stream(folder / name, rows.schema) as writer:
            writer.write_table(part.unify_dictionaries(), max_chunksize=30)
    with pa.ipc.new_stream(folder / "cache-5.arrow", rows.schema) as writer:
        writer.write_table(rows)
    names = [{"filename": "data-0.arrow"}, {"filename": "data-1.arrow"}]
    (folder / "state.json").write_text(json.dumps({"_data_files": names}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": None}))
    return open_source("file", str(directory)), SourceQuery(path="orders")


def webdataset_shards(rows: pa.Table, directory: Path) -> tuple[Source, SourceQuery]:
    (directory / "shards").mkdir()
    for number, part in enumerate((rows.slice(0, 40), rows.slice(40))):
        with tarfile.open(directory / "shards" / f"{number}.tar", "w") as archive:
            for position, row in enumerate(part.to_pylist()):
                members = {**row, "created_at": row["created_at"].isoformat()}
                content = json.dumps(members).encode()
                file = tarfile.TarInfo(f"orders/{position}.json")
                file.size = len(content)
                archive.addfile(file, io.BytesIO(content))
    # The keys are a column of their own.
    return open_source("file", str(directory)), SourceQuery(path="shards", columns=COLUMNS)


def json_lines(rows: pa.Table, directory: Path) -> tuple[Source, SourceQuery]:
    with duckdb.connect() as database:
        database.register("given", rows)
        database.execute(f"copy (from given) to '{directory}/orders.jsonl' (format json)")
    return open_source("file", f"file://{directory}"), SourceQuery(path="orders.jsonl")


def delta(rows: pa.Table, directory: Path) -> tuple[Source, SourceQuery]:
    from deltalake import write_deltalake

    write_deltalake(directory / "orders", rows)
    return open_source("delta", f"delta+{directory}/orders"), SourceQuery()


ICEBERG_TYPES = {
    "int32": "int",
    "int64": "long",
    "double": "double",
    "string": "string",
    "timestamp[us, tz=UTC]": "timestamptz",
}


def iceberg_table(directory: Path, schema: pa.Schema, *, name: str = "sales.orders") -> Any:
    """Create an Iceberg table in a SQLite catalog and return it."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.schema import Schema

    catalog = load_catalog(
        "shop",
        type="sql",
        uri=f"sqlite:///{directory}/catalog.db",
        warehouse=f"file://{directory}/lake",
    )
    catalog.create_namespace_if_not_exists(name.split(".")[0])
    fields = []
    for number, field in enumerate(schema, start=1):
        field_type = ICEBERG_TYPES[str(field.type)]
        fields.append({"id": number, "name": field.name, "required": False, "type": field_type})
    inputs = Schema.model_validate({"type": "struct", "fields": fields})
    return catalog.create_table(name, schema=inputs)


def iceberg_append(
    table: Any,
    rows: pa.Table,
    path: Path,
    *,
    partition: Sequence[object] = (),
    has_ids: bool = True,
    location: str | None = None,
) -> None:
    """Append rows as one file, whose columns have the ids of the table's, or only their names.

    ``location`` is that of the file in the manifest, if it is not its path.
    """
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    ids = {field.name: field.field_id for field in table.schema().fields}
    listed = ", ".join(f"'{name}': {ids[name]}" for name in rows.schema.names if has_ids)
    field_ids = f", field_ids {{{listed}}}" if listed else ""
    path.parent.mkdir(parents=True, exist_ok=True)
    with duckdb.connect() as database:
        database.execute("set timezone = 'UTC'")
        database.register("given", rows)
        database.execute(f"copy given to '{path}' (format parquet{field_ids})")
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location or f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=Record(*partition),
        record_count=rows.num_rows,
        file_size_in_bytes=path.stat().st_size,
        column_sizes={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        lower_bounds={},
        upper_bounds={},
    )
    file.spec_id = table.spec().spec_id
    with table.transaction() as changes, changes.update_snapshot().fast_append() as appended:
        appended.append_data_file(file)


def iceberg(rows: pa.Table, directory: Path) -> tuple[Source, SourceQuery]:
    table = iceberg_table(directory, rows.schema)
    iceberg_append(table, rows.slice(0, 40), directory / "lake" / "a[1].parquet")
    iceberg_append(table, rows.slice(40), directory / "lake" / "b.parquet")
    source = open_source(
        "iceberg",
        f"iceberg+sqlite:///{directory}/catalog.db",
        catalog="shop",
        folder=str(directory),
    )
    return source, SourceQuery(table="sales.orders")


def postgres(rows: pa.Table, url: str) -> tuple[Source, SourceQuery]:
    import psycopg

    with psycopg.connect(url, autocommit=True) as database:
        database.execute("drop table if exists orders")
        database.execute(
            ORDERS.format(id="bigint", text="text", float="float8", time="timestamptz")
        )
        with database.cursor().copy("copy orders from stdin") as copy:
            for row in rows.to_pylist():
                copy.write_row(tuple(row.values()))
    return open_source("postgresql", url), SourceQuery(table="orders")


def mysql(rows: pa.Table, port: int) -> tuple[Source, SourceQuery]:
    """Write rows to MySQL or MariaDB."""
    from tests.sources.mariadb_server import connect_as_root

    with connect_as_root(port) as database, database.cursor() as cursor:
        cursor.execute("drop database if exists shop")
        cursor.execute("create database shop character set utf8mb4")
        cursor.execute("use shop")
        cursor.execute(
            ORDERS.format(id="bigint", text="varchar(40)", float="double", time="datetime(6)")
        )
        values = []
        for row in rows.to_pylist():
            values.append((*list(row.values())[:3], row["created_at"].replace(tzinfo=None)))
        cursor.executemany("insert into orders values (%s, %s, %s, %s)", values)
    return open_source("mysql", f"mysql://root@127.0.0.1:{port}/shop"), SourceQuery(table="orders")


def sqlalchemy(rows: pa.Table, url: str) -> tuple[Source, SourceQuery]:
    """Write rows to Postgres, which stands for all SQLAlchemy dialects here."""
    _, query = postgres(rows, url)
    uri = url.replace("postgresql://", "sqlalchemy+postgresql+psycopg://")
    return open_source("sqlalchemy", uri), query


SOURCE_WRITERS: dict[str, Any] = {
    "sqlite": sqlite,
    "duckdb": duckdb_file,
    "parquet": parquet_folder,
    "csv": csv_folder,
    "json lines": json_lines,
    "hugging face": huggingface_folder,
    "webdataset": webdataset_shards,
    "delta": delta,
    "iceberg": iceberg,
}
