"""Opening of registries: a SQLite file in the location of a store, or a database server at a URL.

``open_registry`` creates or upgrades the database and refuses databases of newer releases. ``inspect``
and ``find_problems`` do not change the registry.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Connection

from featurestore.errors import ConfigurationError, listing
from featurestore.model.paths import FEATUREGROUPS, TRAININGDATASETS
from featurestore.registry import schema, stores, unregistered
from featurestore.registry.database import Registry
from featurestore.registry.migrations import current_revision, head_revision, is_complete, upgrade
from featurestore.storage import sqlite_files, storage_for
from featurestore.storage.protection import protect_location
from featurestore.storage.temporary import remove_temporary, temporary_directory

REGISTRY_FILE = "registry.db"
# SQLite stores the last transactions in a write-ahead log next to the database file.
SQLITE_FILES = ("", "-wal")


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
        copy = temporary_directory()
        database = os.path.join(copy, REGISTRY_FILE)
        # Transactions that are not yet in the database file are in the write-ahead log.
        sqlite_files.copy_consistently(
            [_sqlite_path(directory) + ending for ending in SQLITE_FILES], copy
        )
        registry = Registry(sa.URL.create("sqlite", database=database), directory, is_copy=True)
        weakref.finalize(registry, remove_temporary, copy)
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
            store = stores.claim(connection, url, directory, adopt=adopt, read_only=read_only)
            if shared.dialect == "postgresql":
                _create_schema(connection, stores.index_schema(store))
    finally:
        shared.close()
    return _open_index(store, url, directory, is_copy=read_only, durable=durable)


def _create_schema(connection: Connection, name: str) -> None:
    """Create a schema unless it exists; only the creation needs a privilege in the database."""
    if connection.execute(sa.select(sa.func.to_regnamespace(name))).scalar() is None:
        connection.execute(sa.schema.CreateSchema(name))


def _open_index(
    store: str, url: sa.URL, directory: str, *, is_copy: bool, durable: bool
) -> Registry:
    if url.get_backend_name() == "sqlite":
        file_url = url.set(database=stores.index_file(url.database or "", store))
        return Registry(file_url, directory, is_copy=is_copy, durable=durable)
    schema_name = stores.index_schema(store)
    return Registry(url, directory, schema=schema_name, is_copy=is_copy, durable=durable)


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
    storage = storage_for(directory)
    if url is not None:
        return storage.exists(directory)
    names = (REGISTRY_FILE, stores.MEMORY_FILE, FEATUREGROUPS, TRAININGDATASETS)
    return any(storage.exists(os.path.join(directory, name)) for name in names)


@contextmanager
def existing_registry(directory: str, url: str | None) -> Iterator[Registry | None]:
    """Yield the registry of a location without changing it, None if it does not exist."""
    parsed = _parse_url(directory, url)
    registry: Registry | None = None
    if _is_inside(parsed, directory):
        stores.check_no_reference(directory)
        if storage_for(directory).exists(_sqlite_path(directory)):
            registry = Registry(parsed, directory)
    else:
        shared = Registry(parsed, directory)
        try:
            with shared.reading() as connection:
                store = stores.find(connection, directory)
        finally:
            shared.close()
        if store is not None:
            registry = _open_index(store, parsed, directory, is_copy=True, durable=False)
    try:
        yield registry
    finally:
        if registry is not None:
            registry.close()


# -- inspection -----------------------------------------------------------------------------


def inspect(directory: str, *, url: str | None = None) -> str | None:
    """Return the revision of a location's registry without changing the registry.

    Return None if it does not exist or is empty.
    """
    with existing_registry(directory, url) as registry:
        return None if registry is None else revision(registry)


def find_problems(directory: str, *, url: str | None = None) -> list[str]:
    """Return what a rebuild would repair: damage, missing tables, and unregistered objects."""
    with existing_registry(directory, url) as registry:
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


def revision(registry: Registry) -> str | None:
    """Return the revision stored in the database, None if it is empty."""
    with registry.reading() as connection:
        return current_revision(connection)
