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
from featurestore.registry.runs import Run
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

pytestmark = [
    pytest.mark.services,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::featurestore.errors.DataWarning"),
]

Define = Callable[..., Path]
NAMES = ("quick", "steady", "slow")
ACTIONS = ("kill", "stop", "slow")
# The hours with trips, of which a trial computes the first ones.
HOURS = 400
SECONDS_PER_HOUR = 0.7
# Another process took over the lease, revoked the transaction or removed the staged rows, or
# Postgres ended the transaction.
ERRORS_AFTER_SUSPENSION = (
    "has taken over job",
    "considered this write dead",
    "considered this run of job",
    "_staging",
    "The registry",
)
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
        window_counts = Counter(
            commit.delta_version for commit in history if commit.rows_in or commit.rows_out
        )
        assert max(window_counts.values()) == 1
        with store.session.registry.reading() as connection:
            states = runs.window_states(connection, name)
        assert {state.state for state in states.values()} == {"done"}
        assert len(states) == hours
        named_calls = [call for call in calls if call.job == name]
        for earlier, later in pairwise(named_calls):
            overlaps = earlier.returned > later.called and earlier.pid != later.pid
            # A suspended process calls the function before it learns that it has lost its lease.
            may_overlap = schedulers.may_lose_lease(earlier.pid, later.pid)
            assert not overlaps or may_overlap, (earlier, later)
            outcomes["overlapping calls"] += overlaps
        outcomes["calls"] += len(named_calls)
        failed = [run for run in job_runs if run.state == "failed"]
        outcomes["failed runs"] += len(failed)
        for run in failed:
            check_failed_run(run, schedulers)
    outcomes["windows"] = hours * len(NAMES)
    return outcomes


def check_failed_run(run: Run, schedulers: Schedulers) -> None:
    """Check that the process of a run was killed, or missed its heartbeat or transaction."""
    error = str(run.error)
    if "died before it committed" not in error:
        assert schedulers.may_lose_lease(process_id(run.owner)), (run.owner, error)
        assert any(words in error for words in ERRORS_AFTER_SUSPENSION), error


def process_id(owner: str) -> int:
    """Return the process of an owner, whose name is <host>.<pid>.<machine>.<random>."""
    return int(owner.split(".")[1])


def define_jobs(define: Define) -> Path:
    pauses = {name: f"note({name!r}, window, {SECONDS[name]})" for name in NAMES}
    return define(*(python_job(name, before=NOTE, body=pauses[name]) for name in NAMES))


def find_lease_holder(store: FeatureStore, schedulers: Schedulers, name: str) -> int:
    """Wait until a scheduler has the lease of a job, and return its number."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with store.session.registry.reading() as connection:
            owner = jobs.lease_owner(connection, name)
        pids = [process.pid for process in schedulers.processes]
        if owner is not None and process_id(owner) in pids:
            return pids.index(process_id(owner))
        time.sleep(0.02)
    raise AssertionError(f"no scheduler runs {name}")


def run_trial(
    location: Path,
    define: Define,
    registry: str | None,
    disturb: Callable[[FeatureStore, Schedulers], None],
    *,
    seed: str = "",
) -> tuple[Counter[str], list[Call]]:
    """Run two schedulers while ``disturb`` is called, and then until all windows are computed."""
    file = define_jobs(define)
    store = create(location, registry, file, HOURS)
    clock = Clock(file.with_name("clock"), SECONDS_PER_HOUR)
    schedulers = start_schedulers(str(location), clock, random.Random(seed), registry=registry)
    try:
        wait_until_computed(store, 1)
        clock.mark()
        disturb(store, schedulers)
        clock.mark()
        hours = clock.count_hours()
        assert hours < HOURS
        wait_until_computed(store, hours)
        schedulers.end()
        calls = read_calls(file)
        return check(store, schedulers, calls, hours), calls
    finally:
        for process in schedulers.processes:
            process.kill()
        store.close()


def run_random_trial(location: Path, define: Define, registry: str | None) -> None:
    seed, seconds = str(random.random()), float(os.environ.get("FEATURESTORE_SECONDS", "30"))

    def disturb(_: FeatureStore, schedulers: Schedulers) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(schedulers.rng.uniform(0.2, 1.5))
            schedulers.disturb_randomly()

    print(seed, run_trial(location, define, registry, disturb, seed=seed)[0])


def run_trial_of_each_action(location: Path, define: Define, registry: str | None) -> None:
    """Kill, suspend and slow the scheduler that runs the slow job; the other one takes over."""
    killed = []

    def disturb(store: FeatureStore, schedulers: Schedulers) -> None:
        for action in ACTIONS:
            number = find_lease_holder(store, schedulers, "slow")
            if action == "kill":
                killed.append((time.time(), schedulers.processes[number].pid))
            schedulers.disturb(number, action)

    outcomes, calls = run_trial(location, define, registry, disturb)
    ((killed_at, pid),) = killed
    later = [call for call in calls if call.job == "slow" and call.called > killed_at]
    assert later
    assert pid not in {call.pid for call in later}
    print("taken over after", later[0].called - killed_at, outcomes)


def test_scheduler_takes_over_from_killed_suspended_and_slow_one(
    tmp_path: Path, define: Define
) -> None:
    run_trial_of_each_action(tmp_path / "store", define, None)


@pytest.mark.postgres
def test_scheduler_takes_over_from_another_host(
    tmp_path: Path,
    define: Define,
    postgres_server: str,  # noqa: F811
) -> None:
    url = new_database(postgres_server, f"takes_over_{os.getpid()}")
    run_trial_of_each_action(tmp_path / "store", define, url)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_disturbed_schedulers_on_sqlite_compute_each_window_once(
    tmp_path: Path, define: Define
) -> None:
    run_random_trial(tmp_path / "store", define, None)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.postgres
def test_disturbed_schedulers_on_two_hosts_compute_each_window_once(
    tmp_path: Path,
    define: Define,
    postgres_server: str,  # noqa: F811
) -> None:
    url = new_database(postgres_server, f"disturbed_{os.getpid()}")
    run_random_trial(tmp_path / "store", define, url)
