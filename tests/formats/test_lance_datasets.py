"""Lance and this store read each other's datasets, with equal values and order.

The library of Lance is too large for the environment of the tests: ``pip install pylance`` runs this file.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from featurestore import FeatureStore
from featurestore.errors import FeatureStoreError, SourceError, SourceTableNotFound, UnsupportedType
from featurestore.plugins.format import DatasetFormat, find_format
from featurestore.plugins.source import Source, SourceConfig, SourceQuery, find_source
from featurestore.testing.format_conformance import FormatConformance
from featurestore.testing.source_conformance import SourceConformance
from tests.formats.input_rows import rows_of_inputs

lance = pytest.importorskip("lance")


@pytest.fixture
def dataset_format() -> DatasetFormat:
    return find_format("lance")


class TestLanceFormat(FormatConformance):
    pass


def open_dataset(path: Path) -> Source:
    return find_source("lance")(SourceConfig("images", f"lance+{path}"))


class TestLanceSource(SourceConformance):
    def source(self, rows: pa.Table, directory: Path) -> tuple[Source, SourceQuery]:
        lance.write_dataset(rows.slice(0, 40), directory / "orders.lance")
        lance.write_dataset(rows.slice(40), directory / "orders.lance", mode="append")
        return open_dataset(directory / "orders.lance"), SourceQuery()


def test_lance_reads_every_type_with_equal_rows(empty_store: FeatureStore) -> None:
    table = rows_of_inputs("lance", 1500)
    exported = empty_store.create_training_dataset(
        table, "types", key="id", data_format="lance", splits={"train": 0.8, "test": 0.2}, shards=3
    )
    rows = table.to_pylist()
    for split in ("train", "test"):
        dataset = lance.dataset(f"{exported.path}/{split}")
        loaded = dataset.to_table().select(table.schema.names)
        expected = [rows[number] for number in loaded["id"].to_pylist()]
        assert loaded.to_pylist() == expected
        assert dataset.take([7, 2]).select(["id"])["id"].to_pylist() == [
            expected[7]["id"],
            expected[2]["id"],
        ]
        empty_store.add_source(split, f"lance+{exported.path}/{split}")
        for read in (exported.read(split), empty_store.read_source(split)):
            assert read.to_arrow().select(table.schema.names).to_pylist() == expected


def test_verify_covers_every_file(empty_store: FeatureStore) -> None:
    exported = empty_store.create_training_dataset(
        pa.table({"n": [n % 7 for n in range(100)], "x": [0.5, 1.5] * 50}),
        "small",
        data_format="lance",
        splits={"train": 0.8, "test": 0.2},
    )
    paths = [path for path in Path(exported.path).glob("t*/*/*") if path.is_file()]
    assert len(paths) == 4
    for path in paths:
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert not exported.verify().ok, path
        path.write_bytes(content)
    assert exported.verify().ok
    # A version that another program adds is not part of the dataset.
    lance.write_dataset(pa.table({"n": [1], "x": [1.0]}), f"{exported.path}/train", mode="append")
    assert {problem.message for problem in exported.verify().problems} == {"is not in the manifest"}


def test_versions_are_read_by_number_and_time(tmp_path: Path) -> None:
    path = tmp_path / "a.lance"
    for number in range(3):
        lance.write_dataset(pa.table({"n": [number]}), path, mode="overwrite")
    source = open_dataset(path)
    times = [each["timestamp"].astimezone() for each in lance.dataset(path).versions()]
    for number, time in enumerate(times):
        for version in (number + 1, time):
            rows = source.snapshot(version).read(SourceQuery()).read_all()
            assert rows["n"].to_pylist() == [number]
    for version in (9, times[0].replace(year=2000)):
        with pytest.raises(SourceTableNotFound):
            source.snapshot(version)


def test_files_outside_of_the_dataset_are_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret.lance"
    lance.write_dataset(pa.table({"n": [1]}), secret)
    lance.dataset(secret).tags.create("v1", 1)
    clone = tmp_path / "clone.lance"
    lance.dataset(secret).shallow_clone(str(clone), "v1")
    assert lance.dataset(clone).count_rows() == 1
    with pytest.raises(SourceError, match="outside of its folder"):
        open_dataset(clone).snapshot()
    linked = tmp_path / "linked.lance"
    shutil.copytree(secret, linked)
    (file,) = (linked / "data").iterdir()
    file.unlink()
    file.symlink_to(next((secret / "data").iterdir()))
    with pytest.raises(SourceError, match="symbolic link"):
        open_dataset(linked).snapshot()


def test_damaged_dataset_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.lance"
    lance.write_dataset(pa.table({"n": range(1000), "s": [str(n) for n in range(1000)]}), path)
    (file,) = (path / "data").iterdir()
    content = file.read_bytes()
    changes: list[Any] = [b"", content[:-1], content[: len(content) // 2], b"x" * len(content)]
    for changed in changes:
        file.write_bytes(changed)
        with pytest.raises(FeatureStoreError):
            open_dataset(path).snapshot().read(SourceQuery()).read_all()
    file.unlink()
    with pytest.raises(FeatureStoreError):
        open_dataset(path).snapshot().read(SourceQuery()).read_all()
    with pytest.raises(FeatureStoreError):
        open_dataset(tmp_path).snapshot()


def test_blobs_are_refused_by_name(tmp_path: Path) -> None:
    field = pa.field("video", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    table = pa.table(
        [pa.array([1]), pa.array([b"x"], pa.large_binary())],
        pa.schema([pa.field("n", pa.int64()), field]),
    )
    lance.write_dataset(table, tmp_path / "a.lance", data_storage_version="2.1")
    snapshot = open_dataset(tmp_path / "a.lance").snapshot()
    with pytest.raises(UnsupportedType, match=r"'video'.*a blob"):
        snapshot.schema(SourceQuery())
    assert snapshot.read(SourceQuery(columns=("n",))).read_all()["n"].to_pylist() == [1]
