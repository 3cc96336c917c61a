"""Sandboxed execution of user queries in a separate DuckDB database.

The database cannot access files or the network, its settings are locked, and it does not resolve
Python variables. Tables enter and results leave as Arrow streams; each read runs the query again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import duckdb
import pyarrow as pa

from featurestore.arrow.unstorable import with_storable_types
from featurestore.errors import InvalidSql, listing
from featurestore.plugins.engine import Relation
from featurestore_connectors.duckdb_delta import relations, streams
from featurestore_connectors.duckdb_delta.failures import translated
from featurestore_connectors.duckdb_delta.interrupts import watch_source
from featurestore_connectors.duckdb_delta.session import Database, building

# The order matters: the last setting locks the others.
_SETTINGS = (
    "SET GLOBAL TimeZone = 'UTC'",
    "SET GLOBAL python_enable_replacements = false",
    "SET GLOBAL enable_external_access = false",
    "SET GLOBAL lock_configuration = true",
)


class UserSql:
    """The runner of user queries of one engine; it opens its database on first use."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._opening = threading.Lock()
        self._connection: duckdb.DuckDBPyConnection | None = None

    def relation(
        self, query: str, *, tables: Mapping[str, Relation], parameters: Mapping[str, Any]
    ) -> Relation:
        """Return the lazy result of a query over named relations.

        Raises:
            InvalidSql: The query is invalid, or not a single SELECT over the tables.
        """
        try:
            return self._bound(query, tables, dict(parameters))
        except InvalidSql as error:
            hint = f"the tables are {listing(tables)}, the parameters {listing(parameters)}"
            raise InvalidSql(error.message, hint=hint) from error

    def close(self) -> None:
        """Close the database."""
        if self._connection is not None:
            self._connection.close()

    def _bound(
        self, query: str, tables: Mapping[str, Relation], parameters: dict[str, Any]
    ) -> Relation:
        with translated(), self._open().cursor() as cursor:
            statements = cursor.extract_statements(query)
            if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
                raise InvalidSql(
                    "The query is not one SELECT.", hint="a query reads tables and changes nothing"
                )
            for name, table in tables.items():
                cursor.register(name, table.schema.empty_table())
            result = cursor.sql(query, params=parameters or None)
            if result is None:
                raise InvalidSql("The query returns no rows.")
            result = with_storable_types(result)
            types = [str(kind) for kind in result.types]
            schema = result.to_arrow_table().schema
        rows = _Rows(self, query, tables, parameters, schema)
        with building():
            native = self._database.connection.from_arrow(rows)
            typed_rows = relations.of_feature_types(native, schema, types)
        single_use = any(table.single_use for table in tables.values())
        return relations.relation(typed_rows.native, typed_rows.schema, single_use=single_use)

    def run(
        self, query: str, tables: Mapping[str, Relation], parameters: dict[str, Any]
    ) -> Iterator[pa.RecordBatch]:
        """Run a query and yield its rows."""
        with translated(), self._open().cursor() as cursor:
            for name, table in tables.items():
                cursor.register(name, _Table(self._database, table))
            watch_source(cursor)
            yield from with_storable_types(
                cursor.sql(query, params=parameters or None)
            ).to_arrow_reader()

    def _open(self) -> duckdb.DuckDBPyConnection:
        with self._opening:
            if self._connection is None:
                connection = duckdb.connect(":memory:", config=self._database.config)
                for setting in _SETTINGS:
                    connection.execute(setting)
                self._connection = connection
            return self._connection


class _Table:
    """A relation of the engine as a table of a user's query."""

    def __init__(self, database: Database, relation: Relation) -> None:
        self.schema = relation.schema
        self._database = database
        self._relation = relation

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        batches = streams.batches_of(self._database, self._relation)
        return streams.source(self.schema, batches).__arrow_c_stream__()


class _Rows:
    """The rows of a user's query as a table of the engine."""

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
