"""Compaction changes no row.

Vacuum removes nothing that a training dataset pins, nor the log that describes it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import InvalidArgument, PinnedByTrainingDataset
from featurestore.registry import manifests, training_datasets
from featurestore.registry.training_datasets import Pin, RegisteredDataset

if TYPE_CHECKING:
    from featurestore.store import FeatureStore


def values(store: FeatureStore, as_of: int | None = None) -> list[int]:
    return sorted(store.get_featuregroup("g", as_of=as_of).to_arrow()["n"].to_pylist())


def many_versions(store: FeatureStore) -> None:
    group = store.create_featuregroup(pa.table({"n": [0]}), "g")
    for number in (1, 2, 3):
        group.insert(pa.table({"n": [number]}))
    group.insert(pa.table({"n": [9]}), mode="overwrite")


def pin(store: FeatureStore, delta_version: int) -> None:
    dataset = RegisteredDataset("d", 1, "0" * 64, "tfrecord", 1, pins=(Pin("g", 1, delta_version),))
    with store.session.registry.transaction() as connection:
        training_datasets.add(connection, dataset)


def test_compaction_leaves_the_rows_as_they_are(duckdb_store: FeatureStore) -> None:
    group = duckdb_store.create_featuregroup(pa.table({"n": [0]}), "g")
    for number in (1, 2):
        group.insert(pa.table({"n": [number]}))
    commit = duckdb_store.compact_featuregroup("g")
    assert commit.rows == 3
    assert values(duckdb_store) == [0, 1, 2]
    assert len(read_snapshot(group.path).files) == 1
    assert duckdb_store.compact_featuregroup("g").delta_version == group.delta_version


def test_vacuum_keeps_what_a_training_dataset_pins(duckdb_store: FeatureStore) -> None:
    many_versions(duckdb_store)
    pin(duckdb_store, 3)
    removed = duckdb_store.vacuum_featuregroup("g", retain="0s")
    assert len(removed) == 1
    assert values(duckdb_store, as_of=3) == [0, 1, 2]
    assert values(duckdb_store) == [9]
    assert duckdb_store.vacuum_featuregroup("g", retain="0s") == []


def test_vacuum_keeps_recent_versions(duckdb_store: FeatureStore) -> None:
    many_versions(duckdb_store)
    assert duckdb_store.vacuum_featuregroup("g") == []
    assert values(duckdb_store, as_of=1) == [0]


def test_a_manifest_on_disk_pins_even_when_the_registry_knows_nothing(
    duckdb_store: FeatureStore,
) -> None:
    many_versions(duckdb_store)
    frame = duckdb_store.get_featuregroup("g", as_of=2)
    duckdb_store.create_training_dataset(frame, "d", data_format="parquet")
    with duckdb_store.session.registry.transaction() as connection:
        manifests.remove(connection, "d", 1)
    duckdb_store.vacuum_featuregroup("g", retain="0s")
    assert values(duckdb_store, as_of=2) == [0, 1]
    with pytest.raises(PinnedByTrainingDataset, match="'d version 1'"):
        duckdb_store.delete_featuregroup("g", version=1)


def test_the_log_is_never_cleaned_by_itself(store: FeatureStore) -> None:
    """Checkpoints are where Delta's writers remove old commits, which here are older than any retention."""
    group = store.create_featuregroup(pa.table({"n": [0]}), "g", validation="off", statistics=False)
    assert read_snapshot(group.path).properties["delta.enableExpiredLogCleanup"] == "false"
    for number in range(1, 12):
        for commit in Path(group.path, "_delta_log").glob("*.json"):
            os.utime(commit, (0, 0))
        group.insert(pa.table({"n": [number]}))
    assert list(Path(group.path, "_delta_log").glob("*.checkpoint*.parquet"))
    pin(store, 3)
    store.vacuum_featuregroup("g", retain="0s")
    assert values(store, as_of=3) == [0, 1, 2]
    assert [c.delta_version for c in group.history()] == list(range(12, 0, -1))


def test_a_pinned_group_is_deleted_by_force_only(duckdb_store: FeatureStore) -> None:
    many_versions(duckdb_store)
    pin(duckdb_store, 1)
    with pytest.raises(PinnedByTrainingDataset, match="force=True"):
        duckdb_store.delete_featuregroup("g", version=1)
    path = duckdb_store.featuregroup("g").path
    duckdb_store.delete_featuregroup("g", version=1, force=True)
    assert not os.path.exists(path)


def test_vacuum_keeps_what_a_running_export_reads(duckdb_store: FeatureStore) -> None:
    many_versions(duckdb_store)
    frame = duckdb_store.get_featuregroup("g", as_of=3)
    removed: list[str] = []

    def vacuum(phase: str, done: int, total: int) -> None:
        removed.extend(duckdb_store.vacuum_featuregroup("g", retain="0s"))

    made = duckdb_store.create_training_dataset(frame, "d", data_format="parquet", progress=vacuum)
    assert len(removed) == 1  # the file of version 4, which nothing reads
    assert sum(each.rows for each in made.manifest.splits) == 3
    assert values(duckdb_store, as_of=3) == [0, 1, 2]


def test_a_group_that_compacts_by_itself_keeps_few_files(duckdb_store: FeatureStore) -> None:
    store = duckdb_store
    group = store.create_featuregroup(
        pa.table({"n": [0]}),
        "g",
        primary_key="n",
        validation="off",
        statistics=False,
        compact="auto",
    )
    most = 0
    for number in range(1, 30):
        commit = group.insert(pa.table({"n": [number]}))
        assert commit.rows == number + 1
        state = read_snapshot(group.path)
        most = max(most, len(state.files))
    assert most < 9
    assert state.rows == 30
    assert values(store) == list(range(30))
    assert {c.operation for c in group.history()} == {"create", "append", "compact"}
    assert values(store, as_of=commit.delta_version) == list(range(30))
    with pytest.raises(InvalidArgument, match="compact"):
        store.create_featuregroup(pa.table({"n": [0]}), "h", compact="always")  # type: ignore[arg-type]
