"""Source URIs cannot make drivers read files, run statements or load code."""

from __future__ import annotations

import inspect
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featurestore.errors import InvalidArgument
from featurestore_connectors.sources.drivers import POSTGRES
from tests.sources.source_writers import open_source

MYSQL = ("charset", "connect_timeout", "program_name", "read_timeout", "ssl_verify_cert")
MYSQL += ("ssl_verify_identity", "write_timeout")
# Options of drivers that are not installed where tests run.
DANGEROUS = [
    *("allow_local_infile", "allow_local_infile_in_path", "option_files", "option_groups"),
    *("default_file", "default_group", "init_command", "local_infile", "plugin_dir", "unix_socket"),
    *("read_default_file", "read_default_group", "ssl", "ssl_capath", "sql_mode", "client_flag"),
    *("odbc_connect", "dsn", "authenticator", "connection_name", "token_file_path", "plugin"),
    *("socketFactory", "socketFactoryArg", "sslfactory", "sslhostnameverifier", "loggerFile"),
    *("authenticationPluginClassName", "config_dir", "wallet_location", "conn_properties"),
]
SOURCES: dict[str, tuple[str, tuple[str, ...]]] = {
    "mysql://me@db/shop": ("mysql", MYSQL),
    "mariadb://me@db/shop": ("mysql", MYSQL),
    "postgresql://me@db/shop": ("postgresql", POSTGRES),
    "sqlalchemy+postgresql+psycopg://me@db/shop": ("sqlalchemy", POSTGRES),
    "sqlalchemy+oracle+oracledb://me@db/": ("sqlalchemy", ("service_name",)),
    "sqlalchemy+nothere+nowhere://me@db/shop": ("sqlalchemy", ()),
    "iceberg+mysql+pymysql://me@db/shop": ("iceberg", MYSQL),
    "iceberg+postgresql+psycopg://me@db/shop": ("iceberg", POSTGRES),
    "iceberg+sqlite:////shop.db": ("iceberg", ()),
}


def list_driver_options() -> set[str]:
    """Return all options of the MySQL and Postgres drivers."""
    pymysql = pytest.importorskip("pymysql")
    psycopg = pytest.importorskip("psycopg")
    names = set(inspect.signature(pymysql.connections.Connection).parameters)
    for option in psycopg.pq.Conninfo.get_defaults():
        names.add(option.keyword.decode())
    return names


@pytest.mark.parametrize("uri", SOURCES)
def test_check_options_refuses_unknown_options(uri: str) -> None:
    source_type, allowed_names = SOURCES[uri]
    refused = {*DANGEROUS, *list_driver_options()} - set(allowed_names)
    assert len(refused) > 80

    @settings(max_examples=25, deadline=None)
    @given(st.text(min_size=1).filter(lambda name: name not in allowed_names))
    def any_other(name: str) -> None:
        refused.add(name)

    any_other()
    for name in refused:
        for value in ("1", "/etc/passwd"):
            with pytest.raises(InvalidArgument, match="is not allowed for") as error:
                open_source(source_type, f"{uri}?{quote(name, safe='')}={value}")
            assert repr(name) in str(error.value)
            assert "/etc/" not in str(error.value)


@pytest.mark.parametrize("uri", SOURCES)
def test_check_options_requires_plain_text(uri: str) -> None:
    source_type, allowed_names = SOURCES[uri]
    for name in allowed_names:
        open_source(source_type, f"{uri}?{name}=10")
        for value in ("/etc/passwd", "..%5Cx", "a%3BDriver%3Dx", "x%7D", "a%0A", f"1&{name}=2"):
            if source_type == "postgresql" and "&" in value:
                continue  # the last one counts there
            with pytest.raises(InvalidArgument, match="unsafe value"):
                open_source(source_type, f"{uri}?{name}={value}")


@pytest.mark.parametrize("host", ["db;Driver=x.so", "db{", "db(x)", "db=x"])
def test_checked_url_refuses_invalid_hosts(host: str) -> None:
    with pytest.raises(InvalidArgument, match="not a host name"):
        open_source("sqlalchemy", f"sqlalchemy+mssql+pyodbc://me@{host}/shop?driver=ODBC+Driver+18")
    open_source("sqlalchemy", "sqlalchemy+mssql+pyodbc://me@db-1.x,1433/shop?driver=ODBC+Driver+18")


def test_checked_url_disables_local_infile() -> None:
    source = open_source("mysql", "mysql://me@db/shop")
    assert source._url.query["local_infile"] == "false"  # type: ignore[attr-defined]
    dialect = source._url.get_dialect()()  # type: ignore[attr-defined]
    assert dialect.create_connect_args(source._url)[1]["local_infile"] is False  # type: ignore[attr-defined]
