"""Spooled batches are read back equal, and their files are removed."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from featurestore.storage.spool import BatchFile

BATCH = pa.RecordBatch.from_pydict({"a": [1, 2, None], "b": ["x", None, "z"]})


@pytest.mark.parametrize("lazily", [True, False])
def test_batch_file_returns_batches_and_leaves_no_file(tmp_path: Path, lazily: bool) -> None:
    file = BatchFile(str(tmp_path / "new"), BATCH.schema)
    file.write(BATCH)
    file.write(BATCH.slice(1))
    if lazily:
        reader = file.reader()
        actual = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    else:
        actual = file.read()
    assert actual == [BATCH, BATCH.slice(1)]
    assert os.listdir(tmp_path / "new") == []


def test_batch_file_closed_early_is_removed(tmp_path: Path) -> None:
    file = BatchFile(str(tmp_path), BATCH.schema)
    file.write(BATCH)
    file.close()
    assert os.listdir(tmp_path) == []


def test_batch_file_failed_start_is_removed(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        BatchFile(str(tmp_path), None)
    assert os.listdir(tmp_path) == []
