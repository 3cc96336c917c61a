"""The database of a registry, SQLite or Postgres: connections and transactions, and their settings.

Errors and representations of a URL never contain its secrets.
"""

from __future__ import annotations

import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.engine import Connection, Engine, ExceptionContext

from featurestore._imports import uninterrupted
from featurestore.errors import (
    ConfigurationError,
    LocationNotWritable,
    RegistryDamaged,
    RegistryError,
    missing_extra,
)
from featurestore.model.runtime import ForkGuard, ForkSafeLock
from featurestore.registry import database_errors, origins
from featurestore.registry.database_errors import format_url
from featurestore.registry.origins import CHANGED, RESTORED
from featurestore.registry.rows import LOCATION
from featurestore.registry.schema import Repair
from featurestore.storage import sqlite_files

BUSY_SECONDS = 60
# Longer than the removal of the files of a large dataset, which is part of a transaction.
IDLE_SECONDS = 600
LONGEST_SECONDS = 3600
# The locks of a suspended process would block all others. Postgres before 17 has no
# ``transaction_timeout``, which also ends a transaction that is suspended between the statements of
# an ``executemany``; there the other processes fail after ``lock_timeout``.
_POSTGRES_LIMITS = (
    "set lock_timeout = '{busy}s'",
    "set idle_in_transaction_session_timeout = '{idle}s'",
    "select set_config(name, '{longest}s', false) from pg_settings "
    "where name = 'transaction_timeout'",
)
_CONNECTION_NUMBER = "featurestore_number"
_connection_numbers = count()


class Registry:
    """An open registry with write transactions, and read transactions that never wait for them."""

    def __init__(
        self,
        url: sa.URL,
        location: str,
        *,
        schema: str | None = None,
        is_copy: bool = False,
        durable: bool = True,
        connections: int = 5,
    ) -> None:
        self._engine = _create_engine(url, schema=schema, durable=durable, connections=connections)
        self._fork_guard = ForkGuard(
            "The registry",
            close_idle=self._engine.dispose,
            discard=partial(self._engine.dispose, close=False),
            is_file=self._engine.dialect.name == "sqlite",
        )
        self._url = url
        # Without passwords.
        self.url = database_errors.format_url(url)
        self._location = location
        self._schema = schema
        self._is_copy = is_copy
        # What opening the registry for a rebuild has repaired.
        self.repair = Repair()
        self._open = threading.local()
        # If a store is not closed, its server connections must not be left to garbage collection.
        weakref.finalize(self, self._engine.dispose)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Yield a connection whose statements are committed atomically.

        Raises:
            LocationNotWritable: The store is read-only.
            RegistryError: The database cannot be used.
        """
        self.check_writable()
        with self.upgrade_transaction() as connection:
            yield connection

    @property
    def is_copy(self) -> bool:
        """Whether the registry is read-only: a copy, or filtered for a reader."""
        return self._is_copy

    def check_writable(self) -> None:
        """Raise LocationNotWritable if the store is read-only."""
        if self._is_copy:
            raise LocationNotWritable(
                f"The store at {self._location!r} is read-only and cannot be written.",
                hint="connect from a machine that can write to the location",
            )

    @contextmanager
    def upgrade_transaction(self) -> Iterator[Connection]:
        """Yield a connection as ``transaction`` does, even to a read-only copy.

        Upgrades use it, because the tables of a copy must also be those of this release.
        """
        with self._connection(immediate=True) as connection, connection.begin():
            for key in (CHANGED, RESTORED):  # of a transaction that was rolled back
                connection.info.pop(key, None)
            self._open.connection = connection
            try:
                yield connection
                changed_objects = connection.info.pop(CHANGED, None)
                if changed_objects and not self._is_copy:
                    origins.write_files(connection, changed_objects)
            finally:
                self._open.connection = None

    def write_joined(self, write: Callable[[Connection], None]) -> None:
        """Call a function with the connection of this thread's open transaction, or of a new one.

        A second transaction of the same thread would wait for the first transaction without end.
        """
        postponed_writes = getattr(self._open, "postponed_writes", None)
        connection = getattr(self._open, "connection", None)
        if postponed_writes is not None:
            postponed_writes.append(write)
        elif connection is not None:
            write(connection)
        else:
            with self.transaction() as connection:
                write(connection)

    @contextmanager
    def postponing_writes(self) -> Iterator[None]:
        """Postpone the writes of ``write_joined`` in this thread to the end of the block."""
        postponed_writes: list[Callable[[Connection], None]] = []
        self._open.postponed_writes = postponed_writes
        try:
            yield
        finally:
            self._open.postponed_writes = None
            for write in postponed_writes:
                self.write_joined(write)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection whose queries all read the same snapshot."""
        # In the WAL mode of SQLite, a deferred transaction takes no lock and reads one snapshot.
        with self._connection(immediate=False) as connection, connection.begin():
            yield connection

    def has_hidden_name(self, text: str) -> bool:
        """Return whether a string contains a name that is hidden from this registry's readers."""
        return False

    @property
    def location(self) -> str:
        """The location of the store."""
        return self._location

    def discard_deleted(self) -> None:
        """Overwrite the bytes of deleted and replaced texts in the file of SQLite.

        Postgres does so in its next vacuum.
        """
        self.check_writable()
        if self.dialect != "sqlite":
            return
        with self._connection(immediate=False) as connection:
            # VACUUM cannot run in a transaction.
            database = connection.connection.driver_connection
            assert isinstance(database, sqlite3.Connection)
            database.execute("VACUUM")
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def damage(self) -> str | None:
        """Return the first damage that SQLite finds in the pages of its file, None if it is intact.

        Changed bytes within a text or a number are not found. Postgres has its own checksums.
        """
        if self.dialect != "sqlite":
            return None
        try:
            with self.reading() as connection:
                result = connection.exec_driver_sql("pragma integrity_check(1)").scalar_one()
        except RegistryError as error:
            return error.message
        return None if result == "ok" else str(result)

    @property
    def dialect(self) -> str:
        """The SQL dialect: "sqlite" or "postgresql"."""
        return self._engine.dialect.name

    def reader(self, *, connections: int) -> Registry:
        """Return a read-only registry for the same database with a separate connection pool."""
        return Registry(
            self._url,
            self._location,
            schema=self._schema,
            is_copy=True,
            durable=False,
            connections=connections,
        )

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @contextmanager
    def _connection(self, *, immediate: bool) -> Iterator[Connection]:
        """Yield a connection, and convert database errors to RegistryError."""
        try:
            with self._fork_guard, self._engine.connect() as connection:
                options = {"immediate": immediate, LOCATION: self._location}
                yield connection.execution_options(**options)
        except (exc.NoResultFound, exc.MultipleResultsFound) as error:
            # This package never writes such rows: another program did, or the file is damaged.
            raise RegistryDamaged(
                f"The registry contains inconsistent rows: {error}",
                hint="featurestore registry rebuild, and register the jobs again",
            ) from error
        except (exc.OperationalError, exc.DatabaseError) as error:
            # An integrity error is an error of the caller, not of the database.
            if isinstance(error, exc.IntegrityError):
                raise
            raise database_errors.to_registry_error(self._url, error) from (
                database_errors.cause_without_secrets(self._url, error)
            )


# -- settings of connections --------------------------------------------------------------


def _create_engine(
    url: sa.URL, *, durable: bool, connections: int, schema: str | None = None
) -> Engine:
    """Create the engine of a SQLite or Postgres database with its connection settings."""
    backend = url.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise ConfigurationError(
            f"registry={format_url(url)!r} is a {backend} database. Supported: sqlite and postgresql.",
            hint="registry='postgresql://user@host/database'",
        )
    # SQLAlchemy's default driver is psycopg2, but the extra "postgres" installs psycopg 3.
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    # SQLite waits this long for the write lock of another process.
    arguments = {"timeout": BUSY_SECONDS} if backend == "sqlite" else {}
    try:
        with uninterrupted():  # SQLAlchemy imports the driver by name
            engine = sa.create_engine(url, connect_args=arguments, pool_size=connections)
    except (exc.ArgumentError, TypeError, ValueError):
        raise ConfigurationError(
            f"registry={format_url(url)!r} has options that its driver does not support.",
            hint="registry='postgresql://user@host/database'",
        ) from None
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "psycopg", "postgres") from error
    if backend == "sqlite":
        event.listen(engine, "handle_error", _report_undecodable_text)
        event.listen(engine, "do_connect", _create_sqlite_file)
        event.listen(engine, "connect", _prepare_sqlite)
        if durable:
            # This listener replaces the mode that _prepare_sqlite sets.
            event.listen(engine, "connect", _sync_each_transaction)
        event.listen(engine, "begin", _begin_sqlite)
    else:
        for statement in _POSTGRES_LIMITS:
            limits = {"busy": BUSY_SECONDS, "idle": IDLE_SECONDS, "longest": LONGEST_SECONDS}
            event.listen(engine, "connect", partial(_execute_setting, statement.format_map(limits)))
    if schema is not None:
        # The schema name is derived from a validated id.
        statement = f'set search_path to "{schema}"'
        event.listen(engine, "connect", partial(_execute_setting, statement))
    return engine


def _execute_setting(statement: str, connection: object, _record: object) -> None:
    """Change a setting of a new connection."""
    cursor = connection.cursor()  # type: ignore[attr-defined]
    cursor.execute(statement)
    cursor.close()
    # A later rollback would otherwise undo the setting.
    connection.commit()  # type: ignore[attr-defined]


def _report_undecodable_text(context: ExceptionContext) -> None:
    """Raise a database error if a statement returned damaged text.

    Python's driver raises ``UnicodeDecodeError``, which is not a database error, if a message of
    SQLite quotes the damaged schema.
    """
    error = context.original_exception
    if isinstance(error, UnicodeDecodeError):
        damage = _undecodable_text_error(error)
        raise exc.DatabaseError(context.statement, context.parameters, damage) from error


def _undecodable_text_error(error: UnicodeDecodeError) -> sqlite3.DatabaseError:
    return sqlite3.DatabaseError(f"the file contains text that is not UTF-8: {error.object[:80]!r}")


def _create_sqlite_file(
    _dialect: object, _record: object, arguments: Sequence[Any], _options: object
) -> None:
    """Create the file of a new registry with a private mode, which SQLite copies to its logs."""
    path = str(arguments[0])
    if path != ":memory:":
        sqlite_files.create_database(path)


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    """Set the transaction, journal and foreign key modes of a new connection."""
    # The driver must not begin transactions itself: they would be deferred, and fail when they are
    # upgraded to a write lock.
    connection.isolation_level = None
    cursor = connection.cursor()
    try:
        sqlite_files.use_write_ahead_log(connection, seconds=BUSY_SECONDS)
        sqlite_files.check_last_page(connection)
    except UnicodeDecodeError as error:
        raise _undecodable_text_error(error) from error
    # In WAL mode, "normal" keeps the database consistent after a power loss, but may lose the last
    # transactions.
    cursor.execute("pragma synchronous=normal")
    # SQLite enforces foreign keys, and deletes dependent rows, only if the connection enables them.
    cursor.execute("pragma foreign_keys=on")
    cursor.close()


def _sync_each_transaction(connection: object, _record: object) -> None:
    connection.execute("pragma synchronous=full")  # type: ignore[attr-defined]


def _begin_sqlite(connection: Connection) -> None:
    # A write transaction locks the database at its start. A deferred one fails without waiting if
    # another process has written since it began to read.
    immediate = connection.get_execution_options().get("immediate", True)
    connection.exec_driver_sql("begin immediate" if immediate else "begin")


# -- commits of all processes ---------------------------------------------------------------


class ChangeWatch:
    """Detects commits to a registry by any process without reading its tables.

    For each connection SQLite counts the commits of all other connections, so the watch uses a
    separate connection that never writes. Postgres returns the transactions that a statement sees,
    which include those in other databases of the server.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry.reader(connections=1)
        self._lock = ForkSafeLock()

    def state(self) -> tuple[int, str]:
        """Return a state that equals an earlier one only if no transaction was committed since."""
        statement = "pragma data_version"
        if self._registry.dialect == "postgresql":
            statement = "select txid_current_snapshot()::text"
        with self._lock, self._registry.reading() as connection:
            # SQLite's data_version can be compared only within one connection, and the pool may
            # open a new one.
            number = connection.info.setdefault(_CONNECTION_NUMBER, next(_connection_numbers))
            return number, str(connection.exec_driver_sql(statement).scalar_one())

    def close(self) -> None:
        """Close the connection."""
        self._registry.close()
