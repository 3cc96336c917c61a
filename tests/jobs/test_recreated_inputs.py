"""Inputs that are removed and created again between runs: windows become stale, or runs fail.

A table that is created again has the versions of the old one, and a file its name and size.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyarrow import parquet

from featurestore.errors import FeatureGroupNotFound, InvalidJob, JobFailed, JobWarning
from featurestore.store import FeatureStore
from tests.jobs.conftest import START, Clock, expected, rows, sql_job

Define = Callable[..., Path]
HOUR = timedelta(hours=1)
HOURS = 6
COUNT = """
select 'all' as zone, date_trunc('hour', left_at) + interval 1 hour as hour, sum(fare) as fares
from trips where left_at >= $window_start and left_at < $window_end group by all
"""


class Input:
    """Trips in a group, a Delta table or a folder of files, and the same trips in a list."""

    def __init__(self, store: FeatureStore, folder: Path, form: str, rng: random.Random) -> None:
        self.store, self.form, self.rng = store, form, rng
        self.path = folder / form
        self.trips: list[tuple[int, int]] = []
        self.batches = 0

    @property
    def reference(self) -> str:
        """The input of the job."""
        return "trips" if self.form == "group" else str(self.path)

    def insert(self) -> None:
        """Add trips of random hours, in one commit or file."""
        batch = [(self.rng.randrange(HOURS), self.rng.randint(1, 99)) for _ in range(4)]
        table = pa.table(
            {
                "id": pa.array(range(len(self.trips), len(self.trips) + len(batch)), pa.int64()),
                "left_at": pa.array(
                    [START + hour * HOUR for hour, _ in batch], pa.timestamp("us", tz="UTC")
                ),
                "fare": pa.array([fare for _, fare in batch], pa.int64()),
            }
        )
        if self.form == "group":
            if self.batches:
                self.store.insert_into_featuregroup(table, "trips")
            else:
                self.store.create_featuregroup(
                    table, "trips", primary_key=["id"], event_time="left_at", version=1
                )
        elif self.form == "delta":
            deltalake.write_deltalake(self.path, table, mode="append")
        else:
            self.path.mkdir(exist_ok=True)
            parquet.write_table(table, self.path / f"part-{self.batches}.parquet")
        self.trips += batch
        self.batches += 1

    def remove(self) -> None:
        """Remove all trips with their table, or all files."""
        if self.form == "group":
            self.store.delete_featuregroup("trips", version=1, force=True)
        else:
            shutil.rmtree(self.path)
            self.path.mkdir()
        self.trips, self.batches = [], 0

    def create_again(self) -> None:
        """Remove the trips, and insert as many others in as many commits or files."""
        batches = self.batches
        self.remove()
        for _ in range(batches):
            self.insert()

    def expected(self) -> list[tuple[Any, int]]:
        """Return the rows of the job."""
        fares = Counter[int]()
        for hour, fare in self.trips:
            fares[hour] += fare
        return [(START + (hour + 1) * HOUR, fares[hour]) for hour in sorted(fares)]


def compute_and_compare(store: FeatureStore, trips: Input) -> None:
    """Compute due and stale windows, and compare the rows with the trips."""
    store.run_job("demand", due=True)
    store.run_job("demand", stale=True)
    assert [(row["hour"], row["fares"]) for row in rows(store)] == trips.expected()


def walk(store: FeatureStore, trips: Input, steps: int, define: Define) -> Counter[str]:
    """Change the input at random, and compare after each change."""
    inputs = f'{{"trips": {trips.reference!r}}}'
    times = "" if trips.form == "group" else 'input_times={"trips": "left_at"},'
    trips.insert()
    store.register_jobs(define(sql_job(sql=COUNT, inputs=inputs, rules=times)))
    compute_and_compare(store, trips)
    counts = Counter[str]()
    for _ in range(steps):
        step = trips.rng.choice(["insert", "create_again", "create_again", "remove"])
        counts[step] += 1
        getattr(trips, step)()
        if step == "remove":
            with pytest.raises((FeatureGroupNotFound, InvalidJob, JobFailed)):
                store.run_job("demand", stale=True)
            trips.insert()
        compute_and_compare(store, trips)
    return counts


@pytest.mark.parametrize("form", ["group", "delta", "files"])
def test_recreated_input_makes_windows_stale(
    empty_store: FeatureStore, tmp_path: Path, clock: Clock, define: Define, form: str
) -> None:
    clock.now = START + HOURS * HOUR
    walk(empty_store, Input(empty_store, tmp_path, form, random.Random(54)), 4, define)


def test_deleted_target_is_computed_again_by_backfill(
    city: FeatureStore, define: Define, clock: Clock
) -> None:
    city.register_jobs(define(sql_job()))
    city.run_job("demand", due=True)
    clock.now += HOUR
    with pytest.warns(JobWarning, match=r"from 2024-01-03T00:00:00\+00:00 on.*backfill_job"):
        city.delete_featuregroup("demand", version=1)
    city.run_job("demand", due=True)
    city.backfill_job("demand", START, clock.now)
    assert rows(city) == expected()


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("form", ["group", "delta", "files"])
def test_many_random_changes_of_inputs_are_found(
    empty_store: FeatureStore, tmp_path: Path, clock: Clock, define: Define, form: str
) -> None:
    clock.now = START + HOURS * HOUR
    trips = Input(empty_store, tmp_path, form, random.Random(f"changes/{form}"))
    print(form, dict(walk(empty_store, trips, 100, define)))
