"""A group with a row every ten minutes for ten weeks, and monitor definitions in files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from featurestore.model import times
from featurestore.store import FeatureStore
from tests.store_copies import copy_of, open_at_time

START = datetime(2024, 1, 1, tzinfo=UTC)
DAYS = 70
DAY = timedelta(days=1)
NOW = START + DAYS * DAY
A_DAY = 144


@dataclass
class Clock:
    """A clock that a test sets."""

    now: datetime = NOW

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Clock:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    result = Clock()
    monkeypatch.setattr(times, "clock", result)
    return result


def sales(first: int, days: int, *, shift: float = 0.0, null_share: float = 0.05) -> pa.Table:
    """Return the rows of some days: an amount with nulls, a shop, and a late flag."""
    tables = []
    for day in range(first, first + days):
        rng = np.random.default_rng(day)
        times = [START + day * DAY + number * timedelta(minutes=10) for number in range(A_DAY)]
        amount = rng.normal(10.0 + shift * 2.0, 2.0, A_DAY)
        nulls = rng.random(A_DAY) < null_share
        tables.append(
            pa.table(
                {
                    "id": pa.array(range(day * A_DAY, (day + 1) * A_DAY), pa.int64()),
                    "at": pa.array(times, pa.timestamp("us", tz="UTC")),
                    "amount": pa.array(amount, mask=nulls),
                    "shop": pa.array(rng.choice(["north", "south"], A_DAY)),
                    "late": pa.array((rng.random(A_DAY) < 0.2).astype(float)),
                }
            )
        )
    return pa.concat_tables(tables)


@pytest.fixture(scope="session")
def ten_weeks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose group ``sales`` has ten weeks of rows and the profile of each day."""
    folder = tmp_path_factory.mktemp("ten_weeks")
    template, monitored = folder / "store", folder / "monitored"
    with open_at_time(template, NOW) as store:
        store.create_featuregroup(sales(0, DAYS), "sales", primary_key="id", event_time="at")
    shutil.copytree(template, monitored)
    with open_at_time(monitored, NOW) as store:
        store.register_jobs(monitor_file(folder))
        store.backfill_job("watch", START, NOW)
    shutil.copytree(profiles(monitored), profiles(template))
    return template


def profiles(location: str | Path) -> Path:
    """Return the folder of the stored daily profiles."""
    return Path(location, "featuregroups", "sales", "v1_statistics", "windows")


def monitor_file(
    folder: Path, arguments: str = "", *, name: str = "watch", schedule: str = "0 0 * * *"
) -> Path:
    """Write the file of a monitor of ``sales`` with daily windows."""
    file = folder / f"{name}.py"
    file.write_text(
        "import featurestore\n"
        f"featurestore.monitor_job({name!r}, featuregroup='sales', schedule={schedule!r}, "
        f"{arguments})\n"
    )
    return file


@pytest.fixture
def shop(tmp_path: Path, clock: Clock, ten_weeks: Path) -> FeatureStore:
    """A copy of the store with ten weeks."""
    return copy_of(ten_weeks, tmp_path / "store")


Define = Callable[..., str]


@pytest.fixture
def define(shop: FeatureStore, tmp_path: Path) -> Define:
    """Register a monitor of ``sales`` with daily windows; return its name."""

    def write(arguments: str = "", *, name: str = "watch", schedule: str = "0 0 * * *") -> str:
        shop.register_jobs(monitor_file(tmp_path, arguments, name=name, schedule=schedule))
        return name

    return write
