"""Rows that DuckDB reads of files: its types looked at, its streams typed, its errors translated."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import duckdb
import pyarrow as pa

from featurestore.arrow.types import feature_type
from featurestore.errors import InvalidSql, SourceError, SourceTableNotFound, SourceUnavailable
from featurestore.plugins.source import SourceConfig, SourceQuery
from featurestore_connectors.sources import sqltext
from featurestore_connectors.sources.failures import told
from featurestore_connectors.sources.typed_columns import SourceColumn, chosen, fitted, schema_of

_BATCH_ROWS = 65_536
_SHOWN = 500
_WAYS_OUT = {
    "INTERVAL": "epoch({})",
    "TIME": "epoch({})",
    "UHUGEINT": "{}::varchar",
}


def connect(config: SourceConfig, path: str = ":memory:") -> duckdb.DuckDBPyConnection:
    """Return a connection in UTC that reads only; SourceUnavailable when the file cannot be opened."""
    in_memory = path == ":memory:"
    try:
        connection = duckdb.connect(path, read_only=not in_memory)
        connection.execute("SET GLOBAL TimeZone = 'UTC'")
    except duckdb.Error as error:
        raise SourceUnavailable(
            f"Source {config.name!r} cannot be reached: {told(str(error), None)}",
            hint="another process that writes a DuckDB file keeps others out",
        ) from error
    return connection


def columns_of(
    config: SourceConfig, connection: duckdb.DuckDBPyConnection, source: str
) -> list[SourceColumn]:
    """Return the columns of a table, a subquery or files."""
    try:
        cursor = connection.cursor()
        native = cursor.sql(f"SELECT * FROM {source}")
        types = [str(kind) for kind in native.types]
        given = native.limit(0).to_arrow_table().schema
    except duckdb.Error as error:
        raise of_duckdb(config, error) from error
    return [_column(field, kind) for field, kind in zip(given, types, strict=True)]


def read(
    config: SourceConfig,
    connection: duckdb.DuckDBPyConnection,
    source: str,
    query: SourceQuery,
    *,
    finished: Callable[[], None] | None = None,
) -> pa.RecordBatchReader:
    """Return the rows of a table, a subquery or files, cut as a query says.

    ``finished`` is called after the last row, before the reader ends.
    """
    known = columns_of(config, connection, source)
    columns = chosen(known, query)
    schema = schema_of(columns)
    natives = {column.name: column.native for column in known}
    expressions = []
    for column in columns:
        expressions.append(f"{column.expression} AS {sqltext.quote(column.name)}")
    text = sqltext.select(expressions, source=source, condition=_condition(query, natives))
    batches = _batches(config, connection, text, finished)
    return pa.RecordBatchReader.from_batches(schema, fitted(batches, schema))


def of_duckdb(config: SourceConfig, error: duckdb.Error) -> Exception:
    """Return the store's error for one of DuckDB."""
    text = str(error).split("Stack Trace")[0]
    message = f"Source {config.name!r}: {told(text, None)[:_SHOWN]}"
    if isinstance(error, duckdb.CatalogException):
        return SourceTableNotFound(message)
    if isinstance(error, duckdb.ParserException | duckdb.BinderException):
        return InvalidSql(message, hint="the SQL is DuckDB's")
    return SourceError(message)


def _batches(
    config: SourceConfig,
    connection: duckdb.DuckDBPyConnection,
    text: str,
    finished: Callable[[], None] | None,
) -> Iterator[pa.RecordBatch]:
    cursor = connection.cursor()
    try:
        yield from cursor.sql(text).to_arrow_reader(_BATCH_ROWS)
    except duckdb.Error as error:
        raise of_duckdb(config, error) from error
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"Source {config.name!r}: {told(str(error), None)}") from error
    finally:
        cursor.close()
    if finished is not None:
        finished()


def _column(field: pa.Field, native: str) -> SourceColumn:
    name = sqltext.quote(field.name)
    if native == "HUGEINT":
        kind = pa.decimal128(38, 0)
        return SourceColumn(field.name, f"CAST({name} AS DECIMAL(38, 0))", kind, native)
    if native == "BIT":
        return SourceColumn(field.name, f"CAST({name} AS VARCHAR)", pa.string(), native)
    kind = feature_type(field.type)
    if native == "UHUGEINT":
        kind = None
    way_out = _WAYS_OUT.get(native, "{}::varchar").format(name)
    return SourceColumn(field.name, name, kind, native, way_out=way_out)


def _condition(query: SourceQuery, natives: dict[str, str]) -> str | None:
    window = query.window
    if window is None:
        return None
    # Literals of the column's own type, so that files and row groups outside are never read.
    word = "TIMESTAMP"
    if natives[window.column].endswith("WITH TIME ZONE"):
        word = "TIMESTAMPTZ"
    start = f"{word} {sqltext.text(sqltext.moment(window.start))}"
    end = f"{word} {sqltext.text(sqltext.moment(window.end))}"
    return sqltext.within(window, column=sqltext.quote(window.column), start=start, end=end)
