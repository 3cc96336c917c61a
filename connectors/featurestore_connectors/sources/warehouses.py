"""Warehouses by ADBC: servers of Flight SQL, Snowflake and BigQuery.

The server selects columns and applies the window, whose bounds are bound parameters. A query is one
statement, so its rows are of one state; two reads of a snapshot may be of different states.

The tests run Flight SQL. The options of Snowflake and BigQuery are checked by their drivers, but
have not been run against their servers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import pyarrow as pa

from featurestore.arrow.types import TIMESTAMP, feature_type
from featurestore.errors import (
    FeatureStoreError,
    InvalidArgument,
    SourceUnavailable,
    listing,
    missing_extra,
)
from featurestore.model.times import utc_now
from featurestore.plugins.credentials import needs_environment_error
from featurestore.plugins.source import Source, SourceConfig, SourceQuery, SourceSnapshot
from featurestore_connectors.sources import sqltext, typed_columns
from featurestore_connectors.sources.drivers import (
    check_options,
    convert_batch_errors,
    is_loopback,
    translate_errors,
)
from featurestore_connectors.sources.sql_source import Selection, SQLSnapshot, SQLSource
from featurestore_connectors.sources.typed_columns import SourceColumn

_FLIGHT, _SNOWFLAKE, _BIGQUERY = "adbc.flight.sql", "adbc.snowflake.sql", "adbc.bigquery.sql"
# Servers may send larger messages than the 16 MiB that the driver accepts by default.
_MAX_MESSAGE = str(256 << 20)
# How Snowflake interprets the secret: the type of authentication, and the option of the secret.
_SNOWFLAKE_SECRETS = {
    "password": ("auth_snowflake", "password"),
    "key": ("auth_jwt", f"{_SNOWFLAKE}.client_option.jwt_private_key_pkcs8_value"),
    "token": ("auth_pat", f"{_SNOWFLAKE}.client_option.auth_token"),
    "oauth": ("auth_oauth", f"{_SNOWFLAKE}.client_option.auth_token"),
}


@dataclass(frozen=True)
class Warehouse:
    """The properties of a warehouse that the driver and the SQL text need.

    ``options`` are the options of the driver, including the secret. ``namespace`` is the database
    and schema of table names without them. ``time_types`` are the SQL types of times with and
    without a zone; if None, times are bound as Arrow timestamps instead of text.
    """

    product: str
    driver: str
    extra: str
    options: Mapping[str, str] = field(repr=False)
    namespace: tuple[str, ...] = ()
    quote_mark: str = '"'
    time_types: tuple[str, str] | None = None


class WarehouseSource(SQLSource["WarehouseSnapshot"]):
    """A warehouse that an ADBC driver reads."""

    _options_owner = "Source {name!r}: a warehouse"
    _options_hint = "set the options of the driver in the URI"
    _no_versions = "source {name!r} reads the current rows"
    _versions_hint = "omit at=, or use the time travel of the warehouse in sql="

    def __init__(self, config: SourceConfig) -> None:
        super().__init__(config)
        self._url = urlsplit(config.uri)
        query = parse_qsl(self._url.query, keep_blank_values=True)
        for option in query:
            check_options(config, dict([option]), allowed=self._uri_options, driver=self._product)
        self._query = dict(query)
        self._check_url(self._url)

    _product: str
    _uri_options: tuple[str, ...]

    @abstractmethod
    def _check_url(self, url: SplitResult) -> None:
        """Raise InvalidArgument for a URI that does not identify a warehouse."""

    @abstractmethod
    def _warehouse(self, secret: str | None) -> Warehouse:
        """Return the properties of the warehouse."""

    def _connect(self) -> WarehouseSnapshot:
        secret = None if self._config.secret is None else self._config.secret()
        return WarehouseSnapshot(self._config, self._warehouse(secret), secret=secret)

    def _path(self) -> tuple[str, ...]:
        return tuple(unquote(level) for level in self._url.path.split("/") if level)


class FlightSQLSource(WarehouseSource):
    """A server of Flight SQL: ``flightsql://user@host:31337``, encrypted unless ``?tls=false``.

    The secret is the password of the user, or without a user a bearer token.
    """

    _product = "Flight SQL"
    _uri_options = ("tls",)

    def _check_url(self, url: SplitResult) -> None:
        if not url.hostname or _port(url) is None or url.path.strip("/"):
            raise InvalidArgument(
                f"Source {self._config.name!r}: {self._config.uri!r} is not the address of a Flight "
                "SQL server.",
                hint="flightsql://user@host:31337",
            )
        if self._query.get("tls", "true") not in ("true", "false"):
            raise InvalidArgument(
                f"Source {self._config.name!r}: tls={self._query['tls']!r} is neither true nor false.",
                hint="omit it for an encrypted connection",
            )
        if self._config.secret and not self._is_encrypted and not is_loopback(url.hostname):
            raise InvalidArgument(
                f"Source {self._config.name!r}: tls=false would send the secret unencrypted.",
                hint="remove ?tls=false from the URI",
            )

    @property
    def _is_encrypted(self) -> bool:
        return self._query.get("tls") != "false"

    def _warehouse(self, secret: str | None) -> Warehouse:
        scheme = "grpc+tls" if self._is_encrypted else "grpc+tcp"
        options = {
            "uri": f"{scheme}://{self._url.netloc.rpartition('@')[2]}",
            f"{_FLIGHT}.client_option.with_max_msg_size": _MAX_MESSAGE,
        }
        if self._url.username is not None:
            options["username"] = unquote(self._url.username)
            options["password"] = secret or ""
        elif secret is not None:
            options[f"{_FLIGHT}.authorization_header"] = f"Bearer {secret}"
        return Warehouse(self._product, "adbc_driver_flightsql", "flightsql", options)


class SnowflakeSource(WarehouseSource):
    """A database of Snowflake: ``snowflake://user@account/database/schema?warehouse=...``.

    ``authentication`` in the URI is the kind of the secret: ``password``, ``key`` (a private key in
    PKCS #8), ``token`` (a programmatic access token) or ``oauth``.
    """

    _product = "Snowflake"
    _uri_options = ("authentication", "role", "warehouse")

    def _check_url(self, url: SplitResult) -> None:
        if not url.username or not url.hostname or len(self._path()) not in (1, 2):
            raise InvalidArgument(
                f"Source {self._config.name!r}: {self._config.uri!r} is not a database of Snowflake.",
                hint="snowflake://user@account/database/schema?warehouse=compute",
            )
        if self._query.get("authentication", "password") not in _SNOWFLAKE_SECRETS:
            raise InvalidArgument(
                f"Source {self._config.name!r}: unknown authentication "
                f"{self._query['authentication']!r}. Available: {listing(_SNOWFLAKE_SECRETS)}."
            )
        if self._config.secret is None:
            raise InvalidArgument(
                f"Source {self._config.name!r}: Snowflake needs a secret.",
                hint="secret='env:SNOWFLAKE_PASSWORD'",
            )

    def _warehouse(self, secret: str | None) -> Warehouse:
        auth_type, option = _SNOWFLAKE_SECRETS[self._query.get("authentication", "password")]
        # urlsplit converts the host name to lower case, but an account has its own spelling.
        user, _, account = self._url.netloc.rpartition("@")
        options = {
            "username": unquote(user),
            f"{_SNOWFLAKE}.account": account,
            f"{_SNOWFLAKE}.auth_type": auth_type,
            f"{_SNOWFLAKE}.client_option.disable_telemetry": "true",
            option: str(secret),
        }
        for name, value in zip(("db", "schema"), self._path(), strict=False):
            options[f"{_SNOWFLAKE}.{name}"] = value
        for name in ("role", "warehouse"):
            if name in self._query:
                options[f"{_SNOWFLAKE}.{name}"] = self._query[name]
        types = ("TIMESTAMP_TZ", "TIMESTAMP_NTZ")
        return Warehouse(
            self._product,
            "adbc_driver_snowflake",
            "snowflake",
            options,
            self._path(),
            time_types=types,
        )


class BigQuerySource(WarehouseSource):
    """A dataset of BigQuery: ``bigquery://project/dataset``.

    The secret is the JSON key of a service account; with ``secret="environment"``, the credentials of
    the machine are used.
    """

    _product = "BigQuery"
    _uri_options = ("location",)

    def _check_url(self, url: SplitResult) -> None:
        if not url.netloc or "@" in url.netloc or len(self._path()) != 1:
            raise InvalidArgument(
                f"Source {self._config.name!r}: {self._config.uri!r} is not a dataset of BigQuery.",
                hint="bigquery://project/dataset",
            )
        if self._config.secret is None and not self._config.uses_environment:
            raise needs_environment_error(
                f"Source {self._config.name!r}", "the default credentials of Google Cloud"
            )

    def _warehouse(self, secret: str | None) -> Warehouse:
        project, (dataset,) = self._url.netloc, self._path()
        auth_type = "auth_bigquery" if secret is None else "json_credential_string"
        options = {
            f"{_BIGQUERY}.project_id": project,
            f"{_BIGQUERY}.dataset_id": dataset,
            f"{_BIGQUERY}.auth_type": f"{_BIGQUERY}.auth_type.{auth_type}",
        }
        if secret is not None:
            options[f"{_BIGQUERY}.auth_credentials"] = secret
        if "location" in self._query:
            options[f"{_BIGQUERY}.location"] = self._query["location"]
        return Warehouse(
            self._product,
            "adbc_driver_bigquery",
            "bigquery",
            options,
            (project, dataset),
            quote_mark="`",
            time_types=("TIMESTAMP", "DATETIME"),
        )


class WarehouseSnapshot(SQLSnapshot):
    """A connection to a warehouse."""

    def __init__(self, config: SourceConfig, warehouse: Warehouse, *, secret: str | None) -> None:
        try:
            dbapi = import_module(f"{warehouse.driver}.dbapi")
        except ImportError as error:
            raise missing_extra(warehouse.driver.replace("_", "-"), warehouse.extra) from error
        super().__init__(config, secret=secret)
        self._noun = f"source {config.name!r}"
        self._warehouse = warehouse
        self.identity = f"statement at {utc_now().isoformat()}"
        self._connection: Any = None
        with translate_errors(config, secret=secret):
            options = dict(warehouse.options)
            # Only the driver of Flight SQL requires an address.
            address = [options.pop("uri")] if "uri" in options else []
            self._connection = dbapi.connect(*address, db_kwargs=options, autocommit=True)
            try:
                info = self._connection.adbc_get_info()
            except dbapi.Error as error:
                # Servers need not describe themselves, but must accept the user.
                if _is_refused(error):
                    self.close()
                    raise
                info = {}
        self.server = str(info.get("vendor_name") or warehouse.product)

    def _rows(self, selection: Selection) -> Iterator[pa.RecordBatch]:
        return self._batches(self._statement(selection), self._window_parameters(selection))

    def close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    def _quote(self, name: str) -> str:
        return sqltext.quote(name, mark=self._warehouse.quote_mark)

    def _table_item(self, table: str) -> str:
        name_path = table.split(".")
        # A name without database and schema has those of the URI.
        prefix = self._warehouse.namespace[: max(0, 3 - len(name_path))]
        return ".".join(map(self._quote, (*prefix, *name_path)))

    def _columns(self, query: SourceQuery) -> list[SourceColumn]:
        try:
            schema = self._describe(f"SELECT * FROM {self._from_item(query)}")
        except SourceUnavailable:
            raise
        except FeatureStoreError as error:
            # The messages of servers differ, so an unknown table is recognized by the list.
            names = [] if query.table is None else self._table_names()
            is_listed = any(f".{name}".endswith(f".{query.table}") for name in names)
            if not names or is_listed:
                raise
            raise typed_columns.unknown_table_error(
                self._config.name, str(query.table), names
            ) from error
        columns = []
        for schema_field in schema:
            storage = (
                schema_field.type.storage_type
                if isinstance(schema_field.type, pa.BaseExtensionType)
                else schema_field.type
            )
            dtype, name = feature_type(storage), self._quote(schema_field.name)
            text = f"CAST({name} AS VARCHAR)"
            columns.append(
                SourceColumn(
                    schema_field.name, name, dtype, str(schema_field.type), readable_expression=text
                )
            )
        return columns

    def _describe(self, text: str) -> pa.Schema:
        """Return the schema of a query, without running it if the server supports this."""
        from adbc_driver_manager import NotSupportedError

        with translate_errors(self._config, secret=self._secret):
            with self._connection.cursor() as cursor:
                try:
                    schema = cursor.adbc_execute_schema(text)
                except NotSupportedError:
                    schema = pa.schema([])
            if not len(schema):
                # Some servers know the columns only with the rows.
                with self._connection.cursor() as cursor:
                    cursor.execute(f"{text} WHERE 1 = 0")
                    schema = cursor.fetch_record_batch().schema
        return schema

    def _time_literal(self, value: datetime, column: SourceColumn) -> str:
        del value  # bound as a parameter
        if self._warehouse.time_types is None:
            return "?"
        # Drivers differ in the times that they bind, but all drivers bind text.
        return f"CAST(? AS {self._warehouse.time_types[0 if _has_zone(column) else 1]})"

    def _window_parameters(self, selection: Selection) -> pa.RecordBatch | None:
        """Return the bounds of a window as bound parameters; None without a window."""
        window, time_column = selection.query.window, selection.time_column
        if window is None or time_column is None:
            return None
        # Times without a zone are in UTC.
        bounds: list[Any] = [window.start.astimezone(UTC), window.end.astimezone(UTC)]
        bound_type = TIMESTAMP
        if not _has_zone(time_column):
            bounds = [bound.replace(tzinfo=None) for bound in bounds]
            bound_type = pa.timestamp("us")
        if self._warehouse.time_types is not None:
            bounds = [bound.isoformat(sep=" ", timespec="microseconds") for bound in bounds]
            bound_type = pa.string()
        arrays = [pa.array([bound], bound_type) for bound in bounds]
        return pa.RecordBatch.from_arrays(arrays, names=["0", "1"])

    def _batches(self, text: str, parameters: pa.RecordBatch | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a statement."""
        cursor = self._connection.cursor()

        def batches() -> Iterator[pa.RecordBatch]:
            cursor.execute(text, parameters)
            yield from cursor.fetch_record_batch()

        yield from convert_batch_errors(
            self._config, batches(), secret=self._secret, close=cursor.close
        )

    def _table_names(self) -> list[str]:
        """Return the names of all tables, without the database and schema of the URI."""
        filters = dict(
            zip(("catalog_filter", "db_schema_filter"), self._warehouse.namespace, strict=False)
        )
        with translate_errors(self._config, secret=self._secret):
            reader = self._connection.adbc_get_objects(depth="tables", **filters)
            catalogs = reader.read_all().to_pylist()
        paths = []
        for catalog in catalogs:
            for schema in catalog["catalog_db_schemas"] or ():
                for table in schema["db_schema_tables"] or ():
                    path = (catalog["catalog_name"], schema["db_schema_name"], table["table_name"])
                    paths.append(path)
        # Names are relative to the URI. SQLite has no schemas, so their name is empty.
        first = len(self._warehouse.namespace)
        if not first and len({path[0] for path in paths}) == 1:
            first = 1
        return sorted(".".join(level for level in path[first:] if level) for path in paths)


def _is_refused(error: Any) -> bool:
    """Return whether an error means that the server is not reachable or refuses the user."""
    from adbc_driver_manager import AdbcStatusCode

    return error.status_code in (
        AdbcStatusCode.IO,
        AdbcStatusCode.TIMEOUT,
        AdbcStatusCode.UNAUTHENTICATED,
        AdbcStatusCode.UNAUTHORIZED,
    )


def _has_zone(column: SourceColumn) -> bool:
    return "tz=" in column.native


def _port(url: SplitResult) -> int | None:
    try:
        return url.port
    except ValueError:
        return None


if TYPE_CHECKING:
    _sources: tuple[type[Source], ...] = (FlightSQLSource, SnowflakeSource, BigQuerySource)
    _snapshot: type[SourceSnapshot] = WarehouseSnapshot
