"""Read DuckDB files, and rows of tables, subqueries and files through DuckDB.

Types are checked, streams are cast to feature types, and errors are converted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from featurestore.arrow.types import feature_type
from featurestore.errors import (
    InvalidSql,
    SourceError,
    SourceTableNotFound,
    SourceUnavailable,
    StorageError,
)
from featurestore.model.threads import capture_errors, recall_error
from featurestore.plugins.source import Source, SourceConfig, SourceQuery, SourceSnapshot
from featurestore.storage.filesystem import file_systems
from featurestore_connectors.sources import locations, sqltext, typed_columns
from featurestore_connectors.sources.drivers import to_single_line
from featurestore_connectors.sources.sql_source import DatabaseFile, Selection, SQLSnapshot
from featurestore_connectors.sources.typed_columns import SourceColumn

_TABLES = """
    SELECT CASE WHEN table_schema = 'main' THEN table_name ELSE table_schema || '.' || table_name END
    FROM information_schema.tables ORDER BY 1
"""
_BATCH_ROWS = 65_536
# Maximum number of characters of a DuckDB message in an error.
_SHOWN = 500
# Casts for the hint about unreadable columns. Other types are cast to varchar, which keeps the months
# of intervals.
_CASTS = {"TIME": "epoch({})", "UHUGEINT": "{}::varchar"}


class DuckDBSource(DatabaseFile["DuckDBSnapshot"]):
    """A DuckDB file, opened read-only. DuckDB's file lock excludes writers while it is open."""

    _scheme = "duckdb"
    _options_owner = "A DuckDB source"
    _no_versions = "a DuckDB file keeps no earlier versions"

    def _open(self, path: str) -> DuckDBSnapshot:
        return DuckDBSnapshot(self._config, path)


class DuckDBRows(SQLSnapshot):
    """The rows of a table, subquery or file scan, given as SQL, through a connection."""

    _has_sql = False

    def __init__(
        self,
        config: SourceConfig,
        connection: duckdb.DuckDBPyConnection,
        source: str | None = None,
        *,
        batch_rows: int = _BATCH_ROWS,
    ) -> None:
        super().__init__(config)
        self._connection = connection
        self._source = source
        self._batch_rows = batch_rows

    def _table_names(self) -> Sequence[str]:
        return [name for (name,) in self._connection.execute(_TABLES).fetchall()]

    def _columns(self, query: SourceQuery) -> list[SourceColumn]:
        return describe_columns(self._config, self._connection, self._from_item(query))

    def _time_literal(self, value: datetime, column: SourceColumn) -> str:
        # Literals have the column's own type, so that DuckDB skips files and row groups by statistics.
        has_zone = column.native.endswith("WITH TIME ZONE")
        literal_type = "TIMESTAMPTZ" if has_zone else "TIMESTAMP"
        return f"{literal_type} {sqltext.text(sqltext.utc_text(value))}"

    def _from_item(self, query: SourceQuery) -> str:
        return super()._from_item(query) if self._source is None else self._source

    def _rows(self, selection: Selection) -> Iterator[pa.RecordBatch]:
        return self._batches(self._statement(selection))

    def _batches(self, text: str) -> Iterator[pa.RecordBatch]:
        # A separate cursor, since several reads of a snapshot may be open at the same time.
        cursor = self._connection.cursor()
        try:
            yield from cursor.sql(text).to_arrow_reader(self._batch_rows)
        except (duckdb.Error, OSError, pa.ArrowException) as error:
            raise convert_error(self._config, error) from error
        finally:
            cursor.close()


class DuckDBSnapshot(DuckDBRows):
    """A read-only connection to a DuckDB file."""

    _noun = "a DuckDB source"
    _has_sql = True

    def __init__(self, config: SourceConfig, path: str) -> None:
        super().__init__(config, connect(config, path))
        # Queries may only read the tables of this file.
        self._connection.execute("SET GLOBAL enable_external_access = false")
        # Committed rows may still be in the write-ahead log, which is a separate file.
        self.identity = locations.fingerprint(locations.statuses([path, f"{path}.wal"]))
        self.server = f"DuckDB {duckdb.__version__}"

    def close(self) -> None:
        self._connection.close()

    def _table_item(self, table: str) -> str:
        table_names = self._table_names()
        if table not in table_names:
            raise typed_columns.unknown_table_error(self._config.name, table, table_names)
        return sqltext.table_name(table)


def connect(config: SourceConfig, path: str = ":memory:") -> duckdb.DuckDBPyConnection:
    """Return a read-only connection with time zone UTC.

    Raises:
        SourceUnavailable: The file cannot be opened.
    """
    in_memory = path == ":memory:"
    try:
        connection = duckdb.connect(path, read_only=not in_memory)
        # A global setting, since each read uses a separate cursor, which does not inherit others.
        connection.execute("SET GLOBAL TimeZone = 'UTC'")
    except duckdb.Error as error:
        raise SourceUnavailable(
            f"Source {config.name!r} cannot be reached: {to_single_line(str(error), None)}",
            hint="a process that writes a DuckDB file locks it for all other processes",
        ) from error
    return connection


def read_remote_files(connection: duckdb.DuckDBPyConnection) -> None:
    """Let a connection read files of URIs through the storages of this package."""
    for system in file_systems(capture_errors):
        if not connection.filesystem_is_registered(system.protocol):
            connection.register_filesystem(system)


def describe_columns(
    config: SourceConfig, connection: duckdb.DuckDBPyConnection, source: str
) -> list[SourceColumn]:
    """Return the columns of a table, subquery or file scan."""
    try:
        cursor = connection.cursor()
        native = cursor.sql(f"SELECT * FROM {source}")
        # The native type names are needed, since several DuckDB types map to one Arrow type.
        types = [str(dtype) for dtype in native.types]
        arrow_schema = native.limit(0).to_arrow_table().schema
    except duckdb.Error as error:
        raise convert_error(config, error) from error
    return [
        _to_source_column(field, native_type)
        for field, native_type in zip(arrow_schema, types, strict=True)
    ]


def _to_source_column(field: pa.Field, native: str) -> SourceColumn:
    """Return the source column of an Arrow field with the name of its DuckDB type."""
    name = sqltext.quote(field.name)
    if native == "HUGEINT":
        dtype = pa.decimal128(38, 0)
        return SourceColumn(field.name, f"CAST({name} AS DECIMAL(38, 0))", dtype, native)
    if native == "BIT":
        return SourceColumn(field.name, f"CAST({name} AS VARCHAR)", pa.string(), native)
    dtype = feature_type(field.type)
    if native == "UHUGEINT":
        dtype = None
    readable_expression = _CASTS.get(native, "{}::varchar").format(name)
    return SourceColumn(field.name, name, dtype, native, readable_expression=readable_expression)


def convert_error(
    config: SourceConfig, error: duckdb.Error | OSError | pa.ArrowException
) -> Exception:
    """Return the feature store error for an error of DuckDB, or of Arrow that reads its rows."""
    raised = recall_error(str(error))
    if isinstance(raised, StorageError):
        return locations.unreachable_error(config, raised)
    if isinstance(raised, FileNotFoundError):
        return missing_file_error(config, str(raised))
    # Internal errors of DuckDB end with a stack trace.
    text = str(error).split("Stack Trace")[0]
    message = f"Source {config.name!r}: {to_single_line(text, None)[:_SHOWN]}"
    if isinstance(error, duckdb.CatalogException):
        return SourceTableNotFound(message)
    if isinstance(error, duckdb.ParserException | duckdb.BinderException):
        return InvalidSql(message, hint="use the SQL dialect of DuckDB")
    if isinstance(error, duckdb.PermissionException):
        return SourceError(
            f"{message}. A DuckDB source reads the tables of its own file only; this query, or a "
            "view in it, reads other files.",
            hint="write the rows into a table, or read the files: "
            "add_source('files', '/data/orders') registers their folder",
        )
    return SourceError(message)


def missing_file_error(config: SourceConfig, reason: str) -> SourceError:
    """Return the error for a file of a table that does not exist."""
    return SourceError(
        f"Source {config.name!r}: a file of the table no longer exists: {reason}",
        hint="the snapshot may have expired during the read",
    )


if TYPE_CHECKING:
    _contract: type[Source] = DuckDBSource
    _snapshot: type[SourceSnapshot] = DuckDBSnapshot
