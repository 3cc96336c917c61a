"""Parallel backfills of independent windows equal sequential backfills."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from featurestore.errors import JobFailed
from featurestore.jobs import execution, service
from featurestore.registry import jobs
from featurestore.store import FeatureStore
from tests.forked_processes import kill, start
from tests.jobs import killed_jobs
from tests.jobs.conftest import HOURS, START, expected, python_job, rows, sql_job

pytestmark = [pytest.mark.services, pytest.mark.slow]

Define = Callable[..., Path]
HOUR = timedelta(hours=1)
END = START + HOURS * HOUR
SIZE = 4


@pytest.fixture
def four_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of four windows, four at a time on any machine."""
    monkeypatch.setattr(execution, "CHUNKS", {**execution.CHUNKS, "sql": SIZE, "python": SIZE})
    monkeypatch.setattr(service, "usable_cores", lambda: 4)


def noting(path: Path) -> str:
    """Return a job body that records when and in which thread each window was computed."""
    return (
        "import threading, time\n    begun = time.monotonic(); time.sleep(0.02)\n"
        f"    with open({str(path)!r}, 'a') as file:\n"
        "        thread, start = threading.get_ident(), window.start.isoformat()\n"
        "        print(thread, begun, time.monotonic(), start, file=file)"
    )


@pytest.mark.usefixtures("four_at_once")
def test_parallel_backfill_overlaps_chunks_and_writes_windows_once(
    city: FeatureStore, define: Define, tmp_path: Path
) -> None:
    city.register_jobs(define(python_job(body=noting(tmp_path / "noted"))))
    reports: list[tuple[int, int]] = []
    actual = city.backfill_job(
        "demand", START, END, progress=lambda count, total: reports.append((count, total))
    )
    assert rows(city) == expected()
    assert sorted(run.window.start for run in actual) == [
        START + n * HOUR for n in range(0, HOURS, SIZE)
    ]
    assert city.get_jobs()[0].job.watermark == END
    assert sorted(reports) == [(n, HOURS) for n in range(SIZE, HOURS + 1, SIZE)]
    noted = [line.split() for line in (tmp_path / "noted").read_text().splitlines()]
    assert len({start for *_, start in noted}) == len(noted) == HOURS
    spans = [(thread, float(start), float(end)) for thread, start, end, _ in noted]
    overlaps = [
        (a, b) for a in spans for b in spans if a[0] != b[0] and a[1] < b[2] and b[1] < a[2]
    ]
    assert overlaps, "no two windows were computed at the same time"


@pytest.mark.usefixtures("four_at_once")
@pytest.mark.parametrize("rules", ['mode="append"', 'mode="upsert"', 'on_error="wait"'])
def test_parallel_backfill_dependent_windows_run_sequentially(
    city: FeatureStore, define: Define, tmp_path: Path, rules: str
) -> None:
    city.register_jobs(define(python_job(rules=rules, body=noting(tmp_path / "noted"))))
    city.backfill_job("demand", START, START + 16 * HOUR)
    noted = [line.split() for line in (tmp_path / "noted").read_text().splitlines()]
    assert len({thread for thread, *_ in noted}) == 1
    assert [start for *_, start in noted] == [(START + n * HOUR).isoformat() for n in range(16)]
    assert rows(city) == expected(16)


@pytest.mark.usefixtures("four_at_once")
def test_parallel_backfill_failing_window_stays_due_alone(
    city: FeatureStore, define: Define
) -> None:
    body = "if window.start.day == 1 and window.start.hour == 13: raise ValueError('bad hour')"
    city.register_jobs(define(python_job(body=body)))
    with pytest.raises(JobFailed, match="bad hour"):
        city.backfill_job("demand", START, END)
    assert rows(city) == [row for row in expected() if row["hour"] != START + 14 * HOUR]
    status = city.get_jobs()[0]
    assert (status.failed, status.due, status.job.watermark) == (1, 1, START + 13 * HOUR)


@pytest.mark.parametrize("job_type", ["sql", pytest.param("python", marks=pytest.mark.soak)])
def test_parallel_backfill_killed_is_finished_by_same_call(
    city: FeatureStore, define: Define, job_type: str, tmp_path: Path
) -> None:
    sleeping = python_job(body=noting(tmp_path / "noted"))
    city.register_jobs(define(sql_job() if job_type == "sql" else sleeping))
    chance = random.Random(5)
    for trial in range(4):
        process = start(killed_jobs.backfill, city.location, "demand", (), 2, 4)
        done_count = count_done_runs(city)
        while process.is_alive() and count_done_runs(city) < done_count + 2:
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.1))
        kill(process)
        if trial == 0:
            assert process.exitcode != 0, "it was over before it was killed"
    city.backfill_job("demand", START, END)
    assert rows(city) == expected()
    runs = city.get_runs("demand")
    assert {run.state for run in runs} <= {"done", "failed"}
    computed = [run for run in runs if run.state == "done"]
    assert sum(run.windows for run in computed) == HOURS, (
        "a window that had landed was computed anew"
    )
    assert not os.listdir(Path(city.location, "_staging"))
    with city.session.registry.reading() as connection:
        assert jobs.watermark(connection, "demand") == END


def count_done_runs(store: FeatureStore) -> int:
    return sum(run.state == "done" for run in store.get_runs("demand"))
