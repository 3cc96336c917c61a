"""Creation and upgrades of the registry tables.

A new registry gets the tables of this release and its revision. Migrations begin with the first
release, "0200": the file name of a migration in ``versions`` starts with its revision, such as
``0201_jobs.py``. Released migrations are never changed. A test checks that a migrated registry equals
a new one; see docs/adr/0033.
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DatabaseError

from featurestore.errors import RegistryDamaged, RegistryTooNew, listing
from featurestore.registry import schema, search_documents, stores, tables, unregistered
from featurestore.registry.schema import revision_table
from featurestore.storage import storage_for

if TYPE_CHECKING:
    from featurestore.registry.database import Registry

DIRECTORY = os.path.dirname(os.path.abspath(__file__))
# An arbitrary constant, which must be the same in all processes that upgrade a Postgres database.
_UPGRADE_LOCK = 4_918_274_610


@cache
def known_revisions() -> list[str]:
    """Return all revisions in this release, oldest first."""
    names = storage_for(DIRECTORY).list_directory(os.path.join(DIRECTORY, "versions"))
    numbered = [name for name in names if name.endswith(".py") and name[0].isdigit()]
    return sorted(name.split("_")[0] for name in numbered)


def head_revision() -> str:
    """Return the newest revision in this release."""
    return known_revisions()[-1]


def current_revision(connection: Connection) -> str | None:
    """Return the revision stored in a database, None if it is empty."""
    if connection.dialect.name == "sqlite":
        statement = "select 1 from sqlite_master where type = 'table' and name = 'alembic_version'"
    else:
        # to_regclass uses the search path, so each schema has its own revision.
        statement = "select 1 where to_regclass('alembic_version') is not null"
    if connection.execute(sa.text(statement)).first() is None:
        return None
    row = connection.execute(sa.select(revision_table.c.version_num)).first()
    return None if row is None else str(row[0])


def is_complete(connection: Connection) -> bool:
    """Return whether a database has the newest revision and all of its tables."""
    is_newest = current_revision(connection) == head_revision()
    return is_newest and not schema.missing_parts(connection)


def upgrade(registry: Registry, *, repair: bool = False) -> str:
    """Upgrade the database to the newest revision while holding a lock; return that revision.

    With ``repair``, missing tables, columns and indexes are created, and the registry of a location
    with objects may be empty, since it is about to be rebuilt.

    Raises:
        RegistryTooNew: The database has a newer revision than this release.
        RegistryDamaged: The database has a revision from before the first release, lacks a part of
            its schema, or is empty although the location contains objects.
    """
    head = head_revision()
    with registry.upgrade_transaction() as connection:
        if registry.dialect == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_UPGRADE_LOCK)))
        # Read while holding the lock: another process may have upgraded the database meanwhile.
        revision = current_revision(connection)
        _check_supported(registry, revision)
        if revision is None and not repair:
            _check_empty(registry, connection)
        if revision is None and not schema.has_tables(connection):
            create_tables(connection)
        elif revision is not None and revision != head:
            _migrate_or_repair(connection, repair=repair)
        if repair:
            registry.repair = schema.repair(connection)
            connection.execute(revision_table.delete())
            connection.execute(revision_table.insert().values(version_num=head))
        missing_parts = schema.missing_parts(connection)
        if missing_parts:
            raise RegistryDamaged(
                f"The registry {registry.url} lacks {listing(missing_parts)}.",
                hint=stores.rebuild_command(registry.location),
            )
    return head


def _check_supported(registry: Registry, revision: str | None) -> None:
    """Refuse the revisions of newer releases, and of those before the first release."""
    # Revisions are numbers with leading zeros, so they are compared as strings.
    if revision is not None and revision > head_revision():
        raise RegistryTooNew(
            f"The registry {registry.url} has revision {revision}; "
            f"this release supports revisions up to {head_revision()}.",
            hint="pip install --upgrade featurestore",
        )
    if revision is not None and revision not in known_revisions():
        is_server = registry.dialect != "sqlite"
        rebuild = "featurestore registry rebuild"
        raise RegistryDamaged(
            f"The registry {registry.url} has revision {revision}, which precedes the first "
            f"release; this release supports {listing(known_revisions())}.",
            hint=f"empty the database, then {rebuild}" if is_server else rebuild,
        )


def _check_empty(registry: Registry, connection: Connection) -> None:
    """Refuse to create a registry for a location whose registry was lost."""
    if schema.has_tables(connection):
        content = "has no revision"
    elif unregistered.contains_objects(registry.location):
        content = f"is empty, but {registry.location!r} contains objects of a store"
    else:
        return
    raise RegistryDamaged(
        f"The registry {registry.url} {content}: it was deleted or damaged.",
        hint=stores.rebuild_command(registry.location),
    )


def _migrate_or_repair(connection: Connection, *, repair: bool) -> None:
    """Run the migrations; if one fails for a missing table, leave the tables to the repair."""
    savepoint = connection.begin_nested()
    try:
        migrate(connection)
    except DatabaseError:
        savepoint.rollback()
        if not repair:
            raise
    else:
        savepoint.commit()


def migrate(connection: Connection) -> None:
    """Run the migrations that were not yet applied to the database."""
    from alembic import command
    from alembic.config import Config

    settings = Config()
    # The configuration parser interpolates percent signs.
    settings.set_main_option("script_location", DIRECTORY.replace("%", "%%"))
    settings.attributes["connection"] = connection
    command.upgrade(settings, "head")


def create_tables(connection: Connection) -> None:
    """Create all tables in an empty database, and store the newest revision."""
    for statement in creation_statements(connection.dialect.name):
        connection.exec_driver_sql(statement)
    search_documents.create_index(connection)
    connection.execute(revision_table.insert().values(version_num=head_revision()))


@cache
def creation_statements(dialect: str) -> list[str]:
    """Return the statements of ``metadata.create_all``; they are compiled once per process."""
    statements: list[str] = []

    def collect(statement: sa.ExecutableDDLElement, *_: object, **__: object) -> None:
        statements.append(str(statement.compile(dialect=recorder.dialect)))

    recorder = sa.create_mock_engine(f"{dialect}://", collect)
    for metadata in (tables.metadata, revision_table.metadata):
        # The mock engine passes each statement to collect() instead of running it.
        metadata.create_all(recorder, checkfirst=False)
    return statements
