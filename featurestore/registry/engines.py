"""Engines of SQLAlchemy for SQLite and Postgres, with the settings of each new connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.engine import Connection, Engine, ExceptionContext

from featurestore._imports import uninterrupted
from featurestore.errors import ConfigurationError, missing_extra
from featurestore.registry.database_errors import format_url
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


def create_engine(
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
