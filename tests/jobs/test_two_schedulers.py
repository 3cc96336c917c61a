"""Two scheduler processes on one registry compute every window exactly once."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

import featurestore
from featurestore.registry import jobs, runs
from featurestore.store import FeatureStore
from tests.jobs.conftest import expected, python_job, rows, trips
from tests.jobs.two_schedulers import (
    NOTE,
    Call,
    Clock,
    Schedulers,
    read_calls,
    start_schedulers,
)
from tests.registry.conftest import new_database, postgres_server  # noqa: F401  # fixtures

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(1800)]

Define = Callable[..., Path]
NAMES = ("quick", "steady", "slow")
SECONDS = {"quick": 0.0, "steady": 0.1, "slow": 0.6}


def create(location: Path, registry: str | None, file: Path, hours: int) -> FeatureStore:
    store = featurestore.connect(location, registry=registry, engine="duckdb")
    store.create_featuregroup(trips(hours), "trips", primary_key=["id"], event_time="left_at")
    store.register_jobs(file)
    return store


def wait_until_computed(store: FeatureStore, hours: int) -> None:
    """Wait until the watermark of each job is at the end, and no job has a lease."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        with store.session.registry.reading() as connection:
            leased = [name for name in NAMES if jobs.lease_owner(connection, name) is not None]
            windows = {
                name: len(runs.window_states(connection, name, states=[runs.DONE]))
                for name in NAMES
            }
        if not leased and set(windows.values()) == {hours}:
            return
        time.sleep(0.2)
    raise AssertionError(f"{windows} windows, {leased} leased")


def check(
    store: FeatureStore, schedulers: Schedulers, calls: list[Call], hours: int
) -> Counter[str]:
    """Compare rows, windows and runs with a plain model; return the calls by outcome."""
    outcomes: Counter[str] = Counter(schedulers.counts)
    for name in NAMES:
        assert rows(store, name) == expected(hours), name
        history = store.get_featuregroup_history(name)
        job_runs = store.get_runs(name)
        assert {run.state for run in job_runs} <= {"done", "failed"}
        # Each window is in exactly one run that ended well, and each of those made one commit.
        assert sum(run.windows for run in job_runs if run.state == "done") == hours, name
        written = Counter(
            commit.delta_version for commit in history if commit.rows_in or commit.rows_out
        )
        assert max(written.values()) == 1
        with store.session.registry.reading() as connection:
            states = runs.window_states(connection, name)
        assert {state.state for state in states.values()} == {"done"}
        assert len(states) == hours
        named_calls = [call for call in calls if call.job == name]
        for earlier, later in pairwise(named_calls):
            overlaps = earlier.returned > later.called and earlier.pid != later.pid
            # A suspended process does not know that it has lost its lease.
            assert not overlaps or earlier.pid in schedulers.suspended_pids, (earlier, later)
            outcomes["overlapping calls"] += overlaps
        outcomes["calls"] += len(named_calls)
        failed = [run for run in job_runs if run.state == "failed"]
        outcomes["failed runs"] += len(failed)
        for run in failed:
            print(name, run.window.start, run.error, flush=True)
    outcomes["windows"] = hours * len(NAMES)
    return outcomes


def run_trial(
    tmp_path: Path, define: Define, registry: str | None, *, seed: str, hours: int
) -> Counter[str]:
    rng = random.Random(seed)
    pauses = {name: f"note({name!r}, window, {SECONDS[name]})" for name in NAMES}
    file = define(*(python_job(name, before=NOTE, body=pauses[name]) for name in NAMES))
    store = create(tmp_path / "store", registry, file, hours)
    clock = Clock(time.time() + 1, 0.5, hours)
    schedulers = start_schedulers(str(tmp_path / "store"), clock, rng, registry=registry)
    try:
        while not clock.has_ended:
            time.sleep(rng.uniform(0.2, 1.5))
            schedulers.disturb()
        wait_until_computed(store, hours)
        schedulers.end()
        return check(store, schedulers, read_calls(file), hours)
    finally:
        for process in schedulers.processes:
            process.kill()
        store.close()


@pytest.mark.filterwarnings("ignore::featurestore.errors.DataWarning")
def test_disturbed_schedulers_on_sqlite_compute_each_window_once(
    tmp_path: Path, define: Define
) -> None:
    seed, hours = str(random.random()), int(os.environ.get("FEATURESTORE_HOURS", "20"))
    print(seed, run_trial(tmp_path, define, None, seed=seed, hours=hours))


@pytest.mark.postgres
@pytest.mark.filterwarnings("ignore::featurestore.errors.DataWarning")
def test_disturbed_schedulers_on_two_hosts_compute_each_window_once(
    tmp_path: Path,
    define: Define,
    postgres_server: str,  # noqa: F811
) -> None:
    seed, hours = str(random.random()), int(os.environ.get("FEATURESTORE_HOURS", "20"))
    url = new_database(postgres_server, f"disturbed_{os.getpid()}")
    print(seed, run_trial(tmp_path, define, url, seed=seed, hours=hours))
