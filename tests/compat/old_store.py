"""Write ``tests/assets/stores/<version>.zip``: a store with an object of each kind, and its values.

Run once at a release, never for an old one:

python -m tests.compat.old_store
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import zipfile
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import featurestore
from featurestore.store import FeatureStore

ASSETS = Path(__file__).parents[1] / "assets" / "stores"
DATASETS = ("delays_tfrecord", "delays_parquet")
FIRST_WRITE = 1
START = datetime(2026, 3, 1, tzinfo=UTC)
FEATURES = ["weather.temp", "weather.tags", "weather.vector"]

JOBS = '''
import featurestore

totals = featurestore.sql_job(
    "totals",
    sql="""
        select origin, date_trunc('day', hour) + interval 1 day as day, count(*) as observations
        from weather where hour >= $window_start and hour < $window_end group by all
    """,
    inputs={"weather": "weather"},
    primary_key="origin",
    event_time="day",
    schedule="0 0 * * *",
    start="2026-03-01T00:00Z",
)
'''


def weather(first: int, last: int) -> pa.Table:
    """Return rows of the group ``weather``; every fifth has nulls."""
    hours = range(first, last)
    return pa.table(
        {
            "origin": [("EWR", "JFK")[hour % 2] for hour in hours],
            "hour": [START + timedelta(hours=hour) for hour in hours],
            "temp": [None if hour % 5 == 0 else hour / 4 for hour in hours],
            "tags": [None if hour % 5 == 0 else ["dry"] * (hour % 3) for hour in hours],
            "vector": pa.FixedSizeListArray.from_arrays(
                pa.array([hour / 2 for hour in hours for _ in range(4)], pa.float32()), 4
            ),
            "price": pa.array([Decimal(hour) / 4 for hour in hours], pa.decimal128(20, 2)),
        }
    )


def labels() -> pa.Table:
    """Return the labels of the training dataset."""
    hours = range(5, 40)
    return pa.table(
        {
            "origin": [("EWR", "JFK")[hour % 2] for hour in hours],
            "at": [START + timedelta(hours=hour, minutes=30) for hour in hours],
            "late": [hour % 3 == 0 for hour in hours],
        }
    )


def fill(store: FeatureStore) -> None:
    """Create groups with several commits, a view, training datasets, a job and published values."""
    store.create_featuregroup(
        weather(0, 30),
        "weather",
        primary_key="origin",
        event_time="hour",
        description="Weather of airports",
        tags={"team": "air"},
        expectations=[{"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "origin"}}],
    )  # fmt: skip
    store.insert_into_featuregroup(weather(30, 40), "weather")
    store.insert_into_featuregroup(weather(20, 25), "weather", mode="upsert")
    store.create_featuregroup(labels(), "departures", primary_key="origin", event_time="at")
    view = store.create_feature_view(
        "delays", features=FEATURES, labels="departures", label="late", label_time="at"
    )
    for name in DATASETS:
        data_format = name.removeprefix("delays_")
        view.create_training_dataset(
            name,
            data_format=data_format,
            splits={"train": 0.7, "test": 0.3},
            tags={"format": data_format},
        )
    jobs = Path(store.location).with_name("jobs.py")
    jobs.write_text(JOBS)
    store.register_jobs(jobs)
    store.run_job("totals", window="2026-03-01T00:00Z")
    store.create_feature_view("current", features=["weather.temp"])
    store.publish("current")


def read_tables(store: FeatureStore) -> dict[str, pa.Table]:
    """Return the rows of every group and split, in the order of their keys."""
    tables = {
        "weather": store.get_featuregroup("weather", dataframe_type="arrow"),
        "first": store.get_featuregroup("weather", as_of=FIRST_WRITE, dataframe_type="arrow"),
        "departures": store.get_featuregroup("departures", dataframe_type="arrow"),
        "totals": store.get_featuregroup("totals", dataframe_type="arrow"),
    }
    for name in DATASETS:
        for split in ("train", "test"):
            rows = store.get_training_dataset(name).read(split)
            tables[f"{name}.{split}"] = rows.to_arrow()
    return {name: _sorted(table) for name, table in tables.items()}


def _sorted(table: pa.Table) -> pa.Table:
    keys = [name for name in ("hour", "at", "day", "origin") if name in table.column_names]
    return table.sort_by([(name, "ascending") for name in keys]).combine_chunks()


def main() -> None:
    target = ASSETS / f"{version('featurestore')}.zip"
    if target.exists():
        sys.exit(f"{target} exists; a released file is never changed")
    with tempfile.TemporaryDirectory() as directory:
        location = Path(directory, "store")
        with featurestore.connect(location) as store:
            fill(store)
            tables = read_tables(store)
        for name, table in tables.items():
            pq.write_table(table, Path(directory, f"{name}.parquet"), compression="zstd")
        with sqlite3.connect(location / "registry.db") as connection:
            connection.execute("pragma journal_mode=delete")
        connection.close()
        target.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(Path(directory).rglob("*")):
                if "_owners" not in file.parts:
                    archive.write(file, file.relative_to(directory))
    sys.stdout.write(f"{target}\n")


if __name__ == "__main__":
    main()
