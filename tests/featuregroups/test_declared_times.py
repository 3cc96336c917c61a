"""Numbers and strings declared as times are refused with the line that converts them.

Times of 1970 are warned about; a time is no part of a key.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from featurestore.arrow.hints import infer_epoch_unit, misread_hint, time_hint
from featurestore.errors import InvalidArgument, InvalidJob, LabelTimeRequired, SchemaMismatch
from featurestore.ingest import to_reader
from featurestore.jobs import sql_job
from featurestore.model.times import SuspiciousTimeWarning
from tests.ingest.pasting import pasted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from featurestore.store import FeatureStore

NOW = datetime(2021, 4, 15, 13, 5, 6, tzinfo=UTC)
LIBRARIES: dict[str, Callable[[pa.Table], Any]] = {
    "pandas": lambda table: table.to_pandas(),
    "polars": pl.from_arrow,
    "pyarrow": lambda table: table,
    "duckdb": lambda table: duckdb.connect().from_arrow(table),
    "rows": lambda table: table.to_pylist(),
    "columns": lambda table: table.to_pydict(),
}
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def numbers(unit: str) -> pa.Table:
    instants = [NOW + timedelta(hours=count) for count in range(3)]
    counts = [int(instant.timestamp()) * PER_SECOND[unit] for instant in instants]
    return pa.table({"id": [1, 2, 3], "ts": counts, "x": [1.0, 2.0, 3.0]})


def test_numeric_time_hint_converts_correctly(
    empty_store: FeatureStore, subtests: pytest.Subtests
) -> None:
    keys = {"primary_key": "id", "event_time": "ts"}
    for unit, (library, convert) in product(PER_SECOND, LIBRARIES.items()):
        with subtests.test(f"{library}, {unit}"):
            df, group_name = convert(numbers(unit)), f"{library}_{unit}"
            with pytest.raises(InvalidArgument) as refused:
                empty_store.create_featuregroup(df, group_name, **keys)
            df = pasted(df, str(refused.value.hint))
            group = empty_store.create_featuregroup(df, group_name, **keys)
            assert min(group.read().to_arrow()["ts"].to_pylist()) == NOW


def day(*numbers: int) -> datetime:
    return datetime(*numbers, tzinfo=UTC)  # type: ignore[misc,arg-type]


# Values of a column, the times that they write, and words of the hint.
WRITTEN_DATES: list[tuple[list[Any], list[datetime | None], str]] = [
    ([19970101, 20240229], [day(1997, 1, 1), day(2024, 2, 29)], "# assumed: days as YYYYMMDD"),
    ([19970101.0, None], [day(1997, 1, 1), None], "# assumed: days as YYYYMMDD"),
    ([2023, 2024], [day(2023, 1, 1), day(2024, 1, 1)], "# assumed: years, as their January 1"),
    ([45292, 30000], [day(2024, 1, 1), day(1982, 2, 18)], "# assumed: serial numbers of Excel"),
    ([45292.5, 45292.25], [day(2024, 1, 1, 12), day(2024, 1, 1, 6)], "# assumed: serial numbers of Excel"),
    ([1618491906], [day(2021, 4, 15, 13, 5, 6)], "# assumed: seconds since 1970"),
    ([1618491906001], [day(2021, 4, 15, 13, 5, 6, 1000)], "# assumed: milliseconds since 1970"),
    ([1618491906000001], [day(2021, 4, 15, 13, 5, 6, 1)], "# assumed: microseconds since 1970"),
    ([1618491906000001000], [day(2021, 4, 15, 13, 5, 6, 1)], "# assumed: nanoseconds since 1970"),
    (["13/02/2024", "01/02/2024"], [day(2024, 2, 13), day(2024, 2, 1)], "%d/%m/%Y"),
    (["02/13/2024", "02/01/2024"], [day(2024, 2, 13), day(2024, 2, 1)], "%m/%d/%Y"),
    (["01/02/2024", None], [day(2024, 2, 1), None], "%m/%d/%Y also fits"),
    (["13.2.2024 10:30"], [day(2024, 2, 13, 10, 30)], "%d.%m.%Y %H:%M"),
    (["2024/02/13"], [day(2024, 2, 13)], "%Y/%m/%d"),
    (["20240213"], [day(2024, 2, 13)], "%Y%m%d"),
]  # fmt: skip


def test_written_date_hint_keeps_every_time(subtests: pytest.Subtests) -> None:
    for (values, times, words), (library, convert) in product(WRITTEN_DATES, LIBRARIES.items()):
        with subtests.test(f"{library}, {values}"):
            table = pa.table({"ts": values})
            hint = time_hint("ts", table["ts"].type, values)
            assert words in hint
            df = pasted(convert(table), hint)
            assert to_reader(df).read_all()["ts"].to_pylist() == times


def test_written_date_hint_works_on_spark(spark: SparkSession, subtests: pytest.Subtests) -> None:
    for values, times, words in WRITTEN_DATES:
        with subtests.test(f"{values}"):
            hint = time_hint("ts", pa.table({"ts": values})["ts"].type, values)
            assert words in hint
            df = pasted(spark.createDataFrame([(value,) for value in values], ["ts"]), hint)
            assert to_reader(df).read_all()["ts"].to_pylist() == times


def test_declared_text_days_are_refused_with_format(empty_store: FeatureStore) -> None:
    rows = pa.table({"id": [1], "ts": ["13/02/2024"], "x": [1.0]}).to_pandas()
    with pytest.raises(InvalidArgument, match=r"timestamp\[%d/%m/%Y\]"):
        empty_store.create_featuregroup(rows, "g", primary_key="id", event_time="ts")
    times = pa.array([NOW], pa.timestamp("us", tz="UTC"))
    empty_store.create_featuregroup(
        pa.table({"id": [1], "ts": times, "x": [1.0]}), "g", primary_key="id", event_time="ts"
    )
    with pytest.raises(LabelTimeRequired, match=r"timestamp\[%d/%m/%Y\]"):
        empty_store.get_features("g.x", labels=rows[["id", "ts"]], label_time="ts")
    labels = pa.table({"id": [1], "at": [20240213]}).to_pandas()
    with pytest.raises(LabelTimeRequired, match=r"assumed: days as YYYYMMDD"):
        empty_store.get_features("g.x", labels=labels)


def test_numeric_time_hint_for_unknown_numbers_requests_unit() -> None:
    assert infer_epoch_unit([20240131]) is None
    for numbers in ([20240230], [5], [1.5, 2024]):
        assert "otherwise 'ms' or 'us'" in time_hint("day", pa.float64(), numbers)
    assert "unit" not in time_hint("day", pa.string(), [])


def test_days_read_as_epoch_numbers_warn_with_format(subtests: pytest.Subtests) -> None:
    hints = {19970101: "timestamp[YYYYMMDD]", 2024: "timestamp[YYYY]", 45292: "timestamp[Excel]"}
    for (number, words), unit in product(hints.items(), ("s", "ms", "us")):
        with subtests.test(f"{number} {unit}"):
            time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
                microseconds=number * 10**6 / PER_SECOND[unit]
            )
            hint = misread_hint("day", [time])
            assert words in hint
            assert "timestamp[s]" not in hint
            # A cast of the times would not change them.
            assert "cast the numbers, not the times" in hint


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
    with pytest.raises(LabelTimeRequired, match=r"timestamp\[ms\]"):
        empty_store.get_features("g.x", labels=labels, label_time="at")
    with pytest.raises(LabelTimeRequired, match=r"'at' looks like numbers(.|\n)*timestamp\[ms\]"):
        empty_store.get_features("g.x", labels=labels)
    old = pa.table({"id": [1], "at": pa.array([1618491906], pa.timestamp("us", tz="UTC"))})
    with pytest.warns(SuspiciousTimeWarning, match="1 of the first 1 labels are before 1980"):
        empty_store.get_features("g.x", labels=old)


def test_insert_numeric_event_time_raises_with_unit(empty_store: FeatureStore) -> None:
    times = pa.array([NOW] * 3, pa.timestamp("us", tz="UTC"))
    rows = numbers("s").set_column(1, "ts", times)
    empty_store.create_featuregroup(rows, "g", primary_key="id", event_time="ts")
    with pytest.raises(SchemaMismatch, match=r"cast\(df, \{'ts': 'timestamp\[ms\]'\}\)"):
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
