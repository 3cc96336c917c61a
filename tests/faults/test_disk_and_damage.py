"""A full disk raises a clear error and keeps the old state; damaged logs and files are named."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

import featurestore
from featurestore.delta.log import commit_path
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import FeatureStoreError, StorageError, TableDamaged

if TYPE_CHECKING:
    from featurestore.featuregroups import FeatureGroup
    from featurestore.store import FeatureStore

MEGABYTES = 16
TOO_MANY = 700_000  # of 40 bytes, of which nothing can be packed


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={MEGABYTES}m", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def noise(rows: int) -> pa.Table:
    random = np.random.default_rng(0)
    return pa.table({"id": np.arange(rows), **{f"x{i}": random.random(rows) for i in range(4)}})


# Each write mode, with staged and unstaged rows.
@pytest.mark.parametrize(
    ("mode", "policy"), [("append", "strict"), ("overwrite", "off"), ("upsert", "strict")]
)
def test_insert_on_full_disk_raises_and_keeps_old_state(
    small_disk: Path, mode: str, policy: str
) -> None:
    store = featurestore.connect(small_disk / "store")
    group = store.create_featuregroup(noise(1_000), "g", primary_key="id")
    with pytest.raises(StorageError, match=r"(?i)no space|disk"):
        group.insert(noise(TOO_MANY), mode=mode, validation=policy)  # type: ignore[arg-type]
    store.close()
    again = featurestore.connect(small_disk / "store")
    assert again.get_featuregroup("g").count() == 1_000
    assert again.featuregroup("g").delta_version == 1
    again.vacuum_featuregroup("g", retain="0s")
    again.insert_into_featuregroup(
        noise(10).set_column(0, "id", pa.array(range(5_000, 5_010))), "g"
    )
    assert again.get_featuregroup("g").count() == 1_010
    again.close()


def test_create_featuregroup_on_full_disk_leaves_nothing(small_disk: Path) -> None:
    store = featurestore.connect(small_disk / "store")
    with pytest.raises(StorageError, match=r"(?i)no space|disk"):
        store.create_featuregroup(noise(TOO_MANY), "g", primary_key="id", validation="off")
    assert store.get_featuregroups() == []
    assert store.create_featuregroup(noise(10), "g", primary_key="id").version == 1
    store.close()


@pytest.fixture
def group(empty_store: FeatureStore) -> FeatureGroup:
    new_group = empty_store.create_featuregroup(noise(100), "g", primary_key="id")
    new_group.insert(noise(10).set_column(0, "id", pa.array(range(100, 110))))
    return new_group


def read(group: FeatureGroup) -> int:
    return int(group.read().to_arrow().num_rows)


def test_read_missing_data_file_raises_with_name(group: FeatureGroup) -> None:
    file = read_snapshot(group.path).files[0].path
    os.remove(file)
    with pytest.raises(TableDamaged, match=os.path.basename(file)):
        read(group)


@pytest.mark.parametrize("damage", ["cut", "scrambled", "emptied"])
def test_read_damaged_data_file_raises_with_name(group: FeatureGroup, damage: str) -> None:
    file = read_snapshot(group.path).files[0].path
    data = bytearray(Path(file).read_bytes())
    if damage == "scrambled":  # the size stays
        data[-200:] = os.urandom(200)
    Path(file).write_bytes(
        {"cut": data[: len(data) // 2], "scrambled": data, "emptied": b""}[damage]
    )
    with pytest.raises(StorageError, match=os.path.basename(file)):
        read(group)


@pytest.mark.parametrize("damage", ["removed", "cut", "garbage"])
@pytest.mark.parametrize("version", [0, 1])
def test_read_damaged_log_raises_with_commit(
    group: FeatureGroup, damage: str, version: int
) -> None:
    commit = Path(commit_path(group.path, version))
    if damage == "removed":
        commit.unlink()
    else:
        commit.write_bytes(commit.read_bytes()[:50] if damage == "cut" else b"\x00garbage")
    with pytest.raises(TableDamaged, match=commit.name):
        read(group)
    with pytest.raises(FeatureStoreError):
        group.insert(noise(1))


def test_connect_unwritable_location_raises_with_path(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no directory")
    with pytest.raises(featurestore.FeatureStoreError, match=str(blocked)):
        featurestore.connect(blocked / "store")
