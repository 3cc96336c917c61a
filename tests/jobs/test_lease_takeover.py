"""A scheduler on another host takes over the jobs of one that is killed or suspended.

The suspended scheduler resumes at any point of its run, also in the middle of a write, after the
other one has computed the same windows from newer inputs.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import featurestore
from featurestore.errors import FeatureStoreError
from featurestore.jobs import execution
from featurestore.jobs.run import JobRun
from featurestore.jobs.scheduler import Options
from featurestore.recovery import liveness
from featurestore.registry import database, jobs, runs
from tests.forked_processes import kill, start
from tests.jobs.conftest import START, Clock, rows, sql_job, trips
from tests.jobs.suspended_hosts import (
    IDLE_SECONDS,
    TIMEOUT,
    CallPoint,
    run_due_jobs,
    wait_until_stopped,
)
from tests.registry.conftest import new_database, postgres_server  # noqa: F401  # fixtures

pytestmark = [pytest.mark.postgres, pytest.mark.services, pytest.mark.slow]

Define = Callable[..., Path]
HOUR = timedelta(hours=1)
# Hours that are computed before the trial, when one scheduler is suspended, and at its end.
FIRST, MIDDLE, LAST = 3, 8, 9
BEFORE_COMMIT = CallPoint("/duckdb_delta/commits.py:_publish_commit")


def late_trips() -> pa.Table:
    """Return one more trip per hour, which computed windows did not see."""
    return (
        trips(LAST)
        .filter(pa.array([number % 3 == 0 for number in range(24)]))
        .set_column(0, "id", pa.array(range(1000, 1008), pa.int64()))
    )


class Takeover:
    """A store with a job, one suspended scheduler, and one that takes over."""

    def __init__(self, folder: Path, registry: str, clock: Clock, *, is_new: bool) -> None:
        self.clock, self.registry, self.is_new = clock, registry, is_new
        self.store = featurestore.connect(folder, registry=registry, engine="duckdb")
        self.store.create_featuregroup(
            trips(LAST), "trips", primary_key=["id"], event_time="left_at"
        )

    def schedule(self) -> None:
        """Run the due and stale windows of this host."""
        self.store.scheduler(Options(workers=1, stale=True)).run_due()

    def run(
        self,
        file: Path,
        point: CallPoint | None,
        action: int = signal.SIGSTOP,
        *,
        record: str | None = None,
        resumes_during: bool = False,
    ) -> bool:
        """Suspend or kill a scheduler at a point, take over, and resume it.

        It resumes just before the commit of the other scheduler (``resumes_during``), or after it.
        """
        self.store.register_jobs(file)
        if not self.is_new:
            self.clock.now = START + FIRST * HOUR
            self.schedule()
        self.clock.now = START + MIDDLE * HOUR
        process = start(
            run_due_jobs, self.store.location, self.registry, self.clock.now, point, action, record
        )

        def resume() -> None:
            if is_stopped and process.is_alive():
                os.kill(process.pid or 0, signal.SIGCONT)
            process.join(60)

        check_lease_now = execution.check_lease

        def check_lease(run: JobRun) -> None:
            if resumes_during:
                resume()
            check_lease_now(run)

        try:
            is_stopped = wait_until_stopped(process)
            self.store.insert_into_featuregroup(late_trips(), "trips")
            self.clock.now = START + LAST * HOUR
            time.sleep(TIMEOUT * 1.5)
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(execution, "check_lease", check_lease)
                self.schedule()
            resume()
            assert process.exitcode in (0, -action)
        finally:
            kill(process)
        return is_stopped or process.exitcode != 0

    def check(self, mode: str) -> None:
        """Check rows and records, before and after a further run of the scheduler."""
        with self.store.session.registry.reading() as connection:
            states = runs.window_states(connection, "demand")
            assert jobs.lease_owner(connection, "demand") is None
        trips_by_version = {1: 2, 2: 3}
        trips_by_key = {(row["hour"], row["zone"]): row["trips"] for row in rows(self.store)}
        for window, state in states.items():
            (pinned,) = state.inputs["inputs"]
            if state.state == "done" and (window.end, "a") in trips_by_key:
                # The recorded input is the one from which the rows were computed.
                version = pinned["delta_version"]
                assert trips_by_key[window.end, "a"] == trips_by_version[version], window
        time.sleep(TIMEOUT)
        self.schedule()
        assert {run.state for run in self.store.get_runs("demand")} <= {"done", "failed"}
        assert not list(Path(self.store.location, "_staging").glob("*"))
        computed_rows = rows(self.store)
        hours = [START + hour * HOUR for hour in range(1, LAST + 1) if hour % 5]
        keys = [(row["hour"], row["zone"]) for row in computed_rows]
        assert keys == [(hour, zone) for hour in hours for zone in "ab"]
        if mode != "append":
            assert {row["trips"] for row in computed_rows if row["zone"] == "a"} == {3}


@pytest.fixture(autouse=True)
def _short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "HEARTBEAT_TIMEOUT", timedelta(seconds=TIMEOUT))
    monkeypatch.setattr(liveness, "HEARTBEAT_SECONDS", TIMEOUT / 4)
    monkeypatch.setattr(database, "IDLE_SECONDS", IDLE_SECONDS)


@pytest.mark.filterwarnings("ignore::featurestore.errors.DataWarning")
@pytest.mark.parametrize(
    ("mode", "point", "resumes_during", "is_new"),
    [
        ("replace_window", BEFORE_COMMIT, True, False),
        ("append", BEFORE_COMMIT, True, False),
        ("upsert", CallPoint("/jobs/run.py:check_lease", event="return"), False, False),
        ("replace_window", CallPoint("/jobs/run.py:_end_run"), False, False),
        # The first commit of a new table has no rows.
        ("replace_window", replace(BEFORE_COMMIT, number=2), False, True),
    ],
)
def test_suspended_scheduler_changes_nothing_after_takeover(
    tmp_path: Path,
    clock: Clock,
    define: Define,
    postgres_server: str,  # noqa: F811
    mode: str,
    point: CallPoint,
    resumes_during: bool,
    is_new: bool,
) -> None:
    url = new_database(postgres_server, f"takeover_{abs(hash((mode, point, is_new)))}")
    takeover = Takeover(tmp_path / "store", url, clock, is_new=is_new)
    file = define(sql_job(rules=f"mode={mode!r}"))
    assert takeover.run(file, point, resumes_during=resumes_during), "the point was not reached"
    takeover.check(mode)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.filterwarnings("ignore::featurestore.errors.DataWarning")
@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("mode", ["replace_window", "append", "upsert"])
def test_scheduler_interrupted_at_random_calls_loses_and_repeats_no_window(
    tmp_path: Path,
    clock: Clock,
    define: Define,
    postgres_server: str,  # noqa: F811
    mode: str,
    is_new: bool,
) -> None:
    """Prints the number of trials, and what fell."""
    rng = random.Random(f"takeover/{mode}/{is_new}")
    file, failures, reached = define(sql_job(rules=f"mode={mode!r}")), [], 0
    counts_file = tmp_path / "counts"
    trials = int(os.environ.get("FEATURESTORE_TAKEOVERS", "60"))
    for trial in range(trials + 1):
        name = f"takeover_{mode}_{is_new}_{trial}".lower()
        takeover = Takeover(
            tmp_path / name, new_database(postgres_server, name), clock, is_new=is_new
        )
        point, action, record = None, signal.SIGSTOP, str(counts_file)
        if trial:
            counts = json.loads(counts_file.read_text())
            function = rng.choice(sorted(counts))
            point = CallPoint(
                function, rng.randint(1, counts[function]), rng.choice(["call", "return"])
            )
            action, record = rng.choice([signal.SIGSTOP, signal.SIGSTOP, signal.SIGKILL]), None
        try:
            reached += takeover.run(
                file, point, action, record=record, resumes_during=rng.random() < 0.5
            )
            takeover.check(mode)
        except (AssertionError, FeatureStoreError, OSError) as error:
            failures.append(f"{point} {action.name}: {type(error).__name__}: {error}"[:500])
            print(failures[-1])
        finally:
            takeover.store.close()
    print(f"{mode}, new={is_new}: {trials} trials, {reached} interrupted, {len(failures)} fell")
    assert failures == []
