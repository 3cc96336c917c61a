"""Folders as tables: partitions, several formats and renamed columns."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from featurestore.errors import (
    InvalidArgument,
    InvalidName,
    InvalidSourceFile,
    SourceError,
    UnsupportedType,
)
from featurestore.sources import SourceFrame
from featurestore.store import FeatureStore
from featurestore_connectors.sources import duckdb_rows

Lake = Callable[..., SourceFrame]


def rows(frame: Any) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = frame.to_arrow().to_pylist()
    return result


def test_partition_folders_become_columns(lake: Lake) -> None:
    frame = lake(
        {
            "day=2024-01-01/shop=a%20b/a.csv": "id\n1\n",
            "day=2024-01-02/shop=__HIVE_DEFAULT_PARTITION__/a.csv": "id\n2\n",
        }
    )
    assert rows(frame) == [
        {"id": 1, "day": date(2024, 1, 1), "shop": "a b"},
        {"id": 2, "day": date(2024, 1, 2), "shop": None},
    ]
    assert rows(frame.select("day")) == [{"day": date(2024, 1, 1)}, {"day": date(2024, 1, 2)}]
    months = {"m=01/a.jsonl": '{"id": 1}\n', "m=02/a.jsonl": '{"id": 2}\n'}
    assert [row["m"] for row in rows(lake(months))] == ["01", "02"]
    assert [row["m"] for row in rows(lake(months, dtypes={"m": "int64"}))] == [1, 2]
    assert [row["m"] for row in rows(lake(months, path="m=02"))] == ["02"]


def test_inconsistent_partitions_are_refused(lake: Lake) -> None:
    with pytest.raises(
        InvalidSourceFile, match="has the column 'day', which is also a partition key"
    ):
        lake({"day=1/a.csv": "id,day\n1,2\n"})
    with pytest.raises(InvalidArgument, match="different partition keys"):
        lake({"day=1/a.csv": "id\n1\n", "month=1/a.csv": "id\n1\n"})


def test_pandas_partitions_are_read(empty_store: FeatureStore, tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": [1, 2, 3], "day": ["2024-01-01", "2024-01-02", "2024-01-01"]})
    frame.to_parquet(tmp_path / "lake", partition_cols=["day"])
    empty_store.add_source("lake", str(tmp_path / "lake"))
    read = rows(empty_store.read_source("lake", columns=["id", "day"]))
    assert sorted(row["id"] for row in read if row["day"] == date(2024, 1, 1)) == [1, 3]
    assert [table.name for table in empty_store.check_source("lake").tables] == ["."]


def test_parquet_columns_have_one_common_type(empty_store: FeatureStore, tmp_path: Path) -> None:
    def write(name: str, **columns: Any) -> None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        parquet.write_table(pa.table(columns), tmp_path / name)

    write("wide/a.parquet", x=pa.array([1], pa.int32()), y=pa.array([1.5], pa.float32()))
    write("wide/b.PARQ", x=pa.array([2**40]), y=pa.array([0.1]))
    write("mixed/a.parquet", x=[1])
    write("mixed/b.parquet", x=["a"])
    write("less/a.parquet", x=[1], y=[2])
    write("less/b.parquet", x=[1])
    write("digits/a.parquet", x=pa.array([10**40], pa.decimal256(45, 0)))
    for name in ("wide", "mixed", "less", "digits"):
        empty_store.add_source(name, str(tmp_path / name))
    assert rows(empty_store.read_source("wide")) == [{"x": 1, "y": 1.5}, {"x": 2**40, "y": 0.1}]
    with pytest.raises(InvalidSourceFile, match=r"'x' is int64 in a\.parquet and string in b"):
        empty_store.read_source("mixed")
    assert rows(empty_store.read_source("mixed", dtypes={"x": "string"}))[0] == {"x": "1"}
    with pytest.raises(InvalidSourceFile, match=r"b\.parquet lacks the columns 'y'"):
        empty_store.read_source("less")
    assert rows(empty_store.read_source("less", dtypes={"y": "int64"}))[1] == {"x": 1, "y": None}
    with pytest.raises(UnsupportedType, match="'x'"):
        empty_store.read_source("digits")


def test_foreign_parquet_is_read_or_refused_by_column(
    empty_store: FeatureStore, tmp_path: Path
) -> None:
    digits = pa.array([Decimal("123456.78")], pa.decimal128(10, 2))
    beyond = pa.Array.from_buffers(pa.decimal128(5, 2), 1, digits.buffers())
    late = pa.array([2**62], pa.timestamp("us"))
    lists = pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))
    tables = {
        "beyond": pa.table({"id": [1], "x": beyond}),
        "late": pa.table({"id": [1], "x": late}),
        "maps": pa.table({"id": [1], "x": lists}),
        "nested": pa.table({"id": [1], "x": pa.StructArray.from_arrays([late], ["at"])}),
        "listed": pa.table({"id": [1], "x": pa.ListArray.from_arrays([0, 1], late)}),
    }
    for name, table in tables.items():
        parquet.write_table(table, tmp_path / f"{name}.parquet")
        empty_store.add_source(name, str(tmp_path / f"{name}.parquet"))
        with pytest.raises((InvalidSourceFile, UnsupportedType), match="'x'") as error:
            empty_store.read_source(name).to_arrow()
        assert "sql=" not in str(error.value)
        assert rows(empty_store.read_source(name, columns=["id"])) == [{"id": 1}]


def test_nanoseconds_of_parquet_are_refused_or_rounded(
    empty_store: FeatureStore, tmp_path: Path
) -> None:
    instants = pa.array([1704067200123456789, None, -1500], pa.timestamp("ns"))
    parquet.write_table(pa.table({"at": instants}), tmp_path / "a.parquet")
    empty_store.add_source("lake", str(tmp_path / "a.parquet"))
    with pytest.raises(InvalidSourceFile, match=r"a\.parquet: Column 'at'") as error:
        empty_store.read_source("lake").to_arrow()
    assert "timestamp_precision='us'" in str(error.value)
    column = empty_store.read_source("lake", timestamp_precision="us").to_arrow().column("at")
    assert column.cast(pa.int64()).to_pylist() == [1704067200123457, None, -1]


def test_null_columns_take_type_of_other_files(empty_store: FeatureStore, tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    frames = {
        "a": {"x": [None], "y": [1]},
        "b": {"x": ["t"], "y": [2]},
        "c": {"x": [None], "y": [3]},
    }
    for name, columns in frames.items():
        pd.DataFrame(columns).to_parquet(tmp_path / "lake" / f"{name}.parquet")
    empty_store.add_source("lake", str(tmp_path / "lake"))
    read = rows(empty_store.read_source("lake"))
    assert read == [{"x": None, "y": 1}, {"x": "t", "y": 2}, {"x": None, "y": 3}]


def test_job_counts_quarantined_rows(empty_store: FeatureStore, tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    text = "Zone ID,At,Total\n1,2024-01-01T00:30:00Z,2\n1,2\n"
    (tmp_path / "lake" / "a.csv").write_text(text)
    empty_store.add_source("raw", str(tmp_path / "lake"), options={"on_bad_rows": "quarantine"})
    (tmp_path / "totals_jobs.py").write_text(JOB)
    empty_store.register_jobs(tmp_path / "totals_jobs.py")
    empty_store.backfill_job("totals", "2024-01-01T00:00Z", "2024-01-02T00:00Z")
    commit = empty_store.featuregroup("totals").history()[0]
    (read,) = [source for source in commit.inputs.values() if source["rows"]]
    assert (read["rows"], read["quarantined"]) == (1, 1)


JOB = """
import featurestore

renamed = {"Zone ID": "zone", "At": "moment", "Total": "total"}
totals = featurestore.sql_job(
    "totals",
    sql="select zone, moment, total from lake",
    primary_key="zone",
    event_time="moment",
    schedule="0 0 * * *",
    start="2024-01-01T00:00Z",
    inputs={"lake": featurestore.source("raw", time="moment", rename=renamed)},
    closed="left",
)
"""
NOW = datetime(2024, 1, 2, tzinfo=UTC)
FOREIGN = "Country Name,1978,Año,id\nA,1,2,3\n"


def test_invalid_names_error_has_rename_hint(lake: Lake, empty_store: FeatureStore) -> None:
    with pytest.raises(
        InvalidName, match="Invalid feature names: 'Country Name', '1978', 'Año'"
    ) as e:
        lake({"a.csv": FOREIGN})
    call = str(e.value).split("Hint: ")[1].split(" renames")[0]
    frame = eval(f"store.{call}", {"store": empty_store})
    assert rows(frame) == [{"Country_Name": "A", "f_1978": 1, "Ano": 2, "id": 3}]
    snake = lake({"a.csv": FOREIGN}, rename="snake_case")
    assert snake.columns == ["country_name", "f_1978", "ano", "id"]
    subset = lake({"a.csv": FOREIGN}, columns=["Año", "country_name"], rename="snake_case")
    assert rows(subset) == [{"ano": 2, "country_name": "A"}]
    with pytest.raises(InvalidArgument, match="unknown columns 'Country'"):
        lake({"a.csv": FOREIGN}, rename={"Country": "country"})


def test_names_are_renamed_in_groups_jobs_and_sources(
    empty_store: FeatureStore, tmp_path: Path
) -> None:
    store = empty_store
    (tmp_path / "a.csv").write_text("Zone ID,At,Total\n1,2024-01-01T00:30:00Z,2\n")
    store.add_source("lake", str(tmp_path / "a.csv"), options={"rename": "snake_case"})
    assert store.read_source("lake").columns == ["zone_id", "at", "total"]
    store.add_source("raw", str(tmp_path / "a.csv"))
    group = store.create_external_featuregroup(
        "zones", source="raw", rename={"Zone ID": "zone"}, primary_key="zone", event_time="At"
    )
    assert rows(group.read()) == rows(store.read_source("raw", rename={"Zone ID": "zone"}))
    frame = store.get_features(["zones.Total"], labels=[{"zone": 1}], label_time=NOW)
    assert rows(frame.select("Total")) == [{"Total": 2}]
    (tmp_path / "totals_jobs.py").write_text(JOB)
    store.register_jobs(tmp_path / "totals_jobs.py")
    store.backfill_job("totals", "2024-01-01T00:00Z", "2024-01-02T00:00Z")
    assert [row["total"] for row in rows(store.get_featuregroup("totals"))] == [2]


def test_rename_applies_to_databases(empty_store: FeatureStore, tmp_path: Path) -> None:
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(tmp_path / "a.db")) as database, database:
        database.execute('create table orders ("Order ID" integer, "Total €" real)')
        database.execute("insert into orders values (1, 2.5)")
    empty_store.add_source("shop", f"sqlite:///{tmp_path}/a.db")
    with pytest.raises(InvalidName, match="'Order ID'") as error:
        empty_store.read_source("shop", table="orders")
    assert "read_source('shop', table='orders', rename={'Order ID': 'Order_ID'" in str(error.value)
    frame = empty_store.read_source("shop", table="orders", rename="snake_case")
    assert rows(frame) == [{"order_id": 1, "total": 2.5}]
    with pytest.raises(InvalidArgument, match="only folders of files have"):
        empty_store.read_source("shop", table="orders", delimiter=";")


def test_arrow_reads_parquet_unsupported_by_duckdb(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> Iterator[pa.RecordBatch]:
        raise SourceError("Invalid Error: Out of buffer")
        yield

    table = pa.table({"id": pa.array(range(1000), pa.int64()), "x": ["a", None] * 500})
    sink = io.BytesIO()
    parquet.write_table(table, sink, row_group_size=300)
    frame = lake({"a.parquet": sink.getvalue()})
    monkeypatch.setattr(duckdb_rows.DuckDBRows, "read", fails)
    assert frame.to_arrow().equals(table)
