"""A killed server loses no acknowledged write."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import featurestore
from featurestore.errors import FeatureStoreError

pytestmark = pytest.mark.services

ROWS = 5_000
WRITERS = 2


@contextmanager
def served(location: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("featurestore")), "--location", str(location)]
    process = subprocess.Popen(
        [*command, "serve", "--port", str(port)], stdout=subprocess.PIPE, text=True
    )
    address = f"http://127.0.0.1:{port}"
    try:
        assert process.stdout is not None
        assert address in process.stdout.readline()
        while not is_listening(port):
            assert process.poll() is None
            time.sleep(0.05)
        yield process, address
    finally:
        process.kill()
        process.communicate(timeout=60)


def is_listening(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def batch(writer: int, number: int) -> pa.Table:
    return pa.table({"k": np.arange(ROWS), "batch": [f"{writer}-{number}"] * ROWS})


def write_until_it_dies(address: str, writer: int, acknowledged_batches: list[str]) -> None:
    """Insert batches and record each acknowledged one."""
    with (
        contextlib.suppress(FeatureStoreError, OSError),
        featurestore.connect(address) as store,
    ):
        for number in range(1_000):
            store.insert_into_featuregroup(batch(writer, number), "writes")
            acknowledged_batches.append(f"{writer}-{number}")


@pytest.mark.parametrize("after", [3, *(pytest.param(n, marks=pytest.mark.soak) for n in range(9))])
def test_killed_server_keeps_acknowledged_writes(tmp_path: Path, after: int) -> None:
    location = tmp_path / "store"
    with featurestore.connect(location) as store:
        store.create_featuregroup(batch(9, 9), "writes", statistics=False)
    acknowledged_batches: list[str] = []
    with served(location) as (process, address):
        threads = []
        for writer in range(WRITERS):
            arguments = (address, writer, acknowledged_batches)
            threads.append(threading.Thread(target=write_until_it_dies, args=arguments))
        for thread in threads:
            thread.start()
        give_up = time.monotonic() + 120
        while len(acknowledged_batches) < after and time.monotonic() < give_up:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        for thread in threads:
            thread.join(120)
    assert len(acknowledged_batches) >= after
    with featurestore.connect(location) as store:
        table = store.get_featuregroup("writes", dataframe_type="arrow")
        counts = {
            entry["values"]: entry["counts"] for entry in table["batch"].value_counts().to_pylist()
        }
        assert set(counts.values()) == {ROWS}
        assert set(counts) >= {"9-9", *acknowledged_batches}
        assert len(counts) <= 1 + len(acknowledged_batches) + WRITERS
        commit_rows = [commit.rows_in for commit in store.get_featuregroup_history("writes")]
        assert sum(commit_rows) == len(table)
    with served(location) as (_, address), featurestore.connect(address) as again:
        again.insert_into_featuregroup(batch(8, 8), "writes")
        assert again.get_featuregroup("writes").count() == len(table) + ROWS
