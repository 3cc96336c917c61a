"""Rows that Python reads from Parquet files equal those that Spark reads."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from featurestore.errors import TableDamaged
from featurestore.plugins.engine import Engine, TableWrite
from featurestore_connectors.duckdb_delta import DuckDBEngine
from featurestore_connectors.spark_delta import streams
from featurestore_connectors.spark_delta.parquet_rows import ParquetRows
from featurestore_connectors.spark_delta.staged import rows_of
from tests.engines.row_accumulator import AllRows

ROWS = 90
OLD = pa.schema([("k", pa.int64())])
SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("t.x", pa.timestamp("us", tz="UTC")),
        ("unsigned", pa.uint64()),
        ("pair", pa.list_(pa.float32(), 2)),
        ("te`xt", pa.string()),
        ("day", pa.date32()),
        ("price", pa.decimal128(9, 2)),
    ]
)


def rows(first: int, last: int) -> pa.Table:
    columns: list[list[Any]] = []
    for number in range(first, last):
        has_values = number % 5 != 0
        values = [datetime(1, 1, 1, tzinfo=UTC), 2**64 - 1 - number, [number, 0.5], "né" * number]
        values += [date(9999, 12, 31), Decimal(number) / 4]
        columns.append([number, *(value if has_values else None for value in values)])
    return pa.table(list(map(list, zip(*columns, strict=True))), schema=SCHEMA)


def test_parquet_columns_match_case_insensitively(tmp_path: Path) -> None:
    path = str(tmp_path / "foreign.parquet")
    parquet.write_table(pa.table({"ID": [1, 2], "y": [0.5, 1.5]}), path)
    schema = pa.schema([("id", pa.int64()), ("y", pa.float64()), ("z", pa.string())])
    rows = ParquetRows(((path, 1),), ("id", "y", "z"), schema)
    actual = pa.Table.from_batches(rows.part(0, 1))
    assert actual.to_pydict() == {"id": [1, 2], "y": [0.5, 1.5], "z": [None, None]}


@pytest.fixture
def table(tmp_path: Path) -> str:
    """A table whose first file lacks most columns and whose second has row groups."""
    path = str(tmp_path / "t")
    engine = DuckDBEngine()
    engine.create_table(path, schema=OLD, partition_by=(), properties={}, commit_metadata={})
    first = pa.table({"k": np.arange(1000, 1010)})
    engine.write(path, engine.from_arrow(first.to_reader()), TableWrite("append"))
    table_write = TableWrite("append", add_columns=SCHEMA)
    engine.write(path, engine.from_arrow(rows(0, ROWS).to_reader()), table_write)
    engine.close()
    return path


@pytest.mark.spark
@pytest.mark.parametrize("is_local", [False, True])
def test_python_parquet_rows_equal_spark(
    table: str,
    spark_engine: Engine,
    tmp_path: Path,
    is_local: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Read by tasks as on a cluster, and by the driver."""
    monkeypatch.setattr(streams, "is_local", lambda session: is_local)
    engine = spark_engine
    read = engine.read_table(table, schema=SCHEMA)
    names = {"new": "t.x", "again": "t.x", "k": "k"}
    staged = engine.stage(read, str(tmp_path / "staged"))
    renamed = engine.select(engine.select(read, names), {"only": "new", "k": "k"})
    for inputs in (read, renamed, staged, engine.select(staged, names)):
        assert rows_of(inputs) is not None
        expected = sorted(engine.stream(inputs).read_all().to_pylist(), key=str)
        assert engine.aggregate(inputs, AllRows(inputs.schema)) == expected
        assert len(expected) == ROWS + 10
    few = engine.filter(read, "k < 7")
    assert rows_of(few) is None
    assert len(engine.aggregate(few, AllRows(few.schema))) == 7
    Path(rows_of(read).files[0][0]).write_bytes(b"none of Parquet")  # type: ignore[union-attr]
    with pytest.raises(TableDamaged, match="not a readable Parquet file"):
        engine.aggregate(read, AllRows(read.schema))


def test_file_partitions_contain_every_row_once(tmp_path: Path) -> None:
    sizes, numbers = [], 0
    for number, length in enumerate((0, 5, 200, 1)):
        path = str(tmp_path / f"{number}.parquet")
        data = pa.table({"n": np.arange(numbers, numbers + length)})
        parquet.write_table(data, path, row_group_size=30)
        sizes.append((path, Path(path).stat().st_size))
        numbers += length
    actual = ParquetRows(tuple(sizes), ("n",), pa.schema([("n", pa.int64())]))
    for part_count in range(1, 12):
        read: list[int] = []
        for index in range(part_count):
            for batch in actual.part(index, part_count):
                read += batch.column(0).to_pylist()
        assert sorted(read) == list(range(numbers))
    assert list(ParquetRows((), ("n",), actual.schema).part(0, 2)) == []
