"""Exports that are killed, meet a full disk or run concurrently.

A whole dataset, or none.
"""

from __future__ import annotations

import inspect
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import featurestore
from featurestore import FeatureStore
from featurestore.errors import PublicationWarning, StorageError, TrainingDatasetExists
from featurestore.recovery.in_flight import in_flight
from featurestore.storage import local
from featurestore.storage.manifests import is_finished

pytestmark = [pytest.mark.services, pytest.mark.slow]

Example = Callable[..., pa.Table]
SPLITS = {"train": 0.8, "test": 0.2}
EXPORTER = """
import sys, featurestore
store = featurestore.connect(sys.argv[1])
frame = store.get_featuregroup("facts")
rows = frame.to_arrow()  # a dataframe is staged, the rows of a group are not
print("ready", flush=True)
while True:
    for data in (frame, rows):
        store.create_training_dataset(
            data, "d", label="label", key=["user", "at"], splits={"train": 0.8, "test": 0.2}, shards=3
        )
"""


# The point of a kill depends on the machine, so kills repeat until enough exports were hit.
@pytest.mark.parametrize("minimum", [2, pytest.param(20, marks=pytest.mark.soak)])
def test_export_killed_leaves_complete_dataset_or_none(
    tmp_path: Path, example: Example, minimum: int
) -> None:
    store = featurestore.connect(tmp_path / "store")
    store.create_featuregroup(example(4000), "facts", primary_key=["user", "at"])
    rng = random.Random(6)
    folder = Path(store.location, "trainingdatasets", "d")
    staging = Path(store.location, "_staging")
    finished: set[str] = set()
    store.close()
    kills = unfinished = staged = 0
    while min(unfinished, staged) < minimum:
        kills += 1
        assert kills <= 30 * minimum, f"{unfinished} kills met an export, {staged} staged rows"
        process = subprocess.Popen(
            [sys.executable, "-c", EXPORTER, str(tmp_path / "store")], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        before = set(staging.glob("*"))
        assert process.stdout.readline()
        while set(staging.glob("*")) <= before:  # until an export has begun
            assert process.poll() is None
            time.sleep(0.001)
        time.sleep(rng.uniform(0.0, 0.4))
        process.kill()
        process.wait()
        process.stdout.close()
        unfinished += sum(not is_finished(str(path)) for path in folder.glob("v*"))
        staged += len(set(staging.glob("*")) - before)
    hashes = set()
    for directory in sorted(folder.glob("v*")):
        if is_finished(str(directory)):
            report = featurestore.TrainingDataset.open(directory).verify()
            assert report.ok, str(report)
            hashes.add(report.content_hash)
            finished.add(directory.name)
    assert len(hashes) <= 1, "all are of the same rows"
    again = featurestore.connect(tmp_path / "store")
    group = again.create_training_dataset(
        again.get_featuregroup("facts"),
        "d",
        label="label",
        splits={"train": 0.8, "test": 0.2},
        shards=3,
    )
    assert group.verify(recompute=True).ok
    assert hashes <= {group.manifest.content_hash}
    remaining = {path.name for path in folder.glob("v*")}
    assert remaining == finished | {f"v{group.version}"}, "what killed exports left is gone"
    assert not os.listdir(staging)
    again.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_export_full_disk_raises_and_leaves_no_dataset(small_disk: Path, example: Example) -> None:
    store = featurestore.connect(small_disk / "store")
    with pytest.raises(StorageError, match=r"(?i)no space|disk"):
        store.create_training_dataset(example(400_000), "d", key=["at"], statistics=False)
    assert store.get_training_datasets() == []
    assert not list(Path(store.location, "trainingdatasets", "d").glob("v*"))
    assert not os.listdir(Path(store.location, "_staging"))
    assert store.create_training_dataset(example(100), "d", key=["at"]).verify().ok
    store.close()


@pytest.mark.parametrize("directory", ["trainingdatasets/d", "_staging"])
def test_export_unwritable_directory_raises_with_path(
    empty_store: FeatureStore, example: Example, directory: str
) -> None:
    path = Path(empty_store.location, directory)
    if path.is_dir():
        path.rmdir()
    path.parent.mkdir(exist_ok=True)
    path.write_text("in the way")
    with pytest.raises(StorageError, match=rf"Cannot write '.*{directory}'"):
        empty_store.create_training_dataset(example(100), "d", key=["at"])
    assert empty_store.get_training_datasets() == []


def test_concurrent_exports_of_one_name_create_two_versions(
    empty_store: FeatureStore, example: Example
) -> None:
    empty_store.create_featuregroup(example(2000), "facts", primary_key=["user", "at"])
    versions: list[int] = []

    def export() -> None:
        store = featurestore.connect(empty_store.location)
        frame = store.get_featuregroup("facts")
        versions.append(store.create_training_dataset(frame, "d", label="label").version)
        store.close()

    threads = [threading.Thread(target=export) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(versions) == [1, 2]
    assert all(dataset.verify().ok for dataset in empty_store.get_training_datasets())


def test_running_export_keeps_its_version_reserved(empty_store: FeatureStore) -> None:
    session = empty_store.session

    def export(version: int | None = None) -> Any:
        return in_flight(session, operation="export", name="d", version=version)

    with export() as running:
        with pytest.raises(TrainingDatasetExists), export(1):
            pass
        with export() as second:
            assert (running.version, second.version) == (1, 2)
            featurestore.connect(empty_store.location)
            assert os.path.isdir(session.training_dataset_path("d", 1))
    with export() as third:
        assert third.version == 1


def test_export_failed_sync_after_manifest_warns(
    empty_store: FeatureStore, example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync_path = local.sync_path

    def failing(directory: str) -> None:
        if is_finished(directory):
            raise OSError(5, "Input/output error", directory)
        sync_path(directory)

    monkeypatch.setattr(local, "sync_path", failing)
    with pytest.warns(PublicationWarning, match="became visible, but"):
        dataset = empty_store.create_training_dataset(example(100), "d", key=["at"])
    assert dataset.verify().ok
    assert [dataset.version for dataset in empty_store.get_training_datasets()] == [1]


class InterruptAt:
    """Raise KeyboardInterrupt at the n-th call of a store function.

    Counts calls without ``number``. Generators are left out: one that is thrown away is entered once
    more to be closed, and there Python swallows whatever is raised.
    """

    def __init__(self, number: int | None = None) -> None:
        self.calls = 0
        self.number = number

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        of_generator = bool(frame.f_code.co_flags & inspect.CO_GENERATOR)
        if event == "call" and "featurestore" in frame.f_code.co_filename and not of_generator:
            self.calls += 1
            if self.calls == self.number:
                raise KeyboardInterrupt

    def run(self, call: Callable[[], object]) -> None:
        before = sys.gettrace()
        sys.settrace(self)
        try:
            call()
        finally:
            sys.settrace(before)


def test_export_interrupted_leaves_complete_dataset_or_none(
    empty_store: FeatureStore, example: Example
) -> None:
    rows = example(50)

    def create() -> None:
        empty_store.create_training_dataset(rows, "d", label="label", key=["at"], splits=SPLITS)

    create()  # the first one imports
    counter = InterruptAt()
    counter.run(create)
    rng = random.Random(1)
    last = range(counter.calls - 60, counter.calls, 4)  # around the manifest and behind it
    call_numbers = sorted({*rng.sample(range(1, counter.calls), 10), *last})
    finished, landed = 2, 0
    for number in call_numbers:
        interrupted = False
        try:
            InterruptAt(number).run(create)
        except KeyboardInterrupt:
            interrupted = True
        datasets = empty_store.get_training_datasets()
        assert len(datasets) in (finished, finished + 1), number
        landed += interrupted and len(datasets) > finished
        finished = len(datasets)
        assert all(dataset.verify().ok for dataset in datasets[-2:]), number
    assert landed, "no interrupt came after the manifest"
    create()
    versions = Path(empty_store.location, "trainingdatasets", "d")
    assert len(list(versions.glob("v*"))) == finished + 1, "what interrupted exports left is gone"
