"""Heartbeats with wrong host clocks: the registry's clock decides which process is alive."""

from __future__ import annotations

from collections.abc import Iterator
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
def store(tmp_path: Path, registry_url: str | None) -> Iterator[FeatureStore]:
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


def test_heartbeat_in_future_expires(store: FeatureStore) -> None:
    lease(store)
    move(store, DAY)
    assert is_leased(store)
    move(store, -HEARTBEAT_TIMEOUT)
    assert not is_leased(store)


def test_connect_corrects_future_heartbeats(store: FeatureStore) -> None:
    lease(store)
    move(store, DAY)
    url = None if store.session.registry.dialect == "sqlite" else store.session.registry.url
    featurestore.connect(store.location, registry=url).close()
    with store.session.registry.reading() as connection:
        assert not intents.has_future_heartbeats(connection)
        assert is_alive(connection, store.location, REMOTE_OWNER)
    move(store, -HEARTBEAT_TIMEOUT)
    with store.session.registry.reading() as connection:
        assert not is_alive(connection, store.location, REMOTE_OWNER)


def test_lease_survives_clock_set_back(store: FeatureStore) -> None:
    lease(store)
    move(store, DAY)
    for _ in range(3):
        assert is_leased(store)
        with store.session.registry.transaction() as connection:
            intents.record_heartbeat(connection, REMOTE_OWNER)
        move(store, -HEARTBEAT_TIMEOUT + 10 * SECOND)
    assert is_leased(store)
