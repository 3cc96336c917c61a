"""Postgres by ADBC: one exported snapshot for all connections, types looked at before they are read.

The query that the server sees names the columns that are needed and the bounds of the window. What
the driver would change silently is cast by the server (identifiers, addresses) or refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit
from urllib.parse import quote as percent

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
from featurestore.plugins.engine import Engine, Relation
from featurestore.plugins.source import (
    PartitionedSnapshot,
    PartitionedSource,
    Source,
    SourceConfig,
    SourceQuery,
    SourceSnapshot,
)
from featurestore_connectors.sources import sqltext
from featurestore_connectors.sources.driver_options import POSTGRES, check_options
from featurestore_connectors.sources.failures import guarded, translated
from featurestore_connectors.sources.postgres_jdbc import PartedRead
from featurestore_connectors.sources.postgres_parts import cut, parts_asked_for
from featurestore_connectors.sources.typed_columns import (
    SourceColumn,
    TypedColumns,
    check_axes,
    chosen,
    fitted,
    schema_of,
)

_CONNECT_SECONDS = "10"
_BATCH_BYTES = str(4 << 20)
_TABLES = """
    SELECT n.nspname::text, c.relname::text, has_table_privilege(c.oid, 'SELECT')
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'v', 'm', 'p', 'f') AND n.nspname <> 'information_schema'
      AND n.nspname NOT LIKE 'pg\\_%' ORDER BY 1, 2
"""
_SNAPSHOT = (
    "SELECT pg_export_snapshot(), pg_current_snapshot()::text, current_setting('server_version')"
)
# Types whose text says all that they are, and which the driver gives as bytes without meaning.
_AS_TEXT = ("uuid", "inet", "cidr", "macaddr", "macaddr8", "xml")
_WAYS_OUT = {
    "money": "{}::numeric(18, 2)",
    "oid": "{}::bigint",
    "numeric": "{}::numeric(18, 2)",
    "interval": "extract(epoch from {})::float8",
    "time": "extract(epoch from {})::float8",
    "timetz": "{}::text",
}
_ARRAY_ITEMS = ("bool", "bpchar", "float4", "float8", "int2", "int4", "int8", "text", "varchar")
# How Postgres keeps precision and scale of a number in one integer, 4 above their bits.
_TYPMOD_OFFSET = 4
_MOST_DIGITS = 38


class PostgresSource:
    """A Postgres database, read by ADBC in a transaction that reads only."""

    def __init__(self, config: SourceConfig) -> None:
        self._config = config
        self._parts = parts_asked_for(config.options)
        for option in parse_qsl(urlsplit(config.uri).query, keep_blank_values=True):
            check_options(config, dict([option]), known=POSTGRES, driver="Postgres")

    def has_parts(self, engine: Engine) -> bool:
        """Tell whether the tasks of an engine read the rows: those of Spark, where options say so."""
        return engine.name == "spark" and self._parts is not None

    def snapshot(self, at: int | datetime | None = None) -> PostgresSnapshot:
        """Connect, and export a snapshot of now."""
        if at is not None:
            raise InvalidArgument(
                f"at={at!r}: a Postgres database keeps no earlier versions.",
                hint="leave at= out, or ask for the time in sql=",
            )
        return PostgresSnapshot(self._config)


class PostgresSnapshot(TypedColumns):
    """A transaction of level "repeatable read", and connections that share what it sees."""

    def __init__(self, config: SourceConfig) -> None:
        self._config = config
        self._secret = None if config.secret is None else config.secret()
        self._open: list[Any] = []
        self._shared: str | None = None
        try:
            self._shared, self.identity, version = self._rows(self._connect(), _SNAPSHOT)[0]
        except BaseException:
            self.close()
            raise
        self.server = f"PostgreSQL {version}"

    def tables(self) -> Sequence[SourceTable]:
        found = []
        for schema, name, readable in self._rows(self._open[0], _TABLES):
            whole = name if schema == "public" else f"{schema}.{name}"
            found.append(SourceTable(whole, bool(readable)))
        return found

    def read(self, query: SourceQuery) -> pa.RecordBatchReader:
        columns = chosen(self._columns(query), query)
        schema = schema_of(columns)
        expressions, arrays = [], []
        for column in columns:
            expressions.append(f"{column.expression} AS {sqltext.quote(column.name)}")
        for column in columns:
            if column.axes is not None:
                arrays.append(column.name)
                expressions.append(column.axes)
        text = sqltext.select(expressions, source=self._from(query), condition=_condition(query))
        batches = check_axes(self._batches(text), arrays)
        return pa.RecordBatchReader.from_batches(schema, fitted(batches, schema))

    def stage(self, query: SourceQuery, engine: Engine, directory: str) -> Relation:
        known = self._columns(query)
        source, options = self._from(query), self._config.options
        parts = cut(
            query,
            known,
            parts=parts_asked_for(options) or 1,
            column=options.get("partition_column"),
            source=source,
            rows=lambda text: self._rows(self._open[0], text),
        )
        read = PartedRead(
            self._config,
            self._secret,
            str(self._shared),
            chosen(known, query),
            source,
            _condition(query),
            parts,
        )
        return read.stage(engine, directory)

    def close(self) -> None:
        while self._open:
            self._open.pop().close()

    def _connect(self) -> Any:
        """Return a new connection in a transaction that sees the snapshot."""
        try:
            from adbc_driver_postgresql import dbapi
        except ImportError as error:
            raise missing_extra("adbc-driver-postgresql", "sources") from error
        with translated(self._config, secret=self._secret):
            connection = dbapi.connect(
                _with_secret(self._config.uri, self._secret), autocommit=True
            )
            self._open.append(connection)
            begin = ["SET TIME ZONE 'UTC'", "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"]
            if self._shared is not None:
                begin.append(f"SET TRANSACTION SNAPSHOT {sqltext.text(self._shared)}")
            with connection.cursor() as cursor:
                for statement in begin:
                    cursor.execute(statement)
        return connection

    def _rows(self, connection: Any, text: str) -> list[Any]:
        with translated(self._config, secret=self._secret), connection.cursor() as cursor:
            cursor.execute(text)
            return list(cursor.fetchall())

    def _batches(self, text: str) -> Iterator[pa.RecordBatch]:
        """Yield what a query gives, from a connection of its own, opened with the first batch."""
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

        yield from guarded(self._config, batches(), secret=self._secret, close=close)

    def _from(self, query: SourceQuery) -> str:
        if query.table is not None:
            return sqltext.table_name(query.table)
        if query.sql is not None:
            return sqltext.subquery(query.sql)
        raise InvalidArgument(
            f"A Postgres source has no {query}.", hint="give table='orders', or sql='select ...'"
        )

    def _columns(self, query: SourceQuery) -> list[SourceColumn]:
        text = f"SELECT * FROM {self._from(query)}"
        try:
            given = self._described(text)
        except SourceTableNotFound as error:
            known = [each.name for each in self.tables()]
            hint = None
            if query.table is not None:
                hint = did_you_mean(query.table, known, write="table={!r}")
            raise SourceTableNotFound(
                f"{error.message} It has {listing(known, limit=50)}.", hint=hint
            ) from error
        return list(map(_column, given))

    def _described(self, text: str) -> pa.Schema:
        """Return the columns of a query; an error of it leaves the snapshot as it was."""
        with (
            translated(self._config, secret=self._secret),
            self._open[0].cursor() as cursor,
        ):
            cursor.execute("SAVEPOINT described")
            try:
                return cursor.adbc_execute_schema(text)
            finally:
                cursor.execute("ROLLBACK TO SAVEPOINT described")


def _condition(query: SourceQuery) -> str | None:
    window = query.window
    if window is None:
        return None
    start = f"TIMESTAMPTZ {sqltext.text(sqltext.moment(window.start))}"
    end = f"TIMESTAMPTZ {sqltext.text(sqltext.moment(window.end))}"
    return sqltext.within(window, column=sqltext.quote(window.column), start=start, end=end)


def _column(field: pa.Field) -> SourceColumn:
    """Return how a column is read, from what the driver tells of its type."""
    metadata = field.metadata or {}
    native = metadata.get(b"POSTGRESQL:type", b"").decode()
    name = sqltext.quote(field.name)
    if native in _AS_TEXT:
        return SourceColumn(field.name, f"{name}::text", pa.string(), native)
    if native == "numeric":
        kind = _decimal(int(metadata.get(b"POSTGRESQL:typmod", b"-1")))
        told = native if kind is not None else "numeric without digits, or with more than 38"
        return SourceColumn(field.name, name, kind, told, way_out=_way_out(native, name))
    if native.startswith("_"):
        is_plain = native[1:] in _ARRAY_ITEMS
        return SourceColumn(
            field.name,
            name,
            feature_type(field.type) if is_plain else None,
            f"{native[1:]}[]",
            way_out=f"{name}::text[]",
            axes=f"array_ndims({name})",
        )
    given = field.type
    if isinstance(given, pa.BaseExtensionType):
        given = given.storage_type
    kind = feature_type(given)
    is_opaque = b"ADBC:postgresql:typname" in metadata
    if is_opaque or native in ("money", "oid"):
        kind = None
    return SourceColumn(field.name, name, kind, native, way_out=_way_out(native, name))


def _way_out(native: str, name: str) -> str:
    return _WAYS_OUT.get(native, "{}::text").format(name)


def _decimal(typmod: int) -> pa.DataType | None:
    """Return the type of exact numbers with these digits; None where it has no bound."""
    if typmod < _TYPMOD_OFFSET:
        return None
    precision = (typmod - _TYPMOD_OFFSET) >> 16
    scale = (typmod - _TYPMOD_OFFSET) & 0x7FF
    if scale >= 0x400:  # eleven bits with a sign
        return None
    if not 0 < precision <= _MOST_DIGITS or scale > precision:
        return None
    return pa.decimal128(precision, scale)


def _with_secret(uri: str, secret: str | None) -> str:
    """Return the URI as the driver takes it: with the password, and with an end to waiting."""
    parts = urlsplit(uri)
    options = dict(parse_qsl(parts.query))
    options.setdefault("connect_timeout", _CONNECT_SECONDS)
    place = parts.netloc
    if secret is not None:
        user, separator, host = place.rpartition("@")
        if not separator:
            raise InvalidArgument(
                "A Postgres URI with a secret needs a user.",
                hint="postgresql://user@host:5432/database",
            )
        place = f"{user}:{percent(secret, safe='')}@{host}"
    return urlunsplit(("postgresql", place, parts.path, urlencode(options), ""))


if TYPE_CHECKING:
    _contract: type[Source] = PostgresSource
    _snapshot: type[SourceSnapshot] = PostgresSnapshot
    _parted: type[PartitionedSource] = PostgresSource
    _parts: type[PartitionedSnapshot] = PostgresSnapshot
