"""Arrays encoded by a codec are recognized in every input, with the line to paste."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from featurestore.arrow.types import array_shape
from featurestore.errors import UnsupportedType
from featurestore.ingest import to_reader
from featurestore.store import FeatureStore
from tests.ingest.pasting import pasted

IMAGES = np.arange(24, dtype=np.float32).reshape(2, 4, 3)


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def compressed(array: Any) -> bytes:
    """Return the bytes that petastorm's CompressedNdarrayCodec writes."""
    file = io.BytesIO()
    np.savez_compressed(file, arr=array)
    return file.getvalue()


CODECS = {"npy": npy, "npz": compressed}
ENCODED = pa.table({"id": [1, 2, 3], "image": [None, *map(npy, IMAGES)]})


def write_folder(table: pa.Table, directory: Path) -> str:
    """Write a Parquet folder like petastorm: files and ``_common_metadata``."""
    directory.mkdir()
    pq.write_table(table, directory / "part-00000.parquet")
    metadata = {b"dataset-toolkit.unischema.v1": b"a pickle"}
    pq.write_metadata(table.schema.with_metadata(metadata), directory / "_common_metadata")
    return str(directory)


FRAMES: dict[str, Callable[[pa.Table, Path], Any]] = {
    "pandas": lambda table, _: table.to_pandas(),
    "dict": lambda table, _: table.to_pydict(),
    "rows": lambda table, _: table.to_pylist(),
    "polars": lambda table, _: pl.from_arrow(table),
    "table": lambda table, _: table,
    "large binary": lambda table, _: table.cast(
        pa.schema([("id", pa.int64()), ("image", pa.large_binary())])
    ),
    "read_table": lambda table, path: pq.read_table(write_folder(table, path / "petastorm")),
    "dictionary": lambda table, _: table.set_column(1, "image", table["image"].dictionary_encode()),
    "batch": lambda table, _: table.combine_chunks().to_batches()[0],
    "reader": lambda table, _: table.to_reader(),
    "dataset": lambda table, path: ds.dataset(write_folder(table, path / "petastorm")),
    "frames one by one": lambda table, _: iter([table.slice(0, 2), table.slice(2)]),
    "duckdb": lambda table, _: duckdb.from_arrow(table),
}


def test_encoded_arrays_hint_decodes_frame(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for codec, encode in CODECS.items():
        table = ENCODED.set_column(1, "image", pa.array([None, *map(encode, IMAGES)]))
        for form, make in FRAMES.items():
            with subtests.test(f"{codec}, {form}"):
                folder = tmp_path / codec / form
                again = folder / "again"
                again.mkdir(parents=True)
                with pytest.raises(UnsupportedType, match=r"'image' hold .* NdarrayCodec") as error:
                    to_reader(make(table, folder)).read_all()
                df = pasted(make(table, again), str(error.value.hint))
                decoded = to_reader(df).read_all().column("image")
                assert array_shape(decoded.type) == (4, 3)
                assert decoded.to_pylist() == [None, *IMAGES.tolist()]


def test_encoded_arrays_after_null_batches_are_recognized() -> None:
    batches = [*pa.table({"image": pa.array([None] * 3, pa.binary())}).to_batches(),
               *ENCODED.select(["image"]).to_batches()]  # fmt: skip
    with pytest.raises(UnsupportedType, match="NdarrayCodec"):
        to_reader(iter(batches)).read_all()


def test_encoded_arrays_dictionary_nulls_are_skipped() -> None:
    indices = pa.array([0, 0, 1], pa.int8())
    cells = pa.DictionaryArray.from_arrays(indices, pa.array([None, b"a"], pa.binary()))
    assert to_reader(pa.table({"x": cells})).read_all()["x"].to_pylist() == [None, None, b"a"]
    encoded = pa.DictionaryArray.from_arrays(indices, pa.array([None, npy(IMAGES)], pa.binary()))
    with pytest.raises(UnsupportedType, match="NdarrayCodec"):
        to_reader(pa.table({"x": encoded}))


def test_encoded_arrays_in_bytes_group_stay_bytes(empty_store: FeatureStore) -> None:
    empty_store.create_featuregroup(ENCODED.slice(0, 0), "blobs")
    empty_store.insert_into_featuregroup(ENCODED, "blobs")
    blobs = empty_store.get_featuregroup("blobs").to_arrow().sort_by("id")
    assert blobs["image"].to_pylist() == ENCODED["image"].to_pylist()
    empty_store.create_featuregroup(empty_store.get_featuregroup("blobs"), "copy")


def test_unrecognized_bytes_stay_bytes(subtests: pytest.Subtests) -> None:
    for cell in (b"\x89PNG", b"PK\x03\x04", b"PK\x03\x04" + bytes(40), b""):
        with subtests.test(repr(cell)):
            table = pa.table({"cell": pa.array([None, cell, npy(IMAGES)])})
            cells = to_reader(table).read_all().column("cell").to_pylist()
            assert cells == table["cell"].to_pylist()


@pytest.fixture(params=["folder", "sqlite"])
def source(request: pytest.FixtureRequest, empty_store: FeatureStore, tmp_path: Path) -> Any:
    """A frame over a source of encoded arrays."""
    if request.param == "folder":
        empty_store.add_source("arrays", write_folder(ENCODED, tmp_path / "petastorm"))
        return lambda: empty_store.read_source("arrays")
    with sqlite3.connect(tmp_path / "arrays.db") as database:
        database.execute("CREATE TABLE pictures (id INTEGER, image BLOB)")
        rows = [tuple(row.values()) for row in ENCODED.to_pylist()]
        database.executemany("INSERT INTO pictures VALUES (?, ?)", rows)
    database.close()
    empty_store.add_source("arrays", f"sqlite:///{tmp_path / 'arrays.db'}")
    return lambda: empty_store.read_source("arrays", table="pictures")


def test_encoded_arrays_of_source_are_refused(
    source: Callable[[], Any], empty_store: FeatureStore
) -> None:
    labels = pa.table({"id": [1, 2, 3], "label": [0, 1, 0]})
    empty_store.create_featuregroup(labels, "labels", primary_key="id")
    calls = [
        lambda: empty_store.create_featuregroup(source(), "pictures"),
        lambda: empty_store.create_featuregroup(source().filter("id > 0"), "pictures"),
        lambda: empty_store.create_training_dataset(source(), "pictures"),
        lambda: empty_store.create_training_dataset(
            empty_store.get_features("labels.label", labels=source()), "pictures"
        ),
    ]
    for call in calls:
        with pytest.raises(UnsupportedType, match=r"'image' hold .* NdarrayCodec") as error:
            call()
    columns = pasted(source(), str(error.value.hint))
    assert [group.name for group in empty_store.get_featuregroups()] == ["labels"]
    assert empty_store.get_training_datasets() == []
    empty_store.create_featuregroup(columns, "pictures")
    pictures = empty_store.get_featuregroup("pictures").to_arrow().sort_by("id")
    assert pictures["image"].to_pylist() == [None, *IMAGES.tolist()]


def test_encoded_arrays_of_native_relations_are_refused(
    empty_store: FeatureStore,
) -> None:
    empty_store.create_featuregroup(ENCODED.slice(0, 0), "blobs")
    empty_store.insert_into_featuregroup(ENCODED, "blobs")
    native = empty_store.get_featuregroup("blobs").native()
    with pytest.raises(UnsupportedType, match="NdarrayCodec"):
        empty_store.create_featuregroup(native, "again")
    assert [group.name for group in empty_store.get_featuregroups()] == ["blobs"]
