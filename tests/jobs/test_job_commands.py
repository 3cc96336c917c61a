"""Job commands of the CLI, for people and for other schedulers."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from featurestore.cli import app
from featurestore.errors import JobFailed
from featurestore.store import FeatureStore
from tests.jobs.conftest import expected, python_job, rows, sql_job

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
