"""The small store that the examples in docstrings use.

Hourly weather, planes, and questions about flights.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from featurestore.store import FeatureStore


def hour(number: int, minute: int = 0) -> datetime:
    """Return a time of 2013-01-01."""
    return datetime(2013, 1, 1, number, minute, tzinfo=UTC)


def weather() -> pa.Table:
    """Return measurements of two airports at six and seven o'clock."""
    return pa.table(
        {
            "origin": ["JFK", "LGA", "JFK", "LGA"],
            "measured_at": [hour(6), hour(6), hour(7), hour(7)],
            "temp": [37.0, 36.0, 39.0, 38.5],
            "wind": [8.0, 10.0, 12.0, 9.0],
        }
    )


def planes() -> pa.Table:
    """Return two planes."""
    return pa.table({"tailnum": ["N10", "N20"], "seats": [100, 200]})


def questions() -> pa.Table:
    """Return four departures with the times of their predictions."""
    return pa.table(
        {
            "tailnum": ["N10", "N20", "N10", "N20"],
            "origin": ["JFK", "LGA", "LGA", "JFK"],
            "asked_at": [hour(6, 30), hour(6, 45), hour(7, 15), hour(7, 30)],
            "late": [False, True, False, True],
        }
    )


def shop(path: Path) -> None:
    """Write a small database of orders."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(
            "create table orders (id integer, customer text, total real, created_at timestamp)"
        )
        database.execute(
            "insert into orders values (1, 'ada', 12.5, '2013-01-01 06:10:00'),"
            " (2, 'bob', 99.0, '2013-01-01 07:20:00')"
        )


def fill(store: FeatureStore) -> None:
    """Create the groups of the examples, the source ``shop``, and ``late_flights``."""
    store.create_featuregroup(
        weather(),
        "weather",
        primary_key="origin",
        event_time="measured_at",
        description="Hourly weather",
        tags={"team": "sky"},
    )
    store.create_featuregroup(planes(), "planes", primary_key="tailnum")
    store.create_featuregroup(
        questions(), "questions", primary_key=["tailnum", "origin"], event_time="asked_at"
    )
    database = Path(store.location).parent / "shop.db"
    shop(database)
    store.add_source("shop", f"sqlite:///{database}")
    frame = store.get_features(["weather.temp", "planes.seats"], labels="questions")
    store.create_training_dataset(frame, "late_flights", label="late", shards=1, progress=False)
    store.create_feature_view(
        "late_flights", features=["weather.temp", "planes.seats"], labels="questions", label="late"
    )


JOBS = '''
import featurestore

mean_temp = featurestore.sql_job(
    "mean_temp",
    sql="""
        select origin, date_trunc('day', measured_at) + interval 1 day as day, avg(temp) as temp
        from weather group by all
    """,
    primary_key="origin",
    event_time="day",
    schedule="0 0 * * *",
    start="2013-01-01T00:00Z",
    inputs={"weather": "weather"},
)
'''

MONITORS = """
import featurestore

weather_watch = featurestore.monitor_job(
    "weather_watch", featuregroup="weather", schedule="0 * * * *"
)
"""
DEFINITIONS = """
from featurestore import define
define.featuregroup("trips", schema={"trip": "int64", "zone": "int64"}, primary_key="trip")
"""


def dbt_project(folder: Path) -> None:
    """Write a dbt project with one model, the table ``orders`` of the source ``shop``."""
    model = {
        "resource_type": "model",
        "name": "orders",
        "package_name": "shop",
        "original_file_path": "models/orders.sql",
        "fqn": ["shop", "orders"],
        "schema": "main",
        "alias": "orders",
        "config": {"materialized": "table", "event_time": "created_at"},
        "constraints": [{"type": "primary_key", "columns": ["id"]}],
    }
    metadata = {
        "dbt_schema_version": "https://schemas.getdbt.com/dbt/manifest/v12.json",
        "dbt_version": "1.12.0",
        "project_name": "shop",
    }
    manifest = {"metadata": metadata, "nodes": {"model.shop.orders": model}, "sources": {}}
    for name in ("models", "target"):
        (folder / name).mkdir()
    (folder / "dbt_project.yml").write_text("name: shop\n")
    (folder / "target" / "manifest.json").write_text(json.dumps(manifest))


def iceberg_catalog(folder: Path) -> None:
    """Write an empty Iceberg catalog, ``catalog.db``, with the tables of pyiceberg."""
    with closing(sqlite3.connect(folder / "catalog.db")) as database:
        database.execute(
            "create table iceberg_tables (catalog_name, table_namespace, table_name, "
            "metadata_location, previous_metadata_location, iceberg_type)"
        )
        database.execute(
            "create table iceberg_namespace_properties (catalog_name, namespace, property_key, "
            "property_value)"
        )
