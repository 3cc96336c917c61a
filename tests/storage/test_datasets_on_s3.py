"""Training datasets on S3: requests of readers, downloads, leases, faults, and the cache of shards."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import featurestore
from featurestore import transform as t
from featurestore.errors import (
    DatasetDamaged,
    InvalidArgument,
    StorageError,
    TrainingDatasetNotFound,
    UnsupportedLocation,
    WriteConflict,
)
from featurestore.recovery import liveness
from featurestore.storage import failures
from featurestore.storage.shards import ShardCache
from featurestore.training.catalog import clean_all
from featurestore.training.dataset import TrainingDataset
from tests.object_server import ObjectServer, options_for
from tests.storage.faulty_proxy import faulty
from tests.storage.stores import Connect, export, labeled, names_below


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
        for added in ({}, {"verify": True}, {"cache": cache, "verify": True}, {"cache": cache}):
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


def test_dataset_download_resumes_after_interruption(
    connect: Connect, object_server: ObjectServer, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    store = connect()
    store.create_featuregroup(labeled(), "weather", primary_key="id")
    for data_format in ("tfrecord", "csv"):
        with subtests.test(data_format):
            scaled = {"transformations": {"x": t.standardize()}}
            remote = export(store, data_format, data_format=data_format, **scaled)
            directory = tmp_path / data_format
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


def test_download_refuses_other_datasets_and_files(connect: Connect, tmp_path: Path) -> None:
    store = connect()
    store.create_featuregroup(labeled(60), "weather", primary_key="id")
    dataset = export(store)
    dataset.download(tmp_path / "here")
    with pytest.raises(InvalidArgument, match="another training dataset"):
        export(store, "other").download(tmp_path / "here")
    with pytest.raises(UnsupportedLocation):
        dataset.download("s3://bucket/folder")
    user_folder = tmp_path / "mine"
    user_folder.mkdir()
    (user_folder / "thesis.tex").write_text("mine")
    with pytest.raises(InvalidArgument, match="thesis"):
        dataset.download(user_folder)
    assert [file.name for file in user_folder.iterdir()] == ["thesis.tex"]


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


def test_revoked_export_publishes_nothing(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """The export resumes before or after writing its shards, and cannot publish."""
    first, second = connect("first"), connect("second")
    first.create_featuregroup(labeled(), "weather", primary_key="id")

    def give_up(name: str, count: int, total: int) -> None:
        if name == phase:
            with monkeypatch.context() as impatient:
                impatient.setattr(liveness, "LEASE_TIMEOUT", timedelta(seconds=-5))
                clean_all(second.session)

    for phase in ("plan shards", "fit transformations"):
        name = phase.replace(" ", "_")
        with subtests.test(phase):
            with pytest.raises((WriteConflict, StorageError)):
                export(first, name, progress=give_up, transformations={"x": t.standardize()})
            written = names_below(f"{first.location}/trainingdatasets/{name}")
            assert not [file_name for file_name in written if "manifest" in file_name]
            assert export(first, name).verify().ok


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


def test_shard_cache_keeps_open_copies(
    connect: Connect, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    store = connect()
    store.create_featuregroup(labeled(), "weather", primary_key="id")
    for data_format in ("parquet", "csv"):
        with subtests.test(data_format):
            dataset = export(store, data_format, data_format=data_format)
            check_open_copies(dataset, tmp_path / data_format)


def check_open_copies(dataset: TrainingDataset, directory: Path) -> None:
    """Readers in many threads share a cache with room for one shard."""
    expected = batches_of(dataset)
    cache = ShardCache(str(directory), max_bytes=1)
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
            "train", global_batch_size=32, seed=3, cache=directory, cache_bytes=1
        )
        batches = []
        for batch in reader.batches(1):
            batches.append([(name, values.tolist()) for name, values in sorted(batch.items())])
        return batches

    with ThreadPoolExecutor(6) as pool:
        assert all(batches == expected for batches in pool.map(epoch, range(24)))
