"""Lineage events on Spark equal those of the embedded engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import featurestore
from tests.lineage.conftest import FLIGHTS, WEATHER, Lineage
from tests.lineage.schemas import check_event

JOB = """
import featurestore
featurestore.sql_job(
    "daily", featuregroup="daily", primary_key="origin", event_time="at",
    schedule="0 0 * * *", start="2023-11-14T00:00Z", retries=0,
    sql="select W.Origin as origin, max(TEMP) + 1 as temp, count(late) as flights, $window_end as at "
        "from weather w left join flights f on w.origin = f.origin where temp > 30 "
        "group by W.origin having count(*) > 0",
    inputs={"weather": "weather", "flights": "flights"},
)
"""
# Fields that always differ: times, run ids, sizes and durations.
_VARYING_FIELDS = (
    "eventTime",
    "runId",
    "producer",
    "processing_engine",
    "size",
    "bytes",
    "fileCount",
)


def strip_varying_fields(event: Any, location: str) -> Any:
    """Return the content of an event without fields that differ between runs."""
    if isinstance(event, dict):
        result = {}
        for name, value in event.items():
            if name not in _VARYING_FIELDS:
                result[name] = strip_varying_fields(value, location)
        return result
    if isinstance(event, list):
        return [strip_varying_fields(item, location) for item in event]
    if isinstance(event, str):
        return event.replace(location, "LOCATION")
    return event


def events_of(engine: str, folder: Path, lineage: Lineage) -> list[Any]:
    """Return the events of an insert, a scheduled job and an export."""
    before = len(lineage.received.messages)
    with featurestore.connect(folder / engine, engine=engine) as store:
        store.create_featuregroup(WEATHER, "weather", primary_key="origin", event_time="at")
        store.create_featuregroup(FLIGHTS, "flights", primary_key="id", event_time="asked")
        (folder / "jobs.py").write_text(JOB)
        store.register_jobs(folder / "jobs.py")
        store.run_job("daily", window="2023-11-14T00:00Z")
        frame = store.get_features(["weather.temp"], labels="flights")
        store.create_training_dataset(frame, "late", label="late", shards=1, progress=False)
        result = lineage.events()[before:]
        for event in result:
            check_event(event)
        return [strip_varying_fields(event, store.location) for event in result]


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_spark_events_equal_embedded_events(tmp_path: Path, lineage: Lineage) -> None:
    embedded = events_of("duckdb", tmp_path, lineage)
    cluster = events_of("spark", tmp_path, lineage)
    names = [(event["job"]["name"], event["eventType"]) for event in embedded]
    assert {("daily", "COMPLETE"), ("create.daily", "COMPLETE"), ("export.late", "COMPLETE")} <= {
        *names
    }
    assert [(event["job"]["name"], event["eventType"]) for event in cluster] == names
    for actual, expected in zip(cluster, embedded, strict=True):
        assert actual == expected
