"""A real S3 server on the loopback interface: versitygw over a folder."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Secrets that must not appear in store files, logs or errors.
ACCESS_KEY = "test-access-key-7f3a"
SECRET_KEY = "test-secret-key-91bc44de"
_START_SECONDS = 20


@dataclass(frozen=True)
class ObjectServer:
    """A running server whose buckets are folders below ``root``."""

    port: int
    root: Path

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def options(self) -> dict[str, str]:
        """Return the ``storage_options=`` of a client."""
        return options_for(self.endpoint)

    def new_bucket(self, name: str) -> str:
        """Create an empty bucket and return its URI."""
        (self.root / name).mkdir()
        return f"s3://{name}"


def options_for(endpoint: str) -> dict[str, str]:
    return {
        "aws_access_key_id": ACCESS_KEY,
        "aws_secret_access_key": SECRET_KEY,
        "aws_endpoint_url": endpoint,
        "aws_region": "us-east-1",
    }


@cache
def program() -> tuple[str | None, str]:
    """Return the path of the server program, built if needed, or None and the reason."""
    process = subprocess.run(
        [str(ROOT / "scripts" / "object-server")],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    if process.returncode != 0:
        return None, process.stderr.strip().splitlines()[-1]
    return process.stdout.strip(), ""


def free_port() -> int:
    with socket.socket() as free_socket:
        free_socket.bind(("127.0.0.1", 0))
        return int(free_socket.getsockname()[1])


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[ObjectServer]:
    """Run a server over the folders of ``folder`` while the block runs."""
    path, why = program()
    if path is None:
        raise RuntimeError(why)
    server = ObjectServer(free_port(), folder)
    process = subprocess.Popen(
        [path, "--port", f"127.0.0.1:{server.port}", "--quiet", "posix", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY},
    )
    try:
        wait_for(server.port, process)
        yield server
    finally:
        process.terminate()
        process.wait(timeout=20)


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError("a server of the tests did not start") from None
            time.sleep(0.02)
