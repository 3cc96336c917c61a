"""The database of a registry: a SQLite file in the location, or a database server at a URL.

``open_registry`` creates or upgrades the database and refuses databases of newer releases. Errors
and representations of a URL never contain its secrets.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Connection

from featurestore.errors import (
    ConfigurationError,
    LocationNotWritable,
    RegistryDamaged,
    RegistryError,
)
from featurestore.model.paths import FEATUREGROUPS, TRAININGDATASETS
from featurestore.model.runtime import ForkGuard
from featurestore.registry import engines, origins, stores
from featurestore.registry.engines import create_engine
from featurestore.registry.migrations import is_complete, upgrade
from featurestore.registry.origins import CHANGED, RESTORED
from featurestore.registry.rows import LOCATION
from featurestore.registry.schema import Repair
from featurestore.storage import files, sqlite_files, storage_for
from featurestore.storage.protection import protect_location

REGISTRY_FILE = "registry.db"
# SQLite stores the last transactions in a write-ahead log next to the database file.
SQLITE_FILES = ("", "-wal")


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
        self._engine = create_engine(url, schema=schema, durable=durable, connections=connections)
        self._fork_guard = ForkGuard(
            "The registry",
            close_idle=self._engine.dispose,
            discard=partial(self._engine.dispose, close=False),
            is_file=self._engine.dialect.name == "sqlite",
        )
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
        return engines.format_url(self._url)

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
                origins.write_changed(connection, is_copy=self._is_copy)
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
            raise engines.to_registry_error(self._url, error) from (
                engines.cause_without_secrets(self._url, error)
            )


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
        sqlite_files.copy_consistently(
            [_sqlite_path(directory) + ending for ending in SQLITE_FILES], copy
        )
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


@contextmanager
def existing_registry(directory: str, url: str | None) -> Iterator[Registry | None]:
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
