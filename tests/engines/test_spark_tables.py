"""Delta tables of the Spark engine, beyond the suite of all engines.

Races, settings, struct nulls, damage.
"""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from featurestore.delta.history import read_history
from featurestore.delta.log import commit_path, latest_version
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import (
    InvalidSql,
    RowsOutsideWindow,
    StorageError,
    TableDamaged,
    WriteConflict,
)
from featurestore.plugins.engine import Relation, TableWrite, TimeRange
from featurestore.testing.relation_conformance import NOON, rows
from featurestore.testing.table_conformance import new_table, prices, write
from featurestore_connectors.duckdb_delta import DuckDBEngine
from featurestore_connectors.spark_delta import SparkEngine, commits, rewrite, tables
from featurestore_connectors.spark_delta.commits import Transaction

UTC = dt.UTC
SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us", tz="UTC")), ("v", pa.uint32())])
START = dt.datetime(2020, 1, 1, tzinfo=UTC)
HOUR = dt.timedelta(hours=1)


@pytest.fixture
def path(spark_engine: SparkEngine, tmp_path: Path) -> str:
    """An empty table."""
    path = str(tmp_path / "table")
    spark_engine.create_table(
        path, schema=SCHEMA, partition_by=(), properties={}, commit_metadata={}
    )
    return path


def row(k: int, v: int | None = 1, hour: int = 0) -> dict[str, Any]:
    return {"k": k, "t": START + hour * HOUR, "v": v}


def make_relation(
    engine: SparkEngine, rows: Sequence[dict[str, Any]], schema: pa.Schema = SCHEMA
) -> Relation:
    return engine.from_arrow(pa.Table.from_pylist(list(rows), schema).to_reader())


def content(engine: SparkEngine, path: str, schema: pa.Schema = SCHEMA) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        engine.stream(engine.read_table(path, schema=schema)).read_all().to_pylist()
    )
    return sorted(rows, key=str)


def test_repeated_transaction_is_stopped_by_delta(
    spark_engine: SparkEngine, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "is_repeat", lambda path, transaction: False)
    append = TableWrite("append", transaction=("job/a", 3))
    assert spark_engine.write(path, make_relation(spark_engine, [row(1)]), append) == 1
    assert spark_engine.write(path, make_relation(spark_engine, [row(2)]), append) is None
    upsert = TableWrite("upsert", key=("k",), transaction=("job/a", 3))
    assert spark_engine.write(path, make_relation(spark_engine, [row(2)]), upsert) is None
    replace = TableWrite(
        "replace", replace=TimeRange("t", START, START + HOUR), transaction=("job/a", 2)
    )
    assert spark_engine.write(path, make_relation(spark_engine, []), replace) is None
    assert content(spark_engine, path) == [row(1)]
    assert latest_version(path) == 1


def test_spark_continues_after_checkpoint_of_embedded_engine(
    spark_engine: SparkEngine, path: str
) -> None:
    embedded = DuckDBEngine()
    for number in range(12):
        table = pa.Table.from_pylist([row(number)], SCHEMA)
        embedded.write(path, embedded.from_arrow(table.to_reader()), TableWrite("append"))
    embedded.close()
    assert Path(path, "_delta_log", "_last_checkpoint").exists()
    spark_engine.write(path, make_relation(spark_engine, [row(12)]), TableWrite("append"))
    assert sorted(record["k"] for record in content(spark_engine, path)) == list(range(13))


def test_rows_outside_the_replaced_range_are_refused(spark_engine: SparkEngine, path: str) -> None:
    spark_engine.write(path, make_relation(spark_engine, [row(1)]), TableWrite("append"))
    table_write = TableWrite("replace", replace=TimeRange("t", START, START + HOUR))
    with pytest.raises(RowsOutsideWindow):
        spark_engine.write(path, make_relation(spark_engine, [row(2, hour=1)]), table_write)
    assert content(spark_engine, path) == [row(1)]


def test_merge_with_new_columns_keeps_null_structs(
    spark_engine: SparkEngine, tmp_path: Path
) -> None:
    path = str(tmp_path / "structs")
    schema = pa.schema([("k", pa.int64()), ("point", pa.struct([("x", pa.uint8())]))])
    spark_engine.create_table(
        path, schema=schema, partition_by=(), properties={}, commit_metadata={}
    )
    rows = [{"k": 1, "point": {"x": 255}}, {"k": 2, "point": {"x": None}}]
    spark_engine.write(path, make_relation(spark_engine, rows, schema), TableWrite("append"))
    wider = pa.schema([*schema, ("more", pa.uint64())])
    new = [{"k": 1, "point": None, "more": 2**64 - 1}, {"k": 3, "point": None, "more": None}]
    table_write = TableWrite("upsert", key=("k",), add_columns=pa.schema([("more", pa.uint64())]))
    assert spark_engine.write(path, make_relation(spark_engine, new, wider), table_write) == 2
    assert content(spark_engine, path, wider) == [new[0], rows[1] | {"more": None}, new[1]]


def test_invalid_predicate_is_refused(spark_engine: SparkEngine, path: str) -> None:
    with pytest.raises(InvalidSql, match="nope"):
        spark_engine.delete(path, "nope = 2", commit_metadata={})


def test_parallel_upserts_of_one_row_are_committed(spark_engine: SparkEngine, path: str) -> None:
    spark_engine.write(path, make_relation(spark_engine, [row(0)]), TableWrite("append"))
    failures: list[BaseException] = []

    def upsert(number: int) -> None:
        try:
            rows = make_relation(spark_engine, [row(0, number), row(number)])
            spark_engine.write(
                path, rows, TableWrite("upsert", key=("k",), commit_metadata={"run": str(number)})
            )
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=upsert, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [record["k"] for record in content(spark_engine, path)] == [0, 1, 2]
    assert sorted(commit.user_metadata["run"] for commit in read_history(path)[:-2]) == ["1", "2"]


def test_repeated_conflicts_raise_write_conflict(
    spark_engine: SparkEngine, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark_engine.write(path, make_relation(spark_engine, [row(1)]), TableWrite("append"))
    monkeypatch.setattr(commits, "ATTEMPTS", 2)
    monkeypatch.setattr(commits, "wait", lambda attempt: None)
    monkeypatch.setattr(rewrite, "upsert_small", _raise_conflict)
    with pytest.raises(WriteConflict, match="this write was not committed"):
        spark_engine.write(
            path, make_relation(spark_engine, [row(1, 2)]), TableWrite("upsert", key=("k",))
        )
    assert content(spark_engine, path) == [row(1)]


def _raise_conflict(*_: Any, **__: Any) -> None:
    from delta.exceptions import ConcurrentAppendException

    raise ConcurrentAppendException("files were added by a concurrent update")


CONCURRENT_WRITES = [
    TableWrite("append"),
    TableWrite("append", offsets={"topic": (None, 1)}),
    TableWrite("overwrite"),
    TableWrite("upsert", key=("price",)),
    TableWrite("upsert", key=("price",), offsets={"topic": (None, 1)}),
    TableWrite("replace", replace=TimeRange("t", NOON, NOON + HOUR)),
]


def widening_cases() -> list[Any]:
    """Return each write at each step, staged and not; every run has a third."""
    steps = ["before the rows", "before the transaction"]
    cases = []
    combinations = product(CONCURRENT_WRITES, steps, [False, True])
    for number, (table_write, step, staged) in enumerate(combinations):
        case_id = f"{table_write.mode}-{len(table_write.offsets)}-{step}{'-staged' * staged}"
        marks = [pytest.mark.soak] if number % 3 else []
        cases.append(pytest.param(table_write, step, staged, id=case_id, marks=marks))
    return cases


@pytest.mark.parametrize(("table_write", "step", "staged"), widening_cases())
def test_append_casts_to_concurrently_widened_types(
    spark_engine: SparkEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    table_write: TableWrite,
    staged: bool,
) -> None:
    narrow, wide = pa.decimal128(3, 2), pa.decimal128(5, 3)
    path = new_table(spark_engine, tmp_path, schema=prices(narrow).schema)
    write(spark_engine, path, prices(narrow, "1.25"))
    embedded = DuckDBEngine()
    widened = []

    def widen() -> None:
        if not widened:
            widened.append(embedded.widen_columns(path, pa.schema([("price", wide)])))

    if step == "before the rows":
        cast_to = tables.cast_to

        def cast_late(frame: Any, schema: Any) -> Any:
            frame = cast_to(frame, schema)
            widen()
            return frame

        monkeypatch.setattr(tables, "cast_to", cast_late)
    else:
        enter = Transaction.__enter__

        def enter_late(transaction: Transaction) -> Transaction:
            widen()
            return enter(transaction)

        monkeypatch.setattr(Transaction, "__enter__", enter_late)
    relation = spark_engine.from_arrow(prices(narrow, "2.5").to_reader())
    if staged:
        relation = spark_engine.stage(relation, str(tmp_path / "stage"))
    spark_engine.write(path, relation, table_write)
    widen()
    embedded.close()
    expected = ["1.25", "2.5"] if table_write.mode in ("append", "upsert") else ["2.5"]
    landed = rows(spark_engine, spark_engine.read_table(path), sort_by="price")
    assert landed == prices(wide, *expected).to_pylist()
    for file in read_snapshot(path).files:
        assert parquet.read_schema(file.path).field("price").type == wide


def test_times_have_statistics_and_user_settings_stay(spark_engine: SparkEngine, path: str) -> None:
    setting = "spark.sql.parquet.outputTimestampType"
    before, initial_keys = (
        spark_engine.session.conf.get(setting),
        set(spark_engine.session.conf.getAll),
    )
    spark_engine.write(
        path,
        make_relation(spark_engine, [row(1)]),
        TableWrite("append", commit_metadata={"run": "a"}, transaction=("a", 1)),
    )
    (file,) = read_snapshot(path).files
    assert str(parquet.ParquetFile(file.path).schema.column(1).physical_type) == "INT64"
    assert spark_engine.session.conf.get(setting) == before
    new_keys = set(spark_engine.session.conf.getAll) - initial_keys
    ours = (".userMetadata", ".txnAppId", "lastCommitVersionInSession")
    assert not [key for key in new_keys if key.endswith(ours)]


def test_a_missing_commit_is_named(spark_engine: SparkEngine, path: str) -> None:
    for number in (1, 2):
        spark_engine.write(path, make_relation(spark_engine, [row(number)]), TableWrite("append"))
    spark_engine.session._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    os.remove(commit_path(path, 1))
    with pytest.raises(TableDamaged, match="00000000000000000001"):
        content(spark_engine, path)


@pytest.mark.parametrize("damage", ["cut", "garbage"])
def test_a_damaged_commit_is_named(spark_engine: SparkEngine, path: str, damage: str) -> None:
    spark_engine.write(path, make_relation(spark_engine, [row(1)]), TableWrite("append"))
    spark_engine.session._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    commit = Path(commit_path(path, 1))
    commit.write_bytes(commit.read_bytes()[:50] if damage == "cut" else b"\x00garbage")
    with pytest.raises(TableDamaged, match=commit.name):
        content(spark_engine, path)


@pytest.mark.parametrize("damage", ["cut", "scrambled", "emptied"])
def test_a_damaged_data_file_is_named(spark_engine: SparkEngine, path: str, damage: str) -> None:
    spark_engine.write(
        path,
        make_relation(spark_engine, [row(number) for number in range(100)]),
        TableWrite("append"),
    )
    data_file, *_ = read_snapshot(path).files
    file = Path(data_file.path)
    data = file.read_bytes()
    file.write_bytes(
        {"cut": data[: len(data) // 2], "scrambled": data[:-200] + os.urandom(200), "emptied": b""}[
            damage
        ]
    )
    with pytest.raises(StorageError, match=file.name):
        content(spark_engine, path)


def test_vacuum_keeps_files_of_running_writes(tmp_path: Path) -> None:
    path = tmp_path / "table"
    tables.create_table(
        str(path), schema=SCHEMA, partition_by=(), properties={}, commit_metadata={}
    )
    fresh, old = path / "part-fresh.parquet", path / "part-old.parquet"
    for file in (fresh, old):
        file.write_bytes(b"x")
    long_ago = time.time() - 7 * 24 * 3600
    os.utime(old, (long_ago, long_ago))
    soon = dt.datetime.now(UTC) + HOUR
    assert tables.vacuum(str(path), keep_versions=[], retain=soon) == [str(old)]
    assert fresh.exists()


WRITER = """
import os, sys, time
import pyarrow as pa
from featurestore.plugins.engine import TableWrite
from featurestore_connectors.spark_delta import SparkEngine

path, me, go = sys.argv[1], int(sys.argv[2]), sys.argv[3]
engine = SparkEngine()
engine.session.range(1).count()
open(f"{go}.{me}", "w").close()
while not os.path.exists(go):
    time.sleep(0.01)
for turn in range(15):
    moment, value = pa.array([0], pa.timestamp("us", "UTC")), pa.array([1], pa.uint32())
    rows = pa.table({"k": [100 * me + turn], "t": moment, "v": value})
    engine.write(path, engine.from_arrow(rows.to_reader()), TableWrite("append", commit_metadata={"by": me}))
engine.close()
"""  # fmt: skip


@pytest.mark.spark
@pytest.mark.soak
def test_concurrent_drivers_lose_no_appends(tmp_path: Path) -> None:
    path, go = str(tmp_path / "table"), tmp_path / "go"
    tables.create_table(path, schema=SCHEMA, partition_by=(), properties={}, commit_metadata={})
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "FEATURESTORE_SPARK_MASTER": "local[1]"}
    env["FEATURESTORE_SPARK_DRIVER_MEMORY"] = "700m"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, path, str(me), str(go)], env=env)
        for me in (1, 2)
    ]
    while not all(Path(f"{go}.{me}").exists() for me in (1, 2)):
        assert all(writer.poll() is None for writer in writers)
        time.sleep(0.1)
    go.touch()
    assert [writer.wait(timeout=500) for writer in writers] == [0, 0]
    assert latest_version(path) == 30
    assert (
        sorted(commit.user_metadata["by"] for commit in read_history(path)[:-1])
        == [1] * 15 + [2] * 15
    )
    assert read_snapshot(path).rows == 30
