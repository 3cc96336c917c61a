"""User queries on Spark: DuckDB's SQL, bound by DuckDB over empty tables and translated for Spark.

DuckDB checks the query and determines the names and types of its columns, as in the embedded
engine. It reads no rows: the tables of its database are empty, and the database cannot access files
or the network.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa

from featurestore.arrow.spark_connect import is_connect_object
from featurestore.arrow.types import feature_schema
from featurestore.arrow.unstorable import cast_to_storable_types, translate_query_errors
from featurestore.errors import ConfigurationError, InvalidSql
from featurestore.plugins.engine import Relation
from featurestore.usersql.spark_queries import to_spark_sql
from featurestore.usersql.typed_tables import (
    SANDBOX_SETTINGS,
    check_single_select,
    describe_tables,
    parameter_types,
    warn_about_naive_times,
)
from featurestore.usersql.typed_values import DuckDBTypes
from featurestore_connectors.spark_delta import relations
from featurestore_connectors.spark_delta.sqltext import quote, spark_schema

_ANSI = "spark.sql.ansi.enabled"


class UserSql:
    """Translator of the user queries of one engine. Its DuckDB database is opened on first use."""

    def __init__(self) -> None:
        self._opening = threading.Lock()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._types: DuckDBTypes | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return UserSql, ()

    def relation(
        self,
        session: Any,
        query: str,
        *,
        tables: Mapping[str, Relation],
        parameters: Mapping[str, Any],
    ) -> Relation:
        """Return the lazy result of a query over named relations.

        Raises:
            InvalidSql: The query is invalid, not a single SELECT over the tables, or not equal on
                both engines.
        """
        spark_sql, schema = self._translate(query, tables, parameters)
        columns = [
            f"CAST(`c{index}` AS {field.dataType.simpleString()}) AS {quote(field.name)}"
            for index, field in enumerate(spark_schema(schema).fields)
        ]
        with report_overflows(session):
            result = relations.run_sql(session, spark_sql, tables=tables, parameters=parameters)
            return relations.relation(result.native.selectExpr(*columns), schema)

    def check_syntax(self, query: str) -> None:
        """Raise InvalidSql if DuckDB cannot parse a query, or if it is not a single SELECT."""
        with self._cursor() as cursor:
            check_single_select(cursor, query)

    def close(self) -> None:
        """Close the database."""
        with self._opening:
            if self._connection is not None:
                self._connection.close()
            self._connection = self._types = None

    def _translate(
        self, query: str, tables: Mapping[str, Relation], parameters: Mapping[str, Any]
    ) -> tuple[str, pa.Schema]:
        """Return the Spark SQL of a query, and the schema of its result in feature types."""
        schemas = {name: table.schema for name, table in tables.items()}
        with self._cursor() as cursor:
            check_single_select(cursor, query)
            typed_tables = describe_tables(cursor, schemas)
            with translate_query_errors():
                bound = cast_to_storable_types(cursor.sql(query, params=dict(parameters) or None))
                arrow_schema = bound.to_arrow_table().schema
            warn_about_naive_times(arrow_schema)
            schema = feature_schema(arrow_schema, language="duckdb")
            types = self._types or DuckDBTypes(cursor, error=duckdb.Error)  # after close()
            spark_sql = to_spark_sql(
                query, tables=typed_tables, parameters=parameter_types(parameters), types=types
            )
        return spark_sql, schema

    @contextmanager
    def _cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Yield a cursor of the sandbox; raise DuckDB's errors as InvalidSql."""
        with self._opening:
            if self._connection is None:
                connection = duckdb.connect(":memory:", config={"threads": 1})
                for setting in SANDBOX_SETTINGS:
                    connection.execute(setting)
                self._connection = connection
                self._types = DuckDBTypes(connection.cursor(), error=duckdb.Error)
            cursor = self._connection.cursor()
        try:
            yield cursor
        except duckdb.Error as error:
            message = str(error).partition("\n")[0]
            raise InvalidSql(
                f"The query is invalid: {message}", hint="the query is written in DuckDB's SQL"
            ) from error
        finally:
            cursor.close()


@contextmanager
def report_overflows(session: Any) -> Iterator[None]:
    """Make overflows errors, as in DuckDB, in the expressions that are resolved within the context.

    Raises:
        ConfigurationError: The setting of a client of Spark Connect, which resolves later, is off.
    """
    if str(session.conf.get(_ANSI, "true")).lower() == "true":
        yield
        return
    if is_connect_object(session):
        raise ConfigurationError(
            "SQL queries need ANSI mode: without it, Spark returns wrong values for overflows.",
            hint=f'spark.conf.set("{_ANSI}", "true")',
        )
    session.conf.set(_ANSI, "true")
    try:
        yield
    finally:
        session.conf.set(_ANSI, "false")
