"""A store that two machines use, that is, with two registries: versions, views and appends."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest
from deltalake import DeltaTable

from featurestore.errors import (
    FeatureGroupExists,
    FeatureGroupNotFound,
    RegistryError,
    SourceExists,
    TrainingDatasetExists,
    ValidationFailed,
)
from featurestore.recovery.rebuild import rebuild
from featurestore.registry import access
from featurestore.registry.audit_log import Actor
from featurestore.server.access import changes
from featurestore.storage import storage_for
from featurestore.storage.connections import delta_options
from featurestore.storage.location import OBJECT_STORES, scheme_of
from featurestore.store import FeatureStore
from featurestore.training.catalog import clean_all
from tests.storage.stores import StoreLocation, export, labeled, names_below, rows


def check_machines(store_location: StoreLocation, tmp_path: Path) -> None:
    """Use a store from two machines, that is, with two registries."""
    first = store_location.connect("first")
    first.create_featuregroup(
        labeled(60), "weather", primary_key="id", event_time="at", tags={"a": "b"}
    )
    first.create_featuregroup(rows(0, 5), "rain", primary_key="id")
    export(first)
    with pytest.raises(RegistryError, match="registry rebuild"):
        store_location.connect("second")
    rebuilt = rebuild(first.location, url=f"sqlite:///{tmp_path / 'second.db'}")
    assert rebuilt.featuregroups == ["rain@v1", "weather@v1"]
    second = store_location.connect("second")
    assert second.get_featuregroup("weather").count() == 60
    assert second.get_featuregroup_tags("weather") == {"a": "b"}
    assert second.get_training_dataset("d").verify(recompute=True).ok
    memory = storage_for(first.location).read_text(f"{first.location}/registry.json")
    assert "a cache on each machine" in memory
    assert str(tmp_path) not in memory
    check_versions(first, second)
    check_views(first, store_location.connect("first"))
    check_appends(first, second)
    check_metadata(first, second)
    second.delete_training_dataset("d", version=1)
    second.delete_featuregroup("weather", version=1)
    with pytest.raises(FeatureGroupNotFound):
        second.get_featuregroup("weather")
    assert names_below(f"{first.location}/featuregroups/weather") == ["v1.deleted"]


def check_metadata(first: FeatureStore, second: FeatureStore) -> None:
    """Change tags, users and sources with both registries; no change is lost."""
    stores = (first, second)
    tags = {str(number): "c" for number in range(8)}

    def add(key: str) -> None:
        store = stores[int(key) % 2]
        store.add_featuregroup_tag("weather", key, "c")
        store.add_training_dataset_tag("d", key, "c")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(add, tags))
    for store in stores:
        assert store.get_training_dataset("d").tags == tags
        store.add_featuregroup_tag("weather", "last", "c")  # registers the tags of the other
        assert store.get_featuregroup_tags("weather") == {"a": "b", **tags, "last": "c"}
    for store, name in zip((*stores, *stores), ("ann", "bob", "eve", "joe"), strict=True):
        changes.add_user(store.session, Actor("test", "test"), name)
    with second.session.registry.reading() as connection:
        assert [user.name for user in access.list_users(connection)] == ["ann", "bob", "eve", "joe"]
    first.add_source("orders", "sqlite:////orders.db")
    with pytest.raises(SourceExists, match="another registry"):
        second.add_source("orders", "sqlite:////others.db")


def check_versions(first: FeatureStore, second: FeatureStore) -> None:
    """Create versions at once; neither registry removes the other's unfinished files."""

    def half_made() -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"id": [1]})
        with pytest.raises(FeatureGroupExists, match="another registry"):
            second.create_featuregroup(rows(0, 5), "wind", version=1)
        yield pd.DataFrame({"id": [2]})

    first.create_featuregroup(half_made(), "wind", version=1)
    assert first.get_featuregroup("wind").count() == 2
    versions = []

    def export_meanwhile(phase: str, count: int, total: int) -> None:
        if phase == "plan shards":
            frame = labeled(60)[["x", "late"]]
            versions.append(second.create_training_dataset(frame, "e", label="late").version)
            # The lease of the running export is not expired, by the clock of the server.
            assert clean_all(second.session) == []

    assert export(first, "e", progress=export_meanwhile).version == 1
    assert versions == [2]
    assert first.get_training_dataset("e", version=1).verify().ok
    below = {
        "type": "expect_column_values_to_be_between",
        "kwargs": {"column": "x", "max_value": 9},
    }
    with pytest.raises(ValidationFailed):
        export(first, "f", expectations=[below])
    assert names_below(f"{first.location}/trainingdatasets/f") == []
    assert export(first, "f").version == 1
    with pytest.raises(TrainingDatasetExists):
        export(first, "f", version=1)
    # These pin the version of the group.
    for name in ("e", "f"):
        first.delete_training_dataset(name, version=1)


def check_views(store: FeatureStore, same_registry: FeatureStore) -> None:
    view = store.create_feature_view("v", features=["weather.x", "weather.late"])
    assert same_registry.get_feature_view("v").name == view.name
    assert store.create_feature_view("v", features=["weather.late"]).version == 2
    store.delete_feature_view("v", version=1)
    assert [view.version for view in store.get_feature_views()] == [2]


def check_appends(first: FeatureStore, second: FeatureStore) -> None:
    """Append with both registries at once, up to a checkpoint."""
    stores = (first, second)

    def append(number: int) -> None:
        stores[number % 2].insert_into_featuregroup(rows(number * 5, 5), "rain")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(append, range(1, 12)))
    ids = first.get_featuregroup("rain").to_pandas()["id"]
    assert sorted(ids) == list(range(60))
    path = first.featuregroup("rain").path
    log = storage_for(path).list_directory(f"{path}/_delta_log")
    assert [name for name in log if name.endswith(".checkpoint.parquet")]
    assert "_last_checkpoint" in log
    if scheme_of(path) in OBJECT_STORES:
        # delta-rs has a client of its own.
        table = DeltaTable(path, storage_options=delta_options(path))
        assert table.to_pyarrow_dataset().count_rows() == 60
