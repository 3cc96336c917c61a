"""A store with two days of trips, and jobs over them in a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from featurestore.model import times
from featurestore.store import FeatureStore
from tests.store_copies import copy_of, open_at_time

START = datetime(2024, 1, 1, tzinfo=UTC)
HOURS = 48

SQL = """
select zone, date_trunc('hour', left_at) + interval 1 hour as hour,
       count(*) as trips, sum(fare) as fares
from trips where left_at >= $window_start and left_at < $window_end group by 1, 2
"""


def trips(hours: int = HOURS, *, start: datetime = START, fare: int = 1) -> pa.Table:
    """Return three trips per hour.

    Two of zone a, one of zone b, except that every fifth hour has none.
    """
    timestamps, zones = [], []
    for hour in range(hours):
        if hour % 5 == 4:
            continue
        for minute, zone in ((5, "a"), (20, "b"), (50, "a")):
            timestamps.append(start + timedelta(hours=hour, minutes=minute))
            zones.append(zone)
    return pa.table(
        {
            "id": pa.array(range(len(timestamps)), pa.int64()),
            "left_at": pa.array(timestamps, pa.timestamp("us", tz="UTC")),
            "zone": zones,
            "fare": pa.array([fare] * len(timestamps), pa.int64()),
        }
    )


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = START + timedelta(hours=HOURS)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The library's clock, fixed at the end of the trips until a test moves it."""
    result = Clock()
    monkeypatch.setattr(times, "clock", result)
    return result


@pytest.fixture(scope="session")
def two_days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose group ``trips`` has two days of rows."""
    location = tmp_path_factory.mktemp("two_days") / "store"
    with open_at_time(location, START + timedelta(hours=HOURS)) as store:
        store.create_featuregroup(trips(), "trips", primary_key=["id"], event_time="left_at")
    return location


@pytest.fixture
def city(tmp_path: Path, clock: Clock, two_days: Path) -> FeatureStore:
    """A copy of the store with two days."""
    return copy_of(two_days, tmp_path / "store")


Define = Callable[..., FeatureStore]

PYTHON = """
import featurestore, duckdb
{before}
@featurestore.job(
    featuregroup="{target}", name="{name}", primary_key=["zone"], event_time="hour",
    schedule="0 * * * *",
    start="2024-01-01T00:00Z", inputs={{"trips": "trips"}}, {rules}
)
def {name}(window, trips):
    {body}
    return trips.aggregate("zone, date_trunc('hour', left_at) + interval 1 hour as hour, "
                           "count(*) as trips, sum(fare) as fares")
"""


SQL_JOB = """
import featurestore
{name} = featurestore.sql_job(
    "{name}", sql='''{sql}''', primary_key=["zone"], event_time="hour", schedule="0 * * * *",
    start="2024-01-01T00:00Z", inputs={inputs}, {rules}
)
"""


def python_job(
    name: str = "demand",
    *,
    target: str | None = None,
    rules: str = "",
    body: str = "pass",
    before: str = "",
) -> str:
    """Return the source of an hourly job in Python."""
    return PYTHON.format(name=name, target=target or name, rules=rules, body=body, before=before)


def sql_job(
    name: str = "demand", *, sql: str = SQL, rules: str = "", inputs: str = '{"trips": "trips"}'
) -> str:
    """Return the source of an hourly SQL job."""
    return SQL_JOB.format(name=name, sql=sql, rules=rules, inputs=inputs)


@pytest.fixture
def define(tmp_path: Path) -> Callable[..., Path]:
    """Write job sources into one file and return its path."""

    def write(*sources: str, name: str = "jobs.py") -> Path:
        file = tmp_path / "definitions" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(sources))
        return file

    return write


def change_definition(store: FeatureStore, name: str, **fields: object) -> None:
    """Change the definition of a job in the registry, without the checks of a registration."""
    select = "select spec from job_definitions where name = :name order by version"
    update = "update job_definitions set spec = :spec, hash = 'changed' where name = :name"
    with store.session.registry.transaction() as connection:
        text = connection.execute(sa.text(select), {"name": name}).scalars().all()[-1]
        changed = json.dumps({**json.loads(text), **fields})
        connection.execute(sa.text(update), {"name": name, "spec": changed})


def rows(store: FeatureStore, name: str = "demand") -> list[dict[str, Any]]:
    """Return the rows of a group in the order of its key."""
    table = store.get_featuregroup(name).to_arrow()
    return sorted(table.to_pylist(), key=lambda row: (row["hour"], row["zone"]))


def expected(hours: int = HOURS, *, first: int = 0, fare: int = 1) -> list[dict[str, Any]]:
    """Return the expected rows of the hourly job."""
    result = []
    for hour in range(first, hours):
        if hour % 5 != 4:
            end = START + timedelta(hours=hour + 1)
            result += [
                {"zone": "a", "hour": end, "trips": 2, "fares": 2 * fare},
                {"zone": "b", "hour": end, "trips": 1, "fares": fare},
            ]
    return result
