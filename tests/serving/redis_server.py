"""A Redis server for the test run, in a temporary folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import redis

_PATIENCE = 30.0


class RedisServer:
    """A server process that can be killed and started again with its files."""

    def __init__(self, folder: Path, *options: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._command = [require_redis(), "--port", str(self.port), "--bind", "127.0.0.1"]
        self._command += ["--dir", str(folder), "--save", "", "--logfile", str(folder / "log")]
        self._command += ["--repl-diskless-sync-delay", "0", *options]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        import redis

        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + _PATIENCE
        with redis.Redis(port=self.port) as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.AuthenticationError:
                    return
                except redis.ConnectionError:
                    assert self._process.poll() is None, "redis-server ended"
                    assert time.monotonic() < deadline, "redis-server does not respond"
                    time.sleep(0.01)

    def client(self) -> redis.Redis:
        """Return a client of the server."""
        import redis

        return redis.Redis(port=self.port)

    def copy(self, primary: RedisServer) -> None:
        """Replicate the data of another server, then become a primary server without later data."""
        deadline = time.monotonic() + _PATIENCE
        with self.client() as client, primary.client() as source:
            client.replicaof("127.0.0.1", primary.port)
            while (
                client.info("replication").get("master_link_status") != "up"
                or client.info("replication")["slave_repl_offset"]
                < source.info("replication")["master_repl_offset"]
            ):
                assert time.monotonic() < deadline, "the replica is not synchronized"
                time.sleep(0.005)
            client.replicaof("NO", "ONE")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def crash(self) -> None:
        """Kill the server, and start it again with its files."""
        self.kill()
        self.start()


def require_redis() -> str:
    """Return the server program; skip without one, or fail where CI requires it."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        reason = "no Redis server program (redis-server) found"
        if os.environ.get("CI", "").lower() in {"1", "true"}:
            pytest.fail(f"CI=true, but {reason}", pytrace=False)
        pytest.skip(f"Redis suite skipped: {reason}")
    return program


def empty(url: str) -> None:
    """Remove all keys of a database."""
    import redis

    with redis.Redis.from_url(url) as client:
        client.flushdb()


@contextmanager
def running(*options: str) -> Iterator[RedisServer]:
    """Start a server with options of its command line, and stop it at the end."""
    pytest.importorskip("redis", reason="Redis suite skipped: redis is not installed")
    folder = Path(tempfile.mkdtemp(prefix="featurestore-redis-"))
    server = RedisServer(folder, *options)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)
