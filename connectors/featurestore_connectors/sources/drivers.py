"""Database drivers: conversion of their errors, and the options that a URI may set for them.

Error messages are stripped of secrets.

A store may be written by others, and its sources with it. Drivers have options that read local
files, run statements, load libraries or instantiate a named class, so only options that are known
to be harmless are allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from featurestore.errors import (
    FeatureStoreError,
    InvalidArgument,
    InvalidSql,
    SourceError,
    SourceTableNotFound,
    SourceUnavailable,
    did_you_mean,
    listing,
)
from featurestore.plugins.source import SourceConfig

if TYPE_CHECKING:
    import sqlalchemy as sa

# Options that both libpq and the JDBC driver of Postgres have.
POSTGRES = (
    "application_name",
    "channel_binding",
    "connect_timeout",
    "gssencmode",
    "options",
    "sslmode",
)
_TIMEOUTS = ("connect_timeout", "read_timeout", "write_timeout")
_DRIVER_OPTIONS: Mapping[str, Sequence[str]] = {
    "cx_oracle": ("service_name",),
    "mariadbconnector": (*_TIMEOUTS, "ssl", "ssl_verify_cert"),
    "mysqlconnector": ("charset", "collation", "connect_timeout", "ssl_verify_cert"),
    "mysqldb": ("charset", *_TIMEOUTS, "ssl_mode"),
    "oracledb": ("service_name",),
    "pg8000": ("application_name",),
    "psycopg": POSTGRES,
    "psycopg2": POSTGRES,
    "pymssql": ("appname", "charset", "login_timeout", "tds_version", "timeout"),
    "pymysql": ("charset", *_TIMEOUTS, "program_name", "ssl_verify_cert", "ssl_verify_identity"),
    "pyodbc": ("ApplicationIntent", "Encrypt", "TrustServerCertificate", "driver"),
    "snowflake": ("role", "warehouse"),
}
# Names and numbers: no slash of a path, no brace or semicolon, which end a value of ODBC.
_PLAIN = re.compile(r"[\w .,:=+()-]*")
_HOST = re.compile(r"[\w.,:%\\-]*")
# Options that let a server request local files from a driver (LOAD DATA LOCAL); some default to on.
_SENDS_FILES = {
    "mariadbconnector": "local_infile",
    "mysqlconnector": "allow_local_infile",
    "mysqldb": "local_infile",
    "pymysql": "local_infile",
}
# Classes and codes of SQLSTATE (https://www.postgresql.org/docs/current/errcodes-appendix.html).
_NO_TABLE = ("42P01", "3F000")
_NOT_ALLOWED = "42501"
_CONNECTION_ERRORS = ("28", "3D", "08", "57")
_WRONG_SQL = ("42", "22")


@contextmanager
def translate_errors(config: SourceConfig, *, secret: str | None = None) -> Iterator[None]:
    """Convert errors of an ADBC driver to errors of the store."""
    from adbc_driver_manager import Error

    try:
        yield
    except Error as error:
        # Not chained: the text of the cause may hold the secret.
        raise adbc_error(config, error, secret=secret) from None


def adbc_error(config: SourceConfig, error: Any, *, secret: str | None) -> FeatureStoreError:
    """Return the store's error for one of an ADBC driver."""
    state = getattr(error, "sqlstate", None) or ""
    message = one_line(str(error), secret)
    subject = f"Source {config.name!r}"
    if state in _NO_TABLE or "no such table" in message:
        return SourceTableNotFound(f"{subject}: {message}")
    if state == _NOT_ALLOWED:
        return SourceError(
            f"{subject}: {message}", hint="grant the user of the URI the right to select"
        )
    if state.startswith(_CONNECTION_ERRORS) or "Failed to connect" in message:
        return SourceUnavailable(
            f"{subject} cannot be reached, or refuses the user: {message}",
            hint="look at the URI and at the secret that secret= refers to",
        )
    if state.startswith(_WRONG_SQL) or "syntax error" in message or "no such column" in message:
        return InvalidSql(
            f"{subject}: {message}", hint="the SQL is that of the source's own database"
        )
    return SourceError(f"{subject}: {message}")


def one_line(text: str, secret: str | None) -> str:
    """Return a driver's message as one line, with the secret masked."""
    if secret:
        text = text.replace(secret, "***")
    return " ".join(text.split())


def guard_batches(
    config: SourceConfig,
    batches: Iterator[Any],
    *,
    secret: str | None,
    close: Callable[[], None],
) -> Iterator[Any]:
    """Yield batches with converted errors, and close their origin at the end."""
    try:
        while True:
            try:
                with translate_errors(config, secret=secret):
                    batch = next(batches, None)
            except (OSError, pa.ArrowException) as error:
                if isinstance(error, FeatureStoreError):
                    raise
                message = one_line(str(error), secret)
                raise SourceError(f"Source {config.name!r}: {message}") from None
            if batch is None:
                return
            yield batch
    finally:
        close()


def check_options(
    config: SourceConfig, options: Mapping[str, Any], *, allowed: Sequence[str], driver: str
) -> None:
    """Refuse options of a URI that are not ``allowed``, or whose values are not plain text.

    Raises:
        InvalidArgument: Names the option and the allowed ones; the value is not repeated.
    """
    for name, value in options.items():
        if name not in allowed:
            raise InvalidArgument(
                f"Source {config.name!r}: the URI has the option {name!r}, which is not among those "
                f"that a source may set for {driver}: {listing(allowed)}.",
                hint=did_you_mean(name, allowed, write="?{}=...")
                or "files and statements of a driver are set on this machine, by its own "
                "environment or configuration",
            )
        if not isinstance(value, str) or not _PLAIN.fullmatch(value):
            raise InvalidArgument(
                f"Source {config.name!r}: the option {name!r} of the URI is not plain text.",
                hint="it is given once, and holds letters, digits and .,:=+()- alone",
            )


def checked_url(config: SourceConfig, url: sa.URL) -> sa.URL:
    """Return the URL of a database, with local file uploads of its driver disabled.

    Raises:
        InvalidArgument: The URL sets an option that is not allowed; names it.
    """
    if not _HOST.fullmatch(url.host or ""):
        raise InvalidArgument(f"Source {config.name!r}: {url.host!r} is not a host name.")
    driver = _driver(url)
    check_options(config, url.query, allowed=_DRIVER_OPTIONS.get(driver, ()), driver=driver)
    if driver in _SENDS_FILES:
        url = url.update_query_dict({_SENDS_FILES[driver]: "false"})
    return url


def _driver(url: sa.URL) -> str:
    """Return the driver name of a URL; the dialect name if no driver is installed."""
    import sqlalchemy as sa

    try:
        return url.get_driver_name()
    except sa.exc.NoSuchModuleError:
        return url.drivername
