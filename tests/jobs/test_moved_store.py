"""A moved store requires registration of its jobs and computes no window again."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import featurestore
from featurestore.errors import ConfigurationError

START = datetime(2024, 3, 1, tzinfo=UTC)
JOBS = """
import featurestore

doubled = featurestore.sql_job(
    "doubled",
    sql="select shop, seen, 2 * sales as twice from visits",
    inputs={"visits": "visits"},
    featuregroup="doubled",
    primary_key=["shop"],
    event_time="seen",
    schedule="0 * * * *",
    window="1h",
    start="2024-03-01T00:00Z",
)
"""


def test_moved_store_runs_jobs_after_registration(tmp_path: Path) -> None:
    file = tmp_path / "shop_jobs.py"
    file.write_text(JOBS)
    rows = [
        {"shop": "a", "seen": START + timedelta(minutes=30 + 60 * hour), "sales": float(hour)}
        for hour in range(3)
    ]
    with featurestore.connect(tmp_path / "old") as store:
        store.create_featuregroup(rows, "visits", primary_key="shop", event_time="seen")
        store.register_jobs(file)
        store.backfill_job("doubled", START, START + timedelta(hours=2))
        runs = [run.run_id for run in store.get_runs("doubled")]
    shutil.move(tmp_path / "old", tmp_path / "new")
    with featurestore.connect(tmp_path / "new") as store:
        assert [run.run_id for run in store.get_runs("doubled")] == runs
        with pytest.raises(
            ConfigurationError, match="was not registered on this machine"
        ) as refused:
            store.run_job("doubled", window=START + timedelta(hours=2))
        assert f"featurestore job register {file}" in str(refused.value.hint)
        store.register_jobs(file)
        store.run_job("doubled", window=START + timedelta(hours=2))
        assert store.get_featuregroup("doubled").count() == 3
