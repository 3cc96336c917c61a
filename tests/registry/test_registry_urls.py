"""Registry URLs.

Passwords are never shown, odd paths work, locations that cannot be written are read.
"""

from __future__ import annotations

import subprocess
import traceback
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import featurestore
from featurestore.errors import (
    ConfigurationError,
    FeatureStoreError,
    LocationNotWritable,
    UnsupportedLocation,
)
from featurestore.registry import open_registry
from featurestore.registry.projects import draft
from featurestore.store import FeatureStore
from tests.flights import planes

pytestmark = pytest.mark.slow

TABLE = pa.table({"x": [1, 2], "y": [0, 1], "z": ["a", "b"]})
SECRET = "hunter2"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{SECRET}@127.0.0.1:1/store",
        f"postgresql://127.0.0.1:1/store?user=me&password={SECRET}",
        f"postgresql://127.0.0.1:1/store?sslpassword={SECRET}&connect_timeout=1",
        f"postgresql://127.0.0.1:1/store?no_such_option={SECRET}",
        f"mysql://me:{SECRET}@127.0.0.1:1/store",
        f"postgresql://me:{SECRET}@127.0.0.1:port/store",
        f"me:{SECRET}@nowhere",
    ],
)
def test_registry_error_omits_password(tmp_path: Path, url: str) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(FeatureStoreError) as raised:
        open_registry(str(tmp_path), url=url)
    assert SECRET not in "".join(traceback.format_exception(raised.value))


def test_open_registry_path_instead_of_url_raises(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="sqlite:///"):
        open_registry(str(tmp_path), url=str(tmp_path / "registry.db"))


def test_draft_has_url_of_its_registry(tmp_path: Path) -> None:
    registry = open_registry(str(tmp_path))
    with draft(registry) as drafted:
        assert drafted.url == registry.url
    registry.close()


NAMES = (
    "a%20b",
    "100%",
    "new\nline",
    "quo'te\"",
    "ask?me#now",
    "sp ace",
    "üñí",
    "[1]{2}*",
    "k=v",
    "$HOME",
)


@pytest.mark.parametrize("name", NAMES)
def test_location_with_special_characters_works(tmp_path: Path, name: str) -> None:
    location = tmp_path / name / "store"
    with featurestore.connect(location) as store:
        assert store.location == str(location)
        group = store.create_featuregroup(TABLE, "g", primary_key="x", partition_by="z")
        group.insert(pa.table({"x": [2, 3], "y": [1, 0], "z": ["b", "c"]}), mode="upsert")
        assert store.get_features(["g.z"]).count() == 3
        store.delete_from_featuregroup("g", "x = 3")
        store.compact_featuregroup("g")
        new_group = store.create_training_dataset(store.get_featuregroup("g"), "d", label="y")
        assert new_group.verify(recompute=True).ok
        assert group.statistics().rows == 2
        assert store.get_featuregroup("g", as_of=1).count() == 2
        store.vacuum_featuregroup("g", retain="0s")
    with featurestore.connect(location) as again:
        assert again.get_featuregroup("g").count() == 2
    assert [path.name for path in (tmp_path / name).iterdir()] == ["store"]
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_location_with_backslash_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedLocation, match="backslash"):
        featurestore.connect(tmp_path / "back\\slash")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def read_only(flights_copy: FeatureStore, tmp_path: Path) -> Iterator[Path]:
    """A store on a read-only file system."""
    location = flights_copy.location
    flights_copy.close()
    mount_point = tmp_path / "mounted"
    mount_point.mkdir()
    for command in (["mount", "--bind"], ["mount", "-o", "remount,bind,ro"]):
        result = subprocess.run(
            [*command, location, str(mount_point)], capture_output=True, text=True, check=False
        )
        if result.returncode:
            subprocess.run(["umount", "-l", str(mount_point)], capture_output=True, check=False)
            pytest.skip(f"nothing can be mounted here: {result.stderr.strip()}")
    try:
        yield mount_point
    finally:
        subprocess.run(["umount", "-l", str(mount_point)], check=True)


def test_read_only_store_is_readable(read_only: Path) -> None:
    with featurestore.connect(read_only) as store:
        names = [group.name for group in store.get_featuregroups()]
        assert names == ["flights", "planes", "weather"]
        assert store.get_featuregroup("planes").count() == 4
        assert store.get_features(["planes.seats"]).to_arrow().num_rows == 4
        assert len(store.get_featuregroup_history("planes")) == 1
        assert store.featuregroup("planes").statistics().rows == 4
        dataset = store.get_training_dataset("late_flights")
        assert dataset.read("train").count() == dataset.num_rows("train")
        assert dataset.verify().ok
        assert [dataset.name for dataset in store.get_training_datasets()] == ["late_flights"]
        for write in (
            lambda: store.create_featuregroup(TABLE, "h"),
            lambda: store.insert_into_featuregroup(planes(), "planes"),
            lambda: store.delete_featuregroup("planes", version=1, force=True),
            lambda: store.add_featuregroup_tag("planes", "a", "b"),
            lambda: store.create_training_dataset(TABLE, "e"),
            lambda: store.delete_training_dataset("late_flights", version=1),
        ):
            with pytest.raises(LocationNotWritable, match="cannot be written"):
                write()
    dataset_path = read_only / "trainingdatasets" / "late_flights" / "v1"
    assert featurestore.TrainingDataset.open(dataset_path).verify().ok


def test_connect_unwritable_location_without_store_raises(read_only: Path) -> None:
    with pytest.raises(LocationNotWritable, match="elsewhere"):
        featurestore.connect(read_only / "elsewhere")
