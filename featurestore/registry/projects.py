"""Projects in the registry: owner marks, and drafts in which plans register definitions.

An owner mark names the project that created an object with ``apply``; only this project may remove
it. A draft contains definitions as if they were applied, so that later definitions are checked
against them. It is rolled back, so nothing is written to the registry.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.model.times import to_micros, utc_now
from featurestore.registry.database import Registry
from featurestore.registry.rows import is_version, put_row
from featurestore.registry.tables import project_definitions


@dataclass(frozen=True)
class OwnerMark:
    """A version of an object that a project created; objects without versions have version 1."""

    object_type: str
    name: str
    version: int


def owner(connection: Connection, object_kind: str, name: str) -> str | None:
    """Return the project that created an object, None if no project did."""
    columns = project_definitions.c
    is_object = sa.and_(columns.kind == object_kind, columns.name == name)
    query = sa.select(columns.project).where(is_object).limit(1)
    return connection.execute(query).scalar_one_or_none()


def add(connection: Connection, project: str, mark: OwnerMark) -> None:
    """Record that a project creates an object; replace an earlier record."""
    values = {"project": project, "created": to_micros(utc_now())}
    key = {"kind": mark.object_type, "name": mark.name, "version": mark.version}
    put_row(connection, project_definitions, key, values)


def remove(connection: Connection, mark: OwnerMark) -> None:
    """Remove the mark of an object, if it exists."""
    is_marked = is_version(project_definitions, mark.object_type, mark.name, mark.version)
    connection.execute(project_definitions.delete().where(is_marked))


def marks(connection: Connection, project: str) -> list[OwnerMark]:
    """Return the marks of a project, ordered by kind, name and version."""
    columns = project_definitions.c
    query = (
        sa.select(columns.kind, columns.name, columns.version)
        .where(columns.project == project)
        .order_by(columns.kind, columns.name, columns.version)
    )
    return [OwnerMark(*row) for row in connection.execute(query)]


class DraftRegistry(Registry):
    """A registry whose transactions all use one connection, which is rolled back at the end."""

    def __init__(self, registry: Registry, connection: Connection) -> None:
        self._engine = registry._engine
        self._url, self.url = registry._url, registry.url
        self._location = registry._location
        self._schema = registry._schema
        self._is_copy = False
        self._draft = connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield the connection of the draft."""
        yield self._draft

    @contextmanager
    def upgrade_transaction(self) -> Iterator[Connection]:
        """Yield the connection of the draft, whose changes are not committed."""
        yield self._draft

    def close(self) -> None:
        """Do nothing: the connection belongs to the draft."""


@contextmanager
def draft(registry: Registry) -> Iterator[DraftRegistry]:
    """Yield a draft of a registry; all of its changes are rolled back at the end of the block."""
    # What a job reads in the block is stored after it, since the draft holds the write lock.
    # SQLite takes the write lock at once, because a later upgrade of a read transaction fails if
    # another process has written in between.
    with registry.postponing_writes(), registry._connection(immediate=True) as connection:
        transaction = connection.begin()
        try:
            yield DraftRegistry(registry, connection)
        finally:
            transaction.rollback()
