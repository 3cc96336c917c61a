"""The database of a registry: a SQLite file in the location, or a database server at a URL.

``open_registry`` creates or upgrades the database and refuses databases of newer releases. Errors
and representations of a URL never contain its secrets.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
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
    listing,
    missing_extra,
)
from featurestore.model.paths import FEATUREGROUPS, TRAININGDATASETS
from featurestore.model.runtime import ForkSafeLock
from featurestore.registry import origin_files, schema, stores, unregistered
from featurestore.registry.forks import ForkGuard
from featurestore.registry.migrations import current_revision, head_revision, is_complete, upgrade
from featurestore.registry.origins import CHANGED, RESTORED
from featurestore.registry.rows import LOCATION
from featurestore.registry.schema import Repair
from featurestore.storage import files, private, storage_for
from featurestore.storage.links import protect_location

REGISTRY_FILE = "registry.db"
# SQLite stores the last transactions in a write-ahead log next to the database file.
SQLITE_FILES = ("", "-wal")
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
_REBUILD = "featurestore registry rebuild"
# The codes of Postgres for a missing table, a missing column and an existing table.
_DAMAGE_CODES = ("42P01", "42703", "42P07")
_DAMAGES = (
    "already exists",
    "no such table",
    "no such column",
    "has no column",
    "Could not decode",
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
        self._engine = _engine(url, schema=schema, durable=durable, connections=connections)
        self._fork_guard = ForkGuard(self._engine)
        self._url = url
        self._location = location
        self._schema = schema
        self._is_copy = is_copy
        # What opening the registry for a rebuild has repaired.
        self.repair = Repair()
        self._open = threading.local()
        # If a store is not closed, its server connections must not be left to garbage collection.
        weakref.finalize(self, self._engine.dispose)

    @property
    def url(self) -> str:
        """The URL of the database, without passwords."""
        return format_url(self._url)

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
                origin_files.write_changed(connection, is_copy=self._is_copy)
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
            with self._fork_guard.use(), self._engine.connect() as connection:
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
            raise _to_registry_error(self._url, error) from _cause_without_secrets(self._url, error)


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


def open_registry(
    directory: str,
    *,
    url: str | None = None,
    read_only: bool = False,
    durable: bool = True,
    adopt: bool = False,
) -> Registry:
    """Open the registry of a location; create or upgrade it if necessary.

    Args:
        directory: Location of the store; it contains ``registry.db`` unless ``url`` is set.
        url: SQLAlchemy URL of another database.
        read_only: The location is not writable. Its SQLite file is copied to a temporary file,
        since SQLite creates a write-ahead log next to the database even for reading.
        durable: Sync each transaction to disk; otherwise a power loss may lose the last ones. A
        database server has its own setting.
        adopt: Accept a location with objects that the database lacks, and repair its tables,
        because the index is about to be rebuilt.

    Raises:
        ConfigurationError: The registry of the location is at a URL that was not passed.
        RegistryTooNew: The registry was written by a newer release of the feature store.
        RegistryError: The database cannot be opened, lacks a table, column or index, or is empty
            although the location contains objects.
    """
    if storage_for(directory).is_local:
        protect_location(directory)
    registry = _open_directory(directory, url, read_only, durable=durable, adopt=adopt)
    try:
        with registry.reading() as connection:
            is_usable = is_complete(connection)
        # upgrade() reads the revision again while it holds a lock.
        if not is_usable:
            upgrade(registry, repair=adopt)
    except BaseException:
        registry.close()
        raise
    return registry


def _open_directory(
    directory: str, url: str | None, read_only: bool, *, durable: bool = True, adopt: bool = False
) -> Registry:
    """Open the registry of a location, or a copy if the location is read-only."""
    parsed = _parse_url(directory, url)
    if not _is_inside(parsed, directory):
        return _open_shared(parsed, directory, read_only, durable=durable, adopt=adopt)
    stores.check_no_reference(directory)
    if read_only:
        copy = files.temporary_directory()
        database = os.path.join(copy, REGISTRY_FILE)
        # Transactions that are not yet in the database file are in the write-ahead log.
        files.copy_consistently([_sqlite_path(directory) + ending for ending in SQLITE_FILES], copy)
        registry = Registry(sa.URL.create("sqlite", database=database), directory, is_copy=True)
        weakref.finalize(registry, files.remove_temporary, copy)
        return registry
    return Registry(parsed, directory, durable=durable)


def _open_shared(
    url: sa.URL, directory: str, read_only: bool, *, durable: bool, adopt: bool
) -> Registry:
    """Open the index of a location in a database that may contain indexes of other locations."""
    shared = Registry(url, directory, durable=durable)
    try:
        with shared.upgrade_transaction() as connection:
            # The schema is created in the transaction of the claim, so no process sees a claim
            # without it.
            index = stores.claim(connection, url, directory, adopt=adopt, read_only=read_only)
            if index.schema is not None and shared.dialect == "postgresql":
                connection.execute(sa.schema.CreateSchema(index.schema, if_not_exists=True))
    finally:
        shared.close()
    return _open_index(index, url, directory, is_copy=read_only, durable=durable)


def _open_index(
    index: stores.IndexLocation, url: sa.URL, directory: str, *, is_copy: bool, durable: bool
) -> Registry:
    if url.get_backend_name() == "sqlite":
        file_url = url.set(database=index.file(url.database or ""))
        return Registry(file_url, directory, is_copy=is_copy, durable=durable)
    return Registry(url, directory, schema=index.schema, is_copy=is_copy, durable=durable)


def _is_inside(url: sa.URL, directory: str) -> bool:
    """Return whether a URL refers to the SQLite file in the location."""
    is_file = url.get_backend_name() == "sqlite" and bool(url.database)
    return is_file and os.path.abspath(url.database or "") == _sqlite_path(directory)


def _sqlite_path(directory: str) -> str:
    return os.path.join(directory, REGISTRY_FILE)


def _parse_url(directory: str, url: str | None) -> sa.URL:
    """Return the URL of a registry.

    The default URL is constructed from its components, since a path may contain any character.
    """
    if url is None:
        return sa.URL.create("sqlite", database=_sqlite_path(directory))
    try:
        return sa.make_url(url)
    except (exc.ArgumentError, ValueError):
        # The cause is not chained, since its message may contain the password.
        hint = "registry='postgresql://user@host/database' or 'sqlite:////path/to/registry.db'"
        if "@" not in url and ":" not in url:  # a path, which contains no password
            hint = f"registry={f'sqlite:///{os.path.abspath(url)}'!r}"
        raise ConfigurationError("registry= is not a database URL.", hint=hint) from None


def is_store(directory: str, *, url: str | None = None) -> bool:
    """Return whether a directory contains a store with a registry."""
    if url is not None:
        return files.exists(directory)
    names = (REGISTRY_FILE, stores.MEMORY_FILE, FEATUREGROUPS, TRAININGDATASETS)
    return any(files.exists(os.path.join(directory, name)) for name in names)


def inspect(directory: str, *, url: str | None = None) -> str | None:
    """Return the revision of a location's registry without changing the registry.

    Return None if it does not exist or is empty.
    """
    with _existing_registry(directory, url) as registry:
        return None if registry is None else revision(registry)


def find_problems(directory: str, *, url: str | None = None) -> list[str]:
    """Return what a rebuild would repair: damage, missing tables, and unregistered objects."""
    with _existing_registry(directory, url) as registry:
        if registry is None or revision(registry) is None:
            has_objects = unregistered.contains_objects(directory)
            return ["the registry is empty, but the location contains objects"] * has_objects
        damage = registry.damage()
        if damage is not None:
            return [f"the file is damaged: {damage}"]
        with registry.reading() as connection:
            if current_revision(connection) != head_revision():
                return []  # an upgrade creates the missing tables
            missing_parts = schema.missing_parts(connection)
            if missing_parts:
                return [f"the registry lacks {listing(missing_parts)}"]
            objects = unregistered.unregistered_objects(connection)
    return [f"the registry lacks {listing(objects)}"] if objects else []


@contextmanager
def _existing_registry(directory: str, url: str | None) -> Iterator[Registry | None]:
    """Yield the registry of a location without changing it, None if it does not exist."""
    parsed = _parse_url(directory, url)
    registry: Registry | None = None
    if _is_inside(parsed, directory):
        stores.check_no_reference(directory)
        if files.exists(_sqlite_path(directory)):
            registry = Registry(parsed, directory)
    else:
        shared = Registry(parsed, directory)
        try:
            with shared.reading() as connection:
                index = stores.find(connection, directory)
        finally:
            shared.close()
        if index is not None:
            registry = _open_index(index, parsed, directory, is_copy=True, durable=False)
    try:
        yield registry
    finally:
        if registry is not None:
            registry.close()


def revision(registry: Registry) -> str | None:
    """Return the revision stored in the database, None if it is empty."""
    with registry.reading() as connection:
        return current_revision(connection)


def _engine(url: sa.URL, *, durable: bool, connections: int, schema: str | None = None) -> Engine:
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

    Python's driver raises ``UnicodeDecodeError``, which is no database error, if a message of
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
        private.prepare_sqlite(path)


def _prepare_sqlite(connection: object, _record: object) -> None:
    """Set the transaction, journal and foreign key modes of a new connection."""
    # The driver must not begin transactions itself: they would be deferred, and fail when they are
    # upgraded to a write lock.
    connection.isolation_level = None  # type: ignore[attr-defined]
    cursor = connection.cursor()  # type: ignore[attr-defined]
    try:
        _switch_to_wal(cursor)
    except UnicodeDecodeError as error:
        raise _undecodable_text_error(error) from error
    # In WAL mode, "normal" keeps the database consistent after a power loss, but may lose the last
    # transactions.
    cursor.execute("pragma synchronous=normal")
    # SQLite enforces foreign keys, and deletes dependent rows, only if the connection enables them.
    cursor.execute("pragma foreign_keys=on")
    cursor.close()


def _switch_to_wal(cursor: Any) -> None:
    """Set the journal mode to a write-ahead log.

    SQLite does not wait for other processes that do so concurrently: it immediately raises
    "database is locked".
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            if cursor.execute("pragma journal_mode").fetchone()[0] != "wal":
                cursor.execute("pragma journal_mode=wal")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _sync_each_transaction(connection: object, _record: object) -> None:
    connection.execute("pragma synchronous=full")  # type: ignore[attr-defined]


def _begin_sqlite(connection: Connection) -> None:
    # A write transaction locks the database at its start. A deferred one fails without waiting if
    # another process has written since it began to read.
    immediate = connection.get_execution_options().get("immediate", True)
    connection.exec_driver_sql("begin immediate" if immediate else "begin")


def format_url(url: sa.URL) -> str:
    """Format a URL for messages, without the password and the options, which may contain secrets.

    >>> format_url(sa.make_url("postgresql://me:secret@host/store?password=secret&sslmode=require"))
    'postgresql://me:***@host/store?***'
    """
    text = url.set(query={}).render_as_string(hide_password=True)
    return f"{text}?***" if url.query else text


def _to_registry_error(url: sa.URL, error: exc.DatabaseError) -> RegistryError:
    """Convert a database error, without the secrets of the URL."""
    reason = _error_reason(url, error)
    for secret in _secret_strings(url):
        reason = reason.replace(secret, "***")
    error_class = RegistryDamaged if _is_damage(url, error) else RegistryError
    return error_class(
        f"The registry {format_url(url)} cannot be used: {reason}.", hint=_error_hint(url, error)
    )


def _is_damage(url: sa.URL, error: exc.DatabaseError) -> bool:
    """Return whether a database error is the result of a damaged file or a missing table."""
    if url.get_backend_name() != "sqlite":
        return getattr(error.orig, "sqlstate", None) in _DAMAGE_CODES
    # SQLite also reports a missing table and undecodable text as operational errors.
    is_operational = isinstance(error, exc.OperationalError)
    return not is_operational or any(words in str(error.orig) for words in _DAMAGES)


def _error_reason(url: sa.URL, error: exc.DatabaseError) -> str:
    """Return the cause in one line, without the advice and parameter lists of the driver."""
    text = str(error.orig)
    if url.get_backend_name() == "sqlite":
        return text
    # The messages of libpq contain addresses and advice in several lines.
    reasons = {
        "refused": "the server refused the connection",
        "resolve": "the host is unknown",
        "translate host": "the host is unknown",
        "password authentication failed": "the user name or the password is wrong",
        "no password supplied": "the server requires a password",
        "timeout": "the server does not respond",
    }
    for pattern, reason in reasons.items():
        if pattern in text:
            return reason
    return text.splitlines()[0].rstrip(". ")


def _error_hint(url: sa.URL, error: exc.DatabaseError) -> str:
    """Return the next step for a database error."""
    if _is_damage(url, error):
        return f"rebuild the registry from the tables: {_REBUILD}"
    if url.get_backend_name() != "sqlite":
        user = url.username or "of this process"
        return (
            f"check that a server runs at host {url.host or 'localhost'}, port {url.port or 5432}, "
            f"and that the user {user} may open database {url.database}; "
            "registry='postgresql://user:password@host:5432/database'"
        )
    folder = os.path.dirname(os.path.abspath(url.database or ""))
    if not files.is_directory(folder):
        return f"create the folder {folder!r} first"
    if "locked" in str(error.orig):
        return "another process is writing to the registry; try again"
    if "readonly" in str(error.orig):
        return f"give the user of this process write access to the files in {folder!r}, and retry"
    return "check free space and permissions"


def _secret_strings(url: sa.URL) -> list[str]:
    secrets = [] if url.password is None else [str(url.password)]
    for value in url.query.values():
        secrets += [value] if isinstance(value, str) else value
    return [secret for secret in secrets if secret]


def _cause_without_secrets(url: sa.URL, error: exc.DatabaseError) -> exc.DatabaseError | None:
    """Return an error to be chained as a cause, None if its message contains a secret."""
    text = str(error)
    return None if any(secret in text for secret in _secret_strings(url)) else error
