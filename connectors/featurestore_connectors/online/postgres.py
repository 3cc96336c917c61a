"""Postgres as an online store: the table ``featurestore_online`` in the default schema of the user."""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from featurestore.errors import OnlineStoreError, OnlineStoreUnavailable, missing_extra
from featurestore.plugins.credentials import libpq_parameters
from featurestore.plugins.online import (
    DurabilityRisk,
    IdentifiesServer,
    OnlineConfig,
    OnlineStore,
)
from featurestore_connectors.online.connections import (
    ConnectionPool,
    ServerAddress,
    ThreadedReads,
    end_of_prefix,
)

_DEFAULT_PORT = 5432
_OPTIONS = ("application_name", "channel_binding", "gssencmode", "options", "sslmode")
_COPY_BATCH = 50_000
_UPSERT_BATCH = 10_000
_DELETE_BATCH = 10_000
_SCAN_BATCH = 5_000
# Free space in each page keeps new row versions in the page of the old ones, without index updates.
_CREATE = """
    CREATE TABLE IF NOT EXISTS featurestore_online (key bytea PRIMARY KEY, value bytea NOT NULL)
    WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.05)
"""
_CREATE_LOCK = "SELECT pg_advisory_xact_lock(hashtext('featurestore_online'))"
_EXISTS = "SELECT to_regclass('featurestore_online') IS NOT NULL"
_READ = "SELECT key, value FROM featurestore_online WHERE key = ANY(%b)"
_COPY = "COPY featurestore_online (key, value) FROM STDIN (FORMAT binary)"
# Rows in order of their keys: concurrent statements lock rows in the same order, without deadlocks.
_UPSERT = """
    INSERT INTO featurestore_online AS stored (key, value)
    SELECT * FROM unnest(%b::bytea[], %b::bytea[]) AS published (key, value) ORDER BY key
    ON CONFLICT (key) DO UPDATE SET value = excluded.value
"""
# Byte strings are compared as unsigned bytes, which is the order of big-endian numbers.
_UPSERT_NEWER = (
    f"{_UPSERT} WHERE substring(stored.value FROM 2 FOR 8) < substring(excluded.value FROM 2 FOR 8)"
)
_INSERT = "INSERT INTO featurestore_online VALUES (%b, %b) ON CONFLICT (key) DO NOTHING"
_REPLACE = "UPDATE featurestore_online SET value = %b WHERE key = %b AND value = %b"
_DELETE = """
    DELETE FROM featurestore_online WHERE key IN (
        SELECT key FROM featurestore_online
        WHERE key >= %b AND (%b::bytea IS NULL OR key < %b) ORDER BY key LIMIT %s
    ) RETURNING key
"""
_DELETE_KEYS = "DELETE FROM featurestore_online WHERE key = ANY(%b)"
_SCAN = """
    SELECT key FROM featurestore_online
    WHERE key >= %b AND (%b::bytea IS NULL OR key < %b) ORDER BY key LIMIT %s
"""
_STATISTICS = """
    SELECT count(*), pg_total_relation_size('featurestore_online') FROM featurestore_online
"""
_CHECK = """
    SELECT has_table_privilege('featurestore_online', 'SELECT')
       AND has_table_privilege('featurestore_online', 'INSERT')
       AND has_table_privilege('featurestore_online', 'UPDATE')
       AND has_table_privilege('featurestore_online', 'DELETE'), pg_is_in_recovery()
"""
# The timeline differs after a failover or a recovery to an earlier time.
_IDENTITY = """
    SELECT (SELECT system_identifier FROM pg_control_system()),
        left(pg_walfile_name(pg_current_wal_lsn()), 8)
"""
_TABLE = "SELECT pg_is_in_recovery(), 'featurestore_online'::regclass::oid"
_SETTINGS = """
    SELECT (SELECT relpersistence::text FROM pg_class WHERE oid = 'featurestore_online'::regclass),
        current_setting('synchronous_standby_names'), jsonb_build_object(
            'fsync', current_setting('fsync'),
            'full_page_writes', current_setting('full_page_writes'),
            'synchronous_commit', current_setting('synchronous_commit'))
"""
# The binary format of COPY (https://www.postgresql.org/docs/current/sql-copy.html).
_COPY_HEADER = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_COPY_END = b"\xff\xff"
_FIELD_COUNT = b"\x00\x02"
_LENGTH = struct.Struct(">i").pack
ResultT = TypeVar("ResultT")


class PostgresOnlineStore:
    """A table of a Postgres database."""

    def __init__(self, config: OnlineConfig) -> None:
        self.config = config
        self._address = ServerAddress.parse(config, default_port=_DEFAULT_PORT, allowed=_OPTIONS)
        self._pool = ConnectionPool(self._connect)
        self._async_reads = ThreadedReads(self.read)
        self._has_table = False

    @property
    def name(self) -> str:
        return "postgresql"

    def read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        errors = _import_psycopg().errors
        try:
            rows = self._fetch(_READ, (list(keys),))
        except errors.UndefinedTable:
            return [None] * len(keys)
        return list(map(dict(rows).get, keys))

    async def read_async(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return await self._async_reads.read(keys)

    def write(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        self._create_table()

        def copy_rows(connection: Any) -> None:
            # One transaction: after a crash, the table has all rows or none.
            with connection.transaction(), connection.cursor() as cursor:
                for start in range(0, len(keys), _COPY_BATCH):
                    batch = slice(start, start + _COPY_BATCH)
                    rows = zip(keys[batch], values[batch], strict=True)
                    with cursor.copy(_COPY) as copy:
                        copy.write(b"".join([_COPY_HEADER, *map(_copy_row, rows), _COPY_END]))

        try:
            self._run(copy_rows)
        except _import_psycopg().errors.UniqueViolation:
            # COPY cannot replace rows.
            self._upsert(_UPSERT, keys, values)

    def write_newer(self, keys: Sequence[bytes], values: Sequence[bytes]) -> int:
        self._create_table()
        return self._upsert(_UPSERT_NEWER, keys, values)

    def compare_and_set(self, key: bytes, expected: bytes | None, value: bytes) -> bool:
        self._create_table()
        if expected is None:
            count = self._count(_INSERT, (key, value))
        else:
            count = self._count(_REPLACE, (value, key, expected))
        return count == 1 or self.read([key]) == [value]

    def scan(self, prefix: bytes) -> Iterator[list[bytes]]:
        self._create_table()
        start, end = prefix, end_of_prefix(prefix)
        while True:
            keys = [key for (key,) in self._fetch(_SCAN, (start, end, end, _SCAN_BATCH))]
            if not keys:
                return
            yield keys
            start = keys[-1] + b"\0"  # the next possible key

    def delete(self, keys: Sequence[bytes]) -> int:
        self._create_table()
        return self._count(_DELETE_KEYS, (list(keys),))

    def delete_prefix(self, prefix: bytes) -> int:
        self._create_table()
        end = end_of_prefix(prefix)
        deleted = 0
        while True:
            rows = self._fetch(_DELETE, (prefix, end, end, _DELETE_BATCH))
            deleted += len(rows)
            if len(rows) < _DELETE_BATCH:
                return deleted
            # The index contains deleted keys until a vacuum, so the next batch starts behind them.
            prefix = max(key for (key,) in rows)

    def clock(self) -> datetime:
        return self._fetch("SELECT clock_timestamp()")[0][0]

    def check(self) -> None:
        self._create_table()
        ((is_allowed, is_replica),) = self._fetch(_CHECK)
        if is_replica:
            raise OnlineStoreError(
                f"{self._subject} is a replica, which cannot be written.",
                hint="set the URI of the primary server",
            )
        if not is_allowed:
            raise OnlineStoreError(
                f"{self._subject}: the user may not read and write the table.",
                hint="run as its owner: GRANT SELECT, INSERT, UPDATE, DELETE "
                "ON featurestore_online TO ...",
            )

    def server_identity(self) -> str | None:
        self._create_table()
        ((is_replica, table),) = self._fetch(_TABLE)
        if is_replica:
            return None
        try:
            ((system, timeline),) = self._fetch(_IDENTITY)
        except OnlineStoreUnavailable:
            raise
        except OnlineStoreError:
            # Some services have no such functions, or not for this user.
            return f"table={table}"
        return f"table={table} system={system} timeline={timeline}"

    def durability_risks(self) -> Sequence[DurabilityRisk]:
        self._create_table()
        return list(_durability_risks(*self._fetch(_SETTINGS)[0]))

    def statistics(self) -> Mapping[str, int]:
        self._create_table()
        ((keys, size),) = self._fetch(_STATISTICS)
        return {"keys": keys, "bytes": size}

    def close(self) -> None:
        self._async_reads.close()
        self._pool.close_idle()

    @property
    def _subject(self) -> str:
        return f"Online store {self.config.name!r} at {self._address}"

    def _connect(self) -> Any:
        connection_class = _connection_class(self._address.timeout)
        credentials = libpq_parameters(
            uses_environment=self.config.uses_environment, version=_import_psycopg().pq.version()
        )
        if self.config.secret is not None:
            credentials["password"] = self.config.secret()
        try:
            return connection_class.connect(
                host=self._address.host,
                port=self._address.port,
                user=self._address.user,
                dbname=self._address.database,
                connect_timeout=max(2, round(self._address.timeout)),
                autocommit=True,
                **{**self._address.options, **credentials},
            )
        except _import_psycopg().OperationalError as error:
            raise self._unavailable(error) from None

    def _create_table(self) -> None:
        if self._has_table:
            return
        if not self._fetch(_EXISTS)[0][0]:
            self._run(_create_table)
        self._has_table = True

    def _upsert(self, statement: str, keys: Sequence[bytes], values: Sequence[bytes]) -> int:
        """Write rows in one transaction, in the order of their keys, as all writers."""
        order = sorted(range(len(keys)), key=keys.__getitem__)

        def write_rows(connection: Any) -> int:
            count = 0
            with connection.transaction():
                for start in range(0, len(order), _UPSERT_BATCH):
                    batch = order[start : start + _UPSERT_BATCH]
                    arguments = [keys[row] for row in batch], [values[row] for row in batch]
                    count += _execute(connection, statement, arguments).rowcount
            return count

        return self._run(write_rows)

    def _fetch(self, statement: str, arguments: Sequence[object] = ()) -> list[Any]:
        return self._run(lambda connection: _execute(connection, statement, arguments).fetchall())

    def _count(self, statement: str, arguments: Sequence[object]) -> int:
        return self._run(lambda connection: _execute(connection, statement, arguments).rowcount)

    def _run(self, call: Callable[[Any], ResultT]) -> ResultT:
        """Call a function with a connection; repeat it once if the server had closed that.

        Raises:
            UndefinedTable, UniqueViolation: Unchanged, for the caller.
        """
        psycopg = _import_psycopg()
        errors = psycopg.errors
        is_pooled = self._pool.has_idle
        try:
            try:
                with self._pool.borrow() as connection:
                    return call(connection)
            except psycopg.OperationalError as error:
                if not is_pooled or isinstance(error, errors.DiskFull):
                    raise
                # After a restart of the server, all pooled connections are closed.
                self._pool.close_idle()
                with self._pool.borrow() as connection:
                    return call(connection)
        except (errors.UndefinedTable, errors.UniqueViolation):
            raise
        except errors.DiskFull as error:
            raise OnlineStoreError(
                f"{self._subject} is full: {error}",
                hint="free space on the disk of the server, and publish again",
            ) from None
        except (psycopg.OperationalError, TimeoutError) as error:
            raise self._unavailable(error) from None
        except errors.InsufficientPrivilege as error:
            raise OnlineStoreError(
                f"{self._subject} denies access: {error}",
                hint="grant CREATE on the schema to the user, or create the table as its owner",
            ) from None
        except psycopg.Error as error:
            raise OnlineStoreError(f"{self._subject}: {error}") from None

    def _unavailable(self, error: Exception) -> OnlineStoreUnavailable:
        message = " ".join(str(error).split())
        return OnlineStoreUnavailable(
            f"{self._subject} cannot be reached or does not respond: {message}",
            hint=f"check that this works: pg_isready -h {self._address.host} "
            f"-p {self._address.port}",
        )


def _durability_risks(
    persistence: str, standbys: str, settings: Mapping[str, str]
) -> Iterator[DurabilityRisk]:
    """Yield the risks of a server, from the persistence of the table and the settings."""
    if persistence == "u":
        yield DurabilityRisk(
            "featurestore_online",
            "unlogged",
            "a crash of the server empties the table",
            "ALTER TABLE featurestore_online SET LOGGED",
        )
    losses = {
        "fsync": "a crash of the machine loses writes, or damages the database",
        "full_page_writes": "a crash of the machine damages the database",
        "synchronous_commit": "a crash of the server loses the last writes",
    }
    for setting, loss in losses.items():
        if settings[setting] == "off":
            yield DurabilityRisk(setting, "off", loss, f"ALTER SYSTEM SET {setting} = on")
    if not standbys:
        yield DurabilityRisk(
            "synchronous_standby_names",
            "none",
            "a failover loses the writes that the standby does not have",
            "with standbys: ALTER SYSTEM SET synchronous_standby_names = '*'",
        )


def _execute(connection: Any, statement: str, arguments: Sequence[object]) -> Any:
    """Execute a prepared statement with binary results."""
    return connection.execute(statement, arguments, prepare=True, binary=True)


def _create_table(connection: Any) -> None:
    """Create the table; concurrent calls wait for each other.

    Without the lock, two statements may both find no table, and the later one fails.
    """
    with connection.transaction():
        connection.execute(_CREATE_LOCK)
        connection.execute(_CREATE)


def _copy_row(row: tuple[bytes, bytes]) -> bytes:
    """Return a row in the binary format of COPY: the number of fields, then each with its length."""
    key, value = row
    return b"".join((_FIELD_COUNT, _LENGTH(len(key)), key, _LENGTH(len(value)), value))


def _import_psycopg() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise missing_extra("psycopg", "postgres") from error
    return psycopg


@cache
def _connection_class(seconds: float) -> Any:
    """Return a class of connections that fail if the server sends no response in time.

    A timeout of the server would not end the wait if the network is cut.
    """
    psycopg = _import_psycopg()

    def limit(steps: Generator[Any, Any, ResultT]) -> Generator[Any, Any, ResultT]:
        # The wait resumes the steps of the driver every 0.1 seconds, also without a response.
        deadline = monotonic() + seconds
        try:
            state = next(steps)
            while True:
                ready = yield state
                if not ready and monotonic() > deadline:
                    raise TimeoutError(f"no response in {seconds:g} seconds")
                state = steps.send(ready)
        except StopIteration as end:
            result: ResultT = end.value
            return result

    base_class: Any = psycopg.Connection

    class TimedConnection(base_class):  # type: ignore[misc]
        def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
            return super().wait(limit(gen), *arguments, **options)

    return TimedConnection


if TYPE_CHECKING:
    _contract: type[OnlineStore] = PostgresOnlineStore
    _identity: type[IdentifiesServer] = PostgresOnlineStore
