"""Two hosts share a registry, and the clock of one is an hour ahead or behind."""

from __future__ import annotations

import json
import os
import random
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import featurestore
from featurestore.errors import JobLeased
from featurestore.model import times
from featurestore.recovery import liveness
from featurestore.storage import locks
from featurestore.store import FeatureStore
from tests.forked_processes import kill, start
from tests.jobs.conftest import sql_job, trips
from tests.jobs.suspended_hosts import TIMEOUT, shorten_timeouts
from tests.registry.conftest import new_database, postgres_server  # noqa: F401  # fixtures

pytestmark = [pytest.mark.postgres, pytest.mark.services, pytest.mark.slow]

SECONDS = float(os.environ.get("FEATURESTORE_SECONDS", "4"))


def numbers(first: int, count: int = 3) -> pa.Table:
    return pa.table({"id": range(first, first + count), "value": [0.5] * count})


def use(location: str, registry: str, host: str, hours: int, record: str) -> None:
    """Write, export, vacuum, recover and hold a lease as a host; record what was acknowledged."""
    shorten_timeouts()
    locks.machine_id = lambda _: host * 8  # type: ignore[assignment]
    times.clock = lambda: datetime.now(UTC) + timedelta(hours=hours)
    rng, end = random.Random(), time.time() + SECONDS
    acknowledged: dict[str, list[object]] = {"ids": [], "datasets": [], "leases": []}
    store = featurestore.connect(location, registry=registry, engine="duckdb")

    def insert() -> None:
        first = 1000 * (ord(host) + 3 * len(acknowledged["ids"]))
        store.insert_into_featuregroup(numbers(first), "numbers")
        acknowledged["ids"].append(first)

    def export() -> None:
        rows = store.get_featuregroup("numbers")
        dataset = store.create_training_dataset(rows, f"rows_{host}", progress=False)
        acknowledged["datasets"].append(dataset.version)

    def hold_lease() -> None:
        try:
            with liveness.hold_job_lease(store.session, "demand"):
                started = time.time()
                time.sleep(1.5 * TIMEOUT)
                acknowledged["leases"].append([started, time.time()])
        except JobLeased:
            time.sleep(0.05)

    def recover() -> None:
        featurestore.connect(location, registry=registry, engine="duckdb").close()

    def vacuum() -> None:
        assert not store.vacuum_featuregroup("numbers", retain="2h")

    operations = [insert, export, hold_lease, recover, vacuum]
    while time.time() < end or not all(acknowledged.values()):
        rng.choice(operations)()
    Path(record).write_text(json.dumps(acknowledged))


def check(store: FeatureStore, acknowledged: list[dict[str, list[Any]]]) -> None:
    firsts = [first for each in acknowledged for first in each["ids"]]
    stored_ids = store.get_featuregroup("numbers").to_arrow()["id"].to_pylist()
    expected_ids = {0, 1, 2} | {first + number for first in firsts for number in range(3)}
    assert sorted(stored_ids) == sorted(expected_ids)
    history = sorted(
        store.get_featuregroup_history("numbers"), key=lambda commit: commit.delta_version
    )
    for commit, next_commit in pairwise(history):
        assert commit.timestamp <= next_commit.timestamp
    rows_by_time = {commit.timestamp: commit.rows for commit in history}
    for commit in history:
        version = store.get_featuregroup("numbers", as_of=commit.delta_version)
        assert version.count() == commit.rows
        assert (
            store.get_featuregroup("numbers", as_of=commit.timestamp).count()
            == (rows_by_time[commit.timestamp])
        )
    for host, each in zip("ab", acknowledged, strict=True):
        for version in each["datasets"]:
            store.get_training_dataset(f"rows_{host}", version=version).verify()
    leases = sorted(lease for each in acknowledged for lease in each["leases"])
    for earlier, later in pairwise(leases):
        assert earlier[1] <= later[0]
    assert not list(Path(store.location, "_staging").glob("*"))


@pytest.mark.parametrize("hours", [1, -1])
def test_clock_an_hour_off_changes_no_acknowledged_write(
    tmp_path: Path,
    postgres_server: str,  # noqa: F811
    hours: int,
) -> None:
    url = new_database(postgres_server, f"clocks_{os.getpid()}_{hours % 24}")
    location = str(tmp_path / "store")
    with featurestore.connect(location, registry=url, engine="duckdb") as store:
        store.create_featuregroup(numbers(0), "numbers", primary_key="id")
        store.create_featuregroup(trips(1), "trips", primary_key="id", event_time="left_at")
        (tmp_path / "jobs.py").write_text(sql_job())
        store.register_jobs(tmp_path / "jobs.py")
        records = [tmp_path / "a", tmp_path / "b"]
        hosts = [
            start(use, location, url, record.name, shift, str(record))
            for record, shift in zip(records, (0, hours), strict=True)
        ]
        try:
            for process in hosts:
                process.join(120)
                assert process.exitcode == 0
        finally:
            for process in hosts:
                kill(process)
        time.sleep(TIMEOUT)
        check(store, [json.loads(record.read_text()) for record in records])
