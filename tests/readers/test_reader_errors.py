"""Invalid settings and damaged datasets raise when a reader is opened."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from featurestore.errors import (
    DatasetDamaged,
    InvalidArgument,
    InvalidSplit,
    MissingExtra,
    ReaderConfigError,
    UnsupportedType,
)
from featurestore.model.manifest import Manifest, ManifestShard
from featurestore.readers import open_reader, resume, shardfiles
from featurestore.storage import mapped
from featurestore_connectors.tfrecord import reader as tfrecord_reader
from tests.readers.conftest import Example, make_example
from tests.readers.example_datasets import example_table, make_dataset
from tests.readers.test_reader_contract import open_example


@pytest.fixture
def copy(tfrecord: Example, tmp_path: Path) -> Example:
    shutil.copytree(tfrecord.path, tmp_path / "copy")
    return Example(tmp_path / "copy", tfrecord.manifest, tfrecord.table)


def shard_path(example: Example, number: int) -> str:
    return os.path.join(example.path, example.manifest.splits[0].shards[number].path)


def test_missing_shard_raises_with_path(copy: Example) -> None:
    os.remove(shard_path(copy, 3))
    with pytest.raises(DatasetDamaged, match=shard_path(copy, 3)):
        open_example(copy)


@pytest.mark.parametrize("change", [-1, 1])
def test_shard_size_mismatch_raises_with_both_sizes(copy: Example, change: int) -> None:
    path = shard_path(copy, 1)
    size = os.path.getsize(path)
    with open(path, "ab") as file:
        file.truncate(size + change)
    with pytest.raises(DatasetDamaged, match=f"{size + change} bytes, but {size} in the manifest"):
        open_example(copy)


def test_shard_truncated_after_opening_raises_on_read(copy: Example) -> None:
    reader = open_example(copy)
    for number in range(5):
        with open(shard_path(copy, number), "ab") as file:
            file.truncate(0)
    with pytest.raises(DatasetDamaged, match=r"0 bytes, but \d+ in the manifest"):
        list(reader.batches())


@pytest.mark.parametrize("remaining", [0, 1, 2])
def test_shard_truncated_while_it_is_opened_raises_with_its_name(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remaining: int
) -> None:
    """The shard is truncated after its size was checked: to nothing, to a part, or by a byte."""
    shutil.copytree(example.path, tmp_path / "copy")
    reader = open_example(Example(tmp_path / "copy", example.manifest, example.table))

    def truncate(path: str) -> None:
        size = os.path.getsize(path)
        os.truncate(path, [0, size // 3, max(size - 1, 0)][remaining])

    @contextmanager
    def truncated_path(directory: str, shard: ManifestShard, _: object = None) -> Iterator[str]:
        path = os.path.join(directory, shard.path)
        truncate(path)
        yield path

    def map_truncated(path: str) -> npt.NDArray[np.uint8]:
        truncate(path)
        return mapped.map_file(path)

    if example.manifest.layout.get("kind") == "fixed":
        monkeypatch.setattr(tfrecord_reader, "map_file", map_truncated)
    else:
        monkeypatch.setattr(shardfiles, "local_path", truncated_path)
    with pytest.raises(DatasetDamaged, match=re.escape(str(tmp_path / "copy"))):
        list(reader.batches())


def with_rows(example: Example, rows: int) -> Manifest:
    """Return the manifest with another row count for the first shard."""
    split = example.manifest.splits[0]
    shards, first = [], 0
    for number, shard in enumerate(split.shards):
        count = shard.rows if number else rows
        shards.append(replace(shard, first_row=first, rows=count))
        first += count
    split = replace(split, shards=tuple(shards), rows=first)
    return replace(example.manifest, splits=(split,))


@pytest.mark.parametrize("rows", [42, 2**39, 2**60])
def test_manifest_with_too_many_rows_raises_before_ordering(example: Example, rows: int) -> None:
    with pytest.raises(DatasetDamaged, match=f"has 41 rows, but {rows} in the manifest"):
        open_reader(example.path, with_rows(example, rows), split="train", global_batch_size=12)


def test_window_wider_than_split_needs_no_extra_memory(tfrecord: Example) -> None:
    wide = open_example(tfrecord, window_rows=8 * 10**12)
    (batch,) = list(wide.batches())[-1:]
    assert len(batch["label"]) == wide.global_batch_size


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epoch", -1),
        ("step", "1"),
        ("epoch", None),
        ("lanes", "x"),
        ("window_rows", 1.5),
        ("seed", []),
    ],
)
def test_resume_foreign_state_raises(tfrecord: Example, name: str, value: object) -> None:
    state = open_example(tfrecord).state(0, 1)
    with pytest.raises(ReaderConfigError, match=name):
        resume(tfrecord.path, tfrecord.manifest, {**state, name: value})


@pytest.mark.parametrize("variant", ["tfrecord", "variable", "parquet"])
def test_unread_columns_are_not_decoded(variant: str, tmp_path: Path) -> None:
    """Other columns are readable although the bytes of one column are damaged."""
    example = make_example(tmp_path / "made", variant)
    spoiled = 0
    for number in range(5):
        path = Path(shard_path(example, number))
        data = path.read_bytes()
        # The texts are t0, t01, ... in every format; in UTF-8 no byte is 0xff.
        changed = re.sub(rb"t0+\d*", lambda match: b"\xff" * len(match[0]), data)
        spoiled += changed != data
        path.write_bytes(changed)
    assert spoiled == 5
    columns = [name for name in example.table.column_names if name != "name"]
    reader = open_example(example, columns=columns, shuffle=False)
    for step, batch in enumerate(reader.batches()):
        for name in columns:
            assert batch[name].tolist() == example.values[name][step * 12 : step * 12 + 12]


def test_gzip_shards_raise_with_tfrecorddataset_hint(tmp_path: Path) -> None:
    manifest = make_dataset(tmp_path, example_table(20), compression="GZIP")
    with pytest.raises(ReaderConfigError, match="TFRecordDataset"):
        open_reader(str(tmp_path), manifest, split="train", global_batch_size=4)


def test_columns_without_fixed_shape_raise_together(tmp_path: Path) -> None:
    table = example_table(20)
    ragged = pa.array([list(range(n % 3)) for n in range(20)], pa.list_(pa.int64()))
    table = table.append_column("history", ragged).append_column("past", ragged)
    manifest = make_dataset(tmp_path, table)
    with pytest.raises(UnsupportedType, match=r"(?s)'history', 'past'.*columns=\['row_id'"):
        open_reader(str(tmp_path), manifest, split="train", global_batch_size=4)
    reader = open_reader(
        str(tmp_path),
        manifest,
        split="train",
        global_batch_size=4,
        columns=["row_id"],
        shuffle=False,
    )
    assert next(reader.batches())["row_id"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"split": "validation"}, InvalidSplit, "no split 'validation'. Available: 'train'"),
        ({"columns": ["ratio", "Ratio"]}, InvalidArgument, r"has no column 'Ratio'"),
        ({"columns": ["ratio", "ratio"]}, InvalidArgument, "once"),
        ({"columns": []}, InvalidArgument, "at least one"),
        ({"columns": "ratio"}, InvalidArgument, r"columns=\['ratio'\]"),
        ({"global_batch_size": 0}, ReaderConfigError, "global_batch_size=0"),
        ({"global_batch_size": 2.0}, ReaderConfigError, "not an integer"),
        (
            {"global_batch_size": 204},
            ReaderConfigError,
            "203 rows do not fill one global batch of 204",
        ),
        ({"seed": "a"}, ReaderConfigError, "seed='a'"),
        ({"remainder": "fill"}, ReaderConfigError, "remainder='fill'"),
        ({"lanes": 5}, ReaderConfigError, "lanes=5 does not divide"),
        ({"window_rows": 12}, ReaderConfigError, "window_rows=16"),
    ],
)
def test_reader_settings_are_validated_on_open(
    tfrecord: Example, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        open_example(tfrecord, **changes)


def test_torch_dataset_without_pytorch_raises_missing_extra(
    tfrecord: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [
        module for module in sys.modules if module.startswith("featurestore.readers.torch")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    reader = open_example(tfrecord)
    for make in (reader.torch_dataset, reader.torch_loader):
        with pytest.raises(MissingExtra, match=r"pip install 'featurestore\[torch\]'"):
            make()
