"""The limits of locks and transactions of a registry in Postgres."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import featurestore
from featurestore.errors import RegistryError
from featurestore.registry import database, tables
from featurestore.registry.database import Registry
from featurestore.store import FeatureStore

pytestmark = pytest.mark.postgres


@pytest.fixture
def stores(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[FeatureStore, FeatureStore]]:
    """Two connections to a store, with limits of one and two seconds."""
    monkeypatch.setattr(database, "BUSY_SECONDS", 1)
    monkeypatch.setattr(database, "IDLE_SECONDS", 2)
    location = tmp_path / "store"
    with (
        featurestore.connect(location, registry=postgres_url) as first,
        featurestore.connect(location, registry=postgres_url) as second,
    ):
        yield first, second


def lock(registry: Registry, *, idle_seconds: float) -> None:
    """Lock a table in a transaction that is idle before its end."""
    with registry.transaction() as connection:
        connection.exec_driver_sql(f"lock table {tables.owners.name} in access exclusive mode")
        time.sleep(idle_seconds)
        connection.exec_driver_sql("select 1")


def test_lock_of_other_process_is_named(stores: tuple[FeatureStore, FeatureStore]) -> None:
    holder, waiter = (store.session.registry for store in stores)
    with holder.transaction() as connection:
        connection.exec_driver_sql(f"select * from {tables.owners.name}")
        with pytest.raises(RegistryError, match=r"held a lock(.|\n)*another process is writing"):
            lock(waiter, idle_seconds=0)
    lock(waiter, idle_seconds=0)


def test_end_of_idle_transaction_is_named(stores: tuple[FeatureStore, FeatureStore]) -> None:
    registry = stores[0].session.registry
    with pytest.raises(RegistryError, match=r"idle or too long(.|\n)*suspended or slow"):
        lock(registry, idle_seconds=database.IDLE_SECONDS + 0.5)
    lock(registry, idle_seconds=0)
