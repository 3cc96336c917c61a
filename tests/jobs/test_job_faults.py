"""Job runs that are killed at any point.

Afterwards each window is in the table once, and watermark and table agree.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from featurestore.errors import JobFailed, JobLeased
from featurestore.recovery import liveness
from featurestore.registry import intents, jobs
from featurestore.store import FeatureStore
from tests.forked_processes import kill, start
from tests.jobs import killed_jobs
from tests.jobs.conftest import HOURS, START, Clock, expected, python_job, rows, sql_job

pytestmark = [pytest.mark.services, pytest.mark.slow]

Define = Callable[..., Path]
HOUR = timedelta(hours=1)

CRASH_POINTS = {
    "commit": ("featurestore_connectors.duckdb_delta.commits:commit",),
    "watermark": ("featurestore.jobs.run:_end_run",),
}


def _kill_after(seconds: float, location: Path, name: str) -> None:
    """Start a backfill and kill it some seconds after it connected."""
    (location / "ready").unlink(missing_ok=True)
    process = start(killed_jobs.backfill, str(location), name)
    while process.is_alive() and not (location / "ready").exists():
        time.sleep(0.005)
    process.join(seconds)
    kill(process)
    process.close()


def _check(store: FeatureStore, name: str) -> None:
    """Check that windows are complete and that none before the watermark is missing."""
    with store.session.registry.reading() as connection:
        mark = jobs.watermark(connection, name)
    if name not in {group.name for group in store.get_featuregroups()}:
        assert mark is None
        return
    result = rows(store, name)
    assert all(row in expected() for row in result)
    assert len({(row["hour"], row["zone"]) for row in result}) == len(result)
    complete_rows = [row for row in expected() if mark is not None and row["hour"] <= mark]
    assert result[: len(complete_rows)] == complete_rows


@pytest.mark.parametrize("crash_point", ["compute", "commit", "watermark"])
@pytest.mark.parametrize("run_order", ["first run", "later run"])
def test_killed_run_is_recovered_by_next_run(
    city: FeatureStore, define: Define, crash_point: str, run_order: str, tmp_path: Path
) -> None:
    switch = tmp_path / "switch"
    body = (
        f"import os, signal\n    if os.path.exists({str(switch)!r}): "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    city.register_jobs(define(python_job(body=body)))
    if run_order == "later run":
        city.run_job("demand", window=START + 47 * HOUR)
    if crash_point == "compute":
        switch.touch()
    process = start(
        killed_jobs.backfill, city.location, "demand", CRASH_POINTS.get(crash_point, ())
    )
    process.join()
    assert process.exitcode == -signal.SIGKILL
    switch.unlink(missing_ok=True)
    landed = crash_point == "watermark"
    if run_order == "later run":
        assert len(rows(city)) == len(expected() if landed else expected(first=47))
    city.backfill_job("demand", START, START + HOURS * HOUR)
    assert rows(city) == expected()
    states = [run.state for run in city.get_runs("demand")]
    assert states.count("failed") == (0 if landed else 1)
    assert city.get_jobs()[0].job.watermark == START + HOURS * HOUR
    assert not os.listdir(Path(city.location, "_staging"))


@pytest.mark.parametrize(("kills", "count"), [(6, 2), pytest.param(40, 8, marks=pytest.mark.soak)])
def test_random_kills_leave_each_window_once(
    city: FeatureStore, define: Define, kills: int, count: int
) -> None:
    names = [f"demand{number}" for number in range(count)]
    sources = [
        sql_job(name, rules='mode="append"' if number % 2 else "")
        for number, name in enumerate(names)
    ]
    city.register_jobs(define(*sources))
    chance = random.Random(9)
    for trial in range(kills):
        name = names[trial % len(names)]
        _kill_after(chance.uniform(0, 0.8), Path(city.location), name)
        _check(city, name)
    for name in names:
        city.backfill_job(name, START, START + HOURS * HOUR)
        assert rows(city, name) == expected()
        with city.session.registry.reading() as connection:
            assert jobs.watermark(connection, name) == START + HOURS * HOUR
        assert not [run for run in city.get_runs(name) if run.state == "running"]


def test_lease_is_exclusive_and_released_by_dead_process(
    city: FeatureStore, define: Define
) -> None:
    city.register_jobs(define(sql_job()))
    registry, location = city.session.registry, city.location
    owner = liveness.owner_of_this_process(location)
    dead = f"{owner.rpartition('.')[0]}.00000000/1"
    with registry.transaction() as connection:
        assert liveness.acquire_job_lease(connection, location, "demand", dead) is None
    assert city.run_job("demand", window=START)[0].state == "done"
    with registry.transaction() as connection:
        assert (
            liveness.acquire_job_lease(connection, location, "demand", f"{owner}/1") is None
        )  # another thread
    with pytest.raises(JobLeased, match=re.escape(owner)):
        city.run_job("demand", window=START)


def test_lease_of_other_machine_expires_without_heartbeat(
    city: FeatureStore, define: Define, clock: Clock
) -> None:
    city.register_jobs(define(sql_job()))
    remote_owner = "another-host.1.ffffffff.00000000"
    with city.session.registry.transaction() as connection:
        intents.record_heartbeat(connection, remote_owner)
        assert (
            liveness.acquire_job_lease(connection, city.location, "demand", f"{remote_owner}/1")
            is None
        )
    clock.now += timedelta(seconds=59)
    with pytest.raises(JobLeased, match="another-host"):
        city.run_job("demand", window=START)
    clock.now += timedelta(seconds=2)  # liveness of processes on other machines is unknown
    assert city.run_job("demand", window=START)[0].state == "done"


def test_clock_changes_neither_skip_nor_repeat_windows(
    city: FeatureStore, define: Define, clock: Clock
) -> None:
    city.register_jobs(define(sql_job()))
    clock.now = START + 10 * HOUR
    city.run_job("demand", due=True)
    clock.now = START + 3 * HOUR
    assert city.run_job("demand", due=True) == []
    clock.now = START + 400 * 24 * HOUR
    city.backfill_job("demand", START, START + HOURS * HOUR)
    assert rows(city) == expected()
    clock.now = START + HOURS * HOUR
    assert city.run_job("demand", due=True) == []
    assert sum(run.windows for run in city.get_runs("demand")) == HOURS


def test_run_with_lost_lease_commits_nothing(city: FeatureStore, define: Define) -> None:
    take = (
        "import featurestore\n"
        f"    with featurestore.connect({city.location!r}).session.registry.transaction() as c:\n"
        "        from featurestore.registry.tables import job_states\n"
        "        c.execute(job_states.update().values(lease_owner='another/1/1/1'))"
    )
    city.register_jobs(define(python_job(body=take)))
    with pytest.raises(JobFailed, match="taken over"):
        city.run_job("demand", window=START)
    assert "demand" not in {group.name for group in city.get_featuregroups()}
