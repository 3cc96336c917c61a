"""Jobs whose store is in a bucket: each window once, logs as objects, killed runs settled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import featurestore
from featurestore.storage import files
from featurestore.store import FeatureStore
from tests.object_server import ObjectServer
from tests.storage.stores import Connect

pytest.importorskip("croniter")

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
BACKFILL = """
import sys
import featurestore
location, registry = sys.argv[1:]
with featurestore.connect(location, registry=registry) as store:
    print("ready", flush=True)
    store.backfill_job("tips", "2024-01-01T00:00Z", "2024-01-01T08:00Z")
"""


def filled(store: FeatureStore, folder: Path) -> FeatureStore:
    """Give a store a group of trips and two jobs over it."""
    times = pd.date_range("2024-01-01", "2024-01-01 08:00", freq="7min", tz="UTC", inclusive="left")
    trips = pd.DataFrame({"trip": range(len(times)), "left_at": times})
    trips = trips.assign(zone=trips["trip"] % 3, tip=trips["trip"] * 0.5)
    store.create_featuregroup(trips, "trips", primary_key="trip", event_time="left_at")
    folder.mkdir(exist_ok=True)
    (folder / "jobs.py").write_text(JOBS)
    store.register_jobs(folder / "jobs.py")
    return store


def found(store: FeatureStore, name: str) -> list[Any]:
    frame = store.get_featuregroup(name).to_pandas()
    return sorted(map(tuple, frame.itertuples(index=False)))


def test_jobs_on_s3_compute_what_jobs_on_a_disk_compute(connect: Connect, tmp_path: Path) -> None:
    with featurestore.connect(tmp_path / "disk") as disk:
        expected = []
        for store in (filled(disk, tmp_path / "one"), filled(connect(), tmp_path / "two")):
            for name in ("demand", "tips"):
                store.backfill_job(name, *RANGE)
            store.backfill_job("demand", *RANGE)
            expected.append([found(store, "demand"), found(store, "tips")])
        assert expected[0] == expected[1]
    runs = store.get_runs("tips")
    assert {run.state for run in runs} == {"done"}
    for run in runs:
        assert run.log is not None
        assert run.log.startswith(f"{store.location}/_logs/tips/")
        assert "tips, 1 windows" in files.read_text(run.log)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [2, pytest.param(15, marks=pytest.mark.soak)])
def test_a_killed_backfill_on_s3_computes_each_window_once(
    connect: Connect, object_server: ObjectServer, tmp_path: Path, kills: int
) -> None:
    store = filled(connect(), tmp_path / "jobs")
    given = {key.upper(): value for key, value in object_server.options.items()}
    for number in range(kills):
        process = subprocess.Popen(
            [sys.executable, "-c", BACKFILL, store.location, f"sqlite:///{tmp_path}/cache.db"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **given},
            text=True,
        )
        assert process.stdout is not None
        while process.stdout.readline() != "ready\n":
            assert process.poll() is None
        time.sleep(0.1 + 0.8 * number / kills)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    again = connect()
    again.backfill_job("tips", *RANGE)
    rows = again.get_featuregroup("tips").to_pandas()
    assert not rows.duplicated(["zone", "hour"]).any()
    assert len(rows) == 8 * 3
