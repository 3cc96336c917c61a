"""Pages of a store take the same work after it has grown ten times.

Work is counted, not timed: the statements of a page and the steps of SQLite's virtual machine, which
are the same in each run.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from starlette.testclient import TestClient

import featurestore
from featurestore import experiments
from featurestore.errors import FeatureNotFound
from featurestore.experiments import catalog
from featurestore.registry import tables
from featurestore.server import ServerSettings, create_app
from featurestore.store import FeatureStore
from tests.grown_store import Size, grow_registry

RUN = "20240301-120000-seller"
ORIGIN = {
    "group": "visits",
    "dataset": "sells",
    "view": "selling",
    "monitor": "watch",
    "job": "doubled",
    "run": RUN,
    "model": "seller",
}
# Larger than each limit of a page, so that the pages of both stores are full.
SMALL = Size(groups=250, datasets=250, views=250, monitors=10, job_runs=250, runs=500, models=250)
_STEPS_AT_ONCE = 100
PAGES = [
    "/groups",
    "/groups?page=50",
    "/groups?sort=changed",
    "/groups?fresh=7d",
    "/groups/visits/1",
    "/groups/visits/1/history",
    "/datasets",
    "/datasets?page=50",
    "/datasets/sells/1",
    "/views",
    "/views/selling/1",
    "/monitors",
    "/monitors?page=2",
    "/monitors/watch",
    "/experiments",
    "/experiments?page=9",
    "/experiments?name=seller",
    "/experiments?dataset=sells",
    "/models",
    "/models/seller/1",
    "/lineage",
    "/lineage?node=featuregroup:visits@1",
    "/lineage?node=job:doubled",
    "/lineage?node=model:seller@1",
    "/basket?feature=visits.sales",
    "/api/v1/featuregroups?limit=20",
    "/api/v1/featuregroups/visits",
    "/api/v1/features?limit=20",
    "/api/v1/features?q=sales&limit=20",
    "/api/v1/training-datasets?limit=20",
    "/api/v1/experiments?limit=20",
    f"/api/v1/experiments/{RUN}",
    "/api/v1/models?limit=2",
    "/api/v1/jobs?limit=5",
]
# Names are compared with a searched text, and objects are counted, in the order of an index: a few
# steps for each.
LINEAR_PAGES = ["/", "/search?q=visits", "/search?q=sales", "/search?q=nosuchname", "/api/v1/store"]
_STEPS_PER_OBJECT = 30


@dataclass
class Work:
    """The statements of a request, and the steps of the database."""

    statements: int = 0
    steps: int = 0


@contextmanager
def counted_work(store: FeatureStore) -> Iterator[Work]:
    """Count the work of the connections that a registry opens in the block."""
    work = Work()

    def add_steps() -> None:
        work.steps += _STEPS_AT_ONCE

    def watch(connection: sqlite3.Connection, _record: object) -> None:
        connection.set_progress_handler(add_steps, _STEPS_AT_ONCE)

    def add_statement(*_: Any) -> None:
        work.statements += 1

    engine = store.session.registry._engine
    engine.dispose()  # connections that are open are not counted
    listeners = {"connect": watch, "before_cursor_execute": add_statement}
    for name, listener in listeners.items():
        event.listen(engine, name, listener)
    yield work
    for name, listener in listeners.items():
        event.remove(engine, name, listener)
    engine.dispose()


@pytest.fixture(scope="module")
def grown_stores(
    served_store: FeatureStore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[FeatureStore]]:
    """A store, and a store with ten times as many objects."""
    folder = tmp_path_factory.mktemp("grown")
    stores = []
    for name, size in (("small", SMALL), ("large", SMALL.times(10))):
        shutil.copytree(
            served_store.location, folder / name, ignore=shutil.ignore_patterns("_owners")
        )
        store = featurestore.connect(folder / name, engine="duckdb")
        add_files(store)
        grow_registry(store, size, origin=ORIGIN)
        stores.append(store)
    yield stores
    for store in stores:
        store.close()


def add_files(store: FeatureStore) -> None:
    """Add the objects on the first pages, whose files the pages open."""
    run = catalog.load(store.session, RUN)
    newer = datetime(2025, 1, 1, tzinfo=UTC)
    catalog.save_all(
        store.session,
        [
            replace(
                run, id=f"20250101-{number}", created=(newer + timedelta(hours=number)).isoformat()
            )
            for number in range(1000, 1030)
        ],
    )
    experiments.register_model(RUN, "seller", trust=True, store=store)
    for _ in range(2):
        store.create_feature_view("selling", features=["visits.sales"])
    with store.session.registry.transaction() as connection:
        # The windows that are due since then are counted one by one.
        now = int(datetime.now(UTC).timestamp() * 1_000_000)
        connection.execute(tables.job_states.update().values(watermark=now))


def _work_of(store: FeatureStore, addresses: list[str]) -> dict[str, Work]:
    app = create_app(store, ServerSettings(page=2))
    work_by_address = {}
    with TestClient(app, base_url="http://localhost") as client:
        for address in addresses:
            with counted_work(store) as work:
                assert client.get(address).status_code == 200, address
            work_by_address[address] = work
    return work_by_address


def test_pages_take_the_same_work_in_a_larger_store(
    grown_stores: list[FeatureStore], subtests: pytest.Subtests
) -> None:
    small, large = (_work_of(store, PAGES) for store in grown_stores)
    for address in PAGES:
        with subtests.test(address):
            assert large[address].statements <= small[address].statements + 2
            assert large[address].steps <= 1.3 * small[address].steps + 1000


def test_unknown_feature_takes_the_same_statements_in_a_larger_store(
    grown_stores: list[FeatureStore],
) -> None:
    statements = []
    for store in grown_stores:
        with (
            counted_work(store) as work,
            pytest.raises(FeatureNotFound, match="No feature 'salez'") as error,
        ):
            store.get_features("salez")
        assert "'visits.sales'" in str(error.value)
        statements.append(work.statements)
    # Definitions of other groups are not read.
    assert statements[0] == statements[1] < 10


def test_searches_and_counts_take_few_steps_per_object(
    grown_stores: list[FeatureStore], subtests: pytest.Subtests
) -> None:
    small, large = (_work_of(store, LINEAR_PAGES) for store in grown_stores)
    with grown_stores[1].session.registry.reading() as connection:
        counted_tables = (tables.features, tables.training_datasets, tables.models)
        objects = sum(
            connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            for table in counted_tables
        )
    for address in LINEAR_PAGES:
        with subtests.test(address):
            assert large[address].statements <= small[address].statements + 30
            assert large[address].steps <= _STEPS_PER_OBJECT * objects
