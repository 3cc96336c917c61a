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


def batches_of(dataset: TrainingDataset, **given: Any) -> list[list[Any]]:
    reader = dataset.reader("train", global_batch_size=32, seed=3)
    result = []
    for batch in reader.batches(1, **given):
        result.append([(name, values.tolist()) for name, values in sorted(batch.items())])
    return result


def files_below(server: ObjectServer, dataset_or_folder: str) -> list[str]:
    folder = server.root / dataset_or_folder.removeprefix("s3://")
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())


@pytest.mark.parametrize("data_format", ["tfrecord", "parquet", "csv"])
def test_s3_dataset_equals_local_dataset(
    connect: Connect, object_server: ObjectServer, tmp_path: Path, data_format: str
) -> None:
    store = connect()
    with featurestore.connect(tmp_path / "disk") as disk:
        made = []
        for each in (disk, store):
            each.create_featuregroup(labeled(), "weather", primary_key="id", event_time="at")
            made.append(export(each, data_format=data_format, transformations=None))
        there, here = made[1], made[0]
        assert there.manifest.content_hash == here.manifest.content_hash
        assert batches_of(there) == batches_of(here)
        assert batches_of(there, start_step=5) == batches_of(here)[5:]
        assert files_below(object_server, there.path) == sorted(
            str(file.relative_to(here.path))
            for file in Path(here.path).rglob("*")
            if file.is_file()
        )
        assert there.read("test").to_pandas().equals(here.read("test").to_pandas())
        assert there.statistics("train").columns == here.statistics("train").columns
        assert "the same rows" in str(here.diff(there))
    assert there.verify(recompute=True).problems == ()
    assert there.url_of("train") == there.path + "/train"
    opened = TrainingDataset.open(there.path)
    assert opened.manifest == there.manifest
    _, epoch, step = opened.resume(there.reader("train", global_batch_size=32, seed=3).state(1, 5))
    assert (epoch, step) == (1, 5)
    with pytest.raises(UnsupportedLocation, match="download"):
        there.petastorm_reader("train")
    store.delete_training_dataset("d", version=1)
    assert files_below(object_server, os.path.dirname(there.path)) == []
    with pytest.raises(TrainingDatasetNotFound):
        TrainingDataset.open(there.path)


def test_s3_reader_batches_equal_local_batches(
    connect: Connect, object_server: ObjectServer, tmp_path: Path
) -> None:
    """By range requests and through a cache; a worker starts at any step after few requests."""
    store = connect()
    with featurestore.connect(tmp_path / "disk") as disk:
        made = []
        for each in (disk, store):
            each.create_featuregroup(labeled(20_000), "weather", primary_key="id")
            made.append(export(each))
    here, there = made
    cache = tmp_path / "shared"
    for arguments in (
        {"window_rows": 1024},
        {"shuffle": False},
        {"remainder": "pad", "lanes": 4},
        {"remainder": "keep", "window_rows": 2048, "seed": 9},
    ):
        expected = here.reader("train", global_batch_size=640, **arguments)
        for added in ({}, {"cache": cache}):
            reader = there.reader("train", global_batch_size=640, **arguments, **added)
            for worker, workers, step in ((0, 1, 0), (1, 2, 7)):
                if arguments.get("remainder") == "keep" and workers > 1:
                    continue
                share = {"worker": worker, "workers": workers, "start_step": step}
                ours, theirs = reader.batches(1, **share), expected.batches(1, **share)
                for one, other in zip(ours, theirs, strict=True):
                    assert one.keys() == other.keys()
                    for name, values in one.items():
                        assert values.tobytes() == other[name].tobytes()
    shards = there.manifest.split("train").shards
    assert {file.name for file in cache.iterdir() if file.is_file()} == {
        shard.sha256 for shard in shards
    }
    with faulty(object_server.port, rate=0.0) as (proxy, endpoint):
        opened = TrainingDataset.open(there.path, storage_options=options_for(endpoint))
        reader = opened.reader("train", global_batch_size=640, lanes=4, window_rows=1024)
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
    there = export(store, data_format=data_format, transformations={"x": t.standardize()})
    here = tmp_path / "here"
    folder = object_server.root / there.path.removeprefix("s3://")
    shard = folder / there.manifest.split("test").shards[1].path
    sound = shard.read_bytes()
    shard.write_bytes(sound[:-1] + b"?")
    with pytest.raises(DatasetDamaged, match="SHA-256"):
        there.download(here)
    with pytest.raises(TrainingDatasetNotFound):
        TrainingDataset.open(here)
    shard.write_bytes(sound)
    first = here / there.manifest.split("train").shards[0].path
    kept = first.stat().st_mtime_ns
    copy = there.download(here)
    assert first.stat().st_mtime_ns == kept
    assert copy.verify().ok
    assert not list(here.rglob(".*"))
    assert batches_of(copy) == batches_of(there)
    other = export(store, "other")
    with pytest.raises(InvalidArgument, match="another training dataset"):
        other.download(here)
    with pytest.raises(UnsupportedLocation):
        there.download("s3://bucket/folder")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("mine")
    with pytest.raises(InvalidArgument, match="thesis"):
        there.download(mine)
    assert [file.name for file in mine.iterdir()] == ["thesis.tex"]


def test_verify_s3_dataset_reports_damage(connect: Connect, object_server: ObjectServer) -> None:
    store = connect()
    store.create_featuregroup(labeled(), "weather", primary_key="id")
    dataset = export(store)
    folder = object_server.root / dataset.path.removeprefix("s3://")
    shard, other = sorted((folder / "train").iterdir())[:2]
    damaged = bytearray(shard.read_bytes())
    damaged[100] ^= 1
    shard.write_bytes(damaged)
    other.write_bytes(other.read_bytes()[:-1])
    (folder / "train" / "more").write_bytes(b"")
    problems = {each.file: each.message for each in dataset.verify().problems}
    assert "SHA-256" in problems[f"train/{shard.name}"]
    assert "in the manifest" in problems[f"train/{other.name}"]
    assert problems["train/more"] == "is not in the manifest"
    with pytest.raises(DatasetDamaged, match=other.name):
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
    seen = []

    def export_meanwhile(phase: str, done: int, total: int) -> None:
        if phase == "plan shards":
            frame = pd.DataFrame({"x": np.arange(50.0), "late": np.arange(50) % 2})
            seen.append(second.create_training_dataset(frame, "d", label="late").version)
            assert clean_all(second.session) == []

    assert export(first, progress=export_meanwhile).version == 1
    assert seen == [2]
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
    assert [each.name for each in (root / "_leases").iterdir()] == ["1"]
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
    seen = []

    def look(phase: str, done: int, total: int) -> None:
        if phase == "plan shards":
            give_up = time.monotonic() + 20
            while not seen and time.monotonic() < give_up:
                seen.extend(each for each in folder.rglob("*") if each.is_file())

    assert export(store, progress=look).verify().ok
    assert len(seen) == 1
    assert not [each for each in folder.rglob("*") if each.is_file()]


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

    def give_up(name: str, done: int, total: int) -> None:
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
    assert acknowledged <= {each.version for each in actual}
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
    kept = {file.name for file in (tmp_path / "small").iterdir() if file.is_file()}
    kept.remove("thesis.tex")
    assert kept == {shard.sha256 for shard in shards[-len(kept) :]}
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
    shards = [each for split in dataset.manifest.splits for each in split.shards]
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
        found = []
        for batch in reader.batches(1):
            found.append([(name, values.tolist()) for name, values in sorted(batch.items())])
        return found

    with ThreadPoolExecutor(6) as pool:
        assert all(found == expected for found in pool.map(epoch, range(24)))


def test_feature_views_on_s3_are_created_and_deleted(
    connect: Connect, object_server: ObjectServer
) -> None:
    store = connect()
    store.create_featuregroup(labeled(), "weather", primary_key="id", event_time="at")
    view = store.create_feature_view("v", features=["weather.x", "weather.late"])
    assert connect().get_feature_view("v").name == view.name
    assert store.create_feature_view("v", features=["weather.late"]).version == 2
    store.delete_feature_view("v", version=1)
    assert [each.version for each in store.get_feature_views()] == [2]
