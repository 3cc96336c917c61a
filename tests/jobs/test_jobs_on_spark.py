"""Jobs on Spark write the same rows once."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import featurestore
from featurestore.cli import app
from featurestore.jobs import execution, service
from featurestore.store import FeatureStore
from tests.jobs.conftest import START, expected, rows, sql_job, trips

Define = Callable[..., Path]
HOUR = timedelta(hours=1)
pytestmark = pytest.mark.spark

FRAMES = """
import featurestore, narwhals as nw
@featurestore.job(featuregroup="frames", primary_key=["zone"], event_time="hour",
                  schedule="0 * * * *",
                  start="2024-01-01T00:00Z", inputs={"trips": "trips"})
def frames(window, trips):
    hour = nw.col("left_at").dt.truncate("1h").dt.offset_by("1h")
    grouped = nw.from_native(trips).with_columns(hour=hour).group_by("zone", "hour")
    return grouped.agg(trips=nw.len().cast(nw.Int64), fares=nw.col("fare").sum()).to_native()
"""


@pytest.fixture
def example_jobs() -> Path:
    return Path(__file__).parents[2] / "examples" / "flights" / "late_flights" / "jobs.py"


@pytest.fixture
def cities(spark: Any, tmp_path: Path, clock: Any) -> list[FeatureStore]:
    result = [featurestore.connect(tmp_path / name, engine=name) for name in ("duckdb", "spark")]
    for store in result:
        store.create_featuregroup(trips(), "trips", primary_key=["id"], event_time="left_at")
    return result


def test_spark_jobs_equal_duckdb_jobs(cities: list[FeatureStore], define: Define) -> None:
    file = define(sql_job(), FRAMES)
    for store in cities:
        store.register_jobs(file)
        store.backfill_job("demand", START, START + 5 * HOUR)
        store.run_job("demand", window=START + 3 * HOUR)
        store.backfill_job("frames", START, START + 2 * HOUR)
        assert rows(store) == expected(5)
        names = ("zone", "hour", "trips", "fares")
        assert [{name: row[name] for name in names} for row in rows(store, "frames")] == expected(2)
        before = store.featuregroup("demand").delta_version
        assert store.backfill_job("demand", START, START + 5 * HOUR) == []
        assert store.featuregroup("demand").delta_version == before


WINDOW_QUERIES = {
    "stamped": "select zone, count(*) as trips, sum(fare) as fares from trips group by zone",
    "strict": """
        select zone, $window_end as hour, count(*) as trips, sum(fare) as fares from trips
        where left_at > $window_start and left_at <= $window_end group by zone, hour
    """,
    "unproven": """
        select zone, max(left_at) as hour, count(*) as trips, sum(fare) as fares from trips
        group by zone
    """,
}


def test_spark_chunks_equal_duckdb_chunks(
    cities: list[FeatureStore], define: Define, caplog: pytest.LogCaptureFixture
) -> None:
    file = define(*(sql_job(name, sql=sql) for name, sql in WINDOW_QUERIES.items()))
    names = ("zone", "hour", "trips", "fares")
    for store in cities:
        caplog.clear()
        store.register_jobs(file)
        for job in WINDOW_QUERIES:
            store.backfill_job(job, START, START + 4 * HOUR)
        for job in ("stamped", "strict"):
            assert [{name: row[name] for name in names} for row in rows(store, job)] == expected(4)
        times = {(row["zone"], row["hour"] - START) for row in rows(store, "unproven")}
        minutes = {"a": 50, "b": 20}
        assert times == {
            (zone, timedelta(hours=hour, minutes=minute))
            for hour in range(4)
            for zone, minute in minutes.items()
        }
        (message,) = [text for text in caplog.messages if "one by one" in text]
        assert "MAX(left_at)" in message


def test_spark_frames_example_equals_query_example(
    cities: list[FeatureStore], example_jobs: Path
) -> None:
    departure_times = [
        START.replace(year=2013) + timedelta(minutes=7 * number) for number in range(40)
    ]
    departures = pa.table({
        "left_at": pa.array(departure_times, pa.timestamp("us", tz="UTC")),
        "origin": ["EWR", "JFK", "LGA", "EWR"] * 10,
        "delay": pa.array([float(number % 50) for number in range(40)]),
    })  # fmt: skip
    actual = []
    for store in cities:
        store.create_featuregroup(departures, "departures", event_time="left_at")
        store.register_jobs(example_jobs)
        for name in ("origin_traffic", "origin_traffic_by_frames"):
            (run,) = store.backfill_job(name, departure_times[0], departure_times[0] + 2 * HOUR)
            assert (run.state, run.windows) == ("done", 2)
            table = (
                store.get_featuregroup(name)
                .to_arrow()
                .sort_by([("known_at", "ascending"), ("origin", "ascending")])
            )
            actual.append(
                table.select(
                    ["origin", "known_at", "departures", "mean_delay", "late_share"]
                ).to_pylist()
            )
    assert len(actual[0]) == 6
    assert actual[0] == actual[1] == actual[2] == actual[3]


def test_job_commands_run_on_spark(cities: list[FeatureStore], define: Define) -> None:
    store = cities[1]
    store.register_jobs(define(sql_job(rules="catchup=3")))
    words = [
        "--engine",
        "spark",
        "--location",
        store.location,
        "--output",
        "json",
        "job",
        "run",
        "demand",
        "--due",
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    (run,) = json.loads(result.stdout)
    assert (run["state"], run["windows"]) == ("done", 3)
    assert rows(store) == expected(3)
    info = json.loads(
        next(Path(store.featuregroup("demand").path, "_delta_log").glob("*1.json"))
        .read_text()
        .splitlines()[0]
    )
    assert "Spark" in info["commitInfo"]["engineInfo"]


def test_spark_parallel_chunks_land_once(
    cities: list[FeatureStore], define: Define, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "CHUNKS", {**execution.CHUNKS, "sql": 2})
    monkeypatch.setattr(service, "usable_cores", lambda: 2)
    store = cities[1]
    store.register_jobs(define(sql_job()))
    actual = store.backfill_job("demand", START, START + 6 * HOUR)
    assert [(run.state, run.windows) for run in actual] == [("done", 2)] * 3
    assert rows(store) == expected(6)
    assert store.get_jobs()[0].job.watermark == START + 6 * HOUR
