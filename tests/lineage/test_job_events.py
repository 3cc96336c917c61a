"""Events of jobs of every kind follow OpenLineage's schemas, and have column lineage."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

import featurestore
from featurestore.errors import JobFailed
from featurestore.store import FeatureStore
from tests.lineage.conftest import FLIGHTS, WEATHER, Lineage
from tests.lineage.schemas import check_event
from tests.streams.conftest import broker, job_file  # noqa: F401
from tests.streams.topics import Broker, clicks, job

CLI = [sys.executable, "-m", "featurestore"]
WINDOW = "2023-11-14T00:00Z"
_SCHEDULE = f"schedule='0 0 * * *', start='{WINDOW}', retries=0"
JOBS = """
import featurestore

# Names in another case, an alias equal to an input column, a join, a filter and a condition.
sql = featurestore.sql_job(
    "sql", featuregroup="sql", primary_key="ORIGIN", event_time="at", {schedule},
    sql='''select w.Origin as ORIGIN, $window_end as at, max(TEMP) as Temp, count(late) as flights,
           sum(case when LATE > 0 then "Delay" end) as delay
           from weather w left join flights f on w.origin = f.origin left join delays d on f.id = d.ID
           where temp > 30 group by all''',
    inputs={{"weather": "weather", "flights": "flights", "delays": "{delays}"}},
)

@featurestore.job(featuregroup="python", primary_key="origin", event_time="at",
                  inputs={{"weather": "weather"}}, {schedule})
def python(window, weather):
    return [{{"origin": "EWR", "at": window.end, "rows": 1}}]

featurestore.window_job(
    "window", [featurestore.window("weather.temp", "max", over="1d", where="Temp > 1", name="warmest")],
    every="1d", featuregroup="window", start="{start}",
)

@featurestore.training_job(training_dataset="training", schedule="0 0 * * *", start="{start}")
def training(store, window):
    frame = store.get_features(["weather.temp"], labels="flights").filter("late = 0")
    return {{"data": frame, "label": "late"}}

featurestore.monitor_job("monitor", featuregroup="weather", schedule="0 0 * * *", start="{start}")
featurestore.publish_job("publish", view="temps", schedule="0 0 1 1 *")

@featurestore.job(featuregroup="broken", event_time="at", {schedule})
def broken(window):
    raise ValueError("nothing works")

@featurestore.job(featuregroup="interrupted", event_time="at", {schedule})
def interrupted(window):
    raise KeyboardInterrupt
"""


def register(store: FeatureStore, folder: Path) -> None:
    store.create_featuregroup(WEATHER, "weather", primary_key="origin", event_time="at")
    store.create_featuregroup(FLIGHTS, "flights", primary_key="id", event_time="asked")
    store.create_feature_view("temps", features=["weather.temp"])
    (folder / "delays").mkdir()
    delays = FLIGHTS.select(["id"]).append_column("Delay", FLIGHTS["late"])
    pq.write_table(delays, folder / "delays" / "rows.parquet")
    text = JOBS.format(schedule=_SCHEDULE, start=WINDOW, delays=folder / "delays")
    (folder / "jobs.py").write_text(text)
    store.register_jobs(folder / "jobs.py")


def event_types(events: list[dict[str, Any]], job_name: str) -> list[str]:
    return [event["eventType"] for event in events if event["job"]["name"] == job_name]


def column_lineage(events: list[dict[str, Any]], job_name: str) -> dict[str, set[str]]:
    """Return the origins of the columns and, as "", of the rows in the last event of a job."""
    event = [event for event in events if event["job"]["name"] == job_name][-1]
    facet = event["outputs"][0]["facets"]["columnLineage"]
    fields = {name: field["inputFields"] for name, field in facet["fields"].items()}
    return {
        name: {
            f"{Path(field['name'].removesuffix('/v1')).name}.{field['field']} "
            f"{transformation['subtype']}{'*' if transformation['masking'] else ''}"
            for field in inputs
            for transformation in field["transformations"]
        }
        for name, inputs in (fields | {"": facet["dataset"]}).items()
    }


def test_events_of_every_kind_of_job_follow_specification(
    emitting_store: FeatureStore, lineage: Lineage, tmp_path: Path
) -> None:
    store = emitting_store
    register(store, tmp_path)
    for name in ("sql", "python", "window", "training"):
        store.run_job(name, window=WINDOW)
    store.run_job("publish", window="2023-01-01T00:00Z")
    store.check_monitor("monitor", window=WINDOW)
    with pytest.raises(JobFailed):
        store.run_job("broken", window=WINDOW)
    with pytest.raises(KeyboardInterrupt):
        store.run_job("interrupted", window=WINDOW)
    events = lineage.events()
    for event in events:
        check_event(event)
    for name in ("sql", "python", "window", "training", "publish", "monitor"):
        assert event_types(events, name) == ["START", "COMPLETE"]
    assert event_types(events, "broken") == ["START", "FAIL"]
    assert event_types(events, "interrupted") == ["START", "ABORT"]
    assert column_lineage(events, "create.sql") == {
        "ORIGIN": {"weather.origin IDENTITY"},
        "Temp": {"weather.temp AGGREGATION"},
        "flights": {"flights.late AGGREGATION*"},
        "delay": {"delays.Delay AGGREGATION", "flights.late CONDITIONAL"},
        "": {
            "weather.origin JOIN", "flights.origin JOIN", "flights.id JOIN", "delays.id JOIN",
            "weather.temp FILTER", "weather.origin GROUP_BY", "weather.at FILTER",
            "flights.asked FILTER",
        },
    }  # fmt: skip
    assert column_lineage(events, "create.window") == {
        "origin": {"weather.origin IDENTITY"},
        "warmest": {"weather.temp AGGREGATION", "weather.temp FILTER"},
        "": {"weather.origin GROUP_BY", "weather.at FILTER"},
    }
    assert column_lineage(events, "export.training") == {
        "id": {"flights.id IDENTITY"},
        "origin": {"flights.origin IDENTITY"},
        "asked": {"flights.asked IDENTITY"},
        "late": {"flights.late IDENTITY"},
        "temp": {"weather.temp IDENTITY"},
        "": {
            "weather.origin JOIN", "weather.at JOIN", "flights.origin JOIN", "flights.asked JOIN",
            "flights.late FILTER",
        },
    }  # fmt: skip


def test_exports_have_lineage_of_queries_conditions_and_on_demand_features(
    emitting_store: FeatureStore, lineage: Lineage
) -> None:
    store = emitting_store
    store.create_featuregroup(WEATHER, "weather", primary_key="origin", event_time="at")
    store.create_featuregroup(FLIGHTS, "flights", primary_key="id", event_time="asked")
    labels = store.sql("select id, origin, asked, LATE + 1 as late from flights f where ID > 0")
    count = featurestore.window("weather.temp", "count", over="2h", where="TEMP > 39", name="hours")
    hot = featurestore.feature("hot", "case when hours > 1 then Late else 0 end")
    frame = store.get_features([count, hot], labels=labels).filter("Hot >= 0")
    store.create_training_dataset(frame, "hot", label="late", shards=1, progress=False)
    events = lineage.events()
    check_event(events[-1])
    hours = {"weather.temp AGGREGATION*", "weather.temp FILTER"}
    assert column_lineage(events, "export.hot") == {
        "id": {"flights.id IDENTITY"},
        "origin": {"flights.origin IDENTITY"},
        "asked": {"flights.asked IDENTITY"},
        "late": {"flights.late TRANSFORMATION"},
        "hours": hours,
        "hot": {"weather.temp CONDITIONAL", "weather.temp CONDITIONAL*", "flights.late TRANSFORMATION"},
        "": {
            "weather.origin JOIN", "weather.at JOIN", "flights.origin JOIN", "flights.asked JOIN",
            "flights.id FILTER", "flights.late FILTER", "weather.temp FILTER",
            "weather.temp FILTER*",
        },
    }  # fmt: skip


SOURCE_JOB = """
import featurestore
featurestore.sql_job(
    "sold", featuregroup="sold", primary_key="zone", event_time="at", {schedule},
    sql="select zone, sum(AMOUNT) as amount, $window_end as at from sales group by zone",
    inputs={{"sales": featurestore.source("shop", table="sales", time="at")}},
)
"""


def test_windows_of_source_read_same_dataset(
    emitting_store: FeatureStore, lineage: Lineage, tmp_path: Path
) -> None:
    with duckdb.connect(tmp_path / "shop.duckdb") as database:
        times = "timestamptz '2023-11-14 05:00:00+00' + interval (n) day"
        query = f"select 'EWR' as zone, {times} as at, n as Amount from range(2) as days(n)"
        database.execute(f"create table sales as {query}")
    emitting_store.add_source("shop", f"duckdb:///{tmp_path}/shop.duckdb")
    (tmp_path / "jobs.py").write_text(SOURCE_JOB.format(schedule=_SCHEDULE))
    emitting_store.register_jobs(tmp_path / "jobs.py")
    for window in (WINDOW, "2023-11-15T00:00Z"):
        emitting_store.run_job("sold", window=window)
    events = lineage.events()
    names = {
        (dataset["namespace"], dataset["name"])
        for event in events
        for dataset in event["inputs"]
        if not event["job"]["name"].startswith("validate")
    }
    assert names == {("source:shop", "sales")}
    assert column_lineage(events, "create.sold")["amount"] == {"sales.Amount AGGREGATION"}


DYING_JOB = """
import os
import featurestore

@featurestore.job(featuregroup="dying", event_time="at", {schedule})
def dying(window):
    if "DIES" in os.environ:
        os._exit(9)
    return [{{"at": window.end}}]
"""


def test_recovery_aborts_run_of_killed_process(
    emitting_store: FeatureStore, lineage: Lineage, tmp_path: Path
) -> None:
    (tmp_path / "jobs.py").write_text(DYING_JOB.format(schedule=_SCHEDULE))
    emitting_store.register_jobs(tmp_path / "jobs.py")
    command = [*CLI, "--location", emitting_store.location, "job", "run", "dying"]
    process = subprocess.run(
        [*command, "--window", WINDOW], env=os.environ | {"DIES": "1"}, check=False
    )
    assert process.returncode == 9
    emitting_store.run_job("dying", window=WINDOW)
    events = lineage.events()
    for event in events:
        check_event(event)
    # The killed process may not have sent its START.
    types = [
        (event["run"]["runId"], event["eventType"])
        for event in events
        if event["job"]["name"] == "dying" and event["eventType"] != "START"
    ]
    assert [event_type for _, event_type in types] == ["ABORT", "COMPLETE"]
    states = {run.run_id: run.state for run in emitting_store.get_runs("dying")}
    aborted = types[0][0].replace("-", "")
    assert states[f"job-{aborted}"] == "failed"


@pytest.mark.services
@pytest.mark.slow
def test_events_of_stream_job_follow_specification(
    emitting_store: FeatureStore,
    lineage: Lineage,
    broker: Broker,  # noqa: F811
    job_file: Callable[[str], Path],  # noqa: F811
) -> None:
    topic = broker.topic(1)
    broker.send(topic, clicks(0, 20))
    emitting_store.add_source("events", broker.uri)
    emitting_store.register_jobs(job_file(job(topic)))
    emitting_store.run_job("clicks")
    events = lineage.events()
    for event in events:
        check_event(event)
    assert event_types(events, "clicks") == ["START", "COMPLETE"]
