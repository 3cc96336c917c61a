"""Indexes of several stores in one registry database.

Each location has an index in a schema (Postgres) or a file (SQLite) that is named by the store's id.
The location stores its id and the URL, without secrets, in ``registry.json``; the database stores
ids and locations in the table ``featurestore_stores``.
"""

from __future__ import annotations

import os
import re
import shlex
import uuid
from dataclasses import dataclass
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.errors import (
    ConfigurationError,
    FeatureStoreError,
    RegistryDamaged,
    RegistryError,
    listing,
)
from featurestore.registry import unregistered
from featurestore.registry.rows import location_of
from featurestore.storage import files, storage_for

MEMORY_FILE = "registry.json"
ErrorT = TypeVar("ErrorT", bound=FeatureStoreError)
# The URL stored in an object store location whose registry is a local SQLite file.
CACHE = "sqlite: a cache on each machine"
_ID = re.compile(r"[0-9a-f]{32}")
# An arbitrary constant, which must be the same in all processes that claim an index.
_CLAIM_LOCK = 4_918_274_611

_stores = sa.Table(
    "featurestore_stores",
    sa.MetaData(),
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("location", sa.Text, nullable=False),
)


@dataclass(frozen=True)
class RegistryReference:
    """The content of ``registry.json``: the store id, and the registry URL without secrets."""

    store: str
    registry: str


def index_schema(store: str) -> str:
    """Return the Postgres schema with the index of a store."""
    return f"featurestore_{store}"


def index_file(database: str, store: str) -> str:
    """Return the SQLite file with the index of a store.

    >>> index_file("/data/registry.db", "5f2c")
    '/data/registry-5f2c.db'
    """
    stem, ending = os.path.splitext(database)
    return f"{stem}-{store}{ending}"


def read_reference(directory: str) -> RegistryReference | None:
    """Read ``registry.json`` in a location; None if the registry is in the location itself.

    Raises:
        RegistryError: The file is damaged.
    """
    path = os.path.join(directory, MEMORY_FILE)
    if not storage_for(path).exists(path):
        return None
    content = files.read_json(path)
    fields = content if isinstance(content, dict) else {}
    store, registry = fields.get("store"), fields.get("registry")
    if not isinstance(store, str) or not _ID.fullmatch(store) or not isinstance(registry, str):
        raise RegistryError(
            f"The file {path!r} does not contain the URL of the store's registry.",
            hint="remove the file, then run 'featurestore registry rebuild'",
        )
    return RegistryReference(store, registry)


def rebuild_command(location: str, registry: str | None = None) -> str:
    """Return the command that rebuilds a registry of a location, by default the one it refers to.

    >>> rebuild_command("/data/store")
    'featurestore --location /data/store registry rebuild'
    """
    words = ["featurestore", "--location", location]
    reference = read_reference(location) if registry is None else None
    if reference is not None and reference.registry != CACHE:
        registry = reference.registry
    if registry is not None:
        words += ["--registry", registry]
    return shlex.join([*words, "registry", "rebuild"])


def unregistered_error(
    connection: Connection, error: type[ErrorT], subject: str, *, part: str = "it"
) -> ErrorT:
    """Return the error for an object in the location that the registry does not contain.

    Args:
        connection: A connection to the registry.
        error: The class of the error.
        subject: The object, as the subject of a sentence.
        part: What the registry does not contain, if it is only a part of the object.
    """
    return error(
        f"{subject} is in the location, but the registry does not contain {part}.",
        hint=rebuild_command(location_of(connection)),
    )


def check_no_reference(directory: str) -> None:
    """Refuse a location whose registry is in another database.

    Raises:
        ConfigurationError: The message contains the URL to pass.
    """
    reference = read_reference(directory)
    if reference is not None:
        raise ConfigurationError(
            f"The store at {directory!r} has its registry at {reference.registry}, "
            "which was not passed.",
            hint=f"connect({directory!r}, registry={reference.registry!r}), or "
            "$FEATURESTORE_REGISTRY; add the password to the URL",
        )


def strip_secrets(url: sa.URL) -> str:
    """Return a URL without password and options, and with an absolute path.

    >>> strip_secrets(sa.make_url("postgresql://me:secret@host/features?sslpassword=secret"))
    'postgresql://me@host/features'
    """
    if url.get_backend_name() == "sqlite" and url.database:
        url = url.set(database=os.path.abspath(url.database))
    url_without_secrets = sa.URL.create(
        url.drivername, url.username, None, url.host, url.port, url.database
    )
    return url_without_secrets.render_as_string()


def claim(
    connection: Connection, url: sa.URL, directory: str, *, adopt: bool, read_only: bool
) -> str:
    """Return the id of a store whose index is in a database; claim an index for a new store.

    Args:
        connection: A transaction in the database itself.
        url: The URL of the database.
        directory: The store location.
        adopt: Claim an index even if the location contains groups, since the index is about to be
        rebuilt.
        read_only: The location is not writable.

    Raises:
        RegistryError: The location contains groups that are unknown to the database, it is a copy
        of a location whose index is in this database, another registry claimed it meanwhile, or
        the database precedes the first release.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CLAIM_LOCK)))
    # The lock must precede the creation: two processes could both find that the table is missing.
    _stores.create(connection, checkfirst=True)
    reference = stored_reference = read_reference(directory)
    row = _find_row(connection, directory, reference)
    if row is not None and _is_copy(row, directory):
        if not adopt:
            raise _copied_location_error(row.location, directory)
        # A rebuild gives the copy an index and an id of its own.
        row = None
        reference = None
    if row is None:
        # A wrong URL would otherwise create an empty index, which hides the groups of the store.
        if not adopt and unregistered.contains_objects(directory):
            raise _unknown_location_error(connection, directory, url)
        store = uuid.uuid4().hex if reference is None else reference.store
        connection.execute(sa.insert(_stores).values(id=store, location=directory))
    else:
        store = row.id
        # The store was moved, or another machine has mounted it at another path.
        update = sa.update(_stores).where(_stores.c.id == store)
        connection.execute(update.values(location=directory))
    new_reference = RegistryReference(store, _url_to_store(url, directory))
    # The file is written before the transaction commits. If the commit fails, the next claim uses
    # the id in the file.
    if not read_only and new_reference != reference:
        path = os.path.join(directory, MEMORY_FILE)
        fields = {"store": new_reference.store, "registry": new_reference.registry}
        if stored_reference is not None:
            files.write_json(path, fields)
        elif not storage_for(path).write_new(path, files.json_bytes(fields)):
            raise RegistryError(
                f"Another registry has just become that of the store at {directory!r}.",
                hint="connect again",
            )
    return store


def _url_to_store(url: sa.URL, directory: str) -> str:
    """Return the URL to store in a location; a SQLite file is available on one machine only."""
    if not storage_for(directory).is_local and url.get_backend_name() == "sqlite":
        return CACHE
    return strip_secrets(url)


def find(connection: Connection, directory: str) -> str | None:
    """Return the id of a store whose index is in a database; None if the store is unknown."""
    if not sa.inspect(connection).has_table(_stores.name):
        return None
    row = _find_row(connection, directory, read_reference(directory))
    return None if row is None else str(row.id)


def locations(connection: Connection) -> list[str]:
    """Return the locations whose index is in a database."""
    rows = connection.execute(sa.select(_stores.c.location).order_by(_stores.c.location))
    return [row.location for row in rows]


def _find_row(
    connection: Connection, directory: str, reference: RegistryReference | None
) -> sa.Row | None:  # type: ignore[type-arg]
    """Return the row of a store by its id or location.

    Raises:
        RegistryDamaged: The table has other columns: it was created before the first release.
    """
    condition = _stores.c.location == directory
    if reference is not None:
        condition = _stores.c.id == reference.store
    # The columns of the table itself, which cost no further statement.
    every_column: sa.ColumnClause[str] = sa.literal_column("*")
    result = connection.execute(sa.select(every_column).select_from(_stores).where(condition))
    if set(result.keys()) != set(_stores.columns.keys()):
        url = strip_secrets(connection.engine.url)
        raise RegistryDamaged(
            f"The registry {url} precedes the first release.",
            hint=f"empty the database, then {rebuild_command(directory, url)}",
        )
    return result.first()


def _is_copy(row: sa.Row, directory: str) -> bool:  # type: ignore[type-arg]
    """Return whether a registered store still exists at its previous location."""
    if row.location == directory or not storage_for(row.location).is_directory(row.location):
        return False
    # A symbolic link or a second mount leads to the same store.
    if storage_for(row.location).is_same(row.location, directory):
        return False
    try:
        original = read_reference(row.location)
    except RegistryError:
        return False
    return original is not None and original.store == row.id


def _unknown_location_error(connection: Connection, directory: str, url: sa.URL) -> RegistryDamaged:
    known_locations = listing(locations(connection))
    command = rebuild_command(directory, strip_secrets(url))
    return RegistryDamaged(
        f"The store at {directory!r} contains feature groups or training datasets that are missing "
        f"in the registry {strip_secrets(url)}. Stores in this registry: {known_locations}.",
        hint=f"pass the previous registry of the store, or rebuild this one from the tables: {command}",
    )


def _copied_location_error(original: str, directory: str) -> RegistryError:
    return RegistryError(
        f"The store at {directory!r} is a copy of the store at {original!r} and would share its "
        "index in the registry.",
        hint="create an index for the copy: "
        f"featurestore --location {directory} --registry ... registry rebuild",
    )
