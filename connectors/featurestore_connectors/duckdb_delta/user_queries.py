"""User queries in a sandbox, and SQL expressions that are prepared once.

User queries run in a separate database, which cannot access files or the network, has locked
settings, and does not resolve Python variables. Tables and results are passed as Arrow streams;
each read of the result runs the query again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.unstorable import cast_to_storable_types
from featurestore.errors import EngineError, InvalidSql, listing
from featurestore.model.runtime import ForkSafeLock, reset_in_children
from featurestore.plugins.engine import Relation
from featurestore.usersql.spark_queries import check_forms
from featurestore.usersql.typed_tables import (
    SANDBOX_SETTINGS,
    check_single_select,
    describe_tables,
    parameter_types,
)
from featurestore.usersql.typed_values import DuckDBTypes
from featurestore_connectors.duckdb_delta import sqltext, streams
from featurestore_connectors.duckdb_delta.relations import cast_to_features, relation
from featurestore_connectors.duckdb_delta.session import (
    Database,
    abandon,
    relation_lock,
    translate_errors,
    watch_source,
)

_TIME = pa.timestamp("us", tz="UTC")


class QuerySandbox:
    """The user queries of one engine. Its database is opened on first use."""

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
            types = list(map(str, result.types))
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
        runner: QuerySandbox,
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
        self, database: Database, expressions: Sequence[str], inputs: pa.Schema, outputs: pa.Schema
    ) -> None:
        self._database = database
        self._time_outputs = [
            index for index, dtype in enumerate(outputs.types) if pat.is_timestamp(dtype)
        ]
        selected = [
            # DuckDB converts times with time zone by pytz, which may not be installed.
            f"epoch_us({sql})" if index in self._time_outputs else sql
            for index, sql in enumerate(expressions)
        ]
        cells, lists = [], []
        for field in inputs:
            duckdb_type, name = sqltext.column_type(field.type), sqltext.quote(field.name)
            cells.append(f"CAST(? AS {duckdb_type}) AS {name}")
            lists.append(f"unnest(CAST(? AS {duckdb_type}[])) AS {name}")
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
