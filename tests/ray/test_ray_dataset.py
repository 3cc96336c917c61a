"""``ray_dataset``: a Ray dataset with the rows of an epoch in reading order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from featurestore.errors import ReaderConfigError
from featurestore.readers import Reader, open_reader
from tests.readers.conftest import Example

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("ray_cluster")]

COLUMNS = ["row_id", "count", "small", "flag", "ratio", "vector", "moment", "name", "label"]


def open_columns(example: Example, **settings: Any) -> Reader:
    options = {"split": "train", "global_batch_size": 12, "columns": COLUMNS, **settings}
    return open_reader(example.path, example.manifest, **options)


def batches_of(dataset: Any, rows: int = 12) -> list[dict[str, Any]]:
    return list(dataset.iter_batches(batch_size=rows, batch_format="numpy"))


@pytest.mark.parametrize("remainder", ["drop", "keep", "pad"])
def test_ray_dataset_yields_batches_of_reader(example: Example, remainder: str) -> None:
    reader = open_columns(example, remainder=remainder, seed=5)
    dataset = reader.ray_dataset(epoch=2, start_step=3, override_num_blocks=4)
    expected = list(reader.batches(2, start_step=3))
    actual = batches_of(dataset)
    assert len(actual) == len(expected)
    for batch, expected_batch in zip(actual, expected, strict=True):
        assert list(batch) == list(expected_batch)
        for name, values in expected_batch.items():
            values = [text.decode() for text in values] if name == "name" else values
            np.testing.assert_array_equal(batch[name], values)
            if name != "name":
                assert batch[name].dtype == expected_batch[name].dtype
    assert dataset.count() == sum(len(batch["row_id"]) for batch in expected)


def test_ray_dataset_schema_needs_no_task(tfrecord: Example) -> None:
    reader = open_columns(tfrecord)
    schema = reader.ray_dataset().schema().base_schema
    block = next(iter(reader.ray_dataset().iter_batches(batch_format="pyarrow")))
    assert block.schema.equals(schema)


def test_ray_dataset_reads_on_all_nodes(tfrecord: Example) -> None:
    def add_node(batch: dict[str, Any]) -> dict[str, Any]:
        import time

        import ray

        time.sleep(0.2)
        node = ray.get_runtime_context().get_node_id()
        return {"row_id": batch["row_id"], "node": np.array([node] * len(batch["row_id"]))}

    reader = open_columns(tfrecord, seed=1)
    dataset = reader.ray_dataset(override_num_blocks=8)
    rows = batches_of(dataset.map_batches(add_node, batch_size=None))
    assert len({node for batch in rows for node in batch["node"]}) == 2
    expected = [batch["row_id"].tolist() for batch in reader.batches()]
    assert [batch["row_id"].tolist() for batch in rows] == expected


def test_ray_dataset_of_unknown_step_raises(tfrecord: Example) -> None:
    reader = open_columns(tfrecord)
    with pytest.raises(ReaderConfigError, match="start_step=99"):
        reader.ray_dataset(start_step=99)
    with pytest.raises(ReaderConfigError, match="epoch=-1"):
        reader.ray_dataset(-1)
    assert batches_of(reader.ray_dataset(start_step=reader.steps_per_epoch)) == []
