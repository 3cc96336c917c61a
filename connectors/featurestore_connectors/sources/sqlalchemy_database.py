"""Databases with any installed SQLAlchemy dialect; MySQL and MariaDB have their own URI schemes.

A snapshot is one transaction of one connection, at an isolation level with a consistent snapshot.
Queries select only the needed columns and filter by the window.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from featurestore.errors import (
    FeatureStoreError,
    InvalidArgument,
    InvalidSql,
    SourceChanged,
    SourceError,
    SourceTableNotFound,
    SourceUnavailable,
    missing_extra,
)
from featurestore.plugins.source import Source, SourceConfig, SourceQuery, SourceSnapshot
from featurestore_connectors.sources import typed_columns
from featurestore_connectors.sources.drivers import secure_url, to_single_line
from featurestore_connectors.sources.sql_source import Selection, SQLSnapshot, SQLSource
from featurestore_connectors.sources.sqlalchemy_rows import (
    BATCH_ROWS,
    QueryColumn,
    RunningQuery,
    described_column,
    is_zoned,
    reflected_column,
)
from featurestore_connectors.sources.typed_columns import SourceColumn

if TYPE_CHECKING:
    import sqlalchemy as sa

_MYSQL = ("mysql", "mariadb")
_DRIVERS = {"mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql"}
# Dialects with a dedicated connector, which supports more types and is faster.
_OTHER_CONNECTORS = ("duckdb", "sqlite")
_CONNECT_SECONDS = "10"
# Isolation levels with a consistent snapshot. The first level that the database supports is used.
_LEVELS = ("SNAPSHOT", "REPEATABLE READ", "SERIALIZABLE")
# MySQL error numbers (https://mariadb.com/docs/server/reference/error-codes).
_NO_TABLE, _NO_COLUMN, _CHANGED, _NO_RIGHTS = 1146, 1054, 1412, (1142, 1143)


class SQLAlchemySource(SQLSource["SQLAlchemySnapshot"]):
    """A database with a SQLAlchemy dialect, read in one transaction."""

    _options_owner = "A SQLAlchemy source"
    _options_hint = "set driver options in the URI: ?charset=utf8mb4"
    _no_versions = "source {name!r} keeps no earlier versions"
    _versions_hint = "omit at=, or filter by time in a view"

    def __init__(self, config: SourceConfig) -> None:
        super().__init__(config)
        self._url = _url(config)

    def _connect(self) -> SQLAlchemySnapshot:
        return SQLAlchemySnapshot(self._config, self._url)


class SQLAlchemySnapshot(SQLSnapshot):
    """A transaction of one connection."""

    _noun = "a SQLAlchemy source"

    def __init__(self, config: SourceConfig, url: sa.URL) -> None:
        super().__init__(config, secret=None if config.secret is None else config.secret())
        self._lock = threading.RLock()
        self._running: RunningQuery | None = None
        self._closed = False
        self._connection_id = 0  # for KILL QUERY of MySQL
        self._connection = self._connect(url)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise
        self.identity = f"transaction of {datetime.now(UTC).isoformat()}"
        version = self._dialect.server_version_info or ()
        product = "mariadb" if getattr(self._dialect, "is_mariadb", False) else self._dialect.name
        self.server = f"{product} {'.'.join(map(str, version))}".strip()

    def _table_names(self) -> Sequence[str]:
        import sqlalchemy as sa

        with self._free_connection():
            inspector = sa.inspect(self._connection)
            names = [*inspector.get_table_names(), *inspector.get_view_names()]
        return sorted(set(names))

    def _rows(self, selection: Selection) -> Iterator[pa.RecordBatch]:
        return self._batches(self._statement(selection), selection.columns)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._running is not None:
                self._interrupt(self._running)
            self._connection.close()
            self._connection.engine.dispose()

    def _interrupt(self, running: RunningQuery) -> None:
        """Kill a running query; closing it would make MySQL drivers fetch all remaining rows."""
        import sqlalchemy as sa

        # A failed interrupt is ignored: the connection is closed anyway.
        with contextlib.suppress(sa.exc.DBAPIError):
            if self._dialect.name in _MYSQL:
                with self._connection.engine.connect() as second_connection:
                    second_connection.exec_driver_sql(f"KILL QUERY {int(self._connection_id)}")
            running.end()

    @property
    def _dialect(self) -> Any:
        return self._connection.dialect

    def _connect(self, url: sa.URL) -> sa.Connection:
        """Open the connection of the snapshot."""
        import sqlalchemy as sa
        from sqlalchemy.pool import NullPool

        if self._secret is not None:
            url = url.set(password=self._secret)
        try:
            # A pool would keep the connection and its transaction open after ``close``.
            engine = sa.create_engine(url, poolclass=NullPool)
        except (ImportError, sa.exc.NoSuchModuleError) as error:
            raise _missing_driver_error(self._config, url, error) from error
        with self._translate_errors(connecting=True):
            connection = engine.connect()
            # Pass queries to the driver unchanged: percent signs and colons belong to the user's
            # SQL.
            return connection.execution_options(no_parameters=True, max_row_buffer=BATCH_ROWS)

    def _begin(self) -> None:
        """Begin a read-only transaction with a consistent snapshot."""
        with self._translate_errors(connecting=True):
            try:
                levels = self._dialect.get_isolation_level_values(self._connection.connection)
            except NotImplementedError:
                levels = ()
            for level in _LEVELS:
                if level in levels:
                    self._connection.execution_options(isolation_level=level)
                    break
            if self._dialect.name in _MYSQL:
                self._connection.exec_driver_sql("SET time_zone = '+00:00'")
                result = self._connection.exec_driver_sql("SELECT connection_id()")
                self._connection_id = result.scalar_one()
                # Without this clause MySQL takes the snapshot at the first read of a table.
                self._connection.exec_driver_sql(
                    "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
                )
            else:
                import sqlalchemy as sa

                self._connection.execute(sa.select(sa.literal(1)))  # the first read begins it

    @contextlib.contextmanager
    def _free_connection(self) -> Iterator[None]:
        """Free the connection for another query, and convert its errors."""
        with self._lock:
            if self._running is not None:
                self._running.spool()
                self._running = None
            with self._translate_errors():
                yield

    def _batches(self, text: str, columns: Sequence[SourceColumn]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query, which starts with the first batch."""
        with self._free_connection():
            # A buffered result would be fetched completely before its first row.
            streamed = self._connection.execution_options(stream_results=True)
            running = RunningQuery(streamed.exec_driver_sql(text), columns, self._lock)
        self._running = running
        batches = running.batches()
        while True:
            with self._translate_errors():
                batch = next(batches, None)
            if batch is None:
                break
            yield batch
        # Another query may have replaced and spooled this one.
        if self._running is running:
            self._running = None

    def _table_item(self, table: str) -> str:
        schema, name = self._split_name(table)
        quoted = self._quote(name)
        return quoted if schema is None else f"{self._quote(schema)}.{quoted}"

    def _split_name(self, table: str) -> tuple[str | None, str]:
        """Split a table name into schema and table: ``orders``, or ``sales.orders``."""
        before, dot, after = table.partition(".")
        # The name of a table may contain a dot, so complete names have precedence.
        if not dot or table in self._table_names():
            return None, table
        return before, after

    def _columns(self, query: SourceQuery) -> list[SourceColumn]:
        if query.table is not None:
            return self._reflect_columns(query.table)
        if self._dialect.name not in _MYSQL and query.sql is not None:
            raise InvalidArgument(
                f"Source {self._config.name!r}: {self._dialect.name} reports exact column types only for "
                "tables and views, not for queries.",
                hint="create view ... as select ... in the database, then table='...'",
            )
        return self._describe_query(self._from_item(query))

    def _reflect_columns(self, table: str) -> list[SourceColumn]:
        """Return the columns of a table or view by reflection."""
        import sqlalchemy as sa

        schema, name = self._split_name(table)
        try:
            with self._free_connection(), warnings.catch_warnings():
                warnings.simplefilter("ignore", sa.exc.SAWarning)  # types that it does not know
                reflected = sa.inspect(self._connection).get_columns(name, schema=schema)
        except sa.exc.NoSuchTableError:
            table_names = self._table_names()
            raise typed_columns.unknown_table_error(self._config.name, table, table_names) from None
        columns = []
        for description in reflected:
            quoted = self._quote(description["name"])
            sql_type = description["type"]
            columns.append(
                reflected_column(
                    description["name"], sql_type, dialect=self._dialect, quoted=quoted
                )
            )
        unknown = [
            description["name"]
            for description in reflected
            if isinstance(description["type"], sa.types.NullType)
        ]
        if unknown and self._dialect.name in _MYSQL:
            # The metadata of a query also describes types that SQLAlchemy does not know.
            source = f"(SELECT * FROM {self._from_item(SourceQuery(table=table))}) AS query"
            described_columns = {column.name: column for column in self._describe_query(source)}
            columns = [
                described_columns[column.name] if column.name in unknown else column
                for column in columns
            ]
        return columns

    def _describe_query(self, source: str) -> list[SourceColumn]:
        """Return the columns of a MySQL query from its metadata, without fetching rows."""
        # The join has exactly one row, of nulls. Its metadata and the character sets of its values
        # are those of the query.
        empty_join = f"FROM (SELECT 1) AS one_row LEFT JOIN {source} ON 1 = 0"
        with self._free_connection():
            result = self._connection.exec_driver_sql(
                f"SELECT {self._quote('query')}.* {empty_join}"
            )
            description: Any = result.cursor.description
            result.close()
            charsets = [f"charset({self._quote(entry[0])})" for entry in description]
            charset_values = self._connection.exec_driver_sql(
                f"SELECT {', '.join(charsets)} {empty_join}"
            ).one()
        columns = []
        for entry, charset in zip(description, charset_values, strict=True):
            query_column = QueryColumn(entry[0], entry[1], entry[4], entry[5], charset == "binary")
            columns.append(described_column(query_column, quoted=self._quote(entry[0])))
        return columns

    def _time_literal(self, value: datetime, column: SourceColumn) -> str:
        import sqlalchemy as sa

        # Times without a zone are in UTC.
        zoned = is_zoned(column)
        utc_value = value.astimezone(UTC)
        literal = sa.literal(
            utc_value if zoned else utc_value.replace(tzinfo=None), sa.DateTime(timezone=zoned)
        )
        return str(literal.compile(dialect=self._dialect, compile_kwargs={"literal_binds": True}))

    def _quote(self, name: str) -> str:
        """Quote an identifier for the database; all identifiers in SQL are quoted here."""
        if "\0" in name:
            raise InvalidArgument(f"{name!r} is not a name: it contains a NUL.")
        quote = self._dialect.identifier_preparer.quote_identifier
        quoted = str(quote(name))
        if quote("%").count("%") == 2:  # SQLAlchemy doubles it for parameters, which are not used
            quoted = quoted.replace("%%", "%")
        return quoted

    @contextlib.contextmanager
    def _translate_errors(self, *, connecting: bool = False) -> Iterator[None]:
        """Convert SQLAlchemy and driver errors in the block to feature store errors."""
        import sqlalchemy as sa

        try:
            yield
        except sa.exc.NoSuchTableError:
            raise
        except sa.exc.DBAPIError as error:
            # Not chained: the message of the cause may contain the secret.
            raise self._convert_error(error, connecting=connecting) from None
        except (sa.exc.SQLAlchemyError, OSError) as error:
            message = to_single_line(str(error), self._secret)
            raise SourceError(f"Source {self._config.name!r}: {message}") from None

    def _convert_error(self, error: sa.exc.DBAPIError, *, connecting: bool) -> FeatureStoreError:
        """Return the feature store error for a driver error."""
        message = to_single_line(str(error.orig), self._secret)
        subject = f"Source {self._config.name!r}"
        arguments = getattr(error.orig, "args", ())
        number = arguments[0] if arguments else None
        # Drivers have no common error code for a refused connection.
        if connecting or error.connection_invalidated:
            return SourceUnavailable(
                f"{subject} cannot be reached, or rejects the user: {message}",
                hint="check the URI, and the secret that secret= refers to",
            )
        if number == _NO_TABLE:
            return SourceTableNotFound(f"{subject}: {message}")
        if number == _CHANGED:
            return SourceChanged(f"{subject}: {message}", hint="read it again")
        if number in _NO_RIGHTS:
            return SourceError(f"{subject}: {message}", hint="grant SELECT to the user of the URI")
        if number == _NO_COLUMN or type(error).__name__ == "ProgrammingError":
            return InvalidSql(
                f"{subject}: {message}", hint="use the SQL dialect of the source database"
            )
        return SourceError(f"{subject}: {message}")


def _url(config: SourceConfig) -> sa.URL:
    """Return the SQLAlchemy URL of a source, without the secret.

    Raises:
        InvalidArgument: The URI is malformed, belongs to another connector, or sets a driver option
            that is not allowed.
    """
    import sqlalchemy as sa

    uri = config.uri.removeprefix("sqlalchemy+")
    try:
        url = sa.make_url(uri)
    except (sa.exc.ArgumentError, ValueError) as error:
        raise InvalidArgument(
            f"Source {config.name!r}: {config.uri!r} is not a SQLAlchemy URL.",
            hint="mysql://user@host:3306/database, or sqlalchemy+<dialect>+<driver>://...",
        ) from error
    backend = url.get_backend_name()
    if backend in _OTHER_CONNECTORS:
        raise InvalidArgument(
            f"Source {config.name!r}: {backend} has its own connector.",
            hint=f"uri='{backend}:///...'",
        )
    if config.secret is not None and not url.username:
        raise InvalidArgument(
            "A URI with a secret needs a user.", hint=f"{backend}://user@host/database"
        )
    url = url.set(drivername=_DRIVERS.get(url.drivername, url.drivername))
    url = secure_url(config, url)
    if backend in _MYSQL and "connect_timeout" not in url.query:
        url = url.update_query_dict({"connect_timeout": _CONNECT_SECONDS})
    return url


def _missing_driver_error(config: SourceConfig, url: sa.URL, error: Exception) -> FeatureStoreError:
    if url.get_backend_name() in _MYSQL and url.get_driver_name() == "pymysql":
        return missing_extra("pymysql", "mysql")
    return SourceUnavailable(
        f"Source {config.name!r}: the driver of {url.drivername} is not installed: {error}.",
        hint="use pip to install the driver that SQLAlchemy documents for this dialect",
    )


if TYPE_CHECKING:
    _contract: type[Source] = SQLAlchemySource
    _snapshot: type[SourceSnapshot] = SQLAlchemySnapshot
