"""Postgres and Kafka for as long as a block lasts, on free ports, with the programs of this machine."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


@contextmanager
def postgres() -> Iterator[str]:
    """Start a Postgres and give the URL of its database."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    on_path = shutil.which("initdb")
    if not found and on_path is None:
        raise SystemExit("No Postgres here: apt-get install postgresql")
    binaries = found[-1] if found else Path(str(on_path)).parent
    # Postgres refuses to run as root.
    account = pwd.getpwnam("nobody") if os.getuid() == 0 else pwd.getpwuid(os.getuid())
    folder = Path(tempfile.mkdtemp(prefix="featurestore-shop-"))
    os.chown(folder, account.pw_uid, account.pw_gid)

    def call(program: str, *arguments: str) -> None:
        subprocess.run(
            [str(binaries / program), *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=[] if os.getuid() == 0 else None,
        )

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    database = str(folder / "data")
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder}"
    try:
        call("initdb", "-D", database, "-U", "shop", "-A", "trust", "--no-sync")
        call("pg_ctl", "-D", database, "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"postgresql://shop@127.0.0.1:{port}/postgres"
        finally:
            call("pg_ctl", "-D", database, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def kafka(folder: Path) -> Iterator[str]:
    """Start a Kafka and give its address; Maven fetches its jars, once."""
    from tests.streams.kafka_server import NoKafka, running

    (folder / "kafka").mkdir()
    try:
        with running(folder / "kafka") as address:
            yield address
    except NoKafka as error:
        raise SystemExit(f"No Kafka here: {error}") from None
