"""A program that uses each part of a store once; arguments: location, umask."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from typer.testing import CliRunner

import featurestore
from featurestore import experiments
from featurestore.cli.main import app

JOBS = """
import featurestore
demand = featurestore.sql_job(
    "demand", sql='''select zone, date_trunc('hour', at) + interval 1 hour as hour, count(*) as trips from trips
    where at >= $window_start and at < $window_end group by 1, 2''', inputs={"trips": "trips"},
    primary_key=["zone"], event_time="hour", schedule="0 * * * *", start="2024-01-01T00:00Z",
)
watched = featurestore.monitor_job("watched", featuregroup="trips", schedule="0 0 * * *")
"""
HOUR = 3600 * 1_000_000
FIRST = 1_704_067_200 * 1_000_000


def train(params: dict[str, Any]) -> dict[str, float]:
    """Print a line to the log of the run, and return a metric."""
    print("training")
    return {"loss": params["rate"]}


def trips(first: int) -> pa.Table:
    """Return five trips, one of which has an invalid fare."""
    times = [FIRST + (first + row) * HOUR for row in range(5)]
    columns: dict[str, Any] = {"id": range(first, first + 5), "zone": list("aabba")}
    columns["at"] = pa.array(times, pa.timestamp("us", tz="UTC"))
    return pa.table({**columns, "fare": [1.0, 2.0, 3.0, 4.0, -1.0]})


def fill(location: str) -> None:
    """Use a store by Python calls and by commands."""
    folder = Path(location).parent
    store = featurestore.connect(location)
    bounds = {"column": "fare", "min_value": 0}
    is_positive = {"type": "expect_column_values_to_be_between", "kwargs": bounds}
    store.create_featuregroup(
        trips(0),
        "trips",
        primary_key="id",
        event_time="at",
        expectations=[is_positive],
        validation="quarantine",
    )
    store.insert_into_featuregroup(trips(3), "trips", mode="upsert")
    store.delete_from_featuregroup("trips", "id = 1")
    store.create_feature_view("riding", features=["trips.fare"])
    store.publish("riding")
    rides = store.get_featuregroup("trips").select("id", "fare")
    dataset = store.create_training_dataset(rides, "rides")
    experiments.launch(train, params={"rate": 0.5}, name="riding", dataset=dataset, store=store)
    (folder / "shop").mkdir()
    (folder / "shop" / "prices.csv").write_text("id,price\n1,2.5\n", encoding="utf-8")
    store.add_source("shop", f"{folder}/shop")
    (folder / "jobs.py").write_text(JOBS, encoding="utf-8")
    store.register_jobs(folder / "jobs.py")
    store.backfill_job("demand", "2024-01-01", "2024-01-01T06:00")
    store.backfill_job("watched", "2024-01-01", "2024-01-03")
    store.compact_featuregroup("trips")
    for command in ("user add ann --no-password --role admin", "access private trips"):
        result = CliRunner().invoke(app, ["--location", location, *command.split()])
        assert result.exit_code == 0, result.output
    store.close()


if __name__ == "__main__":
    os.umask(int(sys.argv[2], 8))
    fill(sys.argv[1])
