"""What a process that died left between a Delta commit and the registry is settled when the store is opened next."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import featurestore
from featurestore.delta import deltalog
from featurestore.errors import FeatureGroupNotFound
from featurestore.plugins.engine import TableWrite
from featurestore.registry import featuregroups, intents
from featurestore.store import FeatureStore

TABLE = pa.table({"x": [1, 2]})


@pytest.fixture
def dead(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make the intents of this process look like those of one that has died."""

    def pretend() -> None:
        monkeypatch.setattr("featurestore.storage.files.process_start", lambda pid: 0)

    return pretend


def begin(store: FeatureStore, kind: str, name: str, version: int = 1, run_id: str = "run") -> None:
    with store.session.registry.transaction() as connection:
        intents.begin(
            connection,
            run_id=run_id,
            kind=kind,
            name=name,
            version=version,
            path=f"featuregroups/{name}/v{version}",
        )


def left_over(store: FeatureStore) -> list[str]:
    with store.session.registry.reading() as connection:
        return [each.run_id for each in intents.every(connection)]


def test_a_creation_without_rows_is_removed(duckdb_store: FeatureStore, dead: Any) -> None:
    store = duckdb_store
    begin(store, "create", "g")
    path = store.session.featuregroup_path("g", 1)
    store.session.engine.create_table(
        path, schema=TABLE.schema, partition_by=(), properties={}, note={}
    )
    stage = Path(store.session.staging_path("run"))
    stage.mkdir(parents=True)
    dead()
    again = featurestore.connect(store.location)
    assert not os.path.exists(path)
    assert not stage.exists()
    assert left_over(again) == []
    assert again.create_featuregroup(TABLE, "g").version == 1


def test_a_creation_with_rows_is_registered(duckdb_store: FeatureStore, dead: Any) -> None:
    store = duckdb_store
    group = store.create_featuregroup(TABLE, "g", description="Found again", tags={"a": "b"})
    with store.session.registry.transaction() as connection:
        featuregroups.remove(connection, "g", 1)
    begin(store, "create", "g")
    with pytest.raises(FeatureGroupNotFound):
        store.featuregroup("g")
    dead()
    again = featurestore.connect(store.location)
    assert (again.featuregroup("g").description, again.get_featuregroup_tags("g")) == (
        "Found again",
        {"a": "b"},
    )
    assert again.get_featuregroup("g").count() == 2
    assert left_over(again) == []
    assert group.history()[-1].operation == "create"


def test_a_commit_that_was_not_registered_is(duckdb_store: FeatureStore, dead: Any) -> None:
    store = duckdb_store
    group = store.create_featuregroup(TABLE, "g")
    begin(store, "write", "g")
    note = {
        "operation": "append",
        "run": "r9",
        "inputs": [{"featuregroup": "raw", "version": 1, "delta_version": 3}],
    }
    rows = store.session.engine.from_arrow(TABLE.to_reader())
    store.session.engine.write(group.path, rows, TableWrite("append", note=note))
    dead()
    again = featurestore.connect(store.location)
    with again.session.registry.reading() as connection:
        assert featuregroups.get(connection, "g").delta_version == 2
        from featurestore.registry import lineage

        assert lineage.results(connection, "raw")[0].run_id == "r9"


def test_a_deletion_is_finished(duckdb_store: FeatureStore, dead: Any) -> None:
    store = duckdb_store
    group = store.create_featuregroup(TABLE, "g")
    begin(store, "delete", "g")
    dead()
    again = featurestore.connect(store.location)
    assert not os.path.exists(group.path)
    assert again.get_featuregroups() == []


def test_the_writes_of_living_processes_are_left_alone(duckdb_store: FeatureStore) -> None:
    store = duckdb_store
    begin(store, "create", "g")
    path = store.session.featuregroup_path("g", 1)
    store.session.engine.create_table(
        path, schema=TABLE.schema, partition_by=(), properties={}, note={}
    )
    featurestore.connect(store.location)
    assert deltalog.exists(path)
    assert left_over(store) == ["run"]


def test_a_group_without_its_folder_is_said(duckdb_store: FeatureStore) -> None:
    import shutil

    group = duckdb_store.create_featuregroup(TABLE, "g")
    shutil.rmtree(group.path)
    with pytest.raises(featurestore.FeatureStoreError, match="no Delta table at"):
        duckdb_store.get_featuregroup("g")
