"""Damaged manifests are detected and cannot name files outside the dataset."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from featurestore import FeatureStore
from featurestore.errors import DatasetDamaged, FeatureStoreError
from featurestore.model.json_object import MalformedJson, seal
from featurestore.model.manifest import Manifest
from featurestore.training.dataset import TrainingDataset

pytestmark = pytest.mark.slow

Example = Callable[..., pa.Table]


@pytest.fixture
def dataset(empty_store: FeatureStore, example: Example) -> TrainingDataset:
    empty_store.create_featuregroup(example(60), "facts", primary_key=["user", "at"])
    frame = empty_store.get_featuregroup("facts")
    return empty_store.create_training_dataset(
        frame, "d", label="label", splits={"train": 0.8, "test": 0.2}, tags={"team": "risk"}
    )


def test_manifest_any_flipped_byte_raises(dataset: TrainingDataset) -> None:
    path = Path(dataset.path, "manifest.json")
    content = path.read_bytes()
    assert Manifest.from_bytes(content, path=str(path)) == dataset.manifest
    rng = random.Random(0)
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 1 << rng.randrange(8)
        with pytest.raises(DatasetDamaged, match=r"manifest\.json"):
            Manifest.from_bytes(bytes(changed), path=str(path))
    for changed_text in (
        b"",
        b"[]",
        b"{}",
        content[:-1],
        content + b"\n",
        content[: len(content) // 2],
    ):
        with pytest.raises(DatasetDamaged):
            Manifest.from_bytes(changed_text, path=str(path))


def sealed(data: dict[str, Any]) -> bytes:
    """Return a manifest with recomputed checksum and content hash, like a forger."""
    content = {
        name: value for name, value in data.items() if name not in ("checksum", "content_hash")
    }
    try:
        content["content_hash"] = Manifest.from_json(content).content_hash
    except MalformedJson:
        content["content_hash"] = "0" * 64
    return seal(content)


OUTSIDE = ("/etc/passwd", "../../other/v1/train/x", "train/../../x", "", "train//x", "./x", "a\0b")


def test_manifest_path_outside_dataset_raises(
    dataset: TrainingDataset, subtests: pytest.Subtests
) -> None:
    path = Path(dataset.path, "manifest.json")
    content = path.read_text()
    targets = ("shard", "sidecar", "file", "statistics", "sample", "split")
    for target, outside in product(targets, OUTSIDE):
        with subtests.test(target, outside=outside):
            data = json.loads(content)
            split = data["splits"][0]
            shard, entry = split["shards"][0], {"path": outside, "bytes": 1, "sha256": "0" * 64}
            if target == "shard":
                shard["path"] = outside
            elif target == "sidecar":
                shard["sidecars"] = [entry]
            elif target == "file":
                data["files"].append(entry)
            elif target == "split":
                split["name"] = outside
            elif target == "sample":
                data["statistics"]["train"]["sample"] = entry
            else:
                data["statistics"]["train"]["path"] = outside
            path.write_bytes(sealed(data))
            with pytest.raises(DatasetDamaged, match=r"not (a path below|the name of)"):
                TrainingDataset.open(dataset.path)


def test_dataset_symbolic_links_raise(dataset: TrainingDataset, tmp_path: Path) -> None:
    shard = Path(dataset.path, dataset.manifest.split("train").shards[0].path)
    statistics = Path(dataset.path, dataset.manifest.statistics["train"]["path"])
    for file in (shard, statistics):
        file.rename(tmp_path / file.name)
        file.symlink_to(tmp_path / file.name)
    with pytest.raises(FeatureStoreError, match="symbolic link"):
        dataset.read("train").to_arrow()
    with pytest.raises(FeatureStoreError, match="symbolic link"):
        next(dataset.reader("train", global_batch_size=4, nulls="mask").batches())
    with pytest.raises(FeatureStoreError, match="symbolic link"):
        dataset.statistics("train")
    assert "symbolic link" in str(dataset.verify())


def test_manifest_values_out_of_bounds_raise(
    dataset: TrainingDataset, subtests: pytest.Subtests
) -> None:
    content = Path(dataset.path, "manifest.json").read_text()
    for field, value in (
        ("block_rows", 0),
        ("version", 0),
        ("seed", -1),
        ("created", "yesterday"),
        ("splits.0.rows", 2**70),
        ("splits.0.shards.0.rows", 2**70),
        ("splits.0.shards.0.first_row", 1),
        ("splits.0.shards.0.bytes", -1),
        ("splits.0.shards.0.sha256", "x"),
        ("columns.0.type", "quaternion"),
        ("columns.0.role", "king"),
        ("name", "../x"),
        ("sources.0.delta_version", "1"),
    ):
        with subtests.test(field):
            data = json.loads(content)
            replace_in(data, field.split("."), value)
            with pytest.raises(DatasetDamaged, match=r"manifest\.json"):
                Manifest.from_bytes(sealed(data), path="manifest.json")


def replace_in(data: Any, keys: list[str], value: object) -> None:
    for key in keys[:-1]:
        data = data[int(key) if isinstance(data, list) else key]
    data[int(keys[-1]) if isinstance(data, list) else keys[-1]] = value


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_manifest_random_values_raise_only_store_errors(
    dataset: TrainingDataset, data: st.DataObject
) -> None:
    content = json.loads(Path(dataset.path, "manifest.json").read_text())
    keys: list[str] = []
    inner: Any = content
    while isinstance(inner, dict | list) and inner and (not keys or data.draw(st.booleans())):
        key = data.draw(
            st.sampled_from(list(inner) if isinstance(inner, dict) else range(len(inner)))
        )  # type: ignore[arg-type]
        keys.append(str(key))
        inner = inner[key]
    replace_in(content, keys, data.draw(VALUES))
    try:
        Manifest.from_bytes(sealed(content), path="manifest.json")
    except FeatureStoreError:
        return


def test_damaged_manifest_does_not_affect_other_datasets(
    empty_store: FeatureStore, dataset: TrainingDataset, example: Example
) -> None:
    empty_store.create_training_dataset(example(20), "other", key=["at"])
    empty_store.create_featuregroup(example(20), "apart", primary_key=["user", "at"])
    path = Path(dataset.path, "manifest.json")
    path.write_bytes(path.read_bytes().replace(b'"seed": 0', b'"seed": 1'))
    with pytest.warns(UserWarning, match=r"training dataset d version 1 .*manifest\.json"):
        listed = empty_store.get_training_datasets()
    assert [dataset.name for dataset in listed] == ["other"]
    empty_store.vacuum_featuregroup("apart", retain="0s")
    empty_store.vacuum_featuregroup("facts", retain="0s")  # the registry knows what is pinned
    with pytest.raises(DatasetDamaged):
        empty_store.get_training_dataset("d")
    empty_store.delete_training_dataset("d", version=1)
    assert [dataset.name for dataset in empty_store.get_training_datasets()] == ["other"]
