"""A Postgres server for the test run.

Made with initdb under an unprivileged user, in a temporary folder.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

UNPRIVILEGED = "nobody"


def postgres_binaries() -> Path | None:
    """Return the newest folder of Postgres server programs on this machine."""
    result = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if result:
        return result[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None


def require_postgres() -> Path:
    """Return the server programs; skip without them, or fail where CI requires them."""
    binaries = postgres_binaries()
    if binaries is None:
        reason = "no Postgres server programs (initdb) found"
        if os.environ.get("CI", "").lower() in {"1", "true"}:
            pytest.fail(f"CI=true, but {reason}", pytrace=False)
        pytest.skip(f"Postgres suite skipped: {reason}")
    return binaries


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a running server without a database name."""
    binaries = require_postgres()
    pytest.importorskip("psycopg")
    # Postgres refuses to run as root, and its user must be able to reach the folder.
    folder = Path(tempfile.mkdtemp(prefix="featurestore-postgres-"))
    as_root = os.getuid() == 0
    account = pwd.getpwnam(UNPRIVILEGED) if as_root else None
    if account is not None:
        os.chown(folder, account.pw_uid, account.pw_gid)

    def run(program: str, *arguments: str) -> None:
        subprocess.run(
            [str(binaries / program), *arguments],
            check=True,
            capture_output=True,
            timeout=120,
            cwd=folder,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C", "TZ": "UTC"},
            user=None if account is None else account.pw_uid,
            group=None if account is None else account.pw_gid,
            extra_groups=None if account is None else [],
        )

    data = str(folder / "data")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        run("initdb", "-D", data, "-U", "store", "-A", "trust", "--no-sync", "-E", "UTF8")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
        options += " -c wal_level=logical"
        run("pg_ctl", "-D", data, "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"postgresql://store@127.0.0.1:{port}"
        finally:
            run("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres_server: str, request: pytest.FixtureRequest) -> str:
    """The URL of a new, empty database."""
    return new_database(postgres_server, f"db_{abs(hash(request.node.nodeid)) % 10**9}")


def new_database(server: str, name: str) -> str:
    """Create an empty database and return its URL."""
    import psycopg

    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f"create database {name}")
    return f"{server}/{name}"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def registry_url(request: pytest.FixtureRequest) -> str | None:
    """None for SQLite in the location, and the URL of an empty Postgres database."""
    if request.param == "sqlite":
        return None
    url: str = request.getfixturevalue("postgres_url")
    return url
