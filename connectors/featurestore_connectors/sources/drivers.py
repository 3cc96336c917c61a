"""Database drivers: error conversion, and the driver options that a URI may set.

Secrets are removed from error messages.

The sources of a store may come from untrusted users. Some driver options read local files, run
statements, load libraries or instantiate a class by name, so only options that are known to be
harmless are allowed.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
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
from featurestore.plugins.credentials import libpq_parameters, needs_environment_error
from featurestore.plugins.source import SourceConfig

if TYPE_CHECKING:
    import sqlalchemy as sa

# Options that both libpq and the Postgres JDBC driver support.
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
# Allowed characters of a value: no path slashes, and no braces or semicolons, which end an ODBC
# value.
_PLAIN = re.compile(r"[\w .,:=+()-]*")
_HOST = re.compile(r"[\w.,:%\\-]*")
_LIBPQ_DRIVERS = ("psycopg", "psycopg2")
# The parameter with an empty password, for drivers that otherwise read $MYSQL_PWD.
_EMPTY_PASSWORDS = {"mariadbconnector": "password", "mysqldb": "passwd", "pymysql": "password"}
# Databases in files, which have no passwords.
_FILE_DRIVERS = ("pysqlite", "sqlite")
_TICKET_DRIVERS = ("cx_oracle", "oracledb", "pymssql", "pyodbc")
# Options that let a server request local files from the client (LOAD DATA LOCAL). Some are on by
# default.
_SENDS_FILES = {
    "mariadbconnector": "local_infile",
    "mysqlconnector": "allow_local_infile",
    "mysqldb": "local_infile",
    "pymysql": "local_infile",
}
# SQLSTATE classes and codes (https://www.postgresql.org/docs/current/errcodes-appendix.html).
_NO_TABLE = ("42P01", "3F000")
# Insufficient privilege. The code belongs to class 42, so it is checked before the class.
_NOT_ALLOWED = "42501"
# Classes: invalid authorization, unknown database, connection error, operator intervention.
_CONNECTION_ERRORS = ("28", "3D", "08", "57")
# ADBC status codes of servers without SQLSTATE.
_UNREACHABLE = ("IO", "TIMEOUT", "UNAUTHENTICATED", "UNAUTHORIZED")
# Classes: syntax error or access rule violation, and data error.
_WRONG_SQL = ("42", "22")


@contextmanager
def translate_errors(config: SourceConfig, *, secret: str | None = None) -> Iterator[None]:
    """Convert ADBC driver errors to feature store errors."""
    from adbc_driver_manager import Error

    try:
        yield
    except Error as error:
        # Not chained: the message of the cause may contain the secret.
        raise convert_adbc_error(config, error, secret=secret) from None


def convert_adbc_error(
    config: SourceConfig, error: Any, *, secret: str | None
) -> FeatureStoreError:
    """Return the feature store error for an ADBC driver error."""
    state = getattr(error, "sqlstate", None) or ""
    message = to_single_line(str(error), secret)
    subject = f"Source {config.name!r}"
    # Errors of SQLite and failed connections have no SQLSTATE and are recognized by their text.
    if state in _NO_TABLE or "no such table" in message:
        return SourceTableNotFound(f"{subject}: {message}")
    if state == _NOT_ALLOWED:
        return SourceError(f"{subject}: {message}", hint="grant SELECT to the user of the URI")
    if state.startswith(_CONNECTION_ERRORS) or "Failed to connect" in message:
        return SourceUnavailable(
            f"{subject} cannot be reached, or rejects the user: {message}",
            hint="check the URI, and the secret that secret= refers to",
        )
    if state.startswith(_WRONG_SQL) or "syntax error" in message or "no such column" in message:
        return InvalidSql(
            f"{subject}: {message}", hint="use the SQL dialect of the source database"
        )
    if getattr(getattr(error, "status_code", None), "name", "") in _UNREACHABLE:
        return SourceUnavailable(
            f"{subject} cannot be reached, or rejects the user: {message}",
            hint="check the URI, and the secret that secret= refers to",
        )
    return SourceError(f"{subject}: {message}")


def to_single_line(text: str, secret: str | None) -> str:
    """Return a driver message on one line, with the secret masked."""
    for secret_text in _secret_texts(secret):
        text = text.replace(secret_text, "***")
    return " ".join(text.split())


def _secret_texts(secret: str | None) -> list[str]:
    """Return the strings to mask: the secret, and the long values of one that is a JSON object."""
    if not secret:
        return []
    try:
        values = json.loads(secret)
    except ValueError:
        values = None
    secret_texts = [secret]
    if isinstance(values, dict):
        # The key of a service account is such an object, and errors may contain a part of it.
        secret_texts += [
            value for value in values.values() if isinstance(value, str) and len(value) > 7
        ]
    return secret_texts


def convert_batch_errors(
    config: SourceConfig, batches: Iterator[Any], *, secret: str | None, close: Callable[[], None]
) -> Iterator[Any]:
    """Yield batches with converted errors, and call ``close`` at the end."""
    try:
        while True:
            try:
                with translate_errors(config, secret=secret):
                    batch = next(batches, None)
            except (OSError, pa.ArrowException) as error:
                # Some feature store errors are also OSErrors and need no conversion.
                if isinstance(error, FeatureStoreError):
                    raise
                message = to_single_line(str(error), secret)
                raise SourceError(f"Source {config.name!r}: {message}") from None
            if batch is None:
                return
            yield batch
    finally:
        # This also runs if the caller stops before the last batch.
        close()


def check_options(
    config: SourceConfig, options: Mapping[str, Any], *, allowed: Sequence[str], driver: str
) -> None:
    """Refuse URI options that are not ``allowed``, or whose values have unsafe characters.

    Raises:
        InvalidArgument: An option is refused. The message includes its name and the allowed options, but
            not the value.
    """
    for name, value in options.items():
        if name not in allowed:
            raise InvalidArgument(
                f"Source {config.name!r}: the URI option {name!r} is not allowed for {driver}. "
                f"Allowed: {listing(allowed)}.",
                hint=did_you_mean(name, allowed, write="?{}=...")
                or "set files and statements of a driver on this machine, in the environment or the "
                "configuration of the driver",
            )
        # An option that occurs several times has a tuple of values.
        if not isinstance(value, str) or not _PLAIN.fullmatch(value):
            raise InvalidArgument(
                f"Source {config.name!r}: the URI option {name!r} is repeated or has an unsafe value.",
                hint="set it once, using only letters, digits and .,:=+()-",
            )


def secure_url(config: SourceConfig, url: sa.URL) -> sa.URL:
    """Return a database URL with local file uploads of its driver disabled.

    Raises:
        InvalidArgument: The URL sets an option that is not allowed. The message includes its name.
    """
    # A host with a semicolon or a brace could add options to the connection string of ODBC.
    if not _HOST.fullmatch(url.host or ""):
        raise InvalidArgument(f"Source {config.name!r}: {url.host!r} is not a host name.")
    driver = _driver_name(url)
    check_options(config, url.query, allowed=_DRIVER_OPTIONS.get(driver, ()), driver=driver)
    if driver in _SENDS_FILES:
        url = url.update_query_dict({_SENDS_FILES[driver]: "false"})
    return url if config.uses_environment else _without_environment(config, url, driver)


def _without_environment(config: SourceConfig, url: sa.URL, driver: str) -> sa.URL:
    """Return a URL with which a driver does not use the credentials of the machine."""
    if driver in _LIBPQ_DRIVERS:
        parameters = libpq_parameters(uses_environment=False, version=_libpq_version(driver))
        if config.secret is not None:
            # The caller sets the password of the URL, which has less precedence than a parameter.
            del parameters["password"]
        return url.update_query_dict(parameters)
    if config.secret is not None or driver in _FILE_DRIVERS:
        return url
    if driver in _EMPTY_PASSWORDS:
        return url.update_query_dict({_EMPTY_PASSWORDS[driver]: ""})
    # Without a user, these drivers sign in by a ticket or a wallet.
    if driver not in _DRIVER_OPTIONS or (driver in _TICKET_DRIVERS and not url.username):
        raise needs_environment_error(f"Source {config.name!r}", f"credentials of {driver}")
    return url


def _libpq_version(driver: str) -> int:
    """Return the version number of the libpq of a driver; 0 if the driver is not installed."""
    try:
        if driver == "psycopg":
            return int(import_module("psycopg").pq.version())
        return int(import_module("psycopg2.extensions").libpq_version())
    except ImportError:
        return 0


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, so that secrets may be sent unencrypted."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _driver_name(url: sa.URL) -> str:
    """Return the driver name of a URL, or the dialect name if no driver is installed."""
    import sqlalchemy as sa

    try:
        return url.get_driver_name()
    except sa.exc.NoSuchModuleError:
        return url.drivername
