"""Staged rows become a table by their files, with the statistics of their footers."""

from __future__ import annotations

import datetime as dt
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from featurestore.delta.history import read_history
from featurestore.delta.snapshot import read_snapshot
from featurestore.plugins.engine import TableWrite
from featurestore_connectors.duckdb_delta import DuckDBEngine
from featurestore_connectors.spark_delta import SparkEngine
from tests.on_spark import on_executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.uint8()),
        ("x", pa.float64()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("word", pa.string()),
        ("flag", pa.bool_()),
        ("tags", pa.list_(pa.string())),
        ("price", pa.decimal128(10, 2)),
        ("point", pa.struct([("x", pa.int64())])),
    ]
)
NOON = dt.datetime(2020, 1, 1, 12, 0, 0, 7, tzinfo=dt.UTC)


def rows(first: int, last: int) -> pa.Table:
    made = []
    for number in range(first, last):
        made.append(
            {
                "id": number,
                "small": number % 256,
                "x": float("nan") if number % 7 == 3 else number / 8,
                "day": dt.date(1960, 1, 1) + dt.timedelta(days=number),
                "at": NOON + dt.timedelta(seconds=number) if number % 5 else None,
                "word": "é" * (number % 3) + ("z" * 99 if number == last - 1 else ""),
                "flag": number % 2 == 0,
                "tags": ["a", None],
                "price": None,
                "point": {"x": number},
            }
        )
    return pa.Table.from_pylist(made, SCHEMA)


@pytest.mark.parametrize("partition_by", [(), ("flag",)])
def test_staged_rows_are_appended_by_their_files_where_the_table_is_plain(
    spark: SparkSession, tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    path = str(tmp_path / "table")
    engine = SparkEngine(spark)
    engine.create_table(path, schema=SCHEMA, partition_by=partition_by, properties={}, note={})
    versions = []
    for number, how in enumerate(
        (TableWrite("append"), TableWrite("append", transaction=("a", 4)))
    ):
        given = engine.from_arrow(rows(100 * number, 100 * number + 50).to_reader())
        staged = engine.stage(on_executors(given), str(tmp_path / f"rows{number}"))
        versions.append(engine.write(path, staged, how))
        assert engine.count(staged) == 50, "the staged rows are still there"
    assert versions == [1, 2]
    assert engine.write(path, staged, how) is None, "a repeat of the transaction"
    names = {os.stat(file.path).st_ino for file in read_snapshot(path).files}
    staged_names = {os.stat(each).st_ino for each in tmp_path.glob("rows*/*.parquet")}
    assert (names <= staged_names) == (not partition_by)
    wanted = pa.concat_tables([rows(0, 50), rows(100, 150)])
    for reader in (engine, DuckDBEngine()):
        found = reader.stream(reader.read_table(path, schema=SCHEMA)).read_all().sort_by("id")
        assert str(found.to_pylist()) == str(wanted.to_pylist())
    assert [(each.rows_in, each.rows) for each in read_history(path)][:2] == [(50, 100), (50, 50)]
    if not partition_by:
        _assert_bounds(path)


def _assert_bounds(path: str) -> None:
    state = read_snapshot(path)
    ids, times, days = state.bounds("id"), state.bounds("at"), state.bounds("day")
    assert None not in (ids, times, days)
    assert ids is not None
    assert min(each[0] for each in ids.pairs() if each) == 0
    assert ids.greatest() == 149
    told: list[dict[str, Any]] = [json.loads(file.statistics or "") for file in state.files]
    assert sum(each["numRecords"] for each in told) == 100
    assert sum(each["nullCount"]["at"] for each in told) == 20
    assert max(each["maxValues"]["at"] for each in told) == "2020-01-01T12:02:29.000007Z"
    for each in told:
        assert not {"flag", "tags", "price", "point"} & set(each["minValues"])
        assert all(len(text) <= 32 for text in [each["maxValues"].get("word", "")])
