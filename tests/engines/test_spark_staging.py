"""Staged rows are inspected in their files and committed without another copy."""

from __future__ import annotations

import datetime as dt
import json
import os
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from featurestore.delta.history import read_history
from featurestore.delta.snapshot import read_snapshot
from featurestore.plugins.engine import TableWrite
from featurestore_connectors.duckdb_delta import DuckDBEngine
from featurestore_connectors.spark_delta import SparkEngine, streams
from featurestore_connectors.spark_delta import staged as staged_rows
from featurestore_connectors.spark_delta.relations import relation
from featurestore_connectors.spark_delta.staged import StagedRelation
from tests.engines.row_accumulator import AllRows
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
    records = []
    for number in range(first, last):
        records.append(
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
    return pa.Table.from_pylist(records, SCHEMA)


@pytest.mark.parametrize("partition_by", [(), ("flag",)])
def test_plain_table_appends_staged_files(
    spark: SparkSession, tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    path = str(tmp_path / "table")
    engine = SparkEngine(spark)
    engine.create_table(
        path, schema=SCHEMA, partition_by=partition_by, properties={}, commit_metadata={}
    )
    versions = []
    for number, table_write in enumerate(
        (TableWrite("append"), TableWrite("append", transaction=("a", 4)))
    ):
        inputs = engine.from_arrow(rows(100 * number, 100 * number + 50).to_reader())
        staged = engine.stage(on_executors(inputs), str(tmp_path / f"rows{number}"))
        versions.append(engine.write(path, staged, table_write))
        assert engine.count(staged) == 50, "the staged rows are still there"
    assert versions == [1, 2]
    assert engine.write(path, staged, table_write) is None, "a repeat of the transaction"
    names = {os.stat(file.path).st_ino for file in read_snapshot(path).files}
    staged_names = {os.stat(file_path).st_ino for file_path in tmp_path.glob("rows*/*.parquet")}
    assert (names <= staged_names) == (not partition_by)
    expected = pa.concat_tables([rows(0, 50), rows(100, 150)])
    for reader in (engine, DuckDBEngine()):
        table = reader.stream(reader.read_table(path, schema=SCHEMA)).read_all().sort_by("id")
        assert str(table.to_pylist()) == str(expected.to_pylist())
    assert [(commit.rows_in, commit.rows) for commit in read_history(path)][:2] == [
        (50, 100),
        (50, 50),
    ]
    if not partition_by:
        _assert_bounds(path)


def _assert_bounds(path: str) -> None:
    state = read_snapshot(path)
    ids, times, days = state.bounds("id"), state.bounds("at"), state.bounds("day")
    assert None not in (ids, times, days)
    assert ids is not None
    assert min(bounds[0] for bounds in ids.pairs() if bounds) == 0
    assert ids.maximum() == 149
    documents: list[dict[str, Any]] = [json.loads(file.statistics or "") for file in state.files]
    assert sum(document["numRecords"] for document in documents) == 100
    assert sum(document["nullCount"]["at"] for document in documents) == 20
    assert (
        max(document["maxValues"]["at"] for document in documents) == "2020-01-01T12:02:29.000007Z"
    )
    for document in documents:
        assert not {"flag", "tags", "price", "point"} & set(document["minValues"])
        assert all(len(text) <= 32 for text in [document["maxValues"].get("word", "")])


EDGES = {
    "number": pa.array([5, 5, -1, None, None, 2**62, -1, -1], pa.int64()),
    "large": pa.array([2**64 - 1, 2**64 - 1, 1, 1, 2, 3, 1, None], pa.uint64()),
    "text": pa.array(["é", "é", "e", "E", "", "", None, "z" * 40]),
    "raw": pa.array([b"", b"", b"\xff", b"\xff", b"\x00", None, None, b"a"]),
    "price": pa.array([Decimal("1.10"), Decimal("1.10"), Decimal("-2"), *[None] * 5]),
    "day": pa.array([0, 0, -40_000, -40_000, 1, 2, None, 3], pa.date32()),
    "at": pa.array([1, 1, -1, -1, 7, 8, None, 2**53], pa.timestamp("us", tz="UTC")),
    "flag": pa.array([True, True, False, None, None, None, None, None]),
    # Computed by Spark, which treats all NaN as equal, and both zeros.
    "x": pa.array([float("nan"), float("nan"), 0.0, -0.0, 1.0, 2.0, None, 1.0]),
    "tags": pa.array([["a"], ["a"], [], [], None, None, ["b"], ["c"]]),
    "point": pa.array([{"n": 1}, {"n": 1}, {"n": None}, None, None, {"n": 2}, None, {"n": 3}]),
    "n.b": pa.array([1, 2, 3, 4, 5, 6, 7, 8], pa.int16()),
}


def test_staged_rows_equal_spark(spark: SparkSession, tmp_path: Path) -> None:
    engine = SparkEngine(spark)
    labels = engine.from_arrow(pa.table(EDGES).to_reader())
    staged = engine.stage(on_executors(labels), str(tmp_path / "rows"))
    by_spark = on_executors(staged)
    shown = str(engine.aggregate(staged, AllRows()))
    assert shown == str(engine.aggregate(by_spark, AllRows()))
    renamed = {name: f"{name} of the files" for name in EDGES}
    renamed = {new: old for old, new in renamed.items()} | {"again": "text"}
    shown = str(engine.aggregate(engine.select(staged, renamed), AllRows()))
    assert shown == str(engine.aggregate(engine.select(by_spark, renamed), AllRows()))
    assert engine.count(staged) == engine.count(by_spark) == 8
    none = engine.filter(labels, "number < -9")
    empty = engine.stage(on_executors(none), str(tmp_path / "none"))
    assert (engine.count(empty), engine.aggregate(empty, AllRows())) == (0, [])
    assert engine.duplicates(empty, ["number"]) == (0, [])
    keys = [[name] for name in EDGES] + [["number", "text"], ["day", "raw", "at"]]
    for key in keys:
        duplicates = engine.duplicates(staged, key, limit=2)
        assert str(duplicates) == str(engine.duplicates(by_spark, key, limit=2)), key
        assert duplicates[0] == 0 if key == ["n.b"] else duplicates[0] > 0, key


def test_large_stages_are_appended_by_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = SparkEngine(spark)
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()
    inputs = on_executors(engine.from_arrow(rows(0, 50).to_reader()))
    staged = engine.stage(inputs, str(tmp_path / "rows"))
    words = engine.select(staged, {"named": "word"})
    before = scheduler.numTotalJobs()
    driver_results = [engine.duplicates(words, ["named"]), engine.aggregate(words, AllRows())]
    assert scheduler.numTotalJobs() == before
    monkeypatch.setattr(streams, "_TASK_BYTES", 399)
    monkeypatch.setattr(staged_rows, "_MAX_GROUPED_BYTES", 399)
    spark_results = [engine.duplicates(words, ["named"]), engine.aggregate(words, AllRows())]
    assert scheduler.numTotalJobs() >= before + 2
    assert driver_results == spark_results


def test_legacy_times_are_appended_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    engine, setting = SparkEngine(spark), "spark.sql.parquet.outputTimestampType"
    inputs = on_executors(engine.from_arrow(rows(0, 50).to_reader()))
    before = spark.conf.get(setting)
    spark.conf.set(setting, "INT96")
    try:
        staged = engine.stage(inputs, str(tmp_path / "rows"))
    finally:
        spark.conf.set(setting, before)
    assert isinstance(staged, StagedRelation)
    assert staged.files.footers is None
    assert engine.count(staged) == 50
    assert engine.duplicates(staged, ["id"]) == (0, [])
    actual = engine.aggregate(engine.select(staged, {"at": "at"}), AllRows())
    assert {"at": NOON + dt.timedelta(seconds=1)} in actual


def test_staged_write_selects_columns(spark: SparkSession, tmp_path: Path) -> None:
    engine, path = SparkEngine(spark), str(tmp_path / "table")
    schema = pa.schema([("id", pa.int64()), ("y", pa.float64())])
    engine.create_table(path, schema=schema, partition_by=(), properties={}, commit_metadata={})
    inputs = on_executors(engine.from_arrow(rows(0, 50).to_reader()))
    staged = engine.stage(inputs, str(tmp_path / "rows"))
    engine.write(path, engine.select(staged, {"id": "id", "y": "x"}), TableWrite("append"))
    table = engine.stream(engine.read_table(path)).read_all().sort_by("id")
    assert str(table["y"].to_pylist()) == str(rows(0, 50)["x"].to_pylist())
    for file in read_snapshot(path).files:
        assert parquet.read_schema(file.path).names == ["id", "y"]


def test_query_reads_staged_rows_of_another_session(spark: SparkSession, tmp_path: Path) -> None:
    """A micro-batch belongs to a session of its stream."""
    engine = SparkEngine(spark)
    micro_batch = spark.newSession().range(20)
    staged = engine.stage(relation(micro_batch, pa.schema([("id", pa.int64())])), str(tmp_path))
    query = "SELECT count(*) AS n, max(id) AS last FROM batch"
    result = engine.sql(query, tables={"batch": staged}, parameters={})
    assert engine.stream(result).read_all().to_pylist() == [{"n": 20, "last": 19}]
