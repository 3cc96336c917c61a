"""Numbers and strings declared as times are refused with the line that converts them.

Times of 1970 are warned about; a time is no part of a key.
"""

from __future__ import annotations

import datetime as datetime_module
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import product
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


def test_numeric_time_hint_converts_correctly(
    empty_store: FeatureStore, subtests: pytest.Subtests
) -> None:
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    # The library and the variable name of its dataframes in hints.
    libraries: dict[str, tuple[str, Callable[[pa.Table], Any]]] = {
        "pandas": ("df", lambda table: table.to_pandas()),
        "polars": ("df", pl.from_arrow),
        "pyarrow": ("table", lambda table: table),
        "duckdb": ("rows", lambda table: duckdb.connect().from_arrow(table)),
        "rows": ("rows", lambda table: table.to_pylist()),
        "columns": ("columns", lambda table: table.to_pydict()),
    }
    keys = {"primary_key": "id", "event_time": "ts"}
    for unit, (library, (variable, convert)) in product(PER_SECOND, libraries.items()):
        with subtests.test(f"{library}, {unit}"):
            df = convert(numbers(unit))
            group_name = f"{library}_{unit}"
            with pytest.raises(InvalidArgument) as refused:
                empty_store.create_featuregroup(df, group_name, **keys)
            names = {variable: df, "pd": pd, "pl": pl, "pa": pa, "datetime": datetime_module}
            exec(str(refused.value.hint), names)
            group = empty_store.create_featuregroup(names[variable], group_name, **keys)
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
def test_times_near_1970_warn_about_nanoseconds(empty_store: FeatureStore, unit: str) -> None:
    pd = pytest.importorskip("pandas")
    df = numbers(unit).to_pandas()
    df["ts"] = pd.to_datetime(df["ts"], utc=True).dt.floor("us")
    says = rf"3 of 3 rows have a ts before 1980.*numbers in '{unit}' read as nanoseconds"
    with pytest.warns(SuspiciousTimeWarning, match=says) as record:
        empty_store.create_featuregroup(df, "g", primary_key="id", event_time="ts")
    assert record[0].filename == __file__
    with pytest.warns(SuspiciousTimeWarning, match="before 1980"):
        empty_store.insert_into_featuregroup(df, "g", mode="overwrite")


def test_numeric_label_time_raises_with_unit(empty_store: FeatureStore) -> None:
    times = pa.array([NOW] * 3, pa.timestamp("us", tz="UTC"))
    rows = numbers("s").set_column(1, "ts", times)
    empty_store.create_featuregroup(rows, "g", primary_key="id", event_time="ts")
    labels = numbers("ms").select(["id", "ts"]).rename_columns(["id", "at"]).to_pandas()
    with pytest.raises(LabelTimeRequired, match="unit='ms'"):
        empty_store.get_features("g.x", labels=labels, label_time="at")
    with pytest.raises(LabelTimeRequired, match=r"'at' looks like numbers(.|\n)*unit='ms'"):
        empty_store.get_features("g.x", labels=labels)
    old = pa.table({"id": [1], "at": pa.array([1618491906], pa.timestamp("us", tz="UTC"))})
    with pytest.warns(SuspiciousTimeWarning, match="1 of the first 1 labels are before 1980"):
        empty_store.get_features("g.x", labels=old)


def test_insert_numeric_event_time_raises_with_unit(empty_store: FeatureStore) -> None:
    times = pa.array([NOW] * 3, pa.timestamp("us", tz="UTC"))
    rows = numbers("s").set_column(1, "ts", times)
    empty_store.create_featuregroup(rows, "g", primary_key="id", event_time="ts")
    with pytest.raises(SchemaMismatch, match=r"pd.to_datetime\(df\['ts'\], unit='ms', utc=True\)"):
        empty_store.insert_into_featuregroup(numbers("ms").to_pandas(), "g")


def test_event_time_in_primary_key_raises_with_hint(
    empty_store: FeatureStore, subtests: pytest.Subtests
) -> None:
    rows = [{"id": 1, "at": NOW, "known": NOW, "x": 1.0}]
    hints: list[tuple[Any, str | None, str]] = [
        (["id", "at"], None, r"primary_key=\['id'\], event_time='at'"),
        (["at", "id", "known"], "known", r"primary_key=\['id'\], event_time='at'"),
        ("at", None, r"primary_key=\['at'\] without event_time= joins rows with equal 'at'"),
    ]
    for key, created_time, hint in hints:
        with subtests.test(f"primary_key={key}"):
            with pytest.raises(InvalidArgument, match=hint):
                empty_store.create_featuregroup(
                    rows, "g", primary_key=key, event_time="at", created_time=created_time
                )
            assert empty_store.get_featuregroups() == []


def test_sql_job_event_time_in_primary_key_raises() -> None:
    with pytest.raises(InvalidJob, match=r"primary_key=\['id'\]"):
        sql_job(
            "hourly", sql="select * from g", primary_key=["id", "at"], event_time="at",
            schedule="0 * * * *", inputs={"g": "g"},
        )  # fmt: skip


def test_ttl_zero_raises_with_both_alternatives(
    empty_store: FeatureStore, subtests: pytest.Subtests
) -> None:
    rows = [{"id": 1, "at": NOW, "x": 1.0}]
    arguments: dict[str, Any] = {"primary_key": "id", "event_time": "at"}
    for ttl in (timedelta(0), "0s", "0d"):
        with (
            subtests.test(f"ttl={ttl!r}"),
            pytest.raises(InvalidArgument, match=r"ttl=None for no limit, ttl='exact'"),
        ):
            empty_store.create_featuregroup(rows, "g", ttl=ttl, **arguments)


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
