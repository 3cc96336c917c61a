"""The reader contract over files.

Equal steps, exactly once, the same batches from every format and worker count.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from featurestore.errors import ReaderConfigError
from featurestore.readers import Reader, open_reader
from featurestore.readers.columns import SAMPLE_WEIGHT
from tests.readers.conftest import ROWS, Example
from tests.readers.example_datasets import ROW


def open_example(example: Example, **settings_: Any) -> Reader:
    return open_reader(
        example.path, example.manifest, **{"split": "train", "global_batch_size": 12, **settings_}
    )


def expected_batch(example: Example, reader: Reader, rows: list[int]) -> dict[str, list[Any]]:
    result: dict[str, list[Any]] = {}
    for column in reader.columns:
        values = example.values[column.name]
        zero: Any = np.zeros(column.shape).tolist() if column.shape else column.zero
        result[column.name] = [values[row] if row >= 0 else zero for row in rows]
    if reader.order.remainder == "pad":
        result[SAMPLE_WEIGHT] = [float(row >= 0) for row in rows]
    return result


@given(
    size=st.sampled_from([1, 4, 12, 30]),
    lanes=st.sampled_from([1, 2, None]),
    window=st.sampled_from([8, 24, None]),
    shuffle=st.booleans(),
    remainder=st.sampled_from(["drop", "keep", "pad"]),
    seed=st.integers(0, 3),
    epoch=st.integers(0, 2),
    data=st.data(),
)
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_batches_contain_rows_of_reader_order(
    example: Example,
    size: int,
    lanes: int | None,
    window: int | None,
    shuffle: bool,
    remainder: str,
    seed: int,
    epoch: int,
    data: st.DataObject,
) -> None:
    if lanes is not None and size % lanes:
        lanes = 1
    reader = open_example(
        example,
        global_batch_size=size,
        lanes=lanes,
        window_rows=window,
        shuffle=shuffle,
        remainder=remainder,
        seed=seed,
    )
    workers = data.draw(st.sampled_from(reader.order.worker_counts()))
    worker = data.draw(st.integers(0, workers - 1))
    start = data.draw(st.integers(0, reader.steps_per_epoch))
    actual = list(reader.batches(epoch, worker=worker, workers=workers, start_step=start))
    assert len(actual) == reader.steps_per_epoch - start
    for step, batch in enumerate(actual, start):
        rows = reader.rows(epoch, step, worker=worker, workers=workers).tolist()
        expected = expected_batch(example, reader, rows)
        assert list(batch) == list(expected)
        for name, values in batch.items():
            assert values.shape[0] == (len(rows) if remainder == "keep" else size // workers)
            assert values.tolist() == expected[name], (name, step)


@pytest.mark.parametrize("workers", [1, 2, 3, 6])
def test_remainder_pad_reads_rows_once_over_all_workers(example: Example, workers: int) -> None:
    reader = open_example(example, remainder="pad")
    rows = []
    for worker in range(workers):
        batches = list(reader.batches(1, worker=worker, workers=workers))
        assert len(batches) == reader.steps_per_epoch == -(-ROWS // 12)
        for batch in batches:
            assert {values.shape[0] for values in batch.values()} == {12 // workers}
            rows += batch[ROW][batch[SAMPLE_WEIGHT] == 1].tolist()
    assert sorted(rows) == list(range(ROWS))


def test_default_columns_are_features_and_labels(example: Example) -> None:
    names = list(next(open_example(example).batches()))
    assert names == [name for name in example.table.column_names if name != "small"]
    batch = next(open_example(example, columns=["small", "vector"]).batches())
    assert {name: (values.dtype, values.shape) for name, values in batch.items()} == {
        "small": (np.dtype(np.uint8), (12,)),
        "vector": (np.dtype(np.float32), (12, 4)),
    }


def test_all_formats_give_same_batches(tmp_path_factory: pytest.TempPathFactory) -> None:
    from tests.readers.conftest import VARIANTS, make_example

    streams = []
    for variant in VARIANTS:
        if variant != "variable":  # it has another text
            example = make_example(tmp_path_factory.mktemp(variant), variant)
            streams.append(open_example(example, seed=5, remainder="pad").batches(2))
    for batches in itertools.zip_longest(*streams):
        for name in batches[0]:
            for batch in batches[1:]:
                assert batches[0][name].dtype == batch[name].dtype
                assert batches[0][name].tobytes() == batch[name].tobytes() or name in ("name",)
                assert batches[0][name].tolist() == batch[name].tolist()


def test_abandoned_batch_iterator_stops_threads(tfrecord: Example) -> None:
    import threading

    batches = open_example(tfrecord, global_batch_size=1, lanes=1).batches()
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("featurestore-reader")]


def test_invalid_workers_and_steps_raise_before_first_batch(tfrecord: Example) -> None:
    reader = open_example(tfrecord)
    with pytest.raises(ReaderConfigError, match="5 workers cannot share 12 lanes"):
        reader.batches(worker=0, workers=5)
    with pytest.raises(ReaderConfigError, match="start_step=17 is not in an epoch of 16 steps"):
        reader.batches(start_step=17)
    assert list(reader.batches(start_step=16)) == []
