"""A store on HDFS equals a local store."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import featurestore
from featurestore.errors import ConfigurationError, FeatureGroupNotFound, RegistryError
from featurestore.recovery.rebuild import rebuild
from featurestore.storage.connections import object_store_for
from featurestore.training.dataset import TrainingDataset
from tests.storage.stores import Connect, export, history_of_a_group, labeled, names_below, rows


@pytest.fixture(autouse=True)
def cache_of_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))


def batches_of(dataset: TrainingDataset, **options: Any) -> list[Any]:
    reader = dataset.reader("train", global_batch_size=640, window_rows=1024)
    result = []
    for batch in reader.batches(1, **options):
        result.append([(name, values.tolist()) for name, values in sorted(batch.items())])
    return result


def test_hdfs_groups_equal_local_groups(
    connect_hdfs: Connect, hdfs_folder: str, tmp_path: Path
) -> None:
    with featurestore.connect(tmp_path / "disk") as disk:
        expected = history_of_a_group(disk)
    store = connect_hdfs()
    assert history_of_a_group(store) == expected
    assert not [name for name in names_below(hdfs_folder) if name.endswith(".tmp")]


def test_many_commits_on_hdfs_create_checkpoint(connect_hdfs: Connect) -> None:
    store = connect_hdfs()
    store.create_featuregroup(rows(0, 2), "weather", primary_key="id")
    for number in range(1, 22):
        store.insert_into_featuregroup(rows(number * 2, 2), "weather")
    log = names_below(f"{store.location}/featuregroups/weather/v1/_delta_log")
    assert [name for name in log if name.endswith(".checkpoint.parquet")]
    assert "_last_checkpoint" in log
    table = store.get_featuregroup("weather").to_pandas()["id"]
    assert sorted(table) == list(range(44))


def test_registry_is_rebuilt_from_hdfs(connect_hdfs: Connect, tmp_path: Path) -> None:
    store = connect_hdfs()
    store.create_featuregroup(labeled(50), "weather", primary_key="id", tags={"a": "b"})
    export(store)
    with pytest.raises(RegistryError, match="registry rebuild"):
        connect_hdfs("other")
    rebuilt = rebuild(store.location, url=f"sqlite:///{tmp_path / 'other.db'}")
    assert rebuilt.featuregroups == ["weather@v1"]
    other_store = connect_hdfs("other")
    assert other_store.get_featuregroup("weather").count() == 50
    assert other_store.get_featuregroup_tags("weather") == {"a": "b"}
    assert other_store.get_training_dataset("d").verify(recompute=True).ok
    other_store.delete_training_dataset("d", version=1)
    other_store.delete_featuregroup("weather", version=1)
    with pytest.raises(FeatureGroupNotFound):
        other_store.get_featuregroup("weather")
    assert names_below(f"{store.location}/featuregroups/weather") == ["v1.deleted"]


@pytest.mark.parametrize("data_format", ["tfrecord", "parquet"])
def test_hdfs_dataset_equals_local_dataset(
    connect_hdfs: Connect, tmp_path: Path, data_format: str
) -> None:
    store = connect_hdfs()
    with featurestore.connect(tmp_path / "disk") as disk:
        datasets = []
        for target in (disk, store):
            target.create_featuregroup(labeled(5_000), "weather", primary_key="id", event_time="at")
            datasets.append(export(target, data_format=data_format, transformations=None))
        local, remote = datasets
        assert remote.manifest.content_hash == local.manifest.content_hash
        expected = batches_of(local)
        assert batches_of(remote) == expected
        assert batches_of(remote, start_step=4) == expected[4:]
        on_disk = [path for path in Path(local.path).rglob("*") if path.is_file()]
        assert names_below(remote.path) == sorted(
            str(path.relative_to(local.path)) for path in on_disk
        )
        assert remote.read("test").to_pandas().equals(local.read("test").to_pandas())
        assert "the same rows" in str(local.diff(remote))
    assert remote.verify(recompute=True).problems == ()
    assert TrainingDataset.open(remote.path).manifest == remote.manifest
    copy = remote.download(tmp_path / "copy")
    assert copy.verify().ok
    assert batches_of(copy) == expected
    storage, name = object_store_for(
        f"{remote.path}/{remote.manifest.split('test').shards[0].path}"
    )
    damaged = bytearray(storage.read(name))
    damaged[100] ^= 1
    storage.put(name, bytes(damaged))
    (problem,) = remote.verify().problems
    assert "SHA-256" in problem.message
    store.delete_training_dataset("d", version=1)
    assert names_below(os.path.dirname(remote.path)) == []


def test_feature_views_on_hdfs_are_created_and_deleted(connect_hdfs: Connect) -> None:
    store = connect_hdfs()
    store.create_featuregroup(labeled(50), "weather", primary_key="id", event_time="at")
    view = store.create_feature_view("v", features=["weather.x", "weather.late"])
    assert connect_hdfs().get_feature_view("v").name == view.name
    store.delete_feature_view("v", version=1)
    assert store.get_feature_views() == []


def test_hdfs_group_partitioned_by_time_is_read(connect_hdfs: Connect) -> None:
    store = connect_hdfs()
    store.create_featuregroup(rows(0, 30), "weather", primary_key="id", partition_by="at")
    table = store.get_featuregroup("weather").to_pandas()
    assert sorted(table["at"]) == sorted(rows(0, 30)["at"])


def test_vacuum_on_hdfs_removes_day_old_temporary_files(connect_hdfs: Connect) -> None:
    store = connect_hdfs()
    store.create_featuregroup(rows(0, 5), "weather")
    table = f"{store.location}/featuregroups/weather/v1"
    storage, name = object_store_for(table)
    client = storage._client  # type: ignore[attr-defined]
    two_days_ago = int((time.time() - 2 * 86_400) * 1000)
    for digit in ("a", "b"):
        path = f"/{name}/city=x/.{digit * 32}.tmp"
        client.create(path).close()
        if digit == "a":
            client.set_times(path, two_days_ago, two_days_ago)
    store.vacuum_featuregroup("weather", version=1, retain=timedelta(0))
    temporary_files = [file for file in names_below(table) if file.endswith(".tmp")]
    assert temporary_files == [f"city=x/.{'b' * 32}.tmp"]
    assert store.get_featuregroup("weather").count() == 5


def test_hdfs_storage_option_values_are_never_stored(
    connect_hdfs: Connect, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "91bc44de-a7f3"
    store = connect_hdfs(storage_options={"hadoop.security.some.password": secret})
    store.create_featuregroup(labeled(50), "weather", primary_key="id")
    export(store)
    with pytest.raises(ConfigurationError, match="not a Hadoop setting") as refused:
        featurestore.connect(
            "hdfs://elsewhere/store",
            registry=f"sqlite:///{tmp_path / 'elsewhere.db'}",
            storage_options={"some.password": secret},
        )
    texts = [caplog.text, repr(store), repr(store.session), str(refused.value)]
    storage, _ = object_store_for(store.location)
    for name in names_below(store.location):
        path = f"{object_store_for(store.location)[1]}/{name}"
        texts.append(storage.read(path).decode("latin-1"))
    for folder in (tmp_path, Path(os.environ["XDG_STATE_HOME"])):
        for file in folder.rglob("*"):
            if file.is_file():
                texts.append(file.read_bytes().decode("latin-1"))
    assert len(texts) > 15
    assert not [text[:200] for text in texts if secret in text]
