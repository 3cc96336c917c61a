"""Jobs that fetch their own rows: windows, catchup, failures and staleness."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
import time_machine

import featurestore
from featurestore.errors import InvalidJob, JobFailed
from featurestore.store import FeatureStore

DAY = datetime(2024, 1, 4, 1, tzinfo=UTC)
FILE = """
from pathlib import Path
import featurestore

@featurestore.job(
    featuregroup="readings", primary_key="sensor", event_time="at", schedule="0 0 * * *",
    start="2024-01-01T00:00Z", {rules}
)
def readings(window):
    file = Path({folder!r}) / f"{{window.start:%Y-%m-%d}}.txt"
    pairs = [line.split() for line in file.read_text().splitlines()]
    return [dict(sensor=sensor, value=float(value)) for sensor, value in pairs]
"""


@pytest.fixture
def dropped(tmp_path: Path) -> Path:
    """A folder with the files of three days."""
    for day in (1, 2, 3):
        (tmp_path / f"2024-01-0{day}.txt").write_text(f"a {day}\nb {day * 10}\n")
    return tmp_path


@pytest.mark.parametrize("rules", ["", "inputs={}", "inputs=None"])
def test_job_without_inputs_catches_up_and_continues(
    empty_store: FeatureStore, dropped: Path, rules: str
) -> None:
    (dropped / "jobs.py").write_text(FILE.format(rules=rules, folder=str(dropped)))
    empty_store.register_jobs(str(dropped / "jobs.py"))
    with time_machine.travel(DAY, tick=False):
        plan = empty_store.plan_job("readings")
        assert (len(plan.windows), plan.inputs, plan.rows) == (3, (), 0)
        empty_store.run_job("readings", due=True)
        rows = empty_store.get_featuregroup("readings", dataframe_type="python")
        actual = sorted((row["at"].day, row["sensor"], row["value"]) for row in rows)
        assert actual == [
            (2, "a", 1.0), (2, "b", 10.0), (3, "a", 2.0), (3, "b", 20.0), (4, "a", 3.0), (4, "b", 30.0)
        ]  # fmt: skip
        assert empty_store.run_job("readings", due=True) == []
        assert empty_store.run_job("readings", stale=True) == []
        (dropped / "2024-01-02.txt").write_text("a 7\n")
        empty_store.run_job("readings", window="2024-01-02T00:00Z")
        rows = empty_store.get_featuregroup("readings", dataframe_type="python")
        assert sorted(row["value"] for row in rows) == [1.0, 3.0, 7.0, 10.0, 30.0]


def test_window_with_missing_file_stays_due(empty_store: FeatureStore, dropped: Path) -> None:
    (dropped / "2024-01-02.txt").unlink()
    (dropped / "jobs.py").write_text(FILE.format(rules="", folder=str(dropped)))
    empty_store.register_jobs(str(dropped / "jobs.py"))
    with time_machine.travel(DAY, tick=False):
        with pytest.raises(JobFailed):
            empty_store.run_job("readings", due=True)
        assert empty_store.get_featuregroup("readings").count() == 4
        (dropped / "2024-01-02.txt").write_text("a 2\n")
        empty_store.run_job("readings", due=True)
        assert empty_store.get_featuregroup("readings").count() == 5


def test_query_without_inputs_reads_no_table() -> None:
    query = "select 'a' as sensor, $window_end as at, 1.0 as value"
    job = featurestore.sql_job("beat", sql=query, event_time="at", schedule="0 0 * * *")
    assert job.spec.inputs == {}
    with pytest.raises(InvalidJob, match="unknown inputs"):
        featurestore.sql_job(
            "beat", sql=query, event_time="at", schedule="0 0 * * *", input_times={"t": "at"}
        )


@pytest.mark.parametrize(
    "empty",
    [
        "None",
        "[]",
        "pd.DataFrame([])",
        "pd.DataFrame({'sensor': [], 'value': []})",
        "pl.DataFrame()",
        "pa.table({})",
    ],
)
def test_windows_without_rows_are_computed(
    empty_store: FeatureStore, tmp_path: Path, empty: str
) -> None:
    rules = FILE.format(rules="", folder=str(tmp_path)).partition("    file =")[0]
    (tmp_path / "jobs.py").write_text(
        f"import pandas as pd, polars as pl, pyarrow as pa\n{rules}"
        f"    return {empty} if window.start.day != 2 else [{{'sensor': 'a', 'value': 1.5}}]\n"
    )
    empty_store.register_jobs(str(tmp_path / "jobs.py"))
    with time_machine.travel(DAY, tick=False):
        runs = empty_store.run_job("readings", due=True)
        assert sum(run.windows for run in runs) == 3
        assert empty_store.run_job("readings", due=True) == []
        for day in (1, 3):
            empty_store.run_job("readings", window=f"2024-01-0{day}T00:00Z")
    rows = empty_store.get_featuregroup("readings", dataframe_type="python")
    assert [(row["sensor"], row["value"]) for row in rows] == [("a", 1.5)]


def test_exit_of_job_code_is_an_error(empty_store: FeatureStore, tmp_path: Path) -> None:
    file = tmp_path / "jobs.py"
    source = FILE.format(rules="", folder=str(tmp_path))
    file.write_text(source + "raise SystemExit(0)\n")
    with pytest.raises(InvalidJob, match="SystemExit"):
        empty_store.register_jobs(str(file))
    file.write_text(source.replace("    pairs =", "    raise SystemExit(3)\n    pairs ="))
    (tmp_path / "2024-01-01.txt").touch()
    file.write_text(file.read_text().replace("file.read_text()", "''"))
    empty_store.register_jobs(str(file))
    with (
        time_machine.travel(DAY, tick=False),
        pytest.raises(JobFailed, match=r"1 window could not.*exit\(3\)"),
    ):
        empty_store.run_job("readings", window="2024-01-01T00:00Z")
    assert [run.state for run in empty_store.get_runs("readings")] == ["failed"]
