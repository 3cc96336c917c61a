"""``tf_dataset``.

What the numpy iterator gives, with static shapes, decoded in the graph where records allow.
"""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featurestore.errors import ReaderConfigError
from featurestore.readers import Reader, open_reader
from featurestore.readers.blocks import RecordBlocks, WindowBlocks
from featurestore.readers.columns import SAMPLE_WEIGHT
from tests.readers.conftest import Example
from tests.readers.example_datasets import long_dataset, make_dataset, truncate_shards
from tests.readers.test_reader_contract import open_example

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
if find_spec("tensorflow") is None:  # test collection does not import it
    pytest.skip("TensorFlow is not installed", allow_module_level=True)
pytestmark = pytest.mark.tensorflow


def flat(element: Any) -> list[Any]:
    import tensorflow as tf

    return [np.asarray(tensor) for tensor in tf.nest.flatten(element)]


def as_elements(reader: Reader, batches: Any) -> list[Any]:
    """Return batches of the numpy iterator as elements of ``tf_dataset``."""
    elements = []
    for batch in batches:
        features = dict(batch)
        weight = features.pop(SAMPLE_WEIGHT, None)
        label = features.pop("label")
        elements.append((features, label) if weight is None else (features, label, weight))
    return elements


def assert_same(dataset: Any, expected: list[Any]) -> None:
    import tensorflow as tf

    result = list(dataset)
    assert len(result) == len(expected)
    for element, expected_value in zip(result, expected, strict=True):
        tf.nest.assert_same_structure(element, expected_value)
        for tensor, array in zip(
            tf.nest.flatten(element), tf.nest.flatten(expected_value), strict=True
        ):
            values = tensor.numpy()
            assert values.dtype == array.dtype
            assert values.shape == array.shape
            assert values.tolist() == array.tolist()


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("remainder", ["drop", "keep", "pad"])
def test_tf_dataset_equals_numpy_iterator(example: Example, shuffle: bool, remainder: str) -> None:
    reader = open_example(example, shuffle=shuffle, remainder=remainder, seed=2)
    worker, workers = (0, 1) if remainder == "keep" else (1, 3)
    dataset = reader.tf_dataset(2, worker=worker, workers=workers, start_epoch=1, start_step=4)
    batches = [
        *reader.batches(1, worker=worker, workers=workers, start_step=4),
        *reader.batches(2, worker=worker, workers=workers),
    ]
    assert_same(dataset, as_elements(reader, batches))


@pytest.mark.parametrize("remainder", ["drop", "pad"])
def test_tf_dataset_nulls_equal_numpy_iterator(example_with_nulls: Example, remainder: str) -> None:
    fills = {
        "count": -1,
        "flag": True,
        "ratio": 0.5,
        "name": "none",
        "vector": 9.0,
        "moment": 7,
        "day": 3,
    }
    for nulls in ("mask", fills):
        reader = open_example(example_with_nulls, nulls=nulls, remainder=remainder)
        assert_same(reader.tf_dataset(), as_elements(reader, reader.batches()))


@pytest.mark.parametrize("shuffle", [True, False])
def test_tf_dataset_bytes_keep_trailing_zeros(tmp_path: Path, shuffle: bool) -> None:
    values = [f"v{number:03d}".encode() + b"\0" * (number >= 50) for number in range(90)]
    same = [bytes([number, 0, number % 3]) for number in range(90)]
    table = pa.table({"longer": values, "same": same, "label": range(90)})
    manifest = make_dataset(tmp_path, table, labels=["label"])
    assert manifest.layout["kind"] == "fixed"
    reader = open_reader(
        str(tmp_path),
        manifest,
        split="train",
        global_batch_size=8,
        shuffle=shuffle,
        remainder="pad",
        lanes=4,
    )
    expected = as_elements(reader, reader.batches())
    rows = [
        row
        for batch in reader.batches()
        for row in zip(batch["longer"], batch["same"], strict=True)
    ]
    assert sorted(rows) == sorted([*zip(values, same, strict=True), *[(b"", b"")] * 6])
    assert_same(reader.tf_dataset(), expected)


def test_tf_dataset_static_shapes_without_auto_sharding(example: Example) -> None:
    import tensorflow as tf

    reader = open_example(example, remainder="pad")
    dataset = reader.tf_dataset(3, worker=0, workers=2, start_step=1)
    features, label, weight = dataset.element_spec
    assert {name: (spec.shape.as_list(), spec.dtype.name) for name, spec in features.items()} == {
        "row_id": ([6], "int64"),
        "count": ([6], "int32"),
        "flag": ([6], "bool"),
        "ratio": ([6], "float32"),
        "name": ([6], "string"),
        "vector": ([6, 4], "float32"),
        "moment": ([6], "int64"),
        "day": ([6], "int64"),
    }
    assert label.shape.as_list() == weight.shape.as_list() == [6]
    assert int(dataset.cardinality()) == 3 * reader.steps_per_epoch - 1
    policy = dataset.options().experimental_distribute.auto_shard_policy
    assert policy == tf.data.experimental.AutoShardPolicy.OFF


def test_tf_dataset_without_labels_yields_features(tfrecord: Example) -> None:
    import tensorflow as tf

    only = open_example(tfrecord, columns=["ratio", "count"])
    assert set(only.tf_dataset().element_spec) == {"ratio", "count"}
    padded = open_example(tfrecord, columns=["ratio"], remainder="pad")
    features, weight = padded.tf_dataset().element_spec
    assert set(features) == {"ratio"}
    assert weight.dtype == tf.float32


def test_tf_dataset_abandoned_iterator_stops_threads(example: Example) -> None:
    iterator = iter(open_example(example, global_batch_size=1, lanes=1).tf_dataset(5))
    next(iterator)
    del iterator
    threads = [
        thread for thread in threading.enumerate() if thread.name.startswith("featurestore-reader")
    ]
    for thread in threads:
        thread.join(60)
    assert not [thread for thread in threads if thread.is_alive()]


def test_tf_dataset_invalid_workers_raise_before_first_step(tfrecord: Example) -> None:
    reader = open_example(tfrecord)
    with pytest.raises(ValueError, match="5 workers cannot share 12 lanes"):
        reader.tf_dataset(worker=0, workers=5)
    with pytest.raises(ValueError, match="start_step=17"):
        reader.tf_dataset(start_step=17)
    with pytest.raises(ReaderConfigError, match="supports only one worker"):
        open_example(tfrecord, remainder="keep").tf_dataset(worker=1, workers=3)


EXIT_PROGRAM = """
import json, sys
from pathlib import Path
from featurestore.model.manifest import Manifest
from featurestore.readers import open_reader
manifest = Manifest.from_json(json.loads(Path(sys.argv[1], "manifest.json").read_text()))
iterator = iter(open_reader(sys.argv[1], manifest, split="train", global_batch_size=1024).tf_dataset())
next(iterator)
raise SystemExit(3)
"""


@pytest.mark.parametrize("data_format", ["tfrecord", "parquet"])
def test_process_exits_with_iterator_in_mid_epoch(tmp_path: Path, data_format: str) -> None:
    numbers = np.arange(120_000)
    table = pa.table(
        {
            **{f"x{index}": numbers * index for index in range(20)},
            "text": np.char.mod("%08d", numbers),
        }
    )
    make_dataset(tmp_path, table, data_format=data_format, block_rows=1024)
    command = [sys.executable, "-c", EXIT_PROGRAM, str(tmp_path)]
    assert (
        subprocess.run(command, timeout=120, check=False, stderr=subprocess.DEVNULL).returncode == 3
    )


def open_blocks() -> list[object]:
    gc.collect()
    return [
        instance
        for instance in gc.get_objects()
        if isinstance(instance, (RecordBlocks, WindowBlocks))
    ]


def test_tf_dataset_releases_its_blocks(example: Example) -> None:
    before = len(open_blocks())
    for stop in (3, None):  # abandoned in mid-epoch, and read to the end
        dataset = open_example(example, seed=4).tf_dataset().map(lambda *element: element)
        for _ in itertools.islice(dataset, stop):
            pass
        del dataset, _
        assert len(open_blocks()) == before


def test_tf_dataset_without_python_object_is_readable(tfrecord: Example) -> None:
    import tensorflow as tf

    expected = list(open_example(tfrecord, seed=4).batches())
    dataset = open_example(tfrecord, seed=4).tf_dataset()
    variant, spec = tf.data.experimental.to_variant(dataset), dataset.element_spec
    del dataset
    gc.collect()
    restored = tf.data.experimental.from_variant(variant, spec)
    rows = [features["row_id"].numpy().tolist() for features, _ in restored]
    assert rows == [batch["row_id"].tolist() for batch in expected]


@pytest.mark.hypothesis
@given(
    values=st.lists(st.binary(max_size=200), min_size=1, max_size=40),
    width=st.sampled_from([None, 1, 8, 127, 128, 200]),
)
def test_serialize_strings_parsed_by_tensorflow_are_equal(
    values: list[bytes], width: int | None
) -> None:
    import tensorflow as tf

    from featurestore.readers.tensorflow import serialize_strings

    strings = np.array([*values, *values], dtype=object)
    if width is not None:  # numpy strips zero bytes at the end of fixed-width bytes
        strings = np.array([value[:width] for value in strings], dtype=f"S{width}")
    batches = strings.reshape(2, -1)
    tensor = tf.io.parse_tensor(serialize_strings(batches).item(), tf.string)
    assert tensor.numpy().tolist() == batches.tolist()


@pytest.mark.parametrize("shuffle", [False, True])
def test_shard_truncated_during_tf_dataset_raises_with_its_name(
    tmp_path: Path, shuffle: bool
) -> None:
    import tensorflow as tf

    dataset = long_dataset(tmp_path)
    for verify in (False, True):
        reader = dataset.reader("train", global_batch_size=64, shuffle=shuffle, verify=verify)
        elements = iter(reader.tf_dataset())
        next(elements)
        truncate_shards(dataset)
        with pytest.raises(tf.errors.UnknownError, match=r"DatasetDamaged: .*train/tfrecord-0"):
            list(elements)
        dataset = long_dataset(tmp_path)
