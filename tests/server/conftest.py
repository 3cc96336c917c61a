"""A small store for server tests: groups, a dataset, a view, jobs and hostile text."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import featurestore
from featurestore.server import ServerSettings, create_app
from featurestore.store import FeatureStore
from tests.server.trained_runs import train

HARM = "<script>alert('x')</script>\"'{{ 'xyz' * 3 }}"
NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)
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
    start="2024-03-01T12:00Z",
)
watch = featurestore.monitor_job(
    "watch",
    featuregroup="visits",
    schedule="0 * * * *",
    window="1h",
    start="2024-03-01T12:00Z",
    volume=(0.5, 2.0),
)
"""


@pytest.fixture(scope="session")
def served_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeatureStore]:
    """A store with an object for every page; tests do not change it."""
    folder = tmp_path_factory.mktemp("served")
    with featurestore.connect(folder / "store") as store:
        fill(store, folder)
        yield store


def fill(store: FeatureStore, folder: Path) -> None:
    """Create an object for every page; the jobs are in a file in the folder."""
    visits = []
    for hour in range(6):
        for shop in ("a", "b"):
            timestamp = NOON + timedelta(minutes=30 + 60 * hour)
            visits.append({"shop": shop, "seen": timestamp, "sales": float(hour), "note": HARM})
    store.create_featuregroup(
        visits,
        "visits",
        primary_key="shop",
        event_time="seen",
        description=HARM,
        descriptions={"sales": HARM},
        tags={"owner": "ann", "team": HARM},
    )
    store.create_featuregroup(visits[:4], "visits", primary_key=["shop"], event_time="seen")
    labels = [{"shop": "a", "asked_at": NOON + timedelta(hours=3), "good": True}]
    labels.append({"shop": "b", "asked_at": NOON + timedelta(hours=4), "good": False})
    frame = store.get_features(["visits.sales"], labels=labels)
    for _ in range(2):
        store.create_training_dataset(frame, "sells", label="good", progress=False)
    store.create_feature_view("selling", features=["visits.sales"], description=HARM)
    train(store, "sells", "seller", text=HARM)
    file = folder / "shop_jobs.py"
    file.write_text(JOBS)
    store.register_jobs(file)
    store.backfill_job("doubled", NOON, NOON + timedelta(hours=3))
    store.backfill_job("watch", NOON, NOON + timedelta(hours=6))


@pytest.fixture(scope="session")
def client(served_store: FeatureStore) -> Iterator[TestClient]:
    """A client of the application for that store."""
    app = create_app(served_store, ServerSettings(page=3))
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def empty_client(tmp_path: Path) -> Iterator[TestClient]:
    """A client of a server for an empty store."""
    with (
        featurestore.connect(tmp_path / "empty") as store,
        TestClient(create_app(store), base_url="http://localhost") as client,
    ):
        yield client
