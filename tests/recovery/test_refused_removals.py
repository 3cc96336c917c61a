"""Removals refused by the system are reported and retried at the next connect."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import featurestore
from featurestore.errors import PublicationWarning, StorageError
from featurestore.registry import intents
from featurestore.storage import storage_for
from featurestore.store import FeatureStore

TABLE = pa.table({"x": [1, 2], "y": [0, 1]})


@contextmanager
def refusing(monkeypatch: pytest.MonkeyPatch, *, ending: str) -> Iterator[None]:
    """Make the system refuse to remove some files, as in a folder of another user."""
    unlink = os.unlink

    def refuse(path: Any, *, dir_fd: int | None = None) -> None:
        if str(path).endswith(ending):
            raise PermissionError(1, "Operation not permitted", str(path))
        unlink(path, dir_fd=dir_fd)

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refuse)
        yield


def left_over(store: FeatureStore) -> list[str]:
    with store.session.registry.reading() as connection:
        return [intent.kind for intent in intents.list_all(connection)]


def test_remove_files_undeletable_file_is_reported_others_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    for name in ("one.txt", "two.keep", "three.txt"):
        (folder / name).touch()
    with (
        refusing(monkeypatch, ending=".keep"),
        pytest.raises(StorageError, match=r"Cannot remove .*/a': .*not permitted .*two\.keep"),
    ):
        storage_for(str(tmp_path / "a")).remove(str(tmp_path / "a"), below=str(tmp_path))
    assert os.listdir(folder) == ["two.keep"]


def test_delete_training_dataset_leaving_files_warns(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = empty_store
    dataset = store.create_training_dataset(TABLE, "d", label="y", data_format="parquet")
    with (
        refusing(monkeypatch, ending=".parquet"),
        pytest.warns(PublicationWarning, match="deletion of training dataset 'd' version 1"),
    ):
        store.delete_training_dataset("d", version=1)
    assert store.get_training_datasets() == []
    assert Path(dataset.path).exists()
    assert left_over(store) == ["remove"]
    store.create_featuregroup(TABLE, "g")  # the next write of the process tries again
    assert not Path(dataset.path).exists()
    assert left_over(store) == []


def test_delete_featuregroup_leaving_files_warns(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = empty_store
    group = store.create_featuregroup(TABLE, "g")
    with (
        refusing(monkeypatch, ending=".parquet"),
        pytest.warns(PublicationWarning, match="deletion of feature group 'g' version 1"),
    ):
        store.delete_featuregroup("g", version=1)
    assert store.get_featuregroups() == []
    assert Path(group.path).exists()
    assert left_over(store) == ["delete"]
    # Any process completes what this one could not.
    featurestore.connect(store.location).close()
    assert left_over(store) == []
    assert not Path(group.path).exists()


def test_undeletable_staged_rows_are_recorded_and_write_succeeds(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = empty_store
    with refusing(monkeypatch, ending=".parquet"):
        store.create_featuregroup(TABLE, "g", primary_key="x")
    assert store.get_featuregroup("g").count() == 2
    assert os.listdir(store.session.paths.staging)
    assert left_over(store) == ["create"]
    store.insert_into_featuregroup(TABLE, "g", mode="upsert")
    assert not os.listdir(store.session.paths.staging)
    assert left_over(store) == []


def test_undeletable_export_leftovers_keep_version_number_reserved(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = empty_store
    leftover = Path(store.location, "trainingdatasets", "d", "v1", "train")
    leftover.mkdir(parents=True)
    (leftover / "shard.left").touch()
    with refusing(monkeypatch, ending=".left"):
        dataset = store.create_training_dataset(TABLE, "d", label="y", data_format="parquet")
    assert dataset.version == 2
    assert "shard.left" in caplog.text
