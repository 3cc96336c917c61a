"""Flights of one day with weather and planes: a small store for tests that need some data."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import sqlalchemy as sa

from featurestore.store import FeatureStore

MIDNIGHT = datetime(2013, 1, 1, tzinfo=UTC)
AIRPORTS = ["EWR", "JFK", "LGA"]
TAILNUMS = ["N102UW", "N103US", "N104UW", "N105UW"]
FEATURES = ["weather.temp", "weather.wind", "planes.seats"]
# Registry tables that change while a store is only read: heartbeats of processes, and the index
# that the first search builds.
VOLATILE_TABLES = ("owners", "search_")


def weather() -> pa.Table:
    """Return the hourly weather of three airports."""
    hours = range(24)
    return pa.table(
        {
            "origin": [airport for _ in hours for airport in AIRPORTS],
            "hour": [MIDNIGHT + timedelta(hours=hour) for hour in hours for _ in AIRPORTS],
            "temp": [30.0 + hour + number for hour in hours for number in range(3)],
            "wind": [5.0 + (7 * hour + number) % 11 for hour in hours for number in range(3)],
        }
    )


def planes() -> pa.Table:
    """Return four planes, which have no event time."""
    return pa.table({"tailnum": TAILNUMS, "seats": [20, 55, 149, 200]})


def flights() -> pa.Table:
    """Return 40 departures, every 30 minutes from one o'clock; every third one was late."""
    numbers = range(40)
    return pa.table(
        {
            "flight": numbers,
            "departure": [MIDNIGHT + timedelta(hours=1, minutes=30 * n) for n in numbers],
            "origin": [AIRPORTS[number % 3] for number in numbers],
            "tailnum": [TAILNUMS[number % 4] for number in numbers],
            "distance": [200 + 50 * (number % 13) for number in numbers],
            "late": [number % 3 == 2 for number in numbers],
        }
    )


def fill_flights(store: FeatureStore) -> None:
    """Create three groups, a view and its dataset, both with the name ``late_flights``."""
    store.create_featuregroup(
        weather(),
        "weather",
        primary_key="origin",
        event_time="hour",
        description="Hourly weather",
        tags={"team": "sky"},
        ttl="1d",
    )
    store.create_featuregroup(planes(), "planes", primary_key="tailnum")
    store.create_featuregroup(flights(), "flights", primary_key="flight", event_time="departure")
    view = store.create_feature_view(
        "late_flights", features=FEATURES, labels="flights", label="late"
    )
    view.create_training_dataset(
        "late_flights",
        shards=2,
        splits={"train": 0.75, "test": 0.25},
        description="Departures of one day",
        tags={"team": "sky"},
        progress=False,
    )


def content_of(store: FeatureStore) -> tuple[dict[str, int], Counter[str]]:
    """Return the table version of each group, and the number of rows of each registry table."""
    versions = {
        f"{group.name}@v{group.version}": group.delta_version for group in store.get_featuregroups()
    }
    row_counts: Counter[str] = Counter()
    with store.session.registry.reading() as connection:
        for table in sa.inspect(connection).get_table_names():
            if not table.startswith(VOLATILE_TABLES):
                count = sa.select(sa.func.count()).select_from(sa.table(table))
                row_counts[table] = connection.execute(count).scalar_one()
    return versions, row_counts
