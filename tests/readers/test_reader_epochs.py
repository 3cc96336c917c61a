"""Iterating a dataset again reads the next epoch, also in ``model.fit(..., epochs=3)``."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featurestore.readers import Reader
from featurestore.readers.batches import Iterations, StepRanges, WorkerSteps
from featurestore.readers.order import ReaderOrder
from tests.readers.conftest import ROWS, Example
from tests.readers.example_datasets import ROW
from tests.readers.test_reader_contract import open_example

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def rows_of(dataset: Any) -> list[list[int]]:
    return [features[ROW].numpy().tolist() for features, *_ in dataset]


def rows_of_epoch(reader: Reader, epoch: int, **worker: int) -> list[list[int]]:
    return [batch[ROW].tolist() for batch in reader.batches(epoch, **worker)]


@pytest.mark.tensorflow
@pytest.mark.parametrize("epochs", [1, 2])
def test_repeated_iteration_reads_next_epochs(example: Example, epochs: int) -> None:
    pytest.importorskip("tensorflow")
    reader = open_example(example, seed=4)
    dataset = reader.tf_dataset(epochs, start_epoch=5)
    for iteration in range(3):
        expected = []
        for epoch in range(epochs):
            expected += rows_of_epoch(reader, 5 + iteration * epochs + epoch)
        assert rows_of(dataset) == expected


@pytest.mark.tensorflow
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_fit_three_epochs_reads_three_orders(tfrecord: Example, library: str) -> None:
    tf = pytest.importorskip("tensorflow")
    keras = pytest.importorskip(library)
    reader = open_example(tfrecord, columns=[ROW, "ratio", "label"], remainder="keep")
    batches: list[list[int]] = []

    def record(rows: Any) -> Any:
        batches.append(rows.tolist())
        return rows

    def to_model(features: Any, label: Any) -> Any:
        rows = tf.numpy_function(record, [features[ROW]], tf.int64)
        with tf.control_dependencies([rows]):
            inputs = tf.reshape(tf.identity(features["ratio"]), (-1, 1))
        return inputs, tf.cast(label, tf.float32)

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(loss="mse", jit_compile=False)
    model.fit(reader.tf_dataset().map(to_model), epochs=3, shuffle=False, verbose=0)
    steps = reader.steps_per_epoch
    orders = [batches[start : start + steps] for start in range(0, 3 * steps, steps)]
    assert orders == [rows_of_epoch(reader, epoch) for epoch in range(3)]
    for order in orders:
        assert sorted(row for batch in order for row in batch) == list(range(ROWS))
    assert orders[0] != orders[1] != orders[2]


@pytest.mark.tensorflow
def test_repeated_iteration_of_workers_shares_next_epoch(tfrecord: Example) -> None:
    pytest.importorskip("tensorflow")
    reader = open_example(tfrecord, remainder="drop")
    datasets = [reader.tf_dataset(worker=worker, workers=3) for worker in range(3)]
    for epoch in range(3):
        streams = [rows_of(dataset) for dataset in datasets]
        assert {len(stream) for stream in streams} == {reader.steps_per_epoch}
        rows = [row for stream in streams for batch in stream for row in batch]
        assert len(set(rows)) == len(rows) == reader.steps_per_epoch * 12
        for worker, stream in enumerate(streams):
            assert stream == rows_of_epoch(reader, epoch, worker=worker, workers=3)


@pytest.mark.tensorflow
def test_distributed_dataset_continues_with_next_epoch(tfrecord: Example) -> None:
    tf = pytest.importorskip("tensorflow")
    reader = open_example(tfrecord)
    dataset = reader.distribute(tf.distribute.get_strategy(), start_epoch=2)
    assert rows_of(dataset) == rows_of_epoch(reader, 2)
    assert rows_of(dataset) == rows_of_epoch(reader, 3)


@pytest.mark.tensorflow
def test_iteration_after_mid_epoch_start_continues_at_next_step(tfrecord: Example) -> None:
    pytest.importorskip("tensorflow")
    reader = open_example(tfrecord)
    steps = reader.steps_per_epoch
    dataset = reader.tf_dataset(start_step=steps - 2)
    assert int(dataset.cardinality()) == 2
    following = [*rows_of_epoch(reader, 0), *rows_of_epoch(reader, 1)][steps - 2 :]
    assert [rows_of(dataset), rows_of(dataset)] == [following[:2], following[2:4]]


@given(
    rows=st.integers(1, 60),
    size=st.integers(1, 12),
    epochs=st.integers(0, 3),
    start_epoch=st.integers(0, 3),
    start=st.floats(0, 1),
    most=st.integers(1, 5),
    remainder=st.sampled_from(["drop", "keep", "pad"]),
)
def test_iterations_read_all_steps_of_epochs_in_turn(
    rows: int, size: int, epochs: int, start_epoch: int, start: float, most: int, remainder: Any
) -> None:
    order = ReaderOrder(
        rows=max(rows, size),
        block_rows=4,
        window_rows=8,
        global_batch_size=size,
        lanes=1,
        remainder=remainder,
    )
    total = order.steps_per_epoch
    start_step = int(start * (total - 1))
    count = max(0, epochs * total - start_step)

    def ranges_of(iteration: int) -> StepRanges:
        passed, step = divmod(start_step + iteration * count, total)
        return StepRanges(
            order,
            WorkerSteps(epochs, start_epoch + passed, step),
            max_steps_per_range=most,
            steps=count,
        )

    iterations = Iterations(ranges_of)
    step_numbers = []
    for _ in range(4):
        for steps in iterations[iterations.start_iteration()]:
            for step in range(steps.start, steps.stop):
                step_numbers.append(steps.worker_epoch.epoch.number * total + step)
    first = start_epoch * total + start_step
    assert step_numbers == list(range(first, first + 4 * count))


def test_iteration_steps_independent_of_waiting_iterations(example: Example) -> None:
    reader = open_example(example)
    iterations = reader.plan.iterations(WorkerSteps(2, 1, 3))
    later = [iterations[number] for number in (9, 0, 5)]
    again = [iterations[number] for number in (9, 0, 5)]
    for first, second in zip(later, again, strict=True):
        assert np.array_equal(first[0].rows(), second[0].rows())
        assert len(first) == len(second)
