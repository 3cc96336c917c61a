"""Job commands of the CLI, for people and for other schedulers."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from featurestore.cli import app
from featurestore.errors import InvalidJob, JobFailed, JobLeased, JobNotFound
from featurestore.recovery.liveness import hold_job_lease
from featurestore.registry.tables import metadata
from featurestore.server.app import create_app
from featurestore.store import FeatureStore
from tests.jobs.conftest import change_definition, expected, python_job, rows, sql_job

pytestmark = [pytest.mark.services, pytest.mark.slow]

Define = Callable[..., Path]


def call(store: FeatureStore, *words: str) -> Any:
    result = CliRunner().invoke(app, [*words, "--location", store.location, "--output", "json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_job_commands_cover_job_lifecycle(city: FeatureStore, define: Define) -> None:
    file = define(sql_job())
    assert call(city, "job", "register", str(file))[0]["name"] == "demand"
    planned = call(city, "job", "plan", "demand", "--start", "2024-01-01", "--end", "2024-01-02")
    assert len(planned["windows"]) == 24
    backfill = ("job", "backfill", "demand", "--start", "2024-01-01", "--end", "2024-01-02")
    assert call(city, *backfill)[0]["windows"] == 24
    assert call(city, *backfill) == []
    assert sum(run["windows"] for run in call(city, "job", "run", "demand", "--due")) == 24
    assert rows(city) == expected()
    assert call(city, "job", "run", "demand", "--window", "2024-01-01T05:00")[0]["state"] == "done"
    assert call(city, "job", "run", "demand", "--stale") == []
    assert call(city, "job", "pause", "demand")["paused"] is True
    (listed,) = call(city, "job", "list")
    assert (listed["paused"], listed["due"], listed["last_state"]) == (True, 0, "done")
    assert call(city, "job", "unpause", "demand")["paused"] is False
    assert len(call(city, "job", "history", "demand", "-n", "2")) == 2


def text(store: FeatureStore, *words: str) -> str:
    result = CliRunner().invoke(app, [*words, "--location", store.location])
    assert result.exit_code == 0, result.output
    return result.output


def test_job_commands_paused_job_prints_unpause_command(city: FeatureStore, define: Define) -> None:
    text(city, "job", "register", str(define(sql_job())))
    assert "active" in text(city, "job", "list")
    assert "paused" not in text(city, "job", "plan", "demand")
    text(city, "job", "pause", "demand")
    assert "paused" in text(city, "job", "list")
    assert "paused" in text(city, "job", "plan", "demand")
    output = text(city, "job", "run", "demand", "--due")
    assert output.startswith("demand is paused: featurestore job unpause demand")
    assert "done" in text(city, "job", "run", "demand", "--window", "2024-01-01T05:00")


def test_job_with_invalid_schedule_is_listed_with_its_error(
    city: FeatureStore, define: Define
) -> None:
    for name in ("demand", "monthly"):
        call(city, "job", "register", str(define(sql_job(name), name=f"{name}.py")))
    for schedule in ("0 0 30 2 *", "R 0 * * *", "0 0 1 1 * 5", "1 2 3"):
        change_definition(city, "monthly", schedule=schedule)
        valid, invalid = city.get_jobs()
        assert (valid.state, valid.error, valid.due) == ("active", None, 48)
        assert (invalid.state, invalid.due) == ("invalid", 0)
        assert f"schedule={schedule!r} cannot be computed" in str(invalid.error)
        assert f"then: featurestore job register {invalid.job.origin}" in str(invalid.hint)
        assert "cannot be computed" in text(city, "job", "list")
        assert [each["state"] for each in call(city, "job", "list")] == ["active", "invalid"]
        city.pause_job("monthly")
        city.unpause_job("monthly")
        with pytest.raises(InvalidJob, match="cannot be computed"):
            city.plan_job("monthly")
    with TestClient(create_app(city), base_url="http://localhost") as client:
        items = client.get("/api/v1/jobs").json()["items"]
        assert [(each["state"], each["due"]) for each in items] == [("active", 48), ("invalid", 0)]
        for page in ("/jobs", "/jobs/monthly", "/api/v1/jobs/monthly", "/", "/metrics"):
            assert client.get(page).status_code == 200, page
        assert "cannot be computed" in client.get("/jobs").text
        assert "cannot be computed" in client.get("/jobs/monthly").text
    assert call(city, "job", "register", str(define(sql_job("monthly"), name="monthly.py")))
    assert [status.state for status in city.get_jobs()] == ["active", "active"]


def test_remove_job_removes_all_rows_of_the_registry_but_not_the_group(
    city: FeatureStore, define: Define
) -> None:
    hourly = sql_job("hourly", rules='featuregroup="demand"')
    city.register_jobs(define(hourly, python_job("failing", body="raise ValueError")))
    city.run_job("hourly", due=True)
    with pytest.raises(JobFailed):
        city.run_job("failing", window="2024-01-01T05:00Z")
    # The threads of a process have different leases.
    with hold_job_lease(city.session, "hourly"), ThreadPoolExecutor(1) as pool:
        refused = pool.submit(city.remove_job, "hourly").exception()
    assert isinstance(refused, JobLeased)
    assert "Job 'hourly' is currently run by" in str(refused)
    removed = city.remove_job("hourly")
    assert removed.runs == 1
    assert "'demand' with its rows" in str(removed)
    assert rows(city) == expected()
    assert call(city, "job", "remove", "failing")["runs"] == 1
    assert city.get_jobs() == []
    with city.session.registry.reading() as connection:
        for table in metadata.tables.values():
            # The group, its lineage and the stored origins name the job that wrote the group.
            if table.name not in ("featuregroups", "lineage", "origins", "origin_edges"):
                rows_of_table = connection.execute(table.select()).mappings()
                assert not [row for row in rows_of_table if "hourly" in row.values()], table.name
    with pytest.raises(JobNotFound, match="Unknown job 'hourly'"):
        city.remove_job("hourly")
    # A job of this name computes only what its group does not have.
    city.register_jobs(define(hourly))
    assert city.run_job("hourly", due=True) == []


def test_remove_job_with_damaged_definition(city: FeatureStore, define: Define) -> None:
    city.register_jobs(define(sql_job()))
    change_definition(city, "demand", retries="many")
    assert str(city.remove_job("demand")).startswith("removed job 'demand'")
    assert city.get_jobs() == []


def test_job_tables_fit_80_columns(city: FeatureStore, define: Define) -> None:
    text(city, "job", "register", str(define(sql_job())))
    text(city, "job", "run", "demand", "--window", "2024-01-01T05:00")
    for words in (["job", "list"], ["job", "history", "demand"]):
        assert max(map(len, text(city, *words).splitlines())) <= 80
        wide = text(city, *words, "--wide").splitlines()
        assert max(map(len, wide)) > 80


def test_job_list_contains_error_of_last_run(city: FeatureStore, define: Define) -> None:
    call(city, "job", "register", str(define(python_job(body="raise ValueError('no fares')"))))
    with pytest.raises(JobFailed):
        call(city, "job", "run", "demand", "--window", "2024-01-01")
    (listed,) = call(city, "job", "list")
    assert listed["last_error"] == "ValueError: no fares"
    (run,) = call(city, "job", "history", "demand")
    assert run["state"] == "failed"
    assert "Traceback" in Path(run["log"]).read_text()


def test_job_list_and_history_contain_error_hints(city: FeatureStore, define: Define) -> None:
    early = "select zone, left_at - interval 1 hour as hour, 1 as trips from trips"
    call(city, "job", "register", str(define(sql_job(sql=early))))
    with pytest.raises(JobFailed):
        call(city, "job", "run", "demand", "--window", "2024-01-01T05:00")
    (listed,) = call(city, "job", "list")
    assert (listed["last_state"], listed["failed"]) == ("failed", 1)
    assert "outside the window" in listed["last_error"]
    assert "closed='left'" in listed["last_hint"]
    run = call(city, "job", "history", "demand", "-n", "1")[0]
    assert (run["error"], run["hint"]) == (listed["last_error"], listed["last_hint"])


def test_job_backfill_on_terminal_draws_progress_bar(city: FeatureStore, define: Define) -> None:
    call(city, "job", "register", str(define(sql_job())))
    parent_fd, child_fd = pty.openpty()
    command = [
        sys.executable,
        "-c",
        "from featurestore import progress; progress._DELAY_SECONDS = 0\n"
        "from featurestore.cli import main; main()",
        "--location",
        city.location,
    ]
    words = ["job", "backfill", "demand", "--start", "2024-01-01", "--end", "2024-01-03"]
    with open(parent_fd, "rb", buffering=0) as terminal:
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
        process = subprocess.Popen(
            [*command, *words], stdout=subprocess.DEVNULL, stderr=child_fd, env=env
        )
        os.close(child_fd)
        shown = b""
        while True:
            try:
                chunk = terminal.read(4096)
            except OSError:  # how Linux reports a closed peer
                break
            if not chunk:
                break
            shown += chunk
        assert process.wait(60) == 0
    assert b"compute windows" in shown
    assert b"48 of 48 windows" in shown
    assert rows(city) == expected()


def test_job_run_failure_sets_exit_code(city: FeatureStore, define: Define) -> None:
    call(city, "job", "register", str(define(python_job(body="raise ValueError('no fares')"))))
    command = [
        sys.executable,
        "-c",
        "from featurestore.cli import main; main()",
        "--location",
        city.location,
    ]
    result = subprocess.run(
        [*command, "job", "run", "demand", "--window", "2024-01-01"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "no fares" in result.stderr
    assert "log" in result.stderr
