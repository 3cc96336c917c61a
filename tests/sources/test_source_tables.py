"""The tables of docs/how-to/sources.md are those of the sources."""

from __future__ import annotations

import datetime as dt
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from featurestore.errors import InvalidArgument
from featurestore.plugins import plugin_names
from featurestore.plugins.source import SourceQuery
from featurestore_connectors.sources.folders.options import ENDINGS, NAMES, FolderOptions
from tests.sources import source_tables
from tests.sources.source_writers import SOURCE_WRITERS

NOON = dt.datetime(2024, 1, 31, 12, tzinfo=dt.UTC)
ROWS = pa.table(
    {
        "id": range(80),
        "customer": ["a"] * 80,
        "total": [1.5] * 80,
        "created_at": pa.array([NOON] * 80, pa.timestamp("us", tz="UTC")),
    }
)
# The source of each kind in the table that runs without a server.
LOCAL = {"SQLite": "sqlite", "DuckDB": "duckdb", "files": "parquet", "Delta": "delta"}
LOCAL |= {"Iceberg": "iceberg"}


@pytest.mark.parametrize("name", source_tables.TABLES)
def test_documented_table_of_files_is_current(name: str) -> None:
    hint = "python -m tests.sources.source_tables writes it"
    assert source_tables.TABLES[name]() in source_tables.DOCS.read_text(encoding="utf-8"), hint


def rows_of(heading: str) -> list[list[str]]:
    """Return the cells of the table with a heading."""
    text = source_tables.DOCS.read_text(encoding="utf-8").partition(f"| {heading} |")[2]
    lines = text.partition("\n\n")[0].splitlines()[2:]
    return [line.strip("| ").split(" | ") for line in lines]


def test_documented_options_are_those_of_folders() -> None:
    rows = {name: row for row in rows_of("option") for name in re.findall(r"`(\w+)`", row[0])}
    assert sorted(rows) == sorted([*NAMES, "rename"])
    assert all(f'"{name}"' in rows["format"][1] for name in ENDINGS)
    defaults = FolderOptions()
    for name, text in {"encoding": "utf-8", "decimal": ".", "on_bad_rows": '"error"'}.items():
        assert getattr(defaults, name) == text.strip('"')
        assert f"`{text}`" in rows[name][2]


def test_every_scheme_of_sources_is_documented() -> None:
    uris = " ".join(row[1] for row in rows_of("kind"))
    schemes = set(re.findall(r"[`]([a-z]+)[+:]", uris))
    assert {*plugin_names("sources")} - {"kafka"} <= schemes


@pytest.mark.parametrize("kind", LOCAL)
def test_documented_arguments_are_those_that_sources_accept(kind: str, tmp_path: Path) -> None:
    source, query = SOURCE_WRITERS[LOCAL[kind]](ROWS, tmp_path)
    table = query.table or "orders"
    queries: dict[str, tuple[SourceQuery, Any]] = {
        "table": (SourceQuery(table=table), None),
        "sql": (SourceQuery(sql=f"select * from {table}"), None),
        "path": (SourceQuery(path="orders"), None),
        "at": (replace(query, at=dt.datetime.now(dt.UTC)), dt.datetime.now(dt.UTC)),
    }
    accepted = set()
    for argument, (candidate, instant) in queries.items():
        try:
            with closing(source.snapshot(instant)) as snapshot:
                assert snapshot.read(candidate).read_all().num_rows == 80
        except InvalidArgument:
            continue
        accepted.add(argument)
    (row,) = [row for row in rows_of("kind") if row[0] == kind]
    assert set(re.findall(r"`(\w+)=", row[2])) == accepted
