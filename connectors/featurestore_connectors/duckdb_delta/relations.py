"""DuckDB relations: adopted frames, files, engine queries, user queries in a sandbox, expressions.

User queries run in a separate database, which cannot access files or the network, has locked
settings, and does not resolve Python variables. Tables and results are passed as Arrow streams;
each read of the result runs the query again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.types import feature_schema
from featurestore.arrow.unstorable import cast_to_storable_types
from featurestore.errors import EngineError, InvalidSql, StorageError, listing
from featurestore.model.runtime import ForkSafeLock, reset_in_children
from featurestore.plugins.engine import Relation, TimeRange
from featurestore.storage import files as storage
from featurestore.usersql.spark_queries import check_forms
from featurestore.usersql.typed_tables import (
    SANDBOX_SETTINGS,
    check_single_select,
    describe_tables,
    parameter_types,
    warn_about_naive_times,
)
from featurestore.usersql.typed_values import DuckDBTypes
from featurestore_connectors.duckdb_delta import sqltext, streams
from featurestore_connectors.duckdb_delta.failures import translate_errors, watch_source
from featurestore_connectors.duckdb_delta.session import (
    Database,
    abandon,
    query_of,
    relation_lock,
)

ENGINE = "duckdb"
# The row number column for row comparisons. Feature names cannot start with this prefix.
_NUMBER = "__fs_row"
_TIME = pa.timestamp("us", tz="UTC")


def relation(
    native: duckdb.DuckDBPyRelation, schema: pa.Schema, *, single_use: bool = False
) -> Relation:
    """Return a relation over a DuckDB relation of this engine."""
    return Relation(engine=ENGINE, native=native, schema=schema, single_use=single_use)


@dataclass(frozen=True)
class StagedRelation(streams.MappedRelation):
    """A relation over Parquet files staged by this engine (storage types, with statistics).

    ``source`` has the same rows in memory, if they came from a small stream.
    """

    files: tuple[Any, ...] = ()


def adopt(database: Database, frame: object) -> Relation | None:
    """Return a relation over a user's DuckDB relation, or None for other frames."""
    if not isinstance(frame, duckdb.DuckDBPyRelation):
        return None
    with relation_lock():
        rows: duckdb.DuckDBPyRelation = cast_to_storable_types(frame)
    try:
        native = database.connect_relation(rows)
    except duckdb.InvalidInputException:
        # The frame belongs to another database, so it is streamed at every read.
        foreign_rows = _ForeignRelation(rows)
        with relation_lock():
            native = database.connection.from_arrow(foreign_rows)
    return _to_relation(native, rows)


def _to_relation(native: duckdb.DuckDBPyRelation, rows: duckdb.DuckDBPyRelation) -> Relation:
    """Return a relation over ``native``, which has the columns of ``rows``."""
    with relation_lock():
        # Only a result has an Arrow schema, and LIMIT 0 reads no rows.
        arrow_schema = rows.limit(0).to_arrow_table().schema
        return cast_to_features(native, arrow_schema, [str(kind) for kind in rows.types])


class _ForeignRelation:
    """An Arrow source over a relation of another DuckDB database."""

    def __init__(self, frame: duckdb.DuckDBPyRelation) -> None:
        self._frame = frame
        self.schema = frame.limit(0).to_arrow_table().schema

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        # DuckDB has no public API to get the connection of a relation.
        watch_source(getattr(self._frame, "_con", None))
        reader = self._frame.to_arrow_reader()
        return streams.source(self.schema, iter(reader)).__arrow_c_stream__()


def cast_to_features(
    native: duckdb.DuckDBPyRelation, arrow_schema: pa.Schema, types: Sequence[str]
) -> Relation:
    """Cast the columns of a native relation to feature types; ``types`` are their DuckDB types."""
    schema = feature_schema(arrow_schema, language="duckdb")
    warn_about_naive_times(arrow_schema)
    columns = []
    for field, native_type in zip(schema, types, strict=True):
        name, feature_type = sqltext.quote(field.name), sqltext.column_type(field.type)
        value = name if native_type == feature_type else f"CAST({name} AS {feature_type})"
        columns.append(f"{value} AS {name}")
    return relation(native.project(", ".join(columns)), schema)


def read_files(database: Database, paths: Sequence[str], *, schema: pa.Schema | None) -> Relation:
    """Read Parquet files and, recursively, folders; columns are matched by name."""
    patterns = [sqltext.text(_glob_pattern(path)) for path in paths]
    file_list = ", ".join(patterns)
    native = database.bind(f"SELECT * FROM read_parquet([{file_list}], union_by_name=true)")
    adopted = adopt(database, native)
    if adopted is None or schema is None:
        return adopted  # type: ignore[return-value]  # a native relation is never foreign
    return cast(adopted, schema)


def _glob_pattern(path: str) -> str:
    """Return the glob pattern of a Parquet file, or of all files in a folder."""
    escaped = sqltext.literal_path(path)
    if storage.is_directory(path):
        return os.path.join(escaped, "**", "*.parquet")
    if storage.exists(path):
        return escaped
    raise StorageError(
        f"{path} does not exist.", hint="pass Parquet files, or folders with Parquet files"
    )


def cast(rows: Relation, schema: pa.Schema) -> Relation:
    """Cast a relation to the columns and types of a schema; missing columns are null."""
    if rows.schema == schema:
        return rows
    with relation_lock():
        native = rows.native.project(sqltext.casts(schema, sqltext.types_of(rows.schema)))
    return relation(native, schema, single_use=rows.single_use)


def select(rows: Relation, columns: Mapping[str, str]) -> Relation:
    """Select and rename columns."""
    streams.check_columns(rows.schema, list(columns.values()))
    fields, projections = [], []
    for name, column in columns.items():
        fields.append(rows.schema.field(column).with_name(name))
        projections.append(f"{sqltext.quote(column)} AS {sqltext.quote(name)}")
    with relation_lock():
        native = rows.native.project(", ".join(projections))
    return relation(native, pa.schema(fields), single_use=rows.single_use)


def filter_rows(rows: Relation, predicate: str) -> Relation:
    """Filter rows by a SQL predicate."""
    with relation_lock():
        return relation(rows.native.filter(predicate), rows.schema, single_use=rows.single_use)


def range_condition(window: TimeRange) -> str:
    """Return the condition that a time is in a range; null for null times."""
    name = sqltext.quote(window.column)
    start, end = sqltext.timestamp_literal(window.start), sqltext.timestamp_literal(window.end)
    if window.closed == "right":
        return f"({name} > {start} AND {name} <= {end})"
    return f"({name} >= {start} AND {name} < {end})"


def sql(
    database: Database, query: str, *, tables: Mapping[str, Relation], parameters: Mapping[str, Any]
) -> Relation:
    """Return the result of a query over named relations, with bound ``$name`` parameters."""
    # Only for queries of the engine; user queries run in the sandbox (``UserSql``).
    natives = {name: each.native for name, each in tables.items()}
    try:
        native = database.bind(query, natives, parameters=parameters)
    except InvalidSql as error:
        hint = f"available tables: {listing(tables)}; parameters: {listing(parameters)}"
        raise InvalidSql(error.message, hint=hint) from error
    with relation_lock():
        rows = cast_to_storable_types(native)
    result = _to_relation(rows, rows)
    single_use = any(each.single_use for each in tables.values())
    return relation(result.native, result.schema, single_use=single_use)


def duplicates(
    database: Database, rows: Relation, key: Sequence[str], *, limit: int
) -> tuple[int, list[dict[str, Any]]]:
    """Return the number of duplicate keys, and the most frequent keys with their count ``n``."""
    streams.check_columns(rows.schema, key)
    columns, number = sqltext.names(key), sqltext.quote(_NUMBER)
    query = f"""
        WITH repeated AS (
            SELECT {columns}, count(*) AS {number} FROM input WHERE {sqltext.all_present(key)}
            GROUP BY {columns} HAVING count(*) > 1
        )
        SELECT *, count(*) OVER () FROM repeated ORDER BY {number} DESC, {columns}
        LIMIT {limit + 1}
    """
    native = database.bind(query, {"input": rows.native})
    repeated_keys = database.rows(query_of(native))
    if not repeated_keys:
        return 0, []
    names = (*key, "n")
    examples = [dict(zip(names, row[:-1], strict=True)) for row in repeated_keys[:limit]]
    return repeated_keys[0][-1], examples


def last_per_key(database: Database, rows: Relation, key: Sequence[str]) -> Relation:
    """Return the last row of each key in relation order; all rows with null keys are kept."""
    streams.check_columns(rows.schema, key)
    columns, number = sqltext.names(key), sqltext.quote(_NUMBER)
    is_last = f"row_number() OVER (PARTITION BY {columns} ORDER BY {number} DESC) = 1"
    query = f"""
        SELECT {sqltext.names(rows.schema.names)}
        FROM (SELECT *, row_number() OVER () AS {number} FROM input)
        QUALIFY NOT ({sqltext.all_present(key)}) OR {is_last}
        ORDER BY {number}
    """
    native = database.bind(query, {"input": rows.native})
    return relation(native, rows.schema, single_use=rows.single_use)


class UserSql:
    """Runner for the user queries of one engine. Its database is opened on first use."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._opening = ForkSafeLock()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._types: DuckDBTypes | None = None
        reset_in_children(self)
        self._portable: set[tuple[str, str]] = set()

    def relation(
        self, query: str, *, tables: Mapping[str, Relation], parameters: Mapping[str, Any]
    ) -> Relation:
        """Return the lazy result of a query over named relations.

        Raises:
            InvalidSql: The query is invalid, or not a single SELECT over the tables.
        """
        try:
            return self._bind_query(query, tables, dict(parameters))
        except InvalidSql as error:
            hint = (
                error.hint
                or f"available tables: {listing(tables)}; parameters: {listing(parameters)}"
            )
            raise InvalidSql(error.message, hint=hint) from error

    def check_syntax(self, query: str) -> None:
        """Raise InvalidSql if DuckDB cannot parse a query, or if it is not a single SELECT."""
        with translate_errors(), self._open().cursor() as cursor:
            check_single_select(cursor, query)

    def reset_after_fork(self) -> None:
        """Open a new database on next use."""
        abandon((self._connection, self._types))
        self._connection = self._types = None

    def close(self) -> None:
        """Close the database of the sandbox."""
        if self._connection is not None:
            self._connection.close()

    def _bind_query(
        self, query: str, tables: Mapping[str, Relation], parameters: dict[str, Any]
    ) -> Relation:
        """Return the lazy result of a query; its types are determined over empty tables."""
        with translate_errors(), self._open().cursor() as cursor:
            check_single_select(cursor, query)
            # Bound to empty tables, so that names and types of the result are known without reading
            # a row.
            schemas = {name: table.schema for name, table in tables.items()}
            typed_tables = describe_tables(cursor, schemas)
            result = cursor.sql(query, params=parameters or None)
            if result is None:
                raise InvalidSql("The query returns no rows.")
            result = cast_to_storable_types(result)
            types = [str(kind) for kind in result.types]
            schema = result.to_arrow_table().schema
        self._check_forms(query, typed_tables, parameters)
        rows = _ResultStream(self, query, tables, parameters, schema)
        with relation_lock():
            native = self._database.connection.from_arrow(rows)
            typed_rows = cast_to_features(native, schema, types)
        single_use = any(table.single_use for table in tables.values())
        return relation(typed_rows.native, typed_rows.schema, single_use=single_use)

    def _check_forms(
        self, query: str, tables: dict[str, Any], parameters: Mapping[str, Any]
    ) -> None:
        """Raise InvalidSql for forms that differ on Spark: a job may move between engines."""
        checked = (query, repr((tables, parameters.keys())))
        if checked in self._portable or self._types is None:
            return
        check_forms(query, tables=tables, parameters=parameter_types(parameters), types=self._types)
        # The windows of a job run one query many times.
        self._portable.add(checked)

    def run(
        self, query: str, tables: Mapping[str, Relation], parameters: dict[str, Any]
    ) -> Iterator[pa.RecordBatch]:
        """Run a query and yield its rows as batches."""
        with translate_errors(), self._open().cursor() as cursor:
            for name, table in tables.items():
                cursor.register(name, _TableStream(self._database, table))
            watch_source(cursor)
            yield from cast_to_storable_types(
                cursor.sql(query, params=parameters or None)
            ).to_arrow_reader()

    def _open(self) -> duckdb.DuckDBPyConnection:
        """Return the connection of the sandbox, opened on first use."""
        with self._opening:
            if self._connection is None:
                # A database of its own: the engine's connection can read files and all registered
                # tables.
                connection = duckdb.connect(":memory:", config=self._database.config)
                for setting in SANDBOX_SETTINGS:
                    connection.execute(setting)
                self._connection = connection
                self._types = DuckDBTypes(connection.cursor(), error=duckdb.Error)
            return self._connection


class _TableStream:
    """A relation of the engine as an Arrow source for a user query."""

    def __init__(self, database: Database, relation: Relation) -> None:
        self.schema = relation.schema
        self._database = database
        self._relation = relation
        self._is_read = False

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return streams.source(self.schema, self._batches()).__arrow_c_stream__()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        # Two scans of one query would each read some of the rows of a stream, without an error.
        if self._is_read and self._relation.single_use:
            raise EngineError(
                "The query reads a table several times, but its rows can be read only once.",
                hint="rows = engine.stage(rows, folder)",
            )
        self._is_read = True
        yield from streams.batches_of(self._database, self._relation)


class _ResultStream:
    """The rows of a user query as an Arrow source for the engine."""

    def __init__(
        self,
        runner: UserSql,
        query: str,
        tables: Mapping[str, Relation],
        parameters: dict[str, Any],
        schema: pa.Schema,
    ) -> None:
        self.schema = schema
        self._runner = runner
        self._query = query
        self._tables = tables
        self._parameters = parameters

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        rows = self._runner.run(self._query, self._tables, self._parameters)
        return streams.source(self.schema, rows).__arrow_c_stream__()


class RowExpressions:
    """SQL expressions that are prepared once per thread; thread-safe.

    A query over an Arrow table takes three times as long as bound parameters, mostly to bind the
    table.
    """

    def __init__(
        self, database: Database, expressions: Sequence[str], inputs: pa.Schema, kinds: pa.Schema
    ) -> None:
        self._database = database
        self._time_outputs = [
            index for index, kind in enumerate(kinds.types) if pat.is_timestamp(kind)
        ]
        selected = [
            # DuckDB converts times with time zone by pytz, which may not be installed.
            f"epoch_us({sql})" if index in self._time_outputs else sql
            for index, sql in enumerate(expressions)
        ]
        cells, lists = [], []
        for field in inputs:
            kind, name = sqltext.column_type(field.type), sqltext.quote(field.name)
            cells.append(f"CAST(? AS {kind}) AS {name}")
            lists.append(f"unnest(CAST(? AS {kind}[])) AS {name}")
        select = f"SELECT {', '.join(selected)}"
        self._one_row = select
        self._many_rows = select
        if cells:
            self._one_row = f"{select} FROM (SELECT {', '.join(cells)})"
            self._many_rows = f"{select} FROM (SELECT {', '.join(lists)})"
        self._has_inputs = bool(cells)
        self._prepared = threading.local()
        reset_in_children(self)

    def reset_after_fork(self) -> None:
        """Prepare the statements again, in the database of the child."""
        abandon(self._prepared)
        self._prepared = threading.local()

    def __call__(self, columns: Sequence[Sequence[Any]], rows: int) -> list[tuple[Any, ...]]:
        """Return the values of the expressions for each row."""
        with translate_errors():
            cursor, one_row, many_rows = self._statements()
            if rows == 1:
                result = cursor.execute(one_row, [column[0] for column in columns]).fetchall()
            elif self._has_inputs:
                result = cursor.execute(many_rows, list(map(list, columns))).fetchall()
            else:
                result = cursor.execute(one_row).fetchall() * rows
        if self._time_outputs:
            return list(map(self._restore_times, result))
        return result

    def _statements(self) -> tuple[duckdb.DuckDBPyConnection, Any, Any]:
        """Return the cursor of this thread, and its statements for one row and for many."""
        prepared = getattr(self._prepared, "statements", None)
        if prepared is None:
            cursor = self._database.connection.cursor()
            (one_row,) = cursor.extract_statements(self._one_row)
            (many_rows,) = cursor.extract_statements(self._many_rows)
            prepared = self._prepared.statements = (cursor, one_row, many_rows)
        return prepared

    def _restore_times(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        values = list(row)
        for index in self._time_outputs:
            if values[index] is not None:
                # Arrow's conversion, so that the time zone object is that of other results.
                values[index] = pa.scalar(values[index], _TIME).as_py()
        return tuple(values)
