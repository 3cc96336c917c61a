"""Reader states are small JSON objects that restore the reader and refuse other datasets."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from featurestore.errors import ManifestMismatch, ReaderConfigError
from featurestore.readers import resume
from featurestore.training import TrainingDataset
from tests.readers.conftest import Example
from tests.readers.test_reader_contract import open_example


def test_state_json_roundtrip_resumes_remaining_batches(example: Example) -> None:
    reader = open_example(
        example, seed=3, columns=["label", "row_id"], remainder="pad", window_rows=16, lanes=4
    )
    text = json.dumps(reader.state(2, 5))
    assert len(text) < 1000
    again, epoch, step = resume(example.path, example.manifest, json.loads(text))
    assert (epoch, step) == (2, 5)
    expected = list(reader.batches(2))[5:]
    for before, after in zip(expected, again.batches(epoch, start_step=step), strict=True):
        assert list(before) == list(after)
        for name in before:
            assert np.array_equal(before[name], after[name])


def test_dataset_resumes_state_of_another_process(tfrecord: Example) -> None:
    dataset = TrainingDataset.open(tfrecord.path)
    reader = dataset.reader("train", global_batch_size=12, seed=4, columns=["row_id", "label"])
    again, epoch, step = TrainingDataset.open(tfrecord.path).resume(
        json.loads(json.dumps(reader.state(1, 7)))
    )
    assert (epoch, step) == (1, 7)
    # Another number of workers may resume.
    batches = [
        next(again.batches(epoch, worker=worker, workers=3, start_step=step))["row_id"]
        for worker in range(3)
    ]
    assert np.concatenate(batches).tolist() == reader.rows(1, 7).tolist()


def test_state_at_epoch_end_equals_start_of_next(tfrecord: Example) -> None:
    reader = open_example(tfrecord)
    state = reader.state(0, reader.steps_per_epoch)
    assert (state["epoch"], state["step"]) == (1, 0)


def test_state_contains_null_policies_and_sizes(tfrecord: Example) -> None:
    reader = open_example(tfrecord, nulls={"ratio": 0.5}, shuffle=False)
    again, _, _ = resume(
        tfrecord.path, tfrecord.manifest, json.loads(json.dumps(reader.state(0, 0)))
    )
    assert again.settings == reader.settings
    assert again.order == reader.order
    assert again.columns == reader.columns


def test_resume_other_manifest_raises_with_both_hashes(tfrecord: Example) -> None:
    state = open_example(tfrecord).state(0, 1)
    new_manifest = replace(tfrecord.manifest, seed=tfrecord.manifest.seed + 1)
    both = f"{tfrecord.manifest.content_hash}.*{new_manifest.content_hash}"
    with pytest.raises(ManifestMismatch, match=re.compile(both, re.DOTALL)):
        resume(tfrecord.path, new_manifest, state)


def test_resume_other_order_or_incomplete_state_raises(tfrecord: Example) -> None:
    state = open_example(tfrecord).state(0, 1)
    with pytest.raises(
        ReaderConfigError, match="order version 2; this release reads order version 1"
    ):
        resume(tfrecord.path, tfrecord.manifest, {**state, "order_version": 2})
    with pytest.raises(ReaderConfigError, match="lacks split"):
        resume(
            tfrecord.path,
            tfrecord.manifest,
            {name: state[name] for name in state if name != "split"},
        )


def test_state_step_out_of_range_raises(tfrecord: Example) -> None:
    reader = open_example(tfrecord)
    with pytest.raises(ReaderConfigError, match="no step 17"):
        reader.state(0, 17)
    with pytest.raises(ReaderConfigError, match="no step"):
        reader.state(-1, 0)
