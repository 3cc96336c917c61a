"""Opening the registry: SQLite in the location or a server by URL, migrated when old, refused when newer."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.engine import Connection, Engine

from featurestore.errors import ConfigurationError, RegistryError, RegistryTooNew, missing_extra
from featurestore.storage import files

REGISTRY_FILE = "registry.db"
BUSY_SECONDS = 60
_MIGRATIONS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "migrations")
# Any constant works; it only has to be the same in every process that upgrades one Postgres database.
_UPGRADE_LOCK = 4_918_274_610


class Registry:
    """An open registry: transactions that write, and reads that never wait for them."""

    def __init__(self, engine: Engine, url: str) -> None:
        self._engine = engine
        self.url = url
        # A store that nobody closed must not leave its server connections to the garbage collector.
        weakref.finalize(self, engine.dispose)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Yield a connection whose statements are committed together, or not at all."""
        with self._connection(immediate=True) as connection, connection.begin():
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection for queries, which see one state."""
        with self._connection(immediate=False) as connection, connection.begin():
            yield connection

    @property
    def dialect(self) -> str:
        """The SQL dialect: "sqlite" or "postgresql"."""
        return self._engine.dialect.name

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    @contextmanager
    def _connection(self, *, immediate: bool) -> Iterator[Connection]:
        try:
            with self._engine.connect() as connection:
                yield connection.execution_options(immediate=immediate)
        except (exc.OperationalError, exc.DatabaseError) as error:
            if isinstance(error, exc.IntegrityError):
                raise
            raise _unusable(self.url, error) from error


def open_registry(directory: str, *, url: str | None = None) -> Registry:
    """Return the registry of a location: created when absent, upgraded when old.

    Args:
        directory: Location of the store; holds ``registry.db`` unless ``url`` says otherwise.
        url: SQLAlchemy URL of another database.

    Raises:
        RegistryTooNew: A newer release of the feature store wrote it.
        RegistryError: The database cannot be opened.
    """
    place = url or f"sqlite:///{os.path.join(directory, REGISTRY_FILE)}"
    registry = Registry(_engine(place), place)
    try:
        if _stamped(registry) != head_revision():
            upgrade(registry)
    except BaseException:
        registry.close()
        raise
    return registry


@cache
def head_revision() -> str:
    """Return the newest revision of this release: migration files are named by number, and so are revisions."""
    names = os.listdir(os.path.join(_MIGRATIONS, "versions"))
    return max(name.split("_")[0] for name in names if name.endswith(".py") and name[0].isdigit())


def revision(registry: Registry) -> str | None:
    """Return the revision that the database is stamped with, or None when it is empty."""
    return _stamped(registry)


def inspect(directory: str, *, url: str | None = None) -> str | None:
    """Return the revision of a location's registry without changing it; None when it is absent or empty."""
    if url is None and not files.exists(os.path.join(directory, REGISTRY_FILE)):
        return None
    place = url or f"sqlite:///{os.path.join(directory, REGISTRY_FILE)}"
    registry = Registry(_engine(place), place)
    try:
        return _stamped(registry)
    finally:
        registry.close()


def upgrade(registry: Registry) -> str:
    """Bring the database to this release's revision, under a lock; return that revision.

    Raises:
        RegistryTooNew: It is stamped with a revision that this release does not know.
    """
    from alembic import command
    from alembic.config import Config

    head = head_revision()
    with registry.transaction() as connection:
        if registry.dialect == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_UPGRADE_LOCK)))
        found = _current(connection)  # another process may have upgraded while this one waited
        if found is not None and found > head:
            raise RegistryTooNew(
                f"The registry {_shown(registry.url)} has revision {found}; this release knows revisions up to {head}.",
                hint="pip install --upgrade featurestore",
            )
        if found != head:
            settings = Config()
            settings.set_main_option("script_location", _MIGRATIONS.replace("%", "%%"))
            settings.attributes["connection"] = connection
            command.upgrade(settings, "head")
    return head


def _stamped(registry: Registry) -> str | None:
    with registry.reading() as connection:
        return _current(connection)


def _current(connection: Connection) -> str | None:
    if connection.dialect.name == "sqlite":
        known = "select 1 from sqlite_master where type = 'table' and name = 'alembic_version'"
    else:
        known = "select 1 where to_regclass('alembic_version') is not null"
    if connection.execute(sa.text(known)).first() is None:
        return None
    row = connection.execute(sa.text("select version_num from alembic_version")).first()
    return None if row is None else str(row[0])


def _engine(url: str) -> Engine:
    try:
        parsed = sa.make_url(url)
        if parsed.get_backend_name() == "postgresql" and parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        if parsed.get_backend_name() not in ("sqlite", "postgresql"):
            raise ConfigurationError(
                f"registry={_shown(url)!r} is a {parsed.get_backend_name()} database; there are sqlite and postgresql.",
                hint="registry='postgresql://user@host/database'",
            )
        arguments = {"timeout": BUSY_SECONDS} if parsed.get_backend_name() == "sqlite" else {}
        engine = sa.create_engine(parsed, connect_args=arguments)
    except exc.ArgumentError as error:
        raise ConfigurationError(
            f"registry={url!r} is not a database URL.",
            hint="registry='postgresql://user@host/database'",
        ) from error
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "psycopg", "postgres") from error
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: object, _record: object) -> None:
    # The driver must not open transactions of its own: they begin deferred and fail on upgrade to a write lock.
    connection.isolation_level = None  # type: ignore[attr-defined]
    cursor = connection.cursor()  # type: ignore[attr-defined]
    if cursor.execute("pragma journal_mode").fetchone()[0] != "wal":
        cursor.execute("pragma journal_mode=wal")
    cursor.execute("pragma synchronous=normal")
    cursor.execute("pragma foreign_keys=on")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    immediate = connection.get_execution_options().get("immediate", True)
    connection.exec_driver_sql("begin immediate" if immediate else "begin")


def _unusable(url: str, error: exc.DatabaseError) -> RegistryError:
    return RegistryError(
        f"The registry {_shown(url)} cannot be used: {error.orig}.",
        hint="a damaged one is restored from the tables: move it away and run 'featurestore registry rebuild'",
    )


def _shown(url: str) -> str:
    return sa.make_url(url).render_as_string(hide_password=True)
