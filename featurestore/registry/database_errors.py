"""Errors of databases as errors of this package, without the secrets of their URLs."""

from __future__ import annotations

import os

import sqlalchemy as sa
from sqlalchemy import exc

from featurestore.errors import RegistryDamaged, RegistryError
from featurestore.storage import storage_for

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
    if not storage_for(folder).is_directory(folder):
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
