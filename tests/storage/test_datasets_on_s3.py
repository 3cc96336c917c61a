"""Training datasets at a URI equal local ones byte for byte, despite faults."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import featurestore
from featurestore import transform as t
from featurestore.errors import (
    DatasetDamaged,
    InvalidArgument,
    StorageError,
    TrainingDatasetExists,
    TrainingDatasetNotFound,
    UnsupportedLocation,
    ValidationFailed,
    WriteConflict,
)
from featurestore.recovery import liveness
from featurestore.storage import failures
from featurestore.storage.shards import ShardCache
from featurestore.training.catalog import clean_all
from featurestore.training.dataset import TrainingDataset
from tests.object_server import ObjectServer, options_for
from tests.storage.faulty_proxy import faulty
from tests.storage.stores import Connect, export, labeled


@pytest.fixture(autouse=True)
def cache_of_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches/featurestore/shards"


def batches_of(dataset: TrainingDataset, **options: Any) -> list[list[Any]]:
    reader = dataset.reader("train", global_batch_size=32, seed=3)
    result = []
    for batch in reader.batches(1, **options):
        result.append([(name, values.tolist()) for name, values in sorted(batch.items())])
    return result


def files_below(server: ObjectServer, dataset_or_folder: str) -> list[str]:
    folder = server.root / dataset_or_folder.removeprefix("s3://")
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("data_format", ["tfrecord", "parquet", "csv"])
def test_s3_dataset_equals_local_dataset(
    connect: Connect, object_server: ObjectServer, tmp_path: Path, data_format: str
) -> None:
    store = connect()
    with featurestore.connect(tmp_path / "disk") as disk:
        datasets = []
        for target in (disk, store):
            target.create_featuregroup(labeled(), "weather", primary_key="id", event_time="at")
            datasets.append(export(target, data_format=data_format, transformations=None))
        remote, local = datasets[1], datasets[0]
        assert remote.manifest.content_hash == local.manifest.content_hash
        assert batches_of(remote) == batches_of(local)
        assert batches_of(remote, start_step=5) == batches_of(local)[5:]
        assert files_below(object_server, remote.path) == sorted(
            str(file.relative_to(local.path))
            for file in Path(local.path).rglob("*")
            if file.is_file()
        )
        assert remote.read("test").to_pandas().equals(local.read("test").to_pandas())
        assert remote.statistics("train").columns == local.statistics("train").columns
        assert "the same rows" in str(local.diff(remote))
    assert remote.verify(recompute=True).problems == ()
    assert remote.url_of("train") == remote.path + "/train"
    dataset = TrainingDataset.open(remote.path)
    assert dataset.manifest == remote.manifest
    _, epoch, step = dataset.resume(
        remote.reader("train", global_batch_size=32, seed=3).state(1, 5)
    )
    assert (epoch, step) == (1, 5)
    with pytest.raises(UnsupportedLocation, match="download"):
        remote.petastorm_reader("train")
    store.delete_training_dataset("d", version=1)
    assert files_below(object_server, os.path.dirname(remote.path)) == []
    with pytest.raises(TrainingDatasetNotFound):
        TrainingDataset.open(remote.path)


def test_s3_reader_batches_equal_local_batches(
    connect: Connect, object_server: ObjectServer, tmp_path: Path
) -> None:
    """By range requests and through a cache; a worker starts at any step after few requests."""
    store = connect()
    with featurestore.connect(tmp_path / "disk") as disk:
        datasets = []
        for target in (disk, store):
            target.create_featuregroup(labeled(20_000), "weather", primary_key="id")
            datasets.append(export(target))
    local, remote = datasets
    cache = tmp_path / "shared"
    for arguments in (
        {"window_rows": 1024},
        {"shuffle": False},
        {"remainder": "pad", "lanes": 4},
        {"remainder": "keep", "window_rows": 2048, "seed": 9},
    ):
        expected = local.reader("train", global_batch_size=640, **arguments)
        for added in ({}, {"cache": cache}):
            reader = remote.reader("train", global_batch_size=640, **arguments, **added)
            for worker, workers, step in ((0, 1, 0), (1, 2, 7)):
                if arguments.get("remainder") == "keep" and workers > 1:
                    continue
                share = {"worker": worker, "workers": workers, "start_step": step}
                remote_batches = reader.batches(1, **share)
                local_batches = expected.batches(1, **share)
                for remote_batch, local_batch in zip(remote_batches, local_batches, strict=True):
                    assert remote_batch.keys() == local_batch.keys()
                    for name, values in remote_batch.items():
                        assert values.tobytes() == local_batch[name].tobytes()
    shards = remote.manifest.split("train").shards
    assert {file.name for file in cache.iterdir() if file.is_file()} == {
        shard.sha256 for shard in shards
    }
    with faulty(object_server.port, rate=0.0) as (proxy, endpoint):
        dataset = TrainingDataset.open(remote.path, storage_options=options_for(endpoint))
        reader = dataset.reader("train", global_batch_size=640, lanes=4, window_rows=1024)
        for step in (0, reader.steps_per_epoch - 1):
            proxy.requests.clear()
            batches = reader.batches(0, start_step=step)
            next(batches)
            batches.close()  # type: ignore[attr-defined]
            assert proxy.requests.total() <= 5 * 4
        proxy.requests.clear()
        assert sum(1 for _ in reader.batches(0)) == reader.steps_per_epoch
        # A request for each block of 1024 rows would be 16.
        assert proxy.requests.total() <= 3 * len(shards)


@pytest.mark.parametrize("data_format", ["tfrecord", "csv"])
def test_dataset_download_resumes_after_interruption(
    connect: Connect, object_server: ObjectServer, tmp_path: Path, data_format: str
) -> None:
    store = connect()
    store.create_featuregroup(labeled(), "weather", primary_key="id")
    remote = export(store, data_format=data_format, transformations={"x": t.standardize()})
    directory = tmp_path / "here"
    folder = object_server.root / remote.path.removeprefix("s3://")
    shard = folder / remote.manifest.split("test").shards[1].path
    sound = shard.read_bytes()
    shard.write_bytes(sound[:-1] + b"?")
    with pytest.raises(DatasetDamaged, match="SHA-256"):
        remote.download(directory)
    with pytest.raises(TrainingDatasetNotFound):
        TrainingDataset.open(directory)
    shard.write_bytes(sound)
    first = directory / remote.manifest.split("train").shards[0].path
    write_time = first.stat().st_mtime_ns
    copy = remote.download(directory)
    assert first.stat().st_mtime_ns == write_time
    assert copy.verify().ok
    assert not list(directory.rglob(".*"))
    assert batches_of(copy) == batches_of(remote)
    other_dataset = export(store, "other")
    with pytest.raises(InvalidArgument, match="another training dataset"):
        other_dataset.download(directory)
    with pytest.raises(UnsupportedLocation):
        remote.download("s3://bucket/folder")
    user_folder = tmp_path / "mine"
    user_folder.mkdir()
    (user_folder / "thesis.tex").write_text("mine")
    with pytest.raises(InvalidArgument, match="thesis"):
        remote.download(user_folder)
    assert [file.name for file in user_folder.iterdir()] == ["thesis.tex"]


def test_verify_s3_dataset_reports_damage(connect: Connect, object_server: ObjectServer) -> None:
    store = connect()
    store.create_featuregroup(labeled(), "weather", primary_key="id")
    dataset = export(store)
    folder = object_server.root / dataset.path.removeprefix("s3://")
    shard, truncated_shard = sorted((folder / "train").iterdir())[:2]
    damaged = bytearray(shard.read_bytes())
    damaged[100] ^= 1
    shard.write_bytes(damaged)
    truncated_shard.write_bytes(truncated_shard.read_bytes()[:-1])
    (folder / "train" / "more").write_bytes(b"")
    problems = {problem.file: problem.message for problem in dataset.verify().problems}
    assert "SHA-256" in problems[f"train/{shard.name}"]
    assert "in the manifest" in problems[f"train/{truncated_shard.name}"]
    assert problems["train/more"] == "is not in the manifest"
    with pytest.raises(DatasetDamaged, match=truncated_shard.name):
        dataset.reader("train", global_batch_size=32)


def test_failed_export_leaves_no_files_or_version(
    connect: Connect, object_server: ObjectServer, bucket: str
) -> None:
    store = connect()
    store.create_featuregroup(labeled(), "weather", primary_key="id")
    below = {
        "type": "expect_column_values_to_be_between",
        "kwargs": {"column": "x", "max_value": 9},
    }
    with pytest.raises(ValidationFailed):
        export(store, expectations=[below])
    folder = f"{bucket}/team a/store/trainingdatasets"
    assert files_below(object_server, folder) == []
    assert export(store).version == 1
    with pytest.raises(TrainingDatasetExists):
        export(store, version=1)


def test_concurrent_exports_of_registries_get_distinct_versions(
    connect: Connect, object_server: ObjectServer, bucket: str
) -> None:
    first, second = connect("first"), connect("second")
    first.create_featuregroup(labeled(), "weather", primary_key="id")
    versions = []

    def export_meanwhile(phase: str, count: int, total: int) -> None:
        if phase == "plan shards":
            frame = pd.DataFrame({"x": np.arange(50.0), "late": np.arange(50) % 2})
            versions.append(second.create_training_dataset(frame, "d", label="late").version)
            assert clean_all(second.session) == []

    assert export(first, progress=export_meanwhile).version == 1
    assert versions == [2]
    assert first.get_training_dataset("d", version=1).verify().ok


def make_old(file: Path, *, minutes: int) -> None:
    then = time.time() - 60 * minutes
    os.utime(file, (then, then))


def test_expired_lease_exports_are_removed(
    connect: Connect, object_server: ObjectServer, bucket: str
) -> None:
    store = connect()
    root = object_server.root / bucket[5:] / "team a/store"
    versions = root / "trainingdatasets/d"
    (root / "_leases").mkdir(parents=True)
    for number, (name, minutes) in enumerate([("v1", 11), ("v2", 11), ("v3", 9)]):
        (versions / name / "train").mkdir(parents=True)
        for file in (versions / name / "train/tfrecord-00000-of-00001", versions / f"{name}.claim"):
            file.write_text(f"0123 {number}")
            make_old(file, minutes=minutes)
    for run, minutes in (("0", 11), ("1", 9)):
        (root / "_leases" / run).write_text("renewed")
        make_old(root / "_leases" / run, minutes=minutes)
    assert [os.path.basename(path) for path in clean_all(store.session)] == ["v1"]
    assert [path.name for path in (root / "_leases").iterdir()] == ["1"]
    for alive in ("v2", "v3"):
        assert (versions / alive / "train/tfrecord-00000-of-00001").exists()
    store.create_featuregroup(labeled(), "weather", primary_key="id")
    assert export(store).version == 4


def test_long_export_renews_lease(
    connect: Connect,
    object_server: ObjectServer,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(liveness, "RENEWAL_SECONDS", 0.02)
    store = connect()
    store.create_featuregroup(labeled(), "weather", primary_key="id")
    folder = object_server.root / bucket[5:] / "team a/store/_leases"
    leases = []

    def look(phase: str, count: int, total: int) -> None:
        if phase == "plan shards":
            give_up = time.monotonic() + 20
            while not leases and time.monotonic() < give_up:
                leases.extend(path for path in folder.rglob("*") if path.is_file())

    assert export(store, progress=look).verify().ok
    assert len(leases) == 1
    assert not [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("phase", ["plan shards", "fit transformations"])
def test_revoked_export_publishes_nothing(
    connect: Connect,
    object_server: ObjectServer,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
    phase: str,
) -> None:
    """The export resumes before or after writing its shards, and cannot publish."""
    first, second = connect("first"), connect("second")
    first.create_featuregroup(labeled(), "weather", primary_key="id")

    def give_up(name: str, count: int, total: int) -> None:
        if name == phase:
            with monkeypatch.context() as impatient:
                impatient.setattr(liveness, "LEASE_TIMEOUT", timedelta(seconds=-5))
                clean_all(second.session)

    with pytest.raises((WriteConflict, StorageError)):
        export(first, progress=give_up, transformations={"x": t.standardize()})
    folder = f"{bucket}/team a/store/trainingdatasets/d"
    assert not [name for name in files_below(object_server, folder) if "manifest" in name]
    assert export(first).verify().ok


@pytest.mark.parametrize(
    ("faults", "rate"), [(20, 0.15), pytest.param(1000, 0.25, marks=pytest.mark.soak)]
)
def test_export_with_faulty_network_keeps_acknowledged_datasets(
    connect: Connect,
    object_server: ObjectServer,
    monkeypatch: pytest.MonkeyPatch,
    faults: int,
    rate: float,
) -> None:
    """Every acknowledged dataset exists, and every existing dataset is complete."""
    monkeypatch.setattr(failures, "_FIRST_PAUSE", 0.002)
    store = connect()
    store.create_featuregroup(labeled(), "weather", primary_key="id")
    expected = export(store)
    acknowledged = {1}
    with faulty(object_server.port, rate=rate, seed=5) as (proxy, endpoint):
        shaky = connect(storage_options=options_for(endpoint))
        while proxy.faults.total() < faults:
            try:
                new_dataset = export(shaky)
                acknowledged.add(new_dataset.version)
                assert new_dataset.manifest.content_hash == expected.manifest.content_hash
                assert batches_of(new_dataset) == batches_of(expected)
            except StorageError:
                continue
    again = connect()
    clean_all(again.session)
    actual = again.get_training_datasets()
    assert acknowledged <= {dataset.version for dataset in actual}
    for dataset in actual:
        assert dataset.verify().ok


def test_shard_cache_stays_within_max_bytes(
    connect: Connect, cache_of_shards: Path, tmp_path: Path
) -> None:
    store = connect()
    store.create_featuregroup(labeled(), "weather", primary_key="id")
    dataset = export(store, data_format="parquet")
    shards = dataset.manifest.split("train").shards
    cache = ShardCache(str(tmp_path / "small"), max_bytes=shards[0].bytes + shards[1].bytes)
    # A user-defined cache folder may contain other files.
    (tmp_path / "small" / "photos").mkdir(parents=True)
    (tmp_path / "small" / "thesis.tex").write_bytes(b"mine" * shards[0].bytes)
    os.utime(tmp_path / "small" / "thesis.tex", (0, 0))
    abandoned = tmp_path / "small" / f".{shards[0].sha256}.{'0' * 32}.tmp"
    abandoned.write_bytes(b"?")
    os.utime(abandoned, (0, 0))
    for shard in shards:
        path = cache.path_of(dataset.path, shard)
        assert Path(path).stat().st_size == shard.bytes
    assert not abandoned.exists()
    assert (tmp_path / "small" / "photos").is_dir()
    cached_names = {file.name for file in (tmp_path / "small").iterdir() if file.is_file()}
    cached_names.remove("thesis.tex")
    assert cached_names == {shard.sha256 for shard in shards[-len(cached_names) :]}
    assert (
        sum(file.stat().st_size for file in (tmp_path / "small").glob("?" * 64)) <= cache.max_bytes
    )


@pytest.mark.parametrize("data_format", ["parquet", "csv"])
def test_shard_cache_keeps_open_copies(connect: Connect, tmp_path: Path, data_format: str) -> None:
    """Readers in many threads share a cache with room for one shard."""
    store = connect()
    store.create_featuregroup(labeled(), "weather", primary_key="id")
    dataset = export(store, data_format=data_format)
    expected = batches_of(dataset)
    cache = ShardCache(str(tmp_path / "small"), max_bytes=1)
    shards = [shard for split in dataset.manifest.splits for shard in split.shards]
    with cache.locked_copy(dataset.path, shards[0]) as copy:
        for shard in shards[1:]:
            cache.path_of(dataset.path, shard)
        assert Path(copy).stat().st_size == shards[0].bytes
        for sidecar in shards[0].sidecars:
            assert Path(copy + sidecar.path.removeprefix(shards[0].path)).exists()
    cache.path_of(dataset.path, shards[1])
    assert not Path(copy).exists()

    def epoch(_: int) -> list[list[Any]]:
        reader = dataset.reader(
            "train", global_batch_size=32, seed=3, cache=tmp_path / "small", cache_bytes=1
        )
        batches = []
        for batch in reader.batches(1):
            batches.append([(name, values.tolist()) for name, values in sorted(batch.items())])
        return batches

    with ThreadPoolExecutor(6) as pool:
        assert all(batches == expected for batches in pool.map(epoch, range(24)))


def test_feature_views_on_s3_are_created_and_deleted(
    connect: Connect, object_server: ObjectServer
) -> None:
    store = connect()
    store.create_featuregroup(labeled(), "weather", primary_key="id", event_time="at")
    view = store.create_feature_view("v", features=["weather.x", "weather.late"])
    assert connect().get_feature_view("v").name == view.name
    assert store.create_feature_view("v", features=["weather.late"]).version == 2
    store.delete_feature_view("v", version=1)
    assert [view.version for view in store.get_feature_views()] == [2]
