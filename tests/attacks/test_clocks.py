"""Clocks that change by a day while leases, jobs, streams and alerts are active."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featurestore.errors import JobLeased
from featurestore.jobs.scheduler import Options
from featurestore.model import times
from featurestore.model.times import has_passed
from featurestore.recovery import liveness
from featurestore.registry import alerts
from featurestore.store import FeatureStore
from tests.attacks.hourly_job import JOB

DAY = timedelta(days=1)
NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)


class Clock:
    """A clock that a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = NOON
        monkeypatch.setattr(times, "utc_now", lambda: self.now)

    def set(self, hours: float, days: int = 0) -> None:
        """Set the clock to some hours after noon of the first day, plus some days."""
        self.now = NOON + timedelta(hours=hours, days=days)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def hourly_store(empty_store: FeatureStore, tmp_path: Path, clock: Clock) -> FeatureStore:
    insert(empty_store, 0)
    (tmp_path / "hourly_jobs.py").write_text(JOB)
    empty_store.register_jobs(tmp_path / "hourly_jobs.py")
    return empty_store


def insert(store: FeatureStore, hour: int) -> None:
    """Insert one row, some hours after noon."""
    rows = [{"k": hour, "t": NOON + timedelta(hours=hour, minutes=30), "x": 1.0}]
    if not store.get_latest_featuregroup_version("numbers"):
        store.create_featuregroup(rows, "numbers", primary_key="k", event_time="t")
    else:
        store.insert_into_featuregroup(rows, "numbers")


def computed(store: FeatureStore) -> list[int]:
    return sorted(store.get_featuregroup("more").to_pandas()["k"])


@pytest.mark.parametrize("days", [1, -1])
def test_clock_jump_neither_loses_nor_duplicates_rows(
    hourly_store: FeatureStore, clock: Clock, days: int
) -> None:
    scheduler = hourly_store.scheduler(Options(stale=True))
    clock.set(1.1)
    scheduler.run_due()
    clock.set(1.2, days)
    scheduler.run_due()
    clock.set(1.3)
    insert(hourly_store, 1)
    clock.set(2.1)
    scheduler.run_due()
    assert computed(hourly_store) == [0, 1]
    insert(hourly_store, 2)
    clock.set(3.1)
    scheduler.run_due()
    scheduler.run_due()
    assert computed(hourly_store) == [0, 1, 2]


@pytest.mark.parametrize("days", [1, -1])
def test_clock_jump_does_not_transfer_lease(
    hourly_store: FeatureStore, clock: Clock, days: int
) -> None:
    session = hourly_store.session
    holds, ends = threading.Event(), threading.Event()

    def hold() -> None:
        with liveness.hold_job_lease(session, "hourly"):
            holds.set()
            ends.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert holds.wait(30)
        clock.set(0, days)
        with pytest.raises(JobLeased), liveness.hold_job_lease(session, "hourly"):
            pass
        owner = liveness.owner_of_this_process(session.location)
        with session.registry.reading() as connection:
            assert liveness.is_alive(connection, session.location, owner)
    finally:
        ends.set()
        holder.join()
    with liveness.hold_job_lease(session, "hourly"):
        pass


@pytest.mark.parametrize("days", [1, -1])
def test_alerts_before_clock_jump_are_sent(
    hourly_store: FeatureStore, clock: Clock, days: int
) -> None:
    registry = hourly_store.session.registry
    clock.set(0, days)
    with registry.transaction() as connection:
        alerts.enqueue_alert(connection, "begin", "hourly", {"failed": ["a"]}, ["people"])
    clock.set(0)
    with registry.transaction() as connection:
        (message,) = alerts.due_messages(connection)
        assert alerts.claim_message(connection, message, "host")
        alerts.record_failed_delivery(
            connection, message, "refused", alerts.LONGEST_WAIT, holder="host"
        )
        assert alerts.due_messages(connection) == []
    clock.set(1)
    with registry.reading() as connection:
        assert len(alerts.due_messages(connection)) == 1


TIMES = st.integers(-2 * 86_400, 2 * 86_400).map(lambda seconds: NOON + timedelta(seconds=seconds))


@given(
    since=TIMES,
    now=TIMES,
    wait=st.integers(0, 3600).map(lambda seconds: timedelta(seconds=seconds)),
)
def test_clock_jump_does_not_extend_waits(since: datetime, now: datetime, wait: timedelta) -> None:
    """Waits end after their length even if the clock is set back."""
    assert has_passed(since, wait, now=max(now, since) + wait)
    assert has_passed(since, wait, now=now) == (not since <= now < since + wait)
