"""``torch_dataset`` equals the numpy iterator, with any number of workers."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import featurestore
from featurestore import transform as t
from featurestore.errors import (
    InvalidArgument,
    NotIterable,
    ReaderConfigError,
    UnsupportedType,
)
from featurestore.readers import open_reader
from tests.readers.conftest import ROWS, Example
from tests.torch.elements import as_elements, open_numbers, plain, row_ids

# This machine may have fewer cores than a loader has workers.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata calls it
]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("remainder", ["drop", "keep", "pad"])
def test_torch_dataset_equals_numpy_batches(
    example: Example, shuffle: bool, remainder: str
) -> None:
    reader = open_numbers(example, shuffle=shuffle, remainder=remainder, seed=2)
    worker, workers = (0, 1) if remainder == "keep" else (1, 3)
    dataset = reader.torch_dataset(
        rank=worker, world_size=workers, epochs=2, start_epoch=1, start_step=4
    )
    batches = [
        *reader.batches(1, worker=worker, workers=workers, start_step=4),
        *reader.batches(2, worker=worker, workers=workers),
    ]
    assert list(map(plain, dataset)) == as_elements(reader, batches)


@pytest.mark.parametrize("remainder", ["drop", "pad"])
def test_torch_dataset_nulls_match_numpy_masks_and_fills(
    with_nulls: Example, remainder: str
) -> None:
    fills = {"count": -1, "flag": True, "ratio": 0.5, "vector": 9.0, "moment": 7}
    edges = {
        "count": -(2**31), "flag": False, "ratio": np.float32(0.1), "vector": [0.5, 1, 2, 2**24],
        "moment": 2**53 + 1,
    }  # fmt: skip
    for nulls in ("mask", fills, edges):
        reader = open_numbers(with_nulls, nulls=nulls, remainder=remainder)
        assert list(map(plain, reader.torch_dataset())) == as_elements(reader, reader.batches())


@pytest.mark.parametrize("num_workers", [0, 1, 2, 5])
def test_torch_dataset_loader_workers_keep_step_order(example: Example, num_workers: int) -> None:
    reader = open_numbers(example, remainder="pad")
    loader = DataLoader(
        reader.torch_dataset(rank=1, world_size=2, epochs=2),
        batch_size=None,
        num_workers=num_workers,
    )
    assert len(loader) == 2 * reader.steps_per_epoch
    batches = [*reader.batches(0, worker=1, workers=2), *reader.batches(1, worker=1, workers=2)]
    assert list(map(plain, loader)) == as_elements(reader, batches)


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 0},
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "spawn"},
    ],
    ids=["no workers", "new workers", "workers that stay", "spawned workers"],
)
def test_torch_dataset_next_iteration_reads_next_epoch(tfrecord: Example, options: Any) -> None:
    reader = open_numbers(tfrecord, remainder="pad", global_batch_size=60)
    loader = DataLoader(reader.torch_dataset(start_step=1), batch_size=None, **options)
    actual = [row_ids(loader) for _ in range(3)]
    expected = [
        [batch["row_id"].tolist() for batch in reader.batches(epoch, start_step=epoch == 0)]
        for epoch in range(3)
    ]
    assert actual == expected


def test_torch_dataset_epochs_advance_across_loaders(tfrecord: Example) -> None:
    reader = open_numbers(tfrecord, global_batch_size=60)
    dataset = reader.torch_dataset()
    actual = [
        row_ids(DataLoader(dataset, batch_size=None, num_workers=number)) for number in (0, 2, 1, 0)
    ]
    assert actual == [[b["row_id"].tolist() for b in reader.batches(epoch)] for epoch in range(4)]


@pytest.mark.parametrize("num_workers", [0, 2, 3])
@pytest.mark.parametrize("cut", [1, 5, 8, 16])
def test_stateful_dataloader_resumes_at_saved_step(
    tfrecord: Example, num_workers: int, cut: int
) -> None:
    reader = open_numbers(tfrecord, seed=4)
    assert reader.steps_per_epoch == 16

    def loader() -> Any:
        return StatefulDataLoader(reader.torch_dataset(), batch_size=None, num_workers=num_workers)

    first = loader()
    iterator = iter(first)
    first_rows = row_ids(next(iterator) for _ in range(cut))
    if cut == 16:
        assert list(iterator) == []
    state = pickle.loads(pickle.dumps(first.state_dict()))
    second = loader()
    second.load_state_dict(state)
    remaining = [rows for _ in range(2) for rows in row_ids(second)]
    expected = [batch["row_id"].tolist() for epoch in range(3) for batch in reader.batches(epoch)]
    assert first_rows + remaining == expected[: len(first_rows + remaining)]
    assert len(remaining) == 32 if cut == 16 else 16 - cut + 16


def test_torch_dataset_tensors_share_read_buffers(tfrecord: Example) -> None:
    reader = open_numbers(tfrecord)
    steps = [features["ratio"] for features, _ in reader.torch_dataset()]
    storages = {tensor.untyped_storage().data_ptr() for tensor in steps}
    assert len(storages) < len(steps)
    assert all(not tensor.is_shared() for tensor in steps)


def test_torch_dataset_worker_batches_own_only_their_memory(tfrecord: Example) -> None:
    reader = open_numbers(tfrecord)
    loader = DataLoader(reader.torch_dataset(), batch_size=None, num_workers=1)
    for features, label in loader:
        assert label.untyped_storage().nbytes() == label.nbytes
        # Columns of one type and shape are stored together.
        assert features["vector"].untyped_storage().nbytes() == features["vector"].nbytes


def test_torch_dataset_text_columns_not_selected_raise(tfrecord: Example) -> None:
    reader = open_reader(
        tfrecord.path, tfrecord.manifest, split="train", global_batch_size=12, nulls="error"
    )
    for make in (reader.torch_dataset, reader.torch_loader):
        with pytest.raises(
            UnsupportedType, match=r"'name'.*\n.*vocabulary\(\).*columns=\["
        ) as error:
            make()
        assert "'ratio'" in str(error.value)
    text_reader = open_numbers(tfrecord, columns=["name", "label", "ratio"])
    for workers in (0, 1):
        loader = text_reader.torch_loader(num_workers=workers)
        assert list(map(plain, loader))[:16] == as_elements(text_reader, text_reader.batches())


def test_unpad_torch_predictions_returns_split_rows(tfrecord: Example) -> None:
    reader = open_numbers(tfrecord, shuffle=False, remainder="pad")
    predictions = torch.cat([features["row_id"] for features, *_ in reader.torch_dataset()])
    predictions = predictions.to(torch.float32).requires_grad_()
    assert reader.unpad(predictions).tolist() == list(range(ROWS))
    assert reader.keys()["small"].to_pylist() == tfrecord.values["small"]
    with pytest.raises(InvalidArgument, match="torch_loader"):
        reader.evaluate(torch.nn.Linear(1, 1))


def test_torch_dataset_wrong_arguments_raise(tfrecord: Example) -> None:
    reader = open_numbers(tfrecord)
    for options in ({}, {"batch_size": None}, {"shuffle": True}):
        with pytest.raises(NotIterable, match=r"reader\.torch_loader\(\)"):
            next(iter(DataLoader(reader, **options)))
    with pytest.raises(ReaderConfigError, match="workers"):
        reader.torch_dataset(rank=0, world_size=5)
    with pytest.raises(ReaderConfigError, match="start_step"):
        reader.torch_dataset(start_step=99)
    with pytest.raises(ReaderConfigError, match="together"):
        reader.torch_loader(rank=0)


def test_torch_dataset_zero_epochs_is_empty(tfrecord: Example) -> None:
    reader = open_numbers(tfrecord)
    assert list(reader.torch_dataset(epochs=0)) == []
    assert np.asarray(len(reader.torch_loader(epochs=0))) == 0


def test_torch_loader_transformed_texts_are_codes(tmp_path: Path) -> None:
    store = featurestore.connect(tmp_path)
    rows = pa.table({"carrier": ["UA", "AA", "UA", "DL"] * 30, "y": [0, 1] * 60})
    dataset = store.create_training_dataset(
        rows, "codes", label="y", progress=False, transformations={"carrier": t.vocabulary()}
    )
    reader = dataset.reader("train", global_batch_size=10)
    expected = [(batch["carrier"].tolist(), batch["y"].tolist()) for batch in reader.batches()]
    for workers in (0, 2):
        loader = reader.torch_loader(num_workers=workers, start_epoch=0)
        actual = [(features["carrier"].tolist(), y.tolist()) for features, y in loader]
        assert actual == expected
