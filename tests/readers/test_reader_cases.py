"""The reader contract over datasets of random shape.

Rows, shards, blocks, batch size, lanes, workers, epoch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featurestore.model.manifest import Manifest
from featurestore.readers import Reader, open_reader
from featurestore.readers.columns import SAMPLE_WEIGHT
from featurestore.readers.order import PADDING
from tests.readers.example_datasets import ROW, make_dataset
from tests.readers.order_reference import global_batches

pytestmark = pytest.mark.slow


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    lanes = draw(st.integers(1, 12))
    size = lanes * draw(st.integers(1, 4))
    remainder = draw(st.sampled_from(["drop", "keep", "pad"]))
    block_rows = draw(st.integers(1, 12))
    return {
        "rows": draw(st.integers(size if remainder == "drop" else 1, 160)),
        "shards": draw(st.integers(1, 9)),
        "block_rows": block_rows,
        "global_batch_size": size,
        "lanes": lanes,
        "window_rows": block_rows * draw(st.integers(1, 5)),
        "seed": draw(st.integers(0, 2**32)),
        "remainder": remainder,
        "data_format": draw(st.sampled_from(["tfrecord", "tfrecord", "parquet"])),
    }


def read(reader: Reader, epoch: int, *, workers: int, start: int, stop: int) -> Iterator[list[int]]:
    """Yield the global batches of steps ``[start, stop)`` from all workers; -1 is padding."""
    streams = [
        reader.batches(epoch, worker=worker, workers=workers, start_step=start)
        for worker in range(workers)
    ]
    for _ in range(start, stop):
        rows = []
        for stream in streams:
            batch = next(stream)
            if reader.order.remainder != "keep":
                assert batch[ROW].shape == (reader.global_batch_size // workers,)
            assert batch["value"].dtype == np.float32
            weights = batch.get(SAMPLE_WEIGHT, np.ones(len(batch[ROW]), np.float32))
            result = np.where(weights == 1, batch[ROW], PADDING)
            # Values must stay with their row in any order.
            assert batch["value"].tolist() == np.where(result == PADDING, 0, result / 2).tolist()
            rows += result.tolist()
        yield rows
    for stream in streams:
        if stop == reader.steps_per_epoch:
            assert next(stream, None) is None
        stream.close()  # type: ignore[attr-defined]


def write(directory: str, case: dict[str, Any]) -> Manifest:
    rows = np.arange(case["rows"])
    table = pa.table({ROW: rows, "value": (rows / 2).astype(np.float32)})
    return make_dataset(
        Path(directory),
        table,
        data_format=case["data_format"],
        shards=case["shards"],
        block_rows=case["block_rows"],
    )


@given(cases(), st.integers(0, 3), st.data())
@settings(max_examples=62, deadline=None)
def test_random_cases_read_rows_once_with_changing_workers(
    case: dict[str, Any], epoch: int, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        manifest = write(directory, case)
        names = ("global_batch_size", "lanes", "window_rows", "seed", "remainder")
        reader = open_reader(
            directory, manifest, split="train", **{name: case[name] for name in names}
        )
        counts = reader.order.worker_counts()
        change = data.draw(st.integers(0, reader.steps_per_epoch))
        before, after = data.draw(st.sampled_from(counts)), data.draw(st.sampled_from(counts))
        actual = [
            *read(reader, epoch, workers=before, start=0, stop=change),
            *read(reader, epoch, workers=after, start=change, stop=reader.steps_per_epoch),
        ]
    reference = {
        name: value for name, value in case.items() if name not in ("shards", "data_format")
    }
    expected = global_batches(epoch=epoch, **reference)
    if case["remainder"] == "keep":
        assert all(len(batch) == reader.global_batch_size for batch in actual[:-1])
        expected[-1] = [row for row in expected[-1] if row != PADDING]
    assert actual == expected
    rows = [row for batch in actual for row in batch if row != PADDING]
    assert len(set(rows)) == len(rows)
    if case["remainder"] != "drop":
        assert sorted(rows) == list(range(case["rows"]))
    else:
        assert 0 <= case["rows"] - len(rows) < case["global_batch_size"]
