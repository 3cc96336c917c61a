"""Numbers and strings declared as times are refused with the line that converts them.

Times of 1970 are warned about; a time is no part of a key.
"""

from __future__ import annotations

import datetime as datetime_module
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

from featurestore.arrow.cast_lines import conversion_hint, infer_epoch_unit
from featurestore.errors import InvalidArgument, InvalidJob, LabelTimeRequired, SchemaMismatch
from featurestore.jobs import sql_job
from featurestore.model.times import SuspiciousTimeWarning

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from featurestore.store import FeatureStore

NOW = datetime(2021, 4, 15, 13, 5, 6, tzinfo=UTC)
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def numbers(unit: str) -> pa.Table:
    instants = [NOW + timedelta(hours=count) for count in range(3)]
    counts = [int(instant.timestamp()) * PER_SECOND[unit] for instant in instants]
    return pa.table({"id": [1, 2, 3], "ts": counts, "x": [1.0, 2.0, 3.0]})


@pytest.mark.parametrize("unit", PER_SECOND)
@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow", "duckdb", "rows", "columns"])
def test_numeric_time_hint_converts_correctly(
    duckdb_store: FeatureStore, unit: str, library: str
) -> None:
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    table = numbers(unit)
    frames = {
        "df": {"pandas": table.to_pandas, "polars": lambda: pl.from_arrow(table)},
        "table": {"pyarrow": lambda: table},
        "rows": {"duckdb": lambda: duckdb.connect().from_arrow(table), "rows": table.to_pylist},
        "columns": {"columns": table.to_pydict},
    }
    name = next(name for name, makers in frames.items() if library in makers)
    df = frames[name][library]()
    with pytest.raises(InvalidArgument) as refused:
        duckdb_store.create_featuregroup(df, "g", primary_key="id", event_time="ts")
    names = {name: df, "pd": pd, "pl": pl, "pa": pa, "datetime": datetime_module}
    exec(str(refused.value.hint), names)
    group = duckdb_store.create_featuregroup(names[name], "g", primary_key="id", event_time="ts")
    assert min(group.read().to_arrow()["ts"].to_pylist()) == NOW


def test_numeric_time_hint_uses_spark_functions_for_spark(
    spark: SparkSession, tmp_path: Any
) -> None:
    import featurestore

    store = featurestore.connect(tmp_path, engine="spark")
    df = spark.createDataFrame(numbers("ms").to_pylist())
    with pytest.raises(InvalidArgument, match=r"withColumn\('ts', F.timestamp_millis\('ts'\)\)"):
        store.create_featuregroup(df, "g", primary_key="id", event_time="ts")


def test_numeric_time_hint_for_ambiguous_numbers_requests_unit() -> None:
    assert infer_epoch_unit([20240131]) is None
    assert "otherwise 'ms' or 'us'" in conversion_hint("day", pa.int64(), [20240131])
    assert "unit" not in conversion_hint("day", pa.string(), [])


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_times_near_1970_warn_about_nanoseconds(duckdb_store: FeatureStore, unit: str) -> None:
    pd = pytest.importorskip("pandas")
    df = numbers(unit).to_pandas()
    df["ts"] = pd.to_datetime(df["ts"], utc=True).dt.floor("us")
    says = rf"3 of 3 rows have a ts before 1980.*numbers in '{unit}' read as nanoseconds"
    with pytest.warns(SuspiciousTimeWarning, match=says) as record:
        duckdb_store.create_featuregroup(df, "g", primary_key="id", event_time="ts")
    assert record[0].filename == __file__
    with pytest.warns(SuspiciousTimeWarning, match="before 1980"):
        duckdb_store.insert_into_featuregroup(df, "g", mode="overwrite")


def test_numeric_label_time_raises_with_unit(duckdb_store: FeatureStore) -> None:
    times = pa.array([NOW] * 3, pa.timestamp("us", tz="UTC"))
    rows = numbers("s").set_column(1, "ts", times)
    duckdb_store.create_featuregroup(rows, "g", primary_key="id", event_time="ts")
    labels = numbers("ms").select(["id", "ts"]).rename_columns(["id", "at"]).to_pandas()
    with pytest.raises(LabelTimeRequired, match="unit='ms'"):
        duckdb_store.get_features("g.x", labels=labels, label_time="at")
    with pytest.raises(LabelTimeRequired, match=r"'at' looks like numbers(.|\n)*unit='ms'"):
        duckdb_store.get_features("g.x", labels=labels)
    old = pa.table({"id": [1], "at": pa.array([1618491906], pa.timestamp("us", tz="UTC"))})
    with pytest.warns(SuspiciousTimeWarning, match="1 of the first 1 labels are before 1980"):
        duckdb_store.get_features("g.x", labels=old)


def test_insert_numeric_event_time_raises_with_unit(duckdb_store: FeatureStore) -> None:
    times = pa.array([NOW] * 3, pa.timestamp("us", tz="UTC"))
    rows = numbers("s").set_column(1, "ts", times)
    duckdb_store.create_featuregroup(rows, "g", primary_key="id", event_time="ts")
    with pytest.raises(SchemaMismatch, match=r"pd.to_datetime\(df\['ts'\], unit='ms', utc=True\)"):
        duckdb_store.insert_into_featuregroup(numbers("ms").to_pandas(), "g")


@pytest.mark.parametrize(
    ("key", "created", "says"),
    [
        (["id", "at"], None, r"primary_key=\['id'\], event_time='at'"),
        (["at", "id", "known"], "known", r"primary_key=\['id'\], event_time='at'"),
        ("at", None, r"primary_key=\['at'\] without event_time= joins rows with equal 'at'"),
    ],
)
def test_event_time_in_primary_key_raises_with_hint(
    duckdb_store: FeatureStore, key: Any, created: str | None, says: str
) -> None:
    rows = [{"id": 1, "at": NOW, "known": NOW, "x": 1.0}]
    with pytest.raises(InvalidArgument, match=says):
        duckdb_store.create_featuregroup(
            rows, "g", primary_key=key, event_time="at", created_time=created
        )
    assert duckdb_store.get_featuregroups() == []


def test_sql_job_event_time_in_primary_key_raises() -> None:
    with pytest.raises(InvalidJob, match=r"primary_key=\['id'\]"):
        sql_job(
            "hourly", sql="select * from g", primary_key=["id", "at"], event_time="at",
            schedule="0 * * * *", inputs={"g": "g"},
        )  # fmt: skip


@pytest.mark.parametrize("ttl", [timedelta(0), "0s", "0d"])
def test_ttl_zero_raises_with_both_alternatives(duckdb_store: FeatureStore, ttl: Any) -> None:
    rows = [{"id": 1, "at": NOW, "x": 1.0}]
    with pytest.raises(InvalidArgument, match=r"ttl=None for no limit, ttl='exact'"):
        duckdb_store.create_featuregroup(rows, "g", primary_key="id", event_time="at", ttl=ttl)


def test_ttl_exact_matches_equal_times_only(store: FeatureStore) -> None:
    rows = [{"id": 1, "at": NOW, "x": 1.0}]
    group = store.get_or_create_featuregroup(
        rows, "g", primary_key="id", event_time="at", ttl="exact"
    )
    again = store.get_or_create_featuregroup(
        rows, "g", primary_key="id", event_time="at", ttl="exact"
    )
    assert group == again
    labels = [{"id": 1, "t": NOW}, {"id": 1, "t": NOW + timedelta(microseconds=1)}]
    frame = store.get_features("g.x", labels=labels)
    assert frame.to_arrow()["x"].to_pylist() == [1.0, None]
