"""Databases of registries, SQLite and Postgres: engines with the settings of connections, and errors.

Errors of a database become errors of this package, without the secrets of its URL.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.engine import Connection, Engine, ExceptionContext

from featurestore._imports import uninterrupted
from featurestore.errors import ConfigurationError, RegistryDamaged, RegistryError, missing_extra
from featurestore.storage import files, sqlite_files

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
# The codes of Postgres for a missing table, column or index, and for an existing table or column.
_DAMAGE_CODES = ("42P01", "42703", "42704", "42P07", "42701")
_DAMAGES = (
    "already exists",
    "no such table",
    "no such column",
    "no such index",
    "duplicate column",
    "has no column",
    "Could not decode",
)
# Parts of the messages of Postgres at the limits of a connection. That of an idle transaction ends
# with "idle-in-transaction timeout".
_LOCK_TIMEOUT = "lock timeout"
_TRANSACTION_TIMEOUT = "transaction timeout"
_BUSY_HINT = "another process is writing to the registry; try again"


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


# -- errors -------------------------------------------------------------------------------


def format_url(url: sa.URL) -> str:
    """Format a URL for messages, without the password and the options, which may contain secrets.

    >>> format_url(sa.make_url("postgresql://me:secret@host/store?password=secret&sslmode=require"))
    'postgresql://me:***@host/store?***'
    """
    text = url.set(query={}).render_as_string(hide_password=True)
    return f"{text}?***" if url.query else text


def to_registry_error(url: sa.URL, error: exc.DatabaseError) -> RegistryError:
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
        _LOCK_TIMEOUT: "another process has held a lock for too long",
        _TRANSACTION_TIMEOUT: "the server ended a transaction that was idle or too long",
        "timeout": "the server does not respond",
    }
    for pattern, reason in reasons.items():
        if pattern in text:
            return reason
    return text.splitlines()[0].rstrip(". ")


def _error_hint(url: sa.URL, error: exc.DatabaseError) -> str:
    """Return the next step for a database error."""
    if _is_damage(url, error):
        return "rebuild the registry from the tables: featurestore registry rebuild"
    if url.get_backend_name() != "sqlite":
        if _LOCK_TIMEOUT in str(error.orig):
            return _BUSY_HINT
        if _TRANSACTION_TIMEOUT in str(error.orig):
            return "this process was suspended or slow; try again"
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
        return _BUSY_HINT
    if "readonly" in str(error.orig):
        return f"give the user of this process write access to the files in {folder!r}, and retry"
    return "check free space and permissions"


def _secret_strings(url: sa.URL) -> list[str]:
    secrets = [] if url.password is None else [str(url.password)]
    for value in url.query.values():
        secrets += [value] if isinstance(value, str) else value
    return [secret for secret in secrets if secret]


def cause_without_secrets(url: sa.URL, error: exc.DatabaseError) -> exc.DatabaseError | None:
    """Return an error to be chained as a cause, None if its message contains a secret."""
    text = str(error)
    return None if any(secret in text for secret in _secret_strings(url)) else error
