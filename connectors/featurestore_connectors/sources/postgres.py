"""Postgres by ADBC: one exported snapshot for all connections, with type checks before reading.

Queries select only the needed columns and filter by the window. Types that the driver would change
silently are either cast by the server (identifiers, addresses) or refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import pyarrow as pa

from featurestore.arrow.types import feature_type
from featurestore.errors import (
    InvalidArgument,
    SourceTableNotFound,
    did_you_mean,
    listing,
    missing_extra,
)
from featurestore.model.source import SourceTable
from featurestore.plugins.credentials import libpq_parameters
from featurestore.plugins.engine import Engine, Relation
from featurestore.plugins.source import (
    PartitionedSnapshot,
    PartitionedSource,
    Source,
    SourceConfig,
    SourceQuery,
    SourceSnapshot,
)
from featurestore_connectors.sources import sqltext, typed_columns
from featurestore_connectors.sources.drivers import (
    POSTGRES,
    check_options,
    convert_batch_errors,
    translate_errors,
)
from featurestore_connectors.sources.postgres_partitions import (
    PartitionedRead,
    parse_partition_count,
    partition_rows,
)
from featurestore_connectors.sources.sql_source import Selection, SQLSnapshot, SQLSource
from featurestore_connectors.sources.typed_columns import SourceColumn

_CONNECT_SECONDS = "10"
_BATCH_BYTES = str(4 << 20)
# Tables, views, materialized views, partitioned tables and foreign tables.
_TABLES = """
    SELECT n.nspname::text, c.relname::text, has_table_privilege(c.oid, 'SELECT')
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'v', 'm', 'p', 'f') AND n.nspname <> 'information_schema'
      AND n.nspname NOT LIKE 'pg\\_%' ORDER BY 1, 2
"""
_SNAPSHOT = (
    "SELECT pg_export_snapshot(), pg_current_snapshot()::text, current_setting('server_version')"
)
# Types that the driver returns as opaque bytes. Their text representation is lossless.
_AS_TEXT = ("uuid", "inet", "cidr", "macaddr", "macaddr8", "xml")
# Casts for the hint about unreadable columns, which keep every value. Other types are cast to text:
# numeric without precision has any number of digits, and months of intervals differ in length.
_CASTS = {
    # 64 bits, of which the locale makes at most three decimal digits.
    "money": "{}::numeric(22, 3)",
    "oid": "{}::bigint",
    "time": "extract(epoch from {})::float8",
    "timetz": "{}::text",
}
_ARRAY_ITEMS = ("bool", "bpchar", "float4", "float8", "int2", "int4", "int8", "text", "varchar")
# The type modifier of numeric is (precision << 16 | scale) + 4.
_TYPMOD_OFFSET = 4
_MAX_DIGITS = 38


class PostgresSource(SQLSource["PostgresSnapshot"]):
    """A Postgres database, read through ADBC in a read-only transaction."""

    _options_owner = None
    _no_versions = "a Postgres database keeps no earlier versions"
    _versions_hint = "omit at=, or filter by time in sql="

    def __init__(self, config: SourceConfig) -> None:
        super().__init__(config)
        self._partition_count = parse_partition_count(config.options)
        # Options are checked one by one, since libpq uses the last one of a repeated option.
        for option in parse_qsl(urlsplit(config.uri).query, keep_blank_values=True):
            check_options(config, dict([option]), allowed=POSTGRES, driver="Postgres")

    def has_parts(self, engine: Engine) -> bool:
        """Return whether the tasks of the engine read the rows: on Spark, if options request it."""
        return engine.name == "spark" and self._partition_count is not None

    def _connect(self) -> PostgresSnapshot:
        return PostgresSnapshot(self._config)


class PostgresSnapshot(SQLSnapshot):
    """A "repeatable read" transaction, and connections that share its snapshot."""

    _noun = "a Postgres source"

    def __init__(self, config: SourceConfig) -> None:
        super().__init__(config, secret=None if config.secret is None else config.secret())
        self._open: list[Any] = []
        self._shared: str | None = None
        try:
            # The exported snapshot is valid as long as this transaction is open.
            self._shared, self.identity, version = self._run_query(self._connect(), _SNAPSHOT)[0]
        except BaseException:
            self.close()
            raise
        self.server = f"PostgreSQL {version}"

    def tables(self) -> Sequence[SourceTable]:
        tables = []
        for schema, name, readable in self._run_query(self._open[0], _TABLES):
            full_name = name if schema == "public" else f"{schema}.{name}"
            tables.append(SourceTable(full_name, bool(readable)))
        return tables

    def _table_names(self) -> Sequence[str]:
        return [table.name for table in self.tables()]

    def stage(self, query: SourceQuery, engine: Engine, directory: str) -> Relation:
        selection = self._select(query)
        source, options = self._from_item(query), self._config.options
        partitions = partition_rows(
            query,
            selection.all_columns,
            partition_count=parse_partition_count(options) or 1,
            column=options.get("partition_column"),
            source=source,
            rows=lambda text: self._run_query(self._open[0], text),
        )
        partitioned_read = PartitionedRead(
            self._config,
            self._secret,
            str(self._shared),
            selection.columns,
            source,
            self._window_condition(selection),
            partitions,
        )
        return partitioned_read.stage(engine, directory)

    def close(self) -> None:
        while self._open:
            self._open.pop().close()

    def _connect(self) -> Any:
        """Return a new connection whose transaction uses the snapshot."""
        try:
            from adbc_driver_postgresql import dbapi
        except ImportError as error:
            raise missing_extra("adbc-driver-postgresql", "sources") from error
        with translate_errors(self._config, secret=self._secret):
            # Autocommit disables transactions of the driver, since BEGIN sets the isolation level.
            uri = _driver_uri(self._config, self._secret)
            connection = dbapi.connect(uri, autocommit=True)
            self._open.append(connection)
            # The time zone of the session affects casts between times and text.
            begin = ["SET TIME ZONE 'UTC'", "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"]
            if self._shared is not None:
                # This must be the first statement of the transaction.
                begin.append(f"SET TRANSACTION SNAPSHOT {sqltext.text(self._shared)}")
            with connection.cursor() as cursor:
                for statement in begin:
                    cursor.execute(statement)
        return connection

    def _run_query(self, connection: Any, text: str) -> list[Any]:
        with translate_errors(self._config, secret=self._secret), connection.cursor() as cursor:
            cursor.execute(text)
            return list(cursor.fetchall())

    def _rows(self, selection: Selection) -> Iterator[pa.RecordBatch]:
        arrays = [column.name for column in selection.columns if column.axes is not None]
        return typed_columns.check_axes(self._batches(self._statement(selection)), arrays)

    def _batches(self, text: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query over a separate connection, opened with the first batch."""
        # A connection returns the rows of one query at a time, and several reads may be open.
        connection = self._connect()

        def close() -> None:
            connection.close()
            if connection in self._open:
                self._open.remove(connection)

        def batches() -> Iterator[pa.RecordBatch]:
            with connection.cursor() as cursor:
                settings = {"adbc.postgresql.batch_size_hint_bytes": _BATCH_BYTES}
                cursor.adbc_statement.set_options(**settings)
                cursor.execute(text)
                yield from cursor.fetch_record_batch()

        yield from convert_batch_errors(self._config, batches(), secret=self._secret, close=close)

    def _time_literal(self, value: datetime, column: SourceColumn) -> str:
        del column  # Postgres converts the literal to the type of the column
        return f"TIMESTAMPTZ {sqltext.text(sqltext.utc_text(value))}"

    def _columns(self, query: SourceQuery) -> list[SourceColumn]:
        text = f"SELECT * FROM {self._from_item(query)}"
        try:
            driver_schema = self._describe_query(text)
        except SourceTableNotFound as error:
            table_names = self._table_names()
            hint = None
            if query.table is not None:
                hint = did_you_mean(query.table, table_names, write="table={!r}")
            raise SourceTableNotFound(
                f"{error.message} Available: {listing(table_names, limit=50)}.", hint=hint
            ) from error
        return list(map(_to_source_column, driver_schema))

    def _describe_query(self, text: str) -> pa.Schema:
        """Return the schema of a query; a savepoint protects the snapshot from query errors."""
        with translate_errors(self._config, secret=self._secret), self._open[0].cursor() as cursor:
            cursor.execute("SAVEPOINT described")
            try:
                return cursor.adbc_execute_schema(text)
            finally:
                cursor.execute("ROLLBACK TO SAVEPOINT described")


def _to_source_column(field: pa.Field) -> SourceColumn:
    """Return the source column of a field, based on the driver's type metadata."""
    metadata = field.metadata or {}
    native = metadata.get(b"POSTGRESQL:type", b"").decode()
    name = sqltext.quote(field.name)
    if native in _AS_TEXT:
        return SourceColumn(field.name, f"{name}::text", pa.string(), native)
    if native == "numeric":
        dtype = _decimal_type(int(metadata.get(b"POSTGRESQL:typmod", b"-1")))
        if dtype is None:
            native = "numeric without precision, or with more than 38 digits"
        return SourceColumn(field.name, name, dtype, native, readable_expression=f"{name}::text")
    if native.startswith("_"):
        is_plain = native[1:] in _ARRAY_ITEMS
        return SourceColumn(
            field.name,
            name,
            feature_type(field.type) if is_plain else None,
            f"{native[1:]}[]",
            readable_expression=f"{name}::text[]",
            axes=f"array_ndims({name})",
        )
    storage_type = field.type
    if isinstance(storage_type, pa.BaseExtensionType):
        storage_type = storage_type.storage_type
    dtype = feature_type(storage_type)
    is_opaque = b"ADBC:postgresql:typname" in metadata
    if is_opaque or native in ("money", "oid"):
        dtype = None
    readable_expression = _CASTS.get(native, "{}::text").format(name)
    return SourceColumn(field.name, name, dtype, native, readable_expression=readable_expression)


def _decimal_type(typmod: int) -> pa.DataType | None:
    """Return the decimal type of a type modifier, or None if unbounded or over 38 digits."""
    if typmod < _TYPMOD_OFFSET:
        return None
    precision = (typmod - _TYPMOD_OFFSET) >> 16
    scale = (typmod - _TYPMOD_OFFSET) & 0x7FF
    if scale >= 0x400:  # eleven bits with a sign
        return None
    if not 0 < precision <= _MAX_DIGITS or scale > precision:
        return None
    return pa.decimal128(precision, scale)


def _driver_uri(config: SourceConfig, secret: str | None) -> str:
    """Return the URI for the driver, with the password and a connection timeout."""
    url = urlsplit(config.uri)
    options = dict(parse_qsl(url.query))
    # libpq waits indefinitely by default.
    options.setdefault("connect_timeout", _CONNECT_SECONDS)
    options |= libpq_parameters(uses_environment=config.uses_environment)
    if secret is not None:
        if "@" not in url.netloc:
            raise InvalidArgument(
                "A Postgres URI with a secret needs a user.",
                hint="postgresql://user@host:5432/database",
            )
        options["password"] = secret
    # libpq does not decode a plus sign to a space.
    query = urlencode(options, quote_via=quote)
    return urlunsplit(("postgresql", url.netloc, url.path, query, ""))


if TYPE_CHECKING:
    _contract: type[Source] = PostgresSource
    _snapshot: type[SourceSnapshot] = PostgresSnapshot
    _partitioned: type[PartitionedSource] = PostgresSource
    _partitioned_snapshot: type[PartitionedSnapshot] = PostgresSnapshot
