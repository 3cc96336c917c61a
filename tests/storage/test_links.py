"""Links below the location of a store are refused, and lead no read or write elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import featurestore
from featurestore.errors import FeatureStoreError, StorageError
from featurestore.storage import files
from featurestore.storage.protection import protect_location
from featurestore.store import FeatureStore

ROWS = pa.table({"id": [1, 2, 3], "v": [1.0, 2.0, 3.0]})
# One path of each kind; a store has several of some.
LINKS = (
    "registry.db",
    "registry.db-journal",
    "_origins",
    "_owners",
    "_staging",
    "featuregroups",
    "featuregroups/g",
    "featuregroups/g/v1",
    "featuregroups/g/v1/*.parquet",
    "featuregroups/g/v1/_delta_log",
    "featuregroups/g/v1/_delta_log/00000000000000000000.json",
    "featuregroups/g/v1_statistics",
    "featuregroups/g/v1_statistics/*.json",
    "trainingdatasets/d",
    "trainingdatasets/d/v1/manifest.json",
    "trainingdatasets/d/v1/train",
    "trainingdatasets/d/v1/train/tfrecord*",
    "online",
    "online/embedded.db",
)


class OpenedFiles:
    """The files that Python opens below a folder, recorded by an audit hook."""

    def __init__(self) -> None:
        self._folder: str | None = None
        self.paths: list[str] = []
        sys.addaudithook(self._hook)

    @contextmanager
    def below(self, folder: Path) -> Iterator[None]:
        self._folder, self.paths = str(folder), []
        try:
            yield
        finally:
            self._folder = None

    def _hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if self._folder is None or event not in ("open", "sqlite3.connect"):
            return
        path = arguments[0]
        # Descriptors, and files that libraries open.
        if isinstance(path, str | os.PathLike):
            resolved = os.path.realpath(os.fspath(path))
            if resolved.startswith(self._folder):
                self.paths.append(f"{event} {resolved}")


def verify_dataset(store: FeatureStore) -> None:
    """Raise the findings of a verification as an error."""
    report = store.get_training_dataset("d").verify()
    if not report.ok:
        raise StorageError(str(report))


def use(store: FeatureStore) -> Iterator[Callable[[], object]]:
    """Yield calls that together read and write all files of the store."""
    yield lambda: store.get_featuregroup("g", dataframe_type="arrow")
    yield lambda: store.get_featuregroup_statistics("g")
    yield lambda: verify_dataset(store)
    yield lambda: store.publish("w")
    yield lambda: store.insert_into_featuregroup(ROWS, "g", mode="upsert")
    yield lambda: store.delete_featuregroup("g", version=1, force=True)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The location of a store with a group, a view and a training dataset."""
    location = tmp_path_factory.mktemp("filled") / "store"
    with featurestore.connect(location) as store:
        store.create_featuregroup(ROWS, "g", primary_key="id")
        store.create_feature_view("w", features=["g.v"])
        store.publish("w")
        store.create_training_dataset(store.get_featuregroup("g").select("id", "v"), "d")
        store.get_featuregroup_statistics("g")
    return location


@pytest.fixture(scope="module")
def opened_files() -> OpenedFiles:
    return OpenedFiles()


def replace_by_link(location: Path, pattern: str, outside: Path) -> None:
    """Move a path of a store elsewhere, and link it there."""
    path = next(iter(sorted(location.glob(pattern))), location / pattern)
    target = outside / path.name
    if path.exists():
        shutil.move(path, target)
    else:
        target.touch()
    path.symlink_to(target)


def contents(folder: Path) -> dict[str, bytes | None]:
    """Return the content of each file below a folder, and None for folders."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.filterwarnings("ignore::featurestore.errors.PublicationWarning")
@pytest.mark.filterwarnings("ignore::featurestore.errors.FeatureViewWarning")
def test_links_in_store_are_refused_by_each_call(
    filled: Path, tmp_path: Path, opened_files: OpenedFiles, subtests: pytest.Subtests
) -> None:
    for number, pattern in enumerate(LINKS):
        with subtests.test(pattern):
            location, outside = tmp_path / f"{number}", tmp_path / f"{number}-outside"
            shutil.copytree(filled, location)
            outside.mkdir()
            replace_by_link(location, pattern, outside)
            before = contents(outside)
            refusals = 0
            with opened_files.below(outside):
                try:
                    with featurestore.connect(location) as store:
                        for call in use(store):
                            try:
                                call()
                            except FeatureStoreError as error:
                                refusals += "symbolic link" in str(error)
                except FeatureStoreError as error:
                    refusals += "symbolic link" in str(error)
            # Statistics that cannot be read are computed again.
            assert refusals or "statistics" in pattern
            assert opened_files.paths == []
            assert contents(outside) == before


def test_location_itself_may_be_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "store").symlink_to(tmp_path / "disk")
    with featurestore.connect(tmp_path / "store") as store:
        store.create_featuregroup(ROWS, "g", primary_key="id")
        assert store.get_featuregroup("g").count() == 3
    assert (tmp_path / "disk" / "featuregroups" / "g").is_dir()


def test_pipe_in_store_does_not_block_readers(tmp_path: Path) -> None:
    protect_location(str(tmp_path))
    os.mkfifo(tmp_path / "access.json")
    with pytest.raises(StorageError, match="neither a file nor a directory"):
        files.read_json(str(tmp_path / "access.json"))
