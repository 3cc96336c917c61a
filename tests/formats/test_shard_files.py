"""Shard files contain exactly the written rows, for any batch sizes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from featurestore.storage.shards import ShardFile, compute_digest

MIB = 1 << 20


@pytest.mark.parametrize("chunk_size", [MIB // 3, 3 * MIB, 11 * MIB])
def test_incrementally_flushed_file_equals_written_bytes(tmp_path: Path, chunk_size: int) -> None:
    data = os.urandom(10 * MIB + 7)
    with ShardFile(str(tmp_path), "train/part") as file:
        for start in range(0, len(data), chunk_size):
            file.write(data[start : start + chunk_size])
        assert os.listdir(tmp_path / "train") != ["part"]
    assert (tmp_path / "train/part").read_bytes() == data
    entry = file.written_file
    assert (entry.path, entry.bytes) == ("train/part", len(data))
    assert entry.sha256 == hashlib.sha256(data).hexdigest()
    assert list(entry.prefixes) == compute_digest(str(tmp_path / "train/part")).prefixes
    assert os.listdir(tmp_path / "train") == ["part"]


def _fail(file: ShardFile) -> None:
    with file:
        file.write(bytes(5 * MIB))
        raise ValueError("no more")


def test_failed_write_removes_shard_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no more"):
        _fail(ShardFile(str(tmp_path), "part"))
    assert os.listdir(tmp_path) == []
