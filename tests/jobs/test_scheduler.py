"""The scheduler runs due windows in order and once, with other schedulers and failures."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from featurestore.cli import app
from featurestore.jobs.scheduler import (
    Options,
    dependency_levels,
    is_retry_due,
    upstream_jobs,
    windows_before_gap,
)
from featurestore.model.times import Window
from featurestore.registry import jobs
from featurestore.store import FeatureStore
from tests.forked_processes import kill, start
from tests.jobs import killed_jobs
from tests.jobs.conftest import (
    HOURS,
    START,
    Clock,
    change_definition,
    expected,
    python_job,
    rows,
    sql_job,
    trips,
)

pytestmark = [pytest.mark.services, pytest.mark.slow]

Define = Callable[..., Path]
HOUR = timedelta(hours=1)


def test_dependency_levels_order_jobs_after_inputs() -> None:
    inputs = {"c": {"x": "a@v1", "y": "b"}, "b": {"x": "a"}, "a": {"t": "raw"}, "d": {"t": "raw"}}
    targets = {name: name for name in inputs}
    assert dependency_levels(upstream_jobs(inputs, targets)) == [["a", "d"], ["b"], ["c"]]
    assert dependency_levels({"a": ["b"], "b": ["a"]}) == [["a", "b"]]


def test_retry_delay_grows_with_failures() -> None:
    for failures, wait in ((1, 30), (2, 60), (3, 120)):

        def due(now: datetime, *, failed_at: datetime = START, failures: int = failures) -> bool:
            return is_retry_due(
                failures=failures, failed_at=failed_at, retries=3, complete_at=START - HOUR, now=now
            )

        assert not due(START + timedelta(seconds=wait - 1))
        assert due(START + timedelta(seconds=wait))
        assert due(START, failed_at=START + 9 * HOUR)  # the clock has been set back

    for complete_at, tried in ((START - HOUR, False), (START + HOUR, True)):
        assert tried == is_retry_due(
            failures=4, failed_at=START, retries=3, complete_at=complete_at, now=START + 9 * HOUR
        )


def test_windows_wait_for_upstream_windows() -> None:
    hours = [Window(START + n * HOUR, START + (n + 1) * HOUR) for n in range(4)]
    assert windows_before_gap(hours, {"above": hours[2:]}) == hours[:2]
    assert windows_before_gap(hours, {"above": []}) == hours


def test_run_due_runs_jobs_in_dependency_order(
    city: FeatureStore, define: Define, clock: Clock
) -> None:
    above = sql_job(
        "a_busy",
        sql="select zone, hour, trips > 1 as busy from demand",
        inputs='{"demand": "demand"}',
    )
    # The rows of an hour are stamped with its end, where the next hour's input begins.
    above = above.replace("select zone, hour,", "select zone, hour + interval 1 hour as hour,")
    city.register_jobs(define(above, sql_job()))
    city.scheduler().run_due()
    assert rows(city) == expected()
    assert len(rows(city, "a_busy")) == len(
        [row for row in expected() if row["hour"] < START + HOURS * HOUR]
    )
    clock.now += 2 * HOUR
    city.scheduler().run_due()
    assert sum(run.windows for run in city.get_runs("demand")) == HOURS + 2


def test_failing_job_blocks_no_other_and_is_retried(
    city: FeatureStore, define: Define, clock: Clock, tmp_path: Path
) -> None:
    switch = tmp_path / "broken"
    switch.touch()
    body = f"import os\n    if os.path.exists({str(switch)!r}): raise ValueError('no')"
    city.register_jobs(define(python_job("bad", rules="catchup=3", body=body), sql_job()))
    city.scheduler().run_due()
    assert rows(city) == expected()
    assert {job.name: job.failed for job in city.get_jobs()} == {"bad": 3, "demand": 0}
    runs = len(city.get_runs("bad"))
    city.scheduler().run_due()
    assert len(city.get_runs("bad")) == runs  # it waits
    switch.unlink()
    clock.now += timedelta(seconds=31)
    city.scheduler().run_due()
    assert rows(city, "bad") == expected(3)


def test_concurrent_python_jobs_do_not_share_a_connection(
    city: FeatureStore, clock: Clock, define: Define
) -> None:
    names = [f"demand{number}" for number in range(4)]
    # DuckDB refuses a call on a connection while another thread builds or runs a query there.
    body = "[trips.filter(f'fare > {n}').limit(5).fetchall() for n in range(40)]"
    clock.now = START + 2 * HOUR
    city.register_jobs(define(*(python_job(name, body=body) for name in names)))
    city.scheduler(Options(workers=len(names))).run_due()
    runs_of_jobs = {name: city.get_runs(name) for name in names}
    assert not [run.error for job_runs in runs_of_jobs.values() for run in job_runs if run.error]
    for name in names:
        assert sum(run.windows for run in runs_of_jobs[name]) == 2
        assert rows(city, name) == expected(2)


def test_two_scheduler_processes_compute_100_windows_once(
    city: FeatureStore, define: Define
) -> None:
    names = [f"demand{number}" for number in range(4)]
    city.delete_featuregroup("trips", version=1)
    city.create_featuregroup(trips(100), "trips", primary_key=["id"], event_time="left_at")
    city.register_jobs(define(*(sql_job(name, rules="catchup=7") for name in names)))
    # Twelve hours pass per second once both run, so that windows become due for both.
    go = Path(city.location, "go")
    clock = (go, 43_200.0, START + 40 * HOUR)
    schedulers = [start(killed_jobs.schedule, city.location, *clock) for _ in range(2)]
    deadline = time.monotonic() + 120
    try:
        while time.monotonic() < deadline and len(list(go.parent.glob("ready*"))) < 2:
            time.sleep(0.01)
        go.touch()
        while time.monotonic() < deadline and all(process.is_alive() for process in schedulers):
            marks = [status.job.watermark for status in city.get_jobs()]
            if all(mark and mark >= START + 100 * HOUR for mark in marks):
                break
            time.sleep(0.1)
        assert [killed_jobs.terminate(process) for process in schedulers] == [0, 0]
    finally:
        for process in schedulers:
            kill(process)
    computed = [run for name in names for run in city.get_runs(name)]
    assert {run.state for run in computed} == {"done"}
    assert len({run.owner.split("/")[0] for run in computed}) == 2, "one of them did everything"
    for name in names:
        assert [row for row in rows(city, name) if row["hour"] <= START + 100 * HOUR] == expected(
            100
        )
        spans = sorted(
            (run.window.start, run.window.end, run.windows) for run in computed if run.job == name
        )
        assert all(before[1] == after[0] for before, after in pairwise(spans)), (
            "a window was computed twice, or none"
        )
        assert all((end - start) / HOUR == count for start, end, count in spans)


def test_scheduler_sigterm_finishes_current_run_only(
    city: FeatureStore, define: Define, tmp_path: Path
) -> None:
    marker = tmp_path / "begun"
    body = f"import time\n    open({str(marker)!r}, 'a').close(); time.sleep(0.6)"
    city.register_jobs(define(python_job(body=body, rules="catchup=2")))
    still = (tmp_path / "never", 0.0, START + HOURS * HOUR)
    process = start(killed_jobs.schedule, city.location, *still)
    try:
        deadline = time.monotonic() + 60
        while not marker.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert killed_jobs.terminate(process) == 0
    finally:
        kill(process)
    (run,) = city.get_runs("demand")
    assert (run.state, run.windows) == ("done", 2)
    assert rows(city) == expected(2)
    with city.session.registry.reading() as connection:
        assert jobs.lease_owner(connection, "demand") is None


def test_broken_or_missing_job_file_blocks_no_other_job(city: FeatureStore, define: Define) -> None:
    missing, broken = (
        define(sql_job("a_gone"), name="gone.py"),
        define(sql_job("b_broken"), name="broken.py"),
    )
    for file in (missing, broken, define(sql_job())):
        city.register_jobs(file)
    missing.unlink()
    broken.write_text("raise RuntimeError('no such thing')")
    city.scheduler(Options(workers=1)).run_due()
    assert rows(city) == expected()
    assert {job.name: job.due for job in city.get_jobs()} == {
        "a_gone": HOURS,
        "b_broken": HOURS,
        "demand": 0,
    }


def test_scheduler_logs_jobs_that_cannot_run_once(
    city: FeatureStore, define: Define, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    missing, renamed = define(sql_job("missing"), name="gone.py"), define(sql_job("earlier"))
    changed = define(sql_job("changed"), name="changed.py")
    reader = sql_job("reader", inputs='{"trips": "trips", "earlier": "monthly"}')
    two_jobs = define(sql_job("monthly"), reader, name="two_jobs.py")
    for file in (missing, renamed, changed, two_jobs):
        city.register_jobs(file)
    city.run_job("monthly", window="2024-01-01T05:00Z")
    missing.unlink()
    city.register_jobs(define(sql_job("demand")))
    changed.write_text(sql_job("changed", rules="retries=1"))
    change_definition(city, "monthly", schedule="0 0 30 2 *")
    expected_hints = {
        "missing": "featurestore job register path/to/jobs.py, or: featurestore job remove missing",
        "earlier": "featurestore job remove earlier",
        "changed": f"featurestore job register {changed}",
        "monthly": "schedule='0 0 L 2 *'",
    }
    scheduler = city.scheduler()

    def poll() -> dict[str, str]:
        caplog.clear()
        for _ in range(3):
            scheduler.run_due()
            clock.now += timedelta(minutes=1)
        errors = [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]
        errors_by_name = {text.split()[0]: text for text in errors}
        assert len(errors_by_name) == len(errors), errors
        return errors_by_name

    errors = poll()
    assert errors.keys() == expected_hints.keys()
    for name, hint in expected_hints.items():
        assert errors[name].endswith(f"Hint: {hint}")
    assert poll() == {}
    assert rows(city) == rows(city, "reader") == expected()
    for command in ("remove earlier", "remove missing", f"register {changed}"):
        result = CliRunner().invoke(app, ["job", *command.split(), "--location", city.location])
        assert result.exit_code == 0, result.output
    assert poll() == {}
    assert [status.name for status in city.get_jobs()] == [
        "changed",
        "demand",
        "monthly",
        "reader",
    ]
    assert rows(city, "changed") == expected()
    change_definition(city, "changed", retries=9)
    clock.now += HOUR
    assert poll().keys() == {"changed"}, "a new error of a job is logged"


def test_scheduler_runs_failure_command_after_last_retry(
    city: FeatureStore, define: Define, clock: Clock, tmp_path: Path
) -> None:
    actual = tmp_path / "told"
    line = "echo $FEATURESTORE_JOB $FEATURESTORE_WINDOW_START $FEATURESTORE_ERROR"
    command = ["sh", "-c", f"{line} >> {actual}"]
    rules = f"catchup=1, retries=1, on_failure={command!r}"
    city.register_jobs(
        define(python_job("bad", rules=rules, body="raise ValueError('no')"), sql_job())
    )
    for _ in range(3):
        city.scheduler().run_due()
        clock.now += timedelta(seconds=61)
    assert actual.read_text() == "bad 2024-01-01T00:00:00+00:00 ValueError: no\n"
    assert rows(city) == expected()


def test_scheduler_recomputes_stale_windows_if_configured(
    city: FeatureStore, define: Define
) -> None:
    city.register_jobs(define(sql_job()))
    scheduler = city.scheduler(Options(stale=True))
    scheduler.run_due()
    city.delete_from_featuregroup("trips", "zone = 'b'")
    scheduler.run_due()
    assert rows(city) == [row for row in expected() if row["zone"] == "a"]


def test_scheduler_process_runs_and_stops_on_sigterm(
    empty_store: FeatureStore, define: Define
) -> None:
    begin = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - 3 * HOUR
    empty_store.create_featuregroup(
        trips(3, start=begin), "trips", primary_key=["id"], event_time="left_at"
    )
    empty_store.register_jobs(define(sql_job().replace("2024-01-01T00:00Z", begin.isoformat())))
    program = "from featurestore.cli import main; main()"
    command = [
        sys.executable,
        "-c",
        program,
        "--location",
        empty_store.location,
        "scheduler",
        "start",
    ]
    process = subprocess.Popen(
        [*command, "--every", "300ms"], stderr=subprocess.PIPE, env={**os.environ, "TZ": "UTC"}
    )
    try:
        deadline = time.monotonic() + 120
        while (
            not [run for run in empty_store.get_runs("demand") if run.state == "done"]
            and time.monotonic() < deadline
        ):
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, stderr
    assert sum(run.windows for run in empty_store.get_runs("demand")) == 3, stderr
    assert "scheduler stopped" in stderr.decode()
