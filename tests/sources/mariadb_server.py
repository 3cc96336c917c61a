"""A MariaDB server for the test run, in a temporary folder."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SKIPPED = "MariaDB suite skipped"
USER, PASSWORD = "reader", "tr0ub4dor&3"
_UNPRIVILEGED = "nobody"
_PATIENCE = 60.0


def connect_as_root(port: int, **options: Any) -> Any:
    """Return a plain driver connection of the root user."""
    import pymysql

    settings = {"user": "root", "password": "", "autocommit": True, "charset": "utf8mb4", **options}
    return pymysql.connect(host="127.0.0.1", port=port, **settings)


@contextmanager
def running() -> Iterator[int]:
    """Start a server and yield its port; skip if its programs are not installed."""
    pytest.importorskip("pymysql", reason=f"{SKIPPED}: pymysql is not installed")
    install = shutil.which("mariadb-install-db")
    server = shutil.which("mariadbd", path=f"{os.environ['PATH']}:/usr/sbin")
    if install is None or server is None:
        pytest.skip(f"{SKIPPED}: no server programs (mariadbd) found")
    folder = Path(tempfile.mkdtemp(prefix="featurestore-mariadb-"))
    user = _UNPRIVILEGED if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
    shutil.chown(folder, user)
    data = folder / "data"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    small = ["--innodb-log-file-size=4M", "--innodb-flush-log-at-trx-commit=0"]
    small += ["--innodb-buffer-pool-size=16M", "--skip-log-bin"]
    try:
        install_command = [
            install,
            "--no-defaults",
            f"--datadir={data}",
            f"--user={user}",
            "--skip-test-db",
        ]
        subprocess.run(
            [*install_command, "--auth-root-authentication-method=normal", *small],
            check=True,
            capture_output=True,
            timeout=_PATIENCE,
        )
        started = [server, "--no-defaults", f"--datadir={data}", f"--user={user}"]
        started += [f"--socket={folder}/socket", f"--pid-file={folder}/pid", "--skip-name-resolve"]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [*started, "--bind-address=127.0.0.1", f"--port={port}", *small],
                stdout=log,
                stderr=log,
            )
        try:
            _wait(process, port, folder / "log")
            yield port
        finally:
            process.kill()
            process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    import pymysql

    start = time.monotonic()
    while time.monotonic() - start < _PATIENCE:
        if process.poll() is not None:
            pytest.skip(f"{SKIPPED}: it ended: {log.read_text()[-300:]}")
        try:
            connect_as_root(port).close()
            return
        except pymysql.err.OperationalError:
            time.sleep(0.05)
    pytest.skip(f"{SKIPPED}: it did not answer in {_PATIENCE:.0f} seconds")
