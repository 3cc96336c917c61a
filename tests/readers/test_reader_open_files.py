"""Processes read, write and verify datasets with more shards than they may open files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from featurestore.plugins import plugin_names

PROGRAM = """
import resource, sys
import numpy as np, pyarrow as pa, featurestore

resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))
directory, data_format = sys.argv[1:]
store = featurestore.connect(directory)
numbers = np.arange(360)
texts = [str(number) * (number % 4) for number in numbers]
tables = {
    "fixed": pa.table({"id": numbers, "x": numbers * 0.5, "y": numbers % 2 == 0}),
    "variable": pa.table({"id": numbers, "x": texts, "y": numbers % 2 == 0}),
}
for name, rows in tables.items():
    dataset = store.create_training_dataset(
        rows, name, label="y", key="id", shards=120, data_format=data_format, progress=False
    )
    assert len(dataset.manifest.splits[0].shards) == 120
    assert dataset.verify().ok
    assert sorted(dataset.read("train").to_arrow().column("x").to_pylist()) == sorted(
        rows.column("x").to_pylist()
    )
    for shuffle in (True, False):
        reader = dataset.reader("train", global_batch_size=90, shuffle=shuffle, columns=["id"])
        for epoch in range(2):
            ids = np.concatenate([batch["id"] for batch in reader.batches(epoch)])
            assert sorted(ids.tolist()) == list(range(360))
    dataset.download(f"{directory}-{name}")
print("done")
"""


@pytest.mark.parametrize("data_format", sorted(plugin_names("formats")))
def test_reader_opens_more_shards_than_files(tmp_path: Path, data_format: str) -> None:
    if data_format in ("lance", "petastorm"):
        pytest.importorskip(data_format)
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "store"), data_format],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.stdout.endswith("done\n"), ended.stderr[-2000:]


def test_empty_shard_maps_to_no_records(tmp_path: Path) -> None:
    from featurestore_connectors.tfrecord.reader import map_records

    (tmp_path / "shard").touch()
    assert map_records(str(tmp_path / "shard"), record_bytes=24).shape == (0, 24)
