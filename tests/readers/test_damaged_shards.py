"""A damaged shard raises with its name or is read correctly; it never ends the process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import featurestore
from featurestore.errors import DatasetDamaged
from featurestore.storage.mapped import map_file
from featurestore.storage.ranges import RangeFile
from tests.readers.damage_program import DAMAGES, FORMATS


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The outcome of each case, from a process that a signal would end."""
    location = str(tmp_path_factory.mktemp("damaged"))
    program = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.readers.damage_program",
            location,
            "60",
            "3",
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert program.returncode == 0, program.stdout[-500:] + program.stderr[-2000:]
    cases = [json.loads(line) for line in program.stdout.splitlines() if line.startswith("{")]
    assert len(cases) == len(FORMATS) * len(DAMAGES) * 2 * 2 * 3
    return cases


def test_verified_reader_raises_or_returns_original_batches(outcomes: list[dict[str, Any]]) -> None:
    for case in outcomes:
        if case["verify"] and not case["equal"]:
            assert case["error"].startswith("DatasetDamaged: "), case
            assert case["shard"] in case["error"], case
    # The damage of whole files, before they are read, is never missed.
    assert not [case for case in outcomes if case["verify"] and case["before"] and case["equal"]]


def test_truncated_shard_raises_or_was_read_before(outcomes: list[dict[str, Any]]) -> None:
    cases = [case for case in outcomes if case["damage"] == "truncate"]
    for case in cases:
        assert case["equal"] or case["shard"] in case["error"], case
    assert any(case["error"] for case in cases if not case["before"])


def test_exchanged_record_shards_are_damage_only_when_verified(tmp_path: Path) -> None:
    rows = {"id": list(range(100)), "x": [number / 2 for number in range(100)]}
    dataset = featurestore.connect(tmp_path).create_training_dataset(
        pa.table(rows), "d", key="id", shards=2, progress=False
    )
    first, second = (
        os.path.join(dataset.path, shard.path) for shard in dataset.manifest.split("train").shards
    )
    Path(first).write_bytes(Path(second).read_bytes())
    assert len(list(dataset.reader("train", global_batch_size=10).batches())) == 10
    for shuffle in (False, True):
        reader = dataset.reader("train", global_batch_size=10, shuffle=shuffle, verify=True)
        with pytest.raises(DatasetDamaged, match=first):
            list(reader.batches())


def test_resumed_reader_and_labels_are_verified(tmp_path: Path) -> None:
    rows = {"id": list(range(100)), "y": [number % 2 for number in range(100)]}
    dataset = featurestore.connect(tmp_path).create_training_dataset(
        pa.table(rows), "d", key="id", label="y", progress=False
    )
    state = dataset.reader("train", global_batch_size=10, verify=True).state(0, 1)
    shard = Path(dataset.path, dataset.manifest.split("train").shards[0].path)
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1  # of the checksum of the last record
    shard.write_bytes(data)
    reader, epoch, step = dataset.resume(state)
    list(reader.batches(epoch, start_step=step))
    reader.weighed("balanced")
    verified, epoch, step = dataset.resume(state, verify=True)
    with pytest.raises(DatasetDamaged, match=str(shard)):
        list(verified.batches(epoch, start_step=step))
    with pytest.raises(DatasetDamaged, match=str(shard)):
        verified.keys()


HANDLERS = """
import faulthandler, mmap, os, signal, sys
from featurestore.storage.mapped import map_file
from featurestore.storage.ranges import RangeFile

with open("shard", "wb") as file:
    file.write(bytes(10 * mmap.PAGESIZE))
shard = map_file("shard")
other = mmap.mmap(os.open("shard", os.O_RDONLY), 0, access=mmap.ACCESS_READ)
if sys.argv[1] == "faulthandler":
    faulthandler.enable()
    again = map_file("shard")
os.truncate("shard", mmap.PAGESIZE)
print(shard[-1], flush=True)
if sys.argv[1] == "kill":
    os.kill(os.getpid(), signal.SIGBUS)
print(other[5 * mmap.PAGESIZE])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the handler is for Linux")
@pytest.mark.parametrize("cause", ["read", "faulthandler", "kill"])
def test_other_bus_errors_end_the_process(tmp_path: Path, cause: str) -> None:
    program = subprocess.run(
        [sys.executable, "-c", HANDLERS, cause],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert program.stdout == "0\n"
    assert program.returncode == -7, program.stderr
    assert ("Fatal Python error: Bus error" in program.stderr) == (cause == "faulthandler")


def test_replaced_file_keeps_its_mapped_bytes(tmp_path: Path) -> None:
    from featurestore.storage.mapped import check_map

    path = tmp_path / "shard"
    path.write_bytes(b"first")
    data = map_file(str(path))
    (tmp_path / "new").write_bytes(b"x")
    (tmp_path / "new").replace(path)
    check_map(data)
    assert data.tobytes() == b"first"
    path.unlink()
    check_map(data)


def test_range_beyond_the_end_of_a_file_raises_before_it_is_allocated(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    path.write_bytes(b"abc")
    file = RangeFile(str(path))
    assert file.read(1, 2) == b"bc"
    for size in (3, 2**40, 2**62):
        with pytest.raises(OSError, match="truncated"):
            file.read(1, size)
    path.write_bytes(b"abcdef")
    assert file.read(1, 4) == b"bcde"
    file.close()
