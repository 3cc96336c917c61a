"""Jobs with a registry in Postgres.

Side by side, and by two schedulers, the same as on SQLite.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

import featurestore
from featurestore.errors import JobLeased
from featurestore.jobs import execution, service
from featurestore.recovery.liveness import hold_job_lease
from featurestore.registry import jobs
from featurestore.store import FeatureStore
from tests.jobs.conftest import HOURS, START, Clock, expected, rows, sql_job, trips
from tests.registry.conftest import postgres_server, postgres_url  # noqa: F401  # fixtures

Define = Callable[..., Path]
END = START + timedelta(hours=HOURS)
pytestmark = pytest.mark.postgres


@pytest.fixture
def hosts(tmp_path: Path, clock: Clock, postgres_url: str) -> list[FeatureStore]:  # noqa: F811
    """Two connections to one store, as from two hosts."""
    result = [featurestore.connect(tmp_path / "store", registry=postgres_url) for _ in range(2)]
    result[0].create_featuregroup(trips(), "trips", primary_key=["id"], event_time="left_at")
    return result


def test_parallel_backfill_on_postgres_moves_watermark_to_end(
    hosts: list[FeatureStore], define: Define, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "CHUNKS", {**execution.CHUNKS, "sql": 2})
    monkeypatch.setattr(service, "usable_cores", lambda: 4)
    hosts[0].register_jobs(define(sql_job()))
    hosts[0].backfill_job("demand", START, END)
    assert rows(hosts[1]) == expected()
    assert sum(run.windows for run in hosts[1].get_runs("demand")) == HOURS
    with hosts[1].session.registry.reading() as connection:
        assert jobs.watermark(connection, "demand") == END


def test_remove_job_on_postgres_is_seen_by_other_hosts(
    hosts: list[FeatureStore], define: Define
) -> None:
    hosts[0].register_jobs(define(sql_job()))
    hosts[0].run_job("demand", due=True)
    with hold_job_lease(hosts[1].session, "demand"), ThreadPoolExecutor(1) as pool:
        refused = pool.submit(hosts[0].remove_job, "demand").exception()
    assert isinstance(refused, JobLeased)
    assert hosts[0].remove_job("demand").runs == 1
    assert hosts[1].get_jobs() == []
    assert rows(hosts[1]) == expected()


def test_two_schedulers_on_postgres_compute_each_window_once(
    hosts: list[FeatureStore], define: Define
) -> None:
    names = [f"demand{number}" for number in range(3)]
    hosts[0].register_jobs(define(*(sql_job(name, rules="catchup=5") for name in names)))
    barrier = threading.Barrier(2)

    def work(store: FeatureStore) -> None:
        barrier.wait(60)
        while any(status.due for status in store.get_jobs()):
            store.scheduler().run_due()

    threads = [threading.Thread(target=work, args=(store,)) for store in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in names:
        assert rows(hosts[0], name) == expected()
        assert {run.state for run in hosts[0].get_runs(name)} == {"done"}
        assert sum(run.windows for run in hosts[0].get_runs(name)) == HOURS
