"""A Ray cluster of two nodes on this machine, to which this process is connected."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.readers.conftest import Example, make_example

ROOT = Path(__file__).parents[2]
NODE_CPUS = 1


class Node:
    """A process of ``ray start --block``, which ends the processes of its node when it ends."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._log = (folder / f"{'head' if '--head' in arguments else 'worker'}.log").open("wb")
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block"),
                *(f"--num-cpus={NODE_CPUS}", "--object-store-memory=80000000"),
                "--disable-usage-stats",
                *arguments,
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            # Workers import the tests and the functions in them.
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
            cwd=folder,
            start_new_session=True,
        )

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._log.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[str]:
    """Start a head and a worker node, connect to them, and yield their address."""
    # Without a token in the environment, Ray would write one to the home directory. Ray reads the
    # mode when it is imported, so no module imports it before.
    environment = pytest.MonkeyPatch()
    environment.setenv("RAY_AUTH_MODE", "token")
    environment.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    import ray

    # The paths of Unix sockets have at most 107 characters, so ``tmp_path`` would be too long.
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    address = f"127.0.0.1:{free_port()}"
    port = address.rpartition(":")[2]
    nodes = [
        Node(
            folder,
            *("--head", "--node-ip-address=127.0.0.1", f"--port={port}"),
            *("--include-dashboard=false", f"--temp-dir={folder}"),
        )
    ]
    try:
        wait_for_port(int(port))
        nodes.append(Node(folder, f"--address={address}", "--node-ip-address=127.0.0.1"))
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        wait_for_nodes(ray)
        yield address
    finally:
        ray.shutdown()
        for node in reversed(nodes):
            node.stop()
        shutil.rmtree(folder, ignore_errors=True)
        environment.undo()


def wait_for_port(port: int) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"The head node does not listen on port {port}.")


def wait_for_nodes(ray: Any) -> None:
    end = time.monotonic() + 120
    while ray.cluster_resources().get("CPU", 0) < 2 * NODE_CPUS:
        assert time.monotonic() < end, ray.nodes()
        time.sleep(0.1)


@pytest.fixture(scope="session", params=["tfrecord", "variable", "parquet"])
def example(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Example:
    """A dataset without nulls, in each layout."""
    return make_example(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="session")
def tfrecord(tmp_path_factory: pytest.TempPathFactory) -> Example:
    """A dataset of random-access TFRecord."""
    return make_example(tmp_path_factory.mktemp("tfrecord-only"), "tfrecord")
