"""verify names each kind of damage with its file; diff lists changes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from featurestore import FeatureStore
from featurestore.errors import DatasetDamaged
from featurestore.storage.manifests import write_manifest
from featurestore.training.dataset import TrainingDataset

Example = Callable[..., pa.Table]
MEBIBYTE = 2**20


@pytest.fixture
def dataset(empty_store: FeatureStore, example: Example) -> TrainingDataset:
    return empty_store.create_training_dataset(
        example(),
        "proof",
        splits={"train": 0.8, "test": 0.2},
        key=["user", "at"],
        shards=3,
        label="label",
    )


def shard(dataset: TrainingDataset, split: str = "train", number: int = 1) -> Path:
    return Path(dataset.path, dataset.manifest.split(split).shards[number].path)


def test_verify_flipped_bit_reports_file_and_offset(dataset: TrainingDataset) -> None:
    path = shard(dataset)
    data = bytearray(path.read_bytes())
    position = len(data) // 2
    data[position] ^= 1
    path.write_bytes(data)
    report = dataset.verify()
    assert not report.ok
    assert all(problem.file == os.path.relpath(path, dataset.path) for problem in report.problems)
    offsets = [problem.offset for problem in report.problems if problem.offset is not None]
    assert any(offset <= position < offset + 4096 for offset in offsets), report


@pytest.mark.petastorm
@pytest.mark.parametrize("data_format", ["parquet", "petastorm", "csv", "tfrecord"])
def test_verify_long_file_reports_first_damaged_mebibyte(
    empty_store: FeatureStore, example: Example, data_format: str
) -> None:
    dataset = empty_store.create_training_dataset(
        example(120_000), "long", key="at", data_format=data_format, shards=1, statistics=False
    )
    (entry,) = dataset.manifest.split("train").shards
    path = Path(dataset.path, entry.path)
    assert len(dataset.manifest.prefixes[entry.path]) == entry.bytes // MEBIBYTE >= 1
    for position in (entry.bytes - 5000, MEBIBYTE, MEBIBYTE - 1, 100):
        content = path.read_bytes()
        path.write_bytes(
            content[:position] + bytes([content[position] ^ 16]) + content[position + 1 :]
        )
        (problem,) = [
            problem for problem in dataset.verify().problems if "SHA-256" in problem.message
        ]
        assert (problem.file, problem.offset) == (entry.path, position // MEBIBYTE * MEBIBYTE)
        path.write_bytes(content)
    assert dataset.verify().ok


def test_verify_damaged_metadata_files_are_reported(
    empty_store: FeatureStore, example: Example
) -> None:
    dataset = empty_store.create_training_dataset(example(100), "beside", key="at")
    for name in ("schema.pbtxt", "_statistics/train.json"):
        path = Path(dataset.path, name)
        content = path.read_bytes()
        path.write_bytes(content.replace(b"0", b"1", 1))
        assert [(problem.file, problem.offset) for problem in dataset.verify().problems] == [
            (name, 0)
        ]
        path.unlink()
        assert [(problem.file, problem.message) for problem in dataset.verify().problems] == [
            (name, "is missing")
        ]
        path.write_bytes(content)
    manifest = Path(dataset.path, "manifest.json")
    manifest.write_text(manifest.read_text().replace('"seed": 0', '"seed": 1'))
    assert dataset.verify().problems[0].file == "manifest.json"
    with pytest.raises(DatasetDamaged, match="checksum"):
        TrainingDataset.open(dataset.path)


def test_verify_truncated_shard_reports_end_offset(dataset: TrainingDataset) -> None:
    path = shard(dataset)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-7])
    (problem,) = [
        problem
        for problem in dataset.verify().problems
        if re.fullmatch(r"has [\d,]+ bytes, but [\d,]+ in the manifest", problem.message)
    ]
    assert (problem.file, problem.offset) == (os.path.relpath(path, dataset.path), size - 7)


def test_verify_missing_shard_is_reported(dataset: TrainingDataset) -> None:
    path = shard(dataset)
    path.unlink()
    assert [
        problem.message for problem in dataset.verify().problems if problem.file.endswith(path.name)
    ] == ["is missing"]


def test_verify_swapped_shards_are_reported(dataset: TrainingDataset) -> None:
    first, second = shard(dataset, number=0), shard(dataset, number=1)
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)
    names = [os.path.relpath(path, dataset.path) for path in (first, second)]
    actual = {
        problem.file: problem
        for problem in dataset.verify().problems
        if "contains the bytes of" in problem.message
    }
    assert set(actual) == set(names)
    assert [actual[name].offset for name in names] == [0, 0]
    assert names[1] in actual[names[0]].message


def test_verify_rows_in_wrong_split_or_order_are_reported(
    empty_store: FeatureStore, example: Example
) -> None:
    dataset = empty_store.create_training_dataset(
        example(300),
        "d",
        splits={"train": 0.5, "test": 0.5},
        key=["at"],
        shards=2,
        data_format="parquet",
    )
    train, test = dataset.manifest.splits
    swapped = (
        replace(train, shards=test.shards, rows=test.rows),
        replace(test, shards=train.shards, rows=train.rows),
    )
    actual = rewritten(dataset, splits=swapped).verify().problems
    assert {
        problem.file
        for problem in actual
        if "the split rule assigns to another split" in problem.message
    } == {
        "train",
        "test",
    }
    first, second = train.shards
    crossed = (replace(second, first_row=0), replace(first, first_row=second.rows))
    actual = rewritten(dataset, splits=(replace(train, shards=crossed), test)).verify().problems
    assert any("not in hash order" in problem.message for problem in actual)
    twice = (train, replace(test, shards=train.shards, rows=train.rows))
    stratified = {**dataset.manifest.split_rule, "stratify": ["label"]}
    for file in Path(dataset.path, "test").iterdir():
        file.unlink()
    actual = rewritten(dataset, splits=twice, split_rule=stratified).verify().problems
    assert any(f"shares {train.rows} rows" in problem.message for problem in actual)


def rewritten(dataset: TrainingDataset, **changes: Any) -> TrainingDataset:
    """Return the dataset with another valid manifest."""
    manifest = replace(dataset.manifest, **changes)
    write_manifest(dataset.path, manifest)
    return TrainingDataset.open(dataset.path)


def test_verify_unverifiable_rules_are_noted(empty_store: FeatureStore) -> None:
    table = pa.table(
        {"x": pa.array([n / 7 for n in range(50)]), "label": pa.array([n % 2 for n in range(50)])}
    )
    splits = {"train": 0.5, "test": 0.5}
    lossy = empty_store.create_training_dataset(table, "lossy", splits=splits, stratify="label")
    report = lossy.verify()
    assert report.ok
    assert [note.split(":")[0] for note in report.notes] == [
        "row order not checked",
        "splits not compared row by row",
    ]
    assert all("(x)" in note for note in report.notes)
    packed = empty_store.create_training_dataset(table, "packed", key="label", compression="GZIP")
    assert "GZIP" in packed.verify().notes[0]
    exact = empty_store.create_training_dataset(
        table, "exact", splits=splits, stratify="label", data_format="parquet"
    )
    assert exact.verify().notes == ()


def test_verify_unexpected_file_is_reported(dataset: TrainingDataset) -> None:
    Path(dataset.path, "train", "tfrecord-99999-of-99999").write_bytes(b"")
    assert [problem.message for problem in dataset.verify().problems] == ["is not in the manifest"]


def test_diff_counts_added_removed_and_changed_rows(
    empty_store: FeatureStore, example: Example
) -> None:
    table = example(100)
    before = empty_store.create_training_dataset(table, "d", key=["at"])
    changed = table.set_column(
        table.schema.get_field_index("label"),
        "label",
        pa.array([5, *table["label"].to_pylist()[1:]], pa.int64()),
    )
    after = empty_store.create_training_dataset(changed.slice(0, 90), "d", key=["at"])
    report = before.diff(after)
    findings = report.splits["train"]
    assert (findings.added, findings.removed, findings.changed, findings.unchanged) == (
        0,
        10,
        1,
        89,
    )
    assert not report.same
    assert before.diff(before).same


def test_diff_contains_columns_sources_rules_labels_and_drift(
    empty_store: FeatureStore, example: Example
) -> None:
    table = example(600)
    empty_store.create_featuregroup(table, "facts", primary_key=["user", "at"])
    rules = {"label": "label", "splits": {"train": 0.8, "test": 0.2}}
    first = empty_store.create_training_dataset(empty_store.get_featuregroup("facts"), "d", **rules)  # type: ignore[arg-type]
    moved = table.set_column(
        2, "x", pa.array([value + 5 for value in table["x"].to_pylist()], pa.float32())
    )
    moved = moved.set_column(5, "label", pa.array([1] * 600, pa.int64()))
    empty_store.insert_into_featuregroup(moved, "facts", mode="overwrite")
    frame = empty_store.get_featuregroup("facts").select("user", "at", "x", "n", "label")
    second = empty_store.create_training_dataset(frame, "d", seed=5, **rules)  # type: ignore[arg-type]
    report = first.diff(second)
    assert report.columns == ("column 'word' removed",)
    assert report.sources == ("source facts@v1: Delta version 1 -> 2",)
    assert report.rules == ("seed: 0 -> 5",)
    assert [line.split(":")[0] for line in report.labels] == [
        "label 'label' in train",
        "label 'label' in test",
    ]
    assert "-> 100.00%" in report.labels[0]
    printed = str(report)
    assert "drift of train.x" in printed
    assert "drift of test.x" in printed
    assert "drift of train.user" not in printed
    assert report.to_json()["drift"]["train"]["features"][0]["reasons"]
    totals = [
        sum(getattr(split, name) for split in report.splits.values())
        for name in ("added", "removed")
    ]
    assert totals[0] == totals[1] > 0, "another seed moves rows between the splits"
