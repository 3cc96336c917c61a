"""Foreign registries and stores cause no access outside the location."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa

import featurestore
from featurestore.errors import PublicationWarning, StorageError
from featurestore.storage import storage_for
from featurestore.store import FeatureStore

pytestmark = pytest.mark.slow

TABLE = pa.table({"x": [1, 2], "y": [0, 1]})


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A foreign directory with a file in it."""
    directory = tmp_path / "victim"
    directory.mkdir()
    (directory / "precious").write_text("kept")
    return directory


def plant(store: FeatureStore, **values: object) -> None:
    """Write an intent of a dead process, as in a hostile registry."""
    columns = [
        column["name"]
        for column in sa.inspect(store.session.registry._engine).get_columns("intents")
    ]
    row: dict[str, object] = {
        "run_id": "r", "kind": "create", "name": "g", "version": 1, "path": "featuregroups/g/v1",
        "host": "elsewhere", "pid": 1, "process_start": 1, "created": 0, "owner": "elsewhere-1-0",
    }  # fmt: skip
    row |= values
    names = [name for name in columns if name in row]
    text = f"insert into intents ({', '.join(names)}) values ({', '.join(':' + n for n in names)})"
    with store.session.registry.transaction() as connection:
        connection.execute(sa.text(text), row)


@pytest.mark.parametrize("operation", ["create", "delete", "write", "export"])
@pytest.mark.parametrize("field", ["path", "name", "version", "run_id"])
def test_connect_to_manipulated_store_removes_nothing_outside(
    tmp_path: Path, victim: Path, operation: str, field: str
) -> None:
    location = tmp_path / "store"
    store = featurestore.connect(location)
    (location / "_staging").mkdir()
    (location / "featuregroups").mkdir()
    (location / "trainingdatasets").mkdir()
    for number, text in enumerate((str(victim), "../../victim", "../victim", "g/../../../victim")):
        values: dict[str, object] = {"run_id": f"run{number}"}
        plant(store, kind=operation, **{**values, field: text})
    store.close()
    again = featurestore.connect(location)
    assert (victim / "precious").read_text() == "kept"
    assert again.create_featuregroup(TABLE, "g").version == 1


def test_delete_featuregroup_does_not_follow_symbolic_link(
    empty_store: FeatureStore, tmp_path: Path, victim: Path
) -> None:
    empty_store.create_featuregroup(TABLE, "g")
    folder = tmp_path / "store" / "featuregroups" / "g"
    shutil.move(folder, victim / "g")
    folder.symlink_to(victim / "g")
    with pytest.warns(PublicationWarning, match="Cannot remove"):
        empty_store.delete_featuregroup("g", version=1)
    assert (victim / "g" / "v1").is_dir()


def test_storage_removes_only_below_root(tmp_path: Path, victim: Path) -> None:
    root = tmp_path / "root"
    (root / "inner").mkdir(parents=True)
    (root / "link").symlink_to(victim)
    outside = (root, victim, root / ".." / "victim", f"{root}/inner/../../victim", f"{root}//", "")
    storage = storage_for(str(root))
    for path in outside:
        with pytest.raises(StorageError, match="Refused to remove"):
            storage.remove(str(path), below=str(root))
    with pytest.raises(StorageError, match="Cannot remove"):
        storage.remove(str(root / "link" / "precious"), below=str(root))
    storage.remove(str(root / "link"), below=str(root))  # the link is removed, not its target
    storage.remove(str(root / "absent" / "file"), below=str(root))
    storage.remove(str(root / "inner"), below=str(root))
    assert os.listdir(root) == []
    assert (victim / "precious").read_text() == "kept"


def test_copied_store_is_independent(flights_copy: FeatureStore, tmp_path: Path) -> None:
    original = Path(flights_copy.location)
    dataset = flights_copy.get_training_dataset("late_flights")
    flights_copy.close()
    shutil.copytree(original, tmp_path / "two")
    copy = featurestore.connect(tmp_path / "two")
    dataset_copy = copy.get_training_dataset("late_flights")
    assert dataset_copy.path == str(tmp_path / "two" / "trainingdatasets" / "late_flights" / "v1")
    assert dataset_copy.verify(recompute=True).ok
    assert [dataset.path for dataset in copy.get_training_datasets()] == [dataset_copy.path]
    copy.delete_training_dataset("late_flights", version=1)
    copy.delete_feature_view("late_flights", version=1)
    copy.delete_featuregroup("planes", version=1)
    assert dataset.verify().ok
    shutil.move(original, tmp_path / "moved")
    moved = featurestore.connect(tmp_path / "moved")
    assert moved.get_training_dataset("late_flights").read("test").count() > 0
    assert moved.get_featuregroup("planes").count() == 4
