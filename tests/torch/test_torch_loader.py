"""``torch_loader``: a loader with a resumable state."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from featurestore.errors import DatasetDamaged, ManifestMismatch, ReaderConfigError
from featurestore.readers import resume
from featurestore.readers.batches import WorkerSteps
from tests.readers.conftest import Example
from tests.readers.example_datasets import long_dataset, truncate_shards
from tests.torch.elements import as_elements, open_numbers, plain, row_ids

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def rows_of_epochs(reader: Any, epochs: int) -> list[list[int]]:
    return [batch["row_id"].tolist() for epoch in range(epochs) for batch in reader.batches(epoch)]


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("cut", [1, 7, 16, 17])
def test_torch_loader_state_resumes_with_other_workers(
    tfrecord: Example, before: int, after: int, cut: int
) -> None:
    reader = open_numbers(tfrecord, seed=1)
    expected = rows_of_epochs(reader, 3)
    loader = reader.torch_loader(num_workers=before)
    first_rows: list[list[int]] = []
    for _ in range(2):
        for features, _label in loader:
            first_rows.append(features["row_id"].tolist())
            if len(first_rows) == cut:
                break
        if len(first_rows) == cut:
            break
    state = json.loads(json.dumps(loader.state_dict()))
    again = reader.torch_loader(num_workers=after)
    again.load_state_dict(state)
    remaining = [rows for _ in range(2) for rows in row_ids(again)]
    assert first_rows + remaining == expected[: len(first_rows + remaining)]
    assert len(first_rows + remaining) % reader.steps_per_epoch == 0
    # The same state rebuilds the reader.
    _, epoch, step = resume(tfrecord.path, tfrecord.manifest, state)
    assert (epoch, step) == divmod(cut, reader.steps_per_epoch)


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}]
)
def test_torch_loader_interrupted_iteration_continues_at_next_epoch(
    example: Example, options: Any
) -> None:
    reader = open_numbers(example, remainder="pad")
    loader = reader.torch_loader(start_epoch=1, **options)
    for number, _ in enumerate(loader):
        if number == 3:
            break
    actual = [list(map(plain, loader)) for _ in range(2)]
    assert actual == [as_elements(reader, reader.batches(epoch)) for epoch in (2, 3)]
    loader.load_state_dict(reader.state(5, 2))
    assert list(map(plain, loader)) == as_elements(reader, reader.batches(5, start_step=2))


def test_torch_loader_reads_torchrun_rank_and_world_size(
    tfrecord: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = open_numbers(tfrecord)
    loader = reader.torch_loader()
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    expected = [batch["row_id"].tolist() for batch in reader.batches(0, worker=2, workers=3)]
    assert row_ids(loader) == expected


def test_torch_loader_state_of_other_reader_raises(tfrecord: Example, example: Example) -> None:
    reader = open_numbers(tfrecord)
    state = reader.torch_loader().state_dict()
    with pytest.raises(ReaderConfigError, match=r"seed=0, not 9"):
        open_numbers(tfrecord, seed=9).torch_loader().load_state_dict(state)
    with pytest.raises(ManifestMismatch):
        reader.torch_loader().load_state_dict({**state, "manifest": "other"})
    with pytest.raises(ReaderConfigError, match="order version 99"):
        reader.torch_loader().load_state_dict({**state, "order_version": 99})
    with pytest.raises(ReaderConfigError, match="not a reader state"):
        reader.torch_loader().load_state_dict({})
    with pytest.raises(ReaderConfigError, match="num_workers=2"):
        reader.torch_dataset().load_state_dict({**state, "workers": 2, "yielded": 3})
    assert open_numbers(example).torch_loader().state_dict()["step"] == 0


@pytest.mark.filterwarnings("ignore:.*pin_memory.*")
def test_torch_loader_pin_memory_keeps_rows(tfrecord: Example) -> None:
    reader = open_numbers(tfrecord)
    assert row_ids(reader.torch_loader(pin_memory=True)) == rows_of_epochs(reader, 1)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("remainder", ["drop", "keep", "pad"])
@pytest.mark.parametrize("shared_bytes", [1, 1 << 16, 32 << 20])
def test_torch_loader_workers_send_ranges_in_one_segment(
    example: Example,
    workers: int,
    remainder: str,
    shared_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("featurestore.readers.torch._SHARED_BYTES", shared_bytes)
    reader = open_numbers(example, remainder=remainder)
    loader = reader.torch_loader(2, start_step=3, num_workers=workers)
    elements = list(loader)
    expected = [*reader.batches(0, start_step=3), *reader.batches(1)]
    assert list(map(plain, elements)) == as_elements(reader, expected)
    columns_by_range: dict[int, set[int]] = {}
    for features, label, *_ in elements:
        if len(label) == reader.global_batch_size:  # the removal of padding copies a batch
            columns = [*features.values(), label]
            starts = [column.untyped_storage().data_ptr() for column in columns]
            columns_by_range.setdefault(starts[0], set()).update(starts)
    ranges = reader.plan.step_ranges(
        WorkerSteps(start_step=3),
        steps=len(expected),
        max_bytes=max(1, shared_bytes // (2 * workers)),
    )
    # With remainder="keep", the last range of each epoch may have only a short step.
    short_ranges = 2 if remainder == "keep" else 0
    assert len(ranges) - short_ranges <= len(columns_by_range) <= len(ranges)
    # The steps of a range share the memory of each column, and the columns are neighbors.
    for starts_of_range in columns_by_range.values():
        assert len(starts_of_range) == len(reader.columns)
        longest_range = reader.steps_per_epoch * reader.global_batch_size * reader.plan.row_bytes
        assert max(starts_of_range) - min(starts_of_range) < longest_range + 64 * len(
            starts_of_range
        )


def test_shard_truncated_during_torch_loader_raises_with_its_name(tmp_path: Path) -> None:
    dataset = long_dataset(tmp_path)
    elements = iter(dataset.reader("train", global_batch_size=64).torch_loader())
    next(elements)
    truncate_shards(dataset)
    with pytest.raises(DatasetDamaged, match="train/tfrecord-0"):
        list(elements)


TRUNCATION = """
import sys
from pathlib import Path
from tests.readers.example_datasets import long_dataset, truncate_shards

dataset = long_dataset(Path(sys.argv[1]))
elements = iter(dataset.reader("train", global_batch_size=64).torch_loader(num_workers=2))
next(elements)
truncate_shards(dataset)
list(elements)
"""


def test_shard_truncated_during_read_of_worker_raises_with_its_name(tmp_path: Path) -> None:
    """PyTorch's workers have a handler of SIGBUS, which would end them."""
    program = subprocess.run(
        [sys.executable, "-c", TRUNCATION, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert program.returncode == 1
    assert re.search("DatasetDamaged: .*train/tfrecord-0", program.stderr)
