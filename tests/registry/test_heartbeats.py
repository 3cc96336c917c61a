"""Heartbeats with wrong host clocks: the registry's clock decides which process is alive."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

import featurestore
from featurestore.errors import JobLeased
from featurestore.model import times
from featurestore.recovery import liveness
from featurestore.recovery.liveness import HEARTBEAT_TIMEOUT, is_alive
from featurestore.registry import intents, jobs, tables
from featurestore.store import FeatureStore
from tests.attacks.hourly_job import JOB
from tests.attacks.test_clocks import insert
from tests.registry.conftest import new_database

DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)
REMOTE_OWNER = "another-host.1.ffffffff.00000000"


@pytest.fixture
def hourly_store(tmp_path: Path, registry_url: str | None) -> Iterator[FeatureStore]:
    with featurestore.connect(tmp_path / "store", registry=registry_url) as store:
        insert(store, 0)
        (tmp_path / "hourly_jobs.py").write_text(JOB)
        store.register_jobs(tmp_path / "hourly_jobs.py")
        yield store


def lease(store: FeatureStore) -> None:
    """Record the heartbeat of another host that holds the lease of the job."""
    with store.session.registry.transaction() as connection:
        intents.record_heartbeat(connection, REMOTE_OWNER)
        jobs.set_lease(connection, "hourly", f"{REMOTE_OWNER}/1")


def move(store: FeatureStore, offset: timedelta) -> None:
    """Shift all heartbeats, as if the registry's clock had moved in the other direction."""
    column = tables.owners.c.seen
    with store.session.registry.transaction() as connection:
        connection.execute(
            tables.owners.update().values(seen=column + offset // SECOND * 1_000_000)
        )


def is_leased(store: FeatureStore) -> bool:
    try:
        with liveness.hold_job_lease(store.session, "hourly"):
            return False
    except JobLeased:
        return True


@pytest.mark.postgres
@pytest.mark.parametrize("days", [1, -1])
def test_heartbeat_of_host_with_wrong_clock_expires(
    tmp_path: Path, postgres_server: str, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    url = new_database(postgres_server, f"wrong_clock_{days + 1}")
    with featurestore.connect(tmp_path / "store", registry=url) as store:
        insert(store, 0)
        (tmp_path / "hourly_jobs.py").write_text(JOB)
        store.register_jobs(tmp_path / "hourly_jobs.py")
        right = times.clock
        monkeypatch.setattr(times, "clock", lambda: right() + days * DAY)
        lease(store)
        monkeypatch.setattr(times, "clock", right)
        assert is_leased(store)
        move(store, -HEARTBEAT_TIMEOUT + 10 * SECOND)
        assert is_leased(store)
        # The clock of the checking host does not matter either.
        monkeypatch.setattr(times, "clock", lambda: right() + days * DAY)
        assert is_leased(store)
        move(store, -11 * SECOND)
        assert not is_leased(store)


def test_heartbeat_in_future_expires(hourly_store: FeatureStore) -> None:
    lease(hourly_store)
    move(hourly_store, DAY)
    assert is_leased(hourly_store)
    move(hourly_store, -HEARTBEAT_TIMEOUT)
    assert not is_leased(hourly_store)


def test_connect_corrects_future_heartbeats(hourly_store: FeatureStore) -> None:
    lease(hourly_store)
    move(hourly_store, DAY)
    url = (
        None
        if hourly_store.session.registry.dialect == "sqlite"
        else hourly_store.session.registry.url
    )
    featurestore.connect(hourly_store.location, registry=url).close()
    with hourly_store.session.registry.reading() as connection:
        assert not intents.has_future_heartbeats(connection)
        assert is_alive(connection, hourly_store.location, REMOTE_OWNER)
    move(hourly_store, -HEARTBEAT_TIMEOUT)
    with hourly_store.session.registry.reading() as connection:
        assert not is_alive(connection, hourly_store.location, REMOTE_OWNER)


def test_lease_survives_clock_set_back(hourly_store: FeatureStore) -> None:
    lease(hourly_store)
    move(hourly_store, DAY)
    for _ in range(3):
        assert is_leased(hourly_store)
        with hourly_store.session.registry.transaction() as connection:
            intents.record_heartbeat(connection, REMOTE_OWNER)
        move(hourly_store, -HEARTBEAT_TIMEOUT + 10 * SECOND)
    assert is_leased(hourly_store)


def test_concurrent_first_heartbeats_of_an_owner_all_succeed(hourly_store: FeatureStore) -> None:
    # The threads of a scheduler and its heartbeat thread record heartbeats of one owner.
    registry, threads = hourly_store.session.registry, 8
    barrier = threading.Barrier(threads)

    def record(name: str) -> None:
        barrier.wait(60)
        with registry.transaction() as connection:
            intents.record_heartbeat(connection, name)

    with ThreadPoolExecutor(threads) as pool:
        for number in range(20):
            list(pool.map(record, [f"another-host.1.ffffffff.{number:08x}"] * threads))
    with registry.reading() as connection:
        assert len(intents.owner_names(connection)) >= 20
