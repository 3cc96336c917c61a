"""Rows put into every kind of source."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from pyarrow import csv, parquet

from featurestore.plugins.source import Source, SourceConfig, SourceQuery, find_source

ORDERS = "create table orders (id {id}, customer {text}, total {float}, created_at {time})"


def opened(kind: str, uri: str, **options: str) -> Source:
    return find_source(kind)(SourceConfig("shop", uri, options))


def sqlite(rows: pa.Table, place: Path) -> tuple[Source, SourceQuery]:
    path = place / "shop.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(ORDERS.format(id="integer", text="text", float="real", time="timestamp"))
        values = []
        for row in rows.to_pylist():
            values.append((*list(row.values())[:3], row["created_at"].isoformat()))
        database.executemany("insert into orders values (?, ?, ?, ?)", values)
    return opened("sqlite", f"sqlite:///{path}"), SourceQuery(table="orders")


def duckdb_file(rows: pa.Table, place: Path) -> tuple[Source, SourceQuery]:
    path = place / "shop.duckdb"
    with duckdb.connect(str(path)) as database:
        database.register("given", rows)
        database.execute("create table orders as select * from given")
    return opened("duckdb", f"duckdb:///{path}"), SourceQuery(table="orders")


def parquet_folder(rows: pa.Table, place: Path) -> tuple[Source, SourceQuery]:
    (place / "orders").mkdir()
    parquet.write_table(rows.slice(0, 40), place / "orders" / "a[1].parquet")
    parquet.write_table(rows.slice(40), place / "orders" / "b.parquet")
    return opened("file", str(place)), SourceQuery(path="orders")


def csv_folder(rows: pa.Table, place: Path) -> tuple[Source, SourceQuery]:
    csv.write_csv(rows, place / "orders.csv")
    return opened("file", str(place), format="csv"), SourceQuery()


def json_lines(rows: pa.Table, place: Path) -> tuple[Source, SourceQuery]:
    with duckdb.connect() as database:
        database.register("given", rows)
        database.execute(f"copy (from given) to '{place}/orders.jsonl' (format json)")
    return opened("file", f"file://{place}"), SourceQuery(path="orders.jsonl")


def delta(rows: pa.Table, place: Path) -> tuple[Source, SourceQuery]:
    from deltalake import write_deltalake

    write_deltalake(place / "orders", rows)
    return opened("delta", f"delta+{place}/orders"), SourceQuery()


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
    return opened("postgresql", url), SourceQuery(table="orders")


PLACES: dict[str, Any] = {
    "sqlite": sqlite,
    "duckdb": duckdb_file,
    "parquet": parquet_folder,
    "csv": csv_folder,
    "json lines": json_lines,
    "delta": delta,
}
