"""Spark relations: adopted DataFrames, and lazy queries on them.

No function in this module starts a Spark job. User queries are DuckDB's SQL: DuckDB checks them over
empty tables, in a database without access to files or the network, and determines the names and
types of their columns. They are then translated for Spark.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import or_
from threading import Lock
from typing import TYPE_CHECKING, Any
from zipimport import zipimporter

import duckdb
import pyarrow as pa

from featurestore.arrow.spark_frames import is_connect_object
from featurestore.arrow.types import feature_schema
from featurestore.arrow.unstorable import cast_to_storable_types, translate_query_errors
from featurestore.errors import ConfigurationError, InvalidSql
from featurestore.plugins.engine import Relation, TimeRange, unknown_columns_error
from featurestore.storage.supervised import python_path
from featurestore.usersql.spark_queries import to_spark_sql
from featurestore.usersql.typed_tables import (
    SANDBOX_SETTINGS,
    check_single_select,
    describe_tables,
    parameter_types,
    warn_about_naive_times,
)
from featurestore.usersql.typed_values import DuckDBTypes
from featurestore_connectors.spark_delta import connect, sqltext
from featurestore_connectors.spark_delta.failures import first_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
ENGINE = "spark"
# Prefix of temporary columns. Feature names cannot start with this prefix.
_NUMBER, _ROW = "__fs_number", "__fs_row"
_ANSI = "spark.sql.ansi.enabled"
_CONSTANTS = "spark.sql.legacy.parameterSubstitution.constantsOnly"
# View names are global in a session, so concurrent queries would see each other's tables.
_VIEWS = Lock()


def relation(native: DataFrame, schema: pa.Schema | None = None) -> Relation:
    """Return a relation over a DataFrame; without ``schema``, derive it from the Spark types."""
    if schema is None:
        native, schema = sqltext.cast_to_features(native)
    return Relation(ENGINE, native, schema)


def adopt(frame: object) -> Relation | None:
    """Return a relation over a Spark DataFrame, or None for other frames."""
    # By name, so that pyspark is not imported for frames of other libraries.
    module = type(frame).__module__
    if not module.startswith("pyspark.sql.") or type(frame).__name__ != "DataFrame":
        return None
    return relation(frame)


def select(source: Relation, columns: Mapping[str, str]) -> Relation:
    """Select and rename columns."""
    present = set(source.schema.names)
    absent = [name for name in columns.values() if name not in present]
    if absent:
        raise unknown_columns_error(absent, source.schema.names)
    fields, projections = [], []
    for new, old in columns.items():
        fields.append(source.schema.field(old).with_name(new))
        projections.append(sqltext.column(old).alias(new))
    return relation(source.native.select(*projections), pa.schema(fields))


def filter_rows(source: Relation, predicate: str) -> Relation:
    """Filter rows by a SQL predicate."""
    from pyspark.errors import PySparkException

    try:
        matching_rows = source.native.where(predicate)
        # Spark Connect resolves the predicate when the schema is read.
        _ = matching_rows.schema
        return relation(matching_rows, source.schema)
    except PySparkException as error:
        raise InvalidSql(f"Spark rejects the filter {predicate!r}: {first_line(error)}") from error


def within(source: Relation, window: TimeRange) -> Relation:
    """Filter rows by a time range."""
    time, start, end = (
        sqltext.column(window.column),
        sqltext.timestamp(window.start),
        sqltext.timestamp(window.end),
    )
    if window.closed == "left":
        in_range = (time >= start) & (time < end)
    else:
        in_range = (time > start) & (time <= end)
    return relation(source.native.where(in_range), source.schema)


def run_sql(
    session: SparkSession,
    query: str,
    *,
    tables: Mapping[str, Relation],
    parameters: Mapping[str, Any],
) -> Relation:
    """Return the lazy result of a query over named relations.

    Spark resolves table names immediately, so the temporary views are dropped before the return.
    """
    from pyspark.errors import PySparkException

    if is_connect_object(session):
        frames = {name: table.native for name, table in tables.items()}
        try:
            return relation(connect.run_query(session, query, frames=frames, parameters=parameters))
        except PySparkException as error:
            raise InvalidSql(f"Spark rejects the query: {first_line(error)}") from error
    with _VIEWS:
        # The user's session may already have views with these names.
        hidden = _create_views(session, tables)
        try:
            with _bind_parsed_parameters(session):
                native = session.sql(sqltext.convert_parameters(query), args=dict(parameters))
        except PySparkException as error:
            raise InvalidSql(f"Spark rejects the query: {first_line(error)}") from error
        finally:
            for name in tables:
                session.catalog.dropTempView(name)
            for name, frame in hidden.items():
                frame.createOrReplaceTempView(sqltext.quote(name))
    return relation(native)


class QueryTranslator:
    """Translator of the user queries of one engine. Its DuckDB database is opened on first use."""

    def __init__(self) -> None:
        self._opening = Lock()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._types: DuckDBTypes | None = None

    def relation(
        self,
        session: SparkSession,
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
            f"CAST(`c{index}` AS {sqltext.type_sql(field.dataType)}) AS {sqltext.quote(field.name)}"
            for index, field in enumerate(sqltext.spark_schema(schema).fields)
        ]
        with report_overflows(session):
            result = run_sql(session, spark_sql, tables=tables, parameters=parameters)
            return relation(result.native.selectExpr(*columns), schema)

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
            schema = feature_schema(arrow_schema)
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
def report_overflows(session: SparkSession) -> Iterator[None]:
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


@contextmanager
def _bind_parsed_parameters(session: SparkSession) -> Iterator[None]:
    """Make Spark bind parameters after parsing within the context.

    Spark 4.1 and later bind them while parsing, which the SQL parser of Delta 4.4 does not do.
    """
    if session.version.startswith("4.0."):
        yield
        return
    # The setting is internal: reading it returns None unless it was set.
    previous = session.conf.get(_CONSTANTS, None)
    session.conf.set(_CONSTANTS, "true")
    try:
        yield
    finally:
        if previous is None:
            session.conf.unset(_CONSTANTS)
        else:
            session.conf.set(_CONSTANTS, previous)


def _create_views(session: SparkSession, tables: Mapping[str, Relation]) -> dict[str, DataFrame]:
    """Register relations as temporary views; return the user's views that they shadow."""
    hidden = {}
    for name in tables:
        view = sqltext.quote(name)
        if session.catalog.tableExists(view) and session.catalog.getTable(view).isTemporary:
            hidden[name] = session.table(view)
    for name, table in tables.items():
        table.native.createOrReplaceTempView(sqltext.quote(name))
    return hidden


def last_per_key(source: Relation, key: Sequence[str]) -> Relation:
    """Return the last row of each key in partition order; all rows with null keys are kept."""
    from pyspark.sql import functions as sf

    keys = list(map(sqltext.column, key))
    columns = list(map(sqltext.column, source.schema.names))
    has_null = reduce(or_, [key.isNull() for key in keys])
    # The id ascends with partition and row, so it is the order of the rows.
    keyed = source.native.where(~has_null).withColumn(_NUMBER, sf.monotonically_increasing_id())
    last = keyed.groupBy(*keys).agg(sf.max_by(sf.struct(*columns), sf.col(_NUMBER)).alias(_ROW))
    rows = last.select(*(sf.col(_ROW)[name].alias(name) for name in source.schema.names))
    others = source.native.where(has_null).select(*columns)
    return relation(rows.unionByName(others), source.schema)


def cast_to(frame: DataFrame, target: StructType) -> DataFrame:
    """Cast a frame to a Spark schema.

    Columns are matched by name and cast if their types differ. Missing columns are null.
    """
    from pyspark.sql import functions as sf

    # Spark compares column names without case.
    source_fields = {field.name.lower(): field for field in frame.schema.fields}
    columns = []
    for field in target.fields:
        existing = source_fields.get(field.name.lower())
        if existing is None:
            columns.append(sf.lit(None).cast(field.dataType).alias(field.name))
        elif existing.dataType == field.dataType:
            columns.append(sqltext.column(existing.name).alias(field.name))
        else:
            columns.append(sqltext.column(existing.name).cast(field.dataType).alias(field.name))
    return frame.select(*columns)


def explain(source: Relation) -> str:
    """Return Spark's formatted physical plan."""
    if is_connect_object(source.native):
        return str(source.native._explain_string(mode="formatted"))
    execution = source.native._jdf.queryExecution()
    jvm = source.native.sparkSession._jvm
    return str(jvm.PythonSQLUtils.explainString(execution, "formatted"))


def map_in_arrow(
    frame: DataFrame, names: Sequence[str], task: Task, fields: StructType
) -> DataFrame:
    """Return a frame that runs a task on the Arrow batches of each partition.

    ``names`` are the task's input columns. Spark parses names as SQL, so names with dots or
    backticks are replaced by numbers. The task restores them by position.
    """
    projected = frame.select(*map(sqltext.column, names))
    if any("." in name or "`" in name for name in names):
        projected = projected.toDF(*map(str, range(len(names))))
    import_path = ImportPath(tuple(python_path().split(os.pathsep)))
    return projected.mapInArrow(ReusedWorkerTask(import_path, task), fields)


@dataclass(frozen=True)
class ImportPath:
    """The folders from which the driver imports; a worker that unpickles it uses them, too."""

    folders: tuple[str, ...]

    def __reduce__(self) -> tuple[object, ...]:
        return _extend_import_path, (self.folders,)


def _extend_import_path(folders: tuple[str, ...]) -> ImportPath:
    """Import from folders after all others, so that they replace no module of the worker."""
    sys.path.extend([folder for folder in folders if folder not in sys.path])
    return ImportPath(folders)


@dataclass(frozen=True)
class ReusedWorkerTask:
    """A task in a reused worker process, with the modules of the driver's program.

    Spark runs the garbage collector after each task. Objects that existed before the first task,
    mostly modules, are frozen and not traversed again.
    """

    import_path: ImportPath
    task: Task

    def __reduce__(self) -> tuple[object, ...]:
        # Arguments are unpickled in order, so the worker can import the functions of the task.
        return ReusedWorkerTask, (self.import_path, self.task)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the task on the batches of a partition."""
        clear_archive_importers()
        if not gc.get_freeze_count():
            gc.freeze()
        return self.task(batches)


def clear_archive_importers() -> None:
    """Remove the cached zip importers for the archives in Spark's PYTHONPATH.

    Before each task Spark invalidates the import caches. Up to Python 3.11, every cached importer
    then reads its archive's directory again, which takes 0.14 seconds of CPU time. The archives do
    not change, and imports create the importers again if needed.
    """
    archives = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and finder.archive in archives:
            del sys.path_importer_cache[path]
