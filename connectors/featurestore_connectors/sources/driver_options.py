"""Options of database drivers that the URI of a source may hold.

A store may be another one's, and its sources with it. Drivers take options that read files of this
machine, run statements, load libraries or make objects of a named class, so those alone are let
through that are known to be harmless.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from featurestore.errors import InvalidArgument, did_you_mean, listing
from featurestore.plugins.source import SourceConfig

if TYPE_CHECKING:
    import sqlalchemy as sa

# What libpq and the Java driver of Postgres both have.
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


def check_options(
    config: SourceConfig, options: Mapping[str, Any], *, allowed: Sequence[str], driver: str
) -> None:
    """Refuse options of a URI that are not ``allowed``, or whose values are not plain text.

    Raises:
        InvalidArgument: Names the option and those that there are; its value is not repeated.
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
        InvalidArgument: The URL sets more of its driver than a source may; names the option.
    """
    if not _HOST.fullmatch(url.host or ""):
        raise InvalidArgument(f"Source {config.name!r}: {url.host!r} is not a host name.")
    driver = _driver(url)
    check_options(config, url.query, allowed=_DRIVER_OPTIONS.get(driver, ()), driver=driver)
    if driver in _SENDS_FILES:
        url = url.update_query_dict({_SENDS_FILES[driver]: "false"})
    return url


def _driver(url: sa.URL) -> str:
    """Return the name of a URL's driver; that of its dialect where none is installed."""
    import sqlalchemy as sa

    try:
        return url.get_driver_name()
    except sa.exc.NoSuchModuleError:
        return url.drivername
