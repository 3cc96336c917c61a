"""Jobs over a group of trips, for stores at a URI."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from featurestore.store import FeatureStore

JOBS = """
import time
import featurestore

demand = featurestore.sql_job(
    "demand",
    sql=\"\"\"
        select zone, date_trunc('hour', left_at) + interval 1 hour as hour, count(*) as trips
        from trips
        where left_at >= $window_start and left_at < $window_end
        group by zone, hour
    \"\"\",
    primary_key=["zone"],
    event_time="hour",
    schedule="0 * * * *",
    start="2024-01-01T00:00Z",
    inputs={"trips": "trips"},
)


@featurestore.job(
    featuregroup="tips",
    mode="append",
    primary_key=["zone"],
    event_time="hour",
    schedule="0 * * * *",
    start="2024-01-01T00:00Z",
    inputs={"trips": "trips"},
)
def tips(window, trips):
    return trips.aggregate("zone, sum(tip) as tips")
"""
RANGE = ("2024-01-01T00:00Z", "2024-01-01T08:00Z")


def filled(store: FeatureStore, folder: Path) -> FeatureStore:
    """Create a group of trips and two jobs over it in a store."""
    times = pd.date_range("2024-01-01", "2024-01-01 08:00", freq="7min", tz="UTC", inclusive="left")
    trips = pd.DataFrame({"trip": range(len(times)), "left_at": times})
    trips = trips.assign(zone=trips["trip"] % 3, tip=trips["trip"] * 0.5)
    store.create_featuregroup(trips, "trips", primary_key="trip", event_time="left_at")
    folder.mkdir(exist_ok=True)
    (folder / "jobs.py").write_text(JOBS)
    store.register_jobs(folder / "jobs.py")
    return store
