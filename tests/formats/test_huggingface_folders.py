"""Hugging Face ``datasets`` and this store read each other's folders, with equal values and order."""

from __future__ import annotations

import datetime as dt
import json
import random
import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from featurestore import FeatureStore
from featurestore.errors import FeatureStoreError, UnsupportedDataframe, UnsupportedType
from featurestore.ingest import to_reader
from featurestore.plugins.source import SourceConfig, SourceQuery, find_source
from tests.formats.input_rows import rows_of_inputs

datasets = pytest.importorskip("datasets")

SAVED = "state.json"


@pytest.mark.slow
def test_datasets_loads_every_type_with_equal_rows(empty_store: FeatureStore) -> None:
    table = rows_of_inputs("huggingface", 2500)
    exported = empty_store.create_training_dataset(
        table,
        "types",
        exclude=["id"],
        data_format="huggingface",
        splits={"train": 0.8, "test": 0.2},
    )
    loaded = datasets.load_from_disk(exported.path)
    assert set(loaded) == {"train", "test"}
    assert loaded["train"].num_rows + loaded["test"].num_rows == 2500
    rows = table.to_pylist()
    empty_store.add_source("saved", exported.path)
    for split, dataset in loaded.items():
        expected = [rows[row["id"]] for row in dataset]
        assert list(dataset) == expected
        # Our own readers have the same rows in the same order.
        for read in (exported.read(split), empty_store.read_source("saved", path=split)):
            assert read.to_arrow().select(table.schema.names).to_pylist() == expected


def saved_features() -> Any:
    return datasets.Features(
        {
            "n": datasets.Value("int64"),
            "time": datasets.Value("timestamp[s]"),
            "text": datasets.Value("large_string"),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "vector": datasets.List(datasets.Value("float16"), length=3),
            "list": datasets.List(datasets.Value("int8")),
            "image": datasets.Array3D((2, 2, 1), "uint8"),
            "ragged": datasets.Array2D((None, 2), "float32"),
            "struct": {
                "a": datasets.Value("int64"),
                "b": datasets.List({"c": datasets.Value("string")}),
            },
            "price": datasets.Value("decimal128(10, 2)"),
            "day": datasets.Value("date64"),
            "picture": datasets.Image(decode=False),
        }
    )


def saved_rows(count: int) -> list[dict[str, Any]]:
    rows = []
    for n in range(count):
        row = {
            "n": n,
            "time": dt.datetime(2024, 1, 1) + dt.timedelta(seconds=n),
            "text": None if n % 5 == 2 else f"text {n} ü",
            "label": n % 2,
            "vector": [n, 0.5, None] if n % 4 == 1 else [n, 0.5, -1],
            "list": list(range(n % 3)),
            "image": [[[n % 256], [1]], [[2], [3]]],
            "ragged": [[n, 0.25]] * (n % 3),
            "struct": {"a": n, "b": [{"c": str(n)}]},
            "price": Decimal(n).scaleb(-2),
            "day": dt.date(2024, 1, 1) + dt.timedelta(days=n),
            "picture": {"bytes": b"\xff\xd8" + bytes([n % 256]), "path": "a.jpg"},
        }
        rows.append(row)
    return rows


def as_read(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of ``datasets`` as the store reads it: times in UTC, encoded bytes alone."""
    read = dict(row)
    read["time"] = row["time"].replace(tzinfo=dt.UTC)
    read["day"] = row["day"].date() if isinstance(row["day"], dt.datetime) else row["day"]
    read["picture"] = row["picture"]["bytes"]
    return read


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of two shards, and a shuffled one, which ``datasets`` saved."""
    folder = tmp_path_factory.mktemp("saved") / "pictures"
    dataset = datasets.Dataset.from_list(saved_rows(2300), features=saved_features())
    shuffled = dataset.shuffle(seed=5).select(range(40)).with_format("numpy", columns=["n"])
    splits = datasets.DatasetDict({"train": dataset, "test": shuffled})
    splits.save_to_disk(str(folder), num_shards={"train": 2, "test": 1})
    return folder


def test_saved_datasets_and_frames_have_equal_rows(saved: Path, empty_store: FeatureStore) -> None:
    empty_store.add_source("pictures", str(saved))
    for split in ("train", "test"):
        dataset = datasets.load_from_disk(str(saved))[split]
        expected = list(map(as_read, dataset.with_format(None)))
        frame = empty_store.read_source("pictures", path=split)
        assert frame.to_arrow().to_pylist() == expected
        # The object itself is a dataframe, also in another order of rows.
        reader = to_reader(dataset)
        assert reader.schema == frame.schema
        assert reader.read_all().to_pylist() == expected
    mixed = dataset.select([3, 1])
    assert to_reader(mixed).read_all()["n"].to_pylist() == mixed.with_format(None)["n"][:]
    assert frame.schema.field("image").type.list_size == 2
    assert str(frame.schema.field("ragged").type).startswith("list<item: fixed_size_list")


def test_dataset_objects_with_other_rows_are_refused(saved: Path) -> None:
    splits = datasets.load_from_disk(str(saved))
    with pytest.raises(UnsupportedDataframe, match="'train', 'test'") as caught:
        to_reader(splits)
    assert to_reader(eval(caught.value.hint.removeprefix("df = "), {"df": splits}))
    with pytest.raises(UnsupportedDataframe, match="IterableDataset"):
        to_reader(splits["train"].to_iterable_dataset())
    outside = datasets.Dataset.from_dict({"picture": ["/etc/passwd"]})
    with pytest.raises(UnsupportedType, match=r"'picture'.*'/etc/passwd' instead of the bytes"):
        to_reader(outside.cast_column("picture", datasets.Image())).read_all()


def change_state(**values: Any) -> Callable[[Path], Any]:
    def change(folder: Path) -> None:
        state = json.loads((folder / SAVED).read_text())
        (folder / SAVED).write_text(json.dumps(state | values))

    return change


def change_last_file(change: Callable[[bytes], bytes]) -> Callable[[Path], Any]:
    def change_file(folder: Path) -> None:
        path = max(folder.glob("data-*.arrow"))
        path.write_bytes(change(path.read_bytes()))

    return change_file


def link_last_file(folder: Path) -> None:
    path = max(folder.glob("data-*.arrow"))
    outside = folder.parent / "outside"
    path.rename(outside)
    path.symlink_to(outside)


def compress_last_file(folder: Path) -> None:
    path = max(folder.glob("data-*.arrow"))
    with pa.ipc.open_stream(path.read_bytes()) as reader:
        table = reader.read_all()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(path, table.schema, options=options) as writer:
        writer.write_table(table)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "ends at byte": change_last_file(lambda content: content[:-8]),
    "longer than the file": change_last_file(lambda content: content[:-9]),
    "bytes follow": change_last_file(lambda content: content + b"\0" * 8),
    "without the mark of its end": change_last_file(lambda content: b""),
    "no message begins": change_last_file(lambda content: b"ARROW1" + content),
    "which is not in its folder": lambda folder: max(folder.glob("data-*.arrow")).unlink(),
    "symbolic link": link_last_file,
    "compressed record batches": compress_last_file,
    "order of the rows": change_state(_indices_data_files=[{"filename": "indices.arrow"}]),
    "'../train/data-00000-of-00002.arrow'": change_state(
        _data_files=[{"filename": "../train/data-00000-of-00002.arrow"}]
    ),
    "lists no files": change_state(_data_files=None),
    "not JSON": lambda folder: (folder / SAVED).write_text("{"),
}


def read_folder(folder: Path) -> pa.Table:
    snapshot = find_source("file")(SourceConfig("pictures", str(folder))).snapshot()
    return snapshot.read(SourceQuery()).read_all()


@pytest.mark.parametrize("reason", DAMAGES)
def test_damaged_folder_is_refused(reason: str, saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved / "train", tmp_path / "train")
    assert read_folder(tmp_path / "train").num_rows == 2300
    # A cache of `datasets` is not part of the dataset.
    shutil.copy(saved / "test" / "data-00000-of-00001.arrow", tmp_path / "train" / "cache-7.arrow")
    assert read_folder(tmp_path / "train").num_rows == 2300
    DAMAGES[reason](tmp_path / "train")
    with pytest.raises(FeatureStoreError, match=reason):
        read_folder(tmp_path / "train")


def test_changed_bytes_raise_errors_of_the_store(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "test"
    shutil.copytree(saved / "test", folder)
    (path,) = folder.glob("data-*.arrow")
    content = path.read_bytes()
    refused = 0
    for _ in range(60):
        damaged = bytearray(content)
        for _ in range(random.choice([1, 3])):
            # Most bytes are values; the headers are at the beginning.
            damaged[random.randrange(min(len(content), 6000))] = random.randrange(256)
        path.write_bytes(damaged)
        try:
            read_folder(folder).to_pylist()
        except FeatureStoreError:
            refused += 1
    assert refused


def test_verify_covers_every_file(empty_store: FeatureStore) -> None:
    exported = empty_store.create_training_dataset(
        pa.table({"n": [n % 7 for n in range(100)], "x": [0.5, 1.5] * 50}),
        "small",
        data_format="huggingface",
        splits={"train": 0.8, "test": 0.2},
    )
    files = [path for path in Path(exported.path).rglob("*") if path.suffix in (".arrow", ".json")]
    paths = [
        path for path in files if "_statistics" not in path.parts and path.name != "manifest.json"
    ]
    assert len(paths) == 7
    for path in paths:
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert not exported.verify().ok, path
        path.write_bytes(content)
    assert exported.verify().ok
