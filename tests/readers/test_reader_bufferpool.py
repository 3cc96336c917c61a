"""Reader memory does not grow with the dataset, as docs/training.md states."""

from __future__ import annotations

import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from featurestore.readers import open_reader, plan
from featurestore.readers.prefetch import BufferPool
from featurestore_connectors import parquet
from tests.readers.conftest import Example
from tests.readers.example_datasets import make_dataset

pytestmark = pytest.mark.slow

COLUMNS = 10


def test_buffer_is_reused_after_last_view_is_released() -> None:
    memory = BufferPool()

    def borrow(purpose: str) -> npt.NDArray[np.float32]:
        return memory.borrow([((4, 8), np.dtype(np.float32))], purpose=purpose)[0]

    first = borrow("x")
    address = first.ctypes.data
    view = first.reshape(8, 4)[2:, 1].view(np.int32)[::2]
    del first
    second = borrow("x")
    assert second.ctypes.data != address
    assert not np.shares_memory(view, second)
    del view
    third = borrow("x")
    assert third.ctypes.data == address
    y_buffer = borrow("y")
    assert y_buffer.ctypes.data not in (address, second.ctypes.data)


def test_buffers_of_many_arrays_are_reused_and_not_pickled() -> None:
    memory = BufferPool(None)
    expected = [((100,), np.dtype(np.uint8))]
    for _ in range(3):
        lent = [memory.borrow(expected, purpose="x")[0] for _ in range(50)]
        addresses = {array.ctypes.data for array in lent}
        del lent
        again = [memory.borrow(expected, purpose="x")[0] for _ in range(50)]
        assert {array.ctypes.data for array in again} == addresses
        del again
    assert len(pickle.dumps(memory)) < 200


def test_buffers_borrowed_together_are_returned_together() -> None:
    memory, expected = (
        BufferPool(),
        [((3, 5), np.dtype(np.float64)), ((7,), np.dtype(np.bool_)), ((0, 4), np.dtype(np.int8))],
    )
    large, small, none = memory.borrow(expected, purpose="x")
    assert [(array.shape, array.dtype) for array in (large, small, none)] == expected
    assert not np.shares_memory(large, small)
    assert large.ctypes.data % 64 == small.ctypes.data % 64 == 0
    address = large.ctypes.data
    del large, none
    assert memory.borrow(expected, purpose="x")[0].ctypes.data != address
    del small
    assert memory.borrow(expected, purpose="x")[0].ctypes.data == address


@pytest.mark.tensorflow
def test_kept_batches_are_not_overwritten(tfrecord: Example) -> None:
    pytest.importorskip("tensorflow")
    reader = open_reader(
        tfrecord.path, tfrecord.manifest, split="train", global_batch_size=12, seed=2
    )
    batches = list(reader.tf_dataset(6).as_numpy_iterator())
    expected = [batch for epoch in range(6) for batch in reader.batches(epoch)]
    assert len(batches) == len(expected) == 6 * reader.steps_per_epoch
    for (features, label), batch in zip(batches, expected, strict=True):
        assert label.tolist() == batch["label"].tolist()
        for name, values in features.items():
            assert values.tolist() == batch[name].tolist()


def peak_bytes(directory: Path, rows: int, data_format: str) -> int:
    """Return the peak memory of numpy and Arrow while an epoch is read."""
    random = np.random.default_rng(0)
    table = pa.table({f"x{number}": random.random(rows, np.float32) for number in range(COLUMNS)})
    manifest = make_dataset(directory, table, data_format=data_format, shards=4, block_rows=512)
    del table
    reader = open_reader(
        str(directory), manifest, split="train", global_batch_size=256, lanes=4, window_rows=512
    )
    next(reader.batches())  # imports what it needs
    pool = pa.default_memory_pool()
    before, most = pool.bytes_allocated(), 0
    tracemalloc.start()
    try:
        for _ in reader.batches(1):
            most = max(most, pool.bytes_allocated() - before)
        return most + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("data_format", ["tfrecord", "parquet"])
def test_reader_memory_independent_of_dataset_size(
    data_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "_RANGE_ROWS", 1024)
    monkeypatch.setattr(parquet, "CACHED_ROW_GROUPS", 4)
    few, many = (peak_bytes(tmp_path / str(rows), rows, data_format) for rows in (120_000, 480_000))
    data = 480_000 * COLUMNS * 4
    assert many < data / 4, "most of the data was in memory at once"
    assert many < few * 1.6  # of four times the rows
