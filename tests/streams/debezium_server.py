"""Debezium's connectors for Postgres, run by a standalone Kafka Connect in a temporary folder.

The jars are fetched from Maven Central once. Where they cannot be fetched, the tests that need them
are skipped with the reason.
"""

from __future__ import annotations

import re
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.maven import fetched

if TYPE_CHECKING:
    import psycopg

VERSION = "3.6.1.Final"
_POM = Path(__file__).parent / "kafka" / "debezium-pom.xml"
_TIMEOUT = 180.0
_CONNECTOR = "io.debezium.connector.postgresql.PostgresConnector"
_POSITION = re.compile(rb'\["(\w+)",\{"server":"[^"]*"\}\].*?"lsn":(\d+)', re.DOTALL)
_FAILED = "Task is being killed"
_CONVERTER = "org.apache.kafka.connect.json.JsonConverter"


@cache
def debezium_jars() -> Path:
    """Return the folder of the jars.

    Raises:
        NotFetched: The jars cannot be fetched.
    """
    return fetched(_POM, f"debezium-{VERSION}")


@dataclass
class Connect:
    """A standalone Kafka Connect; its offsets outlive the process.

    ``prefix`` makes the names of topics, slots and publications unique.
    """

    folder: Path
    broker: str
    database: str
    tables: Sequence[str]
    connectors: Mapping[str, Mapping[str, str]]
    prefix: str = field(default_factory=lambda: f"shop{uuid.uuid4().hex[:8]}")
    _process: subprocess.Popen[bytes] | None = None

    def topic(self, connector: str, table: str) -> str:
        """Return the topic of a table's changes."""
        return f"{self.prefix}_{connector}.public.{table}"

    def start(self) -> None:
        """Start the process with the connectors, from its stored offsets if there are any."""
        jars = debezium_jars()
        files = [self._write("worker", self._worker_settings())]
        for name, settings in self.connectors.items():
            files.append(self._write(name, {**self._connector_settings(name), **settings}))
        java = ["java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        java += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{jars}/*"]
        java.append("org.apache.kafka.connect.cli.ConnectStandalone")
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [*java, *map(str, files)], stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """Kill the process, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def slots(self) -> list[str]:
        return [f"{self.prefix}_{name}" for name in self.connectors]

    @property
    def log(self) -> Path:
        return self.folder / "connect.log"

    def wait_for_slots(self) -> None:
        """Wait until the slots contain each later change of the database."""
        with self.connected() as connection:
            query = (
                "select count(*) from pg_replication_slots"
                " where slot_name = any(%s) and confirmed_flush_lsn is not null"
            )
            self._wait(
                lambda: connection.execute(query, [self.slots]).fetchone() == (len(self.slots),)
            )

    def wait(self) -> None:
        """Wait until the topics contain all changes that are committed in the database.

        Connect stores the position of a record after the broker has stored it and all records
        before it. It stores the position of the table's last change or of a later change, of
        ``pulse``. The slots are not sufficient: Debezium confirms a position in a slot although
        earlier records of other partitions are still being sent.
        """
        self.wait_for_slots()
        with self.connected() as connection:
            query = "select (pg_current_wal_lsn() - '0/0')::bigint"
            (last,) = connection.execute(query).fetchone() or (0,)

            def are_published() -> bool:
                connection.execute("update pulse set beat = beat + 1")
                positions = self._stored_positions()
                return all(positions.get(name, 0) >= last for name in self.connectors)

            self._wait(are_published)

    def _stored_positions(self) -> dict[str, int]:
        """Return the position of each connector in Connect's file, a serialized map of JSON."""
        data = self._offsets.read_bytes() if self._offsets.exists() else b""
        return {match[1].decode(): int(match[2]) for match in _POSITION.finditer(data)}

    def _wait(self, is_done: Callable[[], bool]) -> None:
        assert self._process is not None
        end = time.monotonic() + _TIMEOUT
        while not is_done():
            log = self.log.read_text()
            assert self._process.poll() is None, log[-3000:]
            assert _FAILED not in log, log[-3000:]
            assert time.monotonic() < end, log[-3000:]
            time.sleep(0.02)

    @property
    def _offsets(self) -> Path:
        return self.folder / "offsets"

    def connected(self) -> psycopg.Connection[Any]:
        import psycopg

        return psycopg.connect(self.database, autocommit=True)

    def _write(self, name: str, settings: Mapping[str, Any]) -> Path:
        path = self.folder / f"{name}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path

    def _worker_settings(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.broker,
            "key.converter": _CONVERTER,
            "value.converter": _CONVERTER,
            "offset.storage.file.filename": self._offsets,
            "offset.flush.interval.ms": 100,
            "plugin.discovery": "service_load",
            "listeners": "http://127.0.0.1:0",
        }

    def _connector_settings(self, name: str) -> dict[str, Any]:
        url = urlsplit(self.database)
        return {
            "name": name,
            "connector.class": _CONNECTOR,
            "database.hostname": url.hostname,
            "database.port": url.port,
            "database.user": url.username,
            "database.password": "none",
            "database.dbname": url.path.strip("/"),
            "plugin.name": "pgoutput",
            "slot.name": f"{self.prefix}_{name}",
            "publication.name": f"{self.prefix}_{name}",
            "topic.prefix": f"{self.prefix}_{name}",
            "table.include.list": ",".join(f"public.{name}" for name in (*self.tables, "pulse")),
            "topic.creation.default.partitions": 3,
            "topic.creation.default.replication.factor": 1,
            "poll.interval.ms": 50,
            "slot.retry.delay.ms": 500,
        }


@contextmanager
def connecting(connect: Connect) -> Iterator[Connect]:
    """Run a process and its connectors; drop their slots at the end."""
    with connect.connected() as connection:
        connection.execute("create table if not exists pulse (id int primary key, beat bigint)")
        connection.execute("insert into pulse values (1, 0) on conflict do nothing")
        connect.start()
        try:
            yield connect
        finally:
            connect.kill()
            for query in (
                "select pg_terminate_backend(active_pid, 10000) from pg_replication_slots"
                " where slot_name = any(%s) and active",
                "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
                " where slot_name = any(%s)",
            ):
                connection.execute(query, [connect.slots])
