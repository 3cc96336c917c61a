"""Lazy queries over Spark DataFrames; nothing here starts a Spark job."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import reduce
from operator import or_
from threading import Lock
from typing import Any

import pyarrow as pa

from featurestore.delta.datafile import check_files
from featurestore.delta.log import latest_version
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import (
    EngineError,
    InvalidSql,
    SchemaMismatch,
    UnsupportedDataframe,
    listing,
)
from featurestore.model.times import to_micros
from featurestore.plugins.engine import Relation, TimeRange
from featurestore_connectors.spark_delta.failures import first_line, translated
from featurestore_connectors.spark_delta.types import of_feature_types, spark_schema

ENGINE = "spark"

# Names of views belong to the whole session: two queries at once would see each other's tables.
_VIEWS = Lock()
_QUOTED_OR_PARAMETER = re.compile(
    r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|\$(?P<name>[A-Za-z_]\w*)"
)


def relation(native: Any, schema: pa.Schema | None = None) -> Relation:
    """Return a relation over a DataFrame; without ``schema`` its feature types are those that Spark's types say."""
    if schema is None:
        native, schema = of_feature_types(native)
    return Relation(ENGINE, native, schema)


def adopt(frame: object) -> Relation | None:
    """Return a relation over a Spark DataFrame, or None when ``frame`` is something else."""
    module = type(frame).__module__
    if not module.startswith("pyspark.sql.") or type(frame).__name__ != "DataFrame":
        return None
    if ".connect" in module:
        raise UnsupportedDataframe(
            "A Spark Connect DataFrame cannot be used: the engine needs the session of this process.",
            hint="pass frame.toArrow(), or work with a SparkSession that is not remote",
        )
    return relation(frame)


def quoted(name: str) -> str:
    """Return an identifier of Spark SQL.

    >>> quoted("a`b")
    '`a``b`'
    """
    return "`" + name.replace("`", "``") + "`"


def column(name: str) -> Any:
    """Return a column by its exact name, dots and all."""
    from pyspark.sql import functions as sf

    return sf.col(quoted(name))


def moment(time: datetime) -> Any:
    """Return an aware datetime as a constant; not by way of java.sql, which counts old dates in another calendar."""
    from pyspark.sql import functions as sf

    return sf.timestamp_micros(sf.lit(to_micros(time)))


def read_table(
    session: Any,
    path: str,
    *,
    version: int | None,
    schema: pa.Schema | None,
    columns: Sequence[str] | None,
) -> Relation:
    """Return a Delta version; the latest one is pinned when it is asked for.

    The log is looked at before Spark reads it, which takes lines that are no JSON for nothing at all.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    pinned = latest_version(path) if version is None else version
    check_files(read_snapshot(path, pinned).files)
    try:
        frame = session.read.format("delta").option("versionAsOf", pinned).load(path)
    except (PySparkException, Py4JError) as error:
        raise EngineError(
            f"Spark cannot read version {pinned} of {path}: {first_line(error)}"
        ) from error
    # Columns that the version does not have yet are null.
    found = (
        relation(frame)
        if schema is None
        else relation(cast_to(frame, spark_schema(schema)), schema)
    )
    return found if columns is None else select(found, {name: name for name in columns})


def select(given: Relation, columns: Mapping[str, str]) -> Relation:
    """Return columns under new names."""
    present = set(given.schema.names)
    absent = [name for name in columns.values() if name not in present]
    if absent:
        raise SchemaMismatch(
            f"There are no columns {listing(absent)}; there are {listing(given.schema.names, limit=50)}."
        )
    fields = [given.schema.field(old).with_name(new) for new, old in columns.items()]
    return relation(
        given.native.select(*(column(old).alias(new) for new, old in columns.items())),
        pa.schema(fields),
    )


def filtered(given: Relation, predicate: str) -> Relation:
    """Return the rows for which an SQL predicate is true."""
    from pyspark.errors import PySparkException

    try:
        return relation(given.native.where(predicate), given.schema)
    except PySparkException as error:
        raise InvalidSql(f"The filter {predicate!r} cannot be used: {first_line(error)}") from error


def within(given: Relation, window: TimeRange) -> Relation:
    """Return the rows whose time lies in a range."""
    time, start, end = column(window.column), moment(window.start), moment(window.end)
    inside = (
        (time >= start) & (time < end)
        if window.closed == "left"
        else (time > start) & (time <= end)
    )
    return relation(given.native.where(inside), given.schema)


def run_sql(
    session: Any, query: str, *, tables: Mapping[str, Relation], parameters: Mapping[str, Any]
) -> Relation:
    """Return the result of a query over named relations; it is analysed now, so the names are free again."""
    from pyspark.errors import PySparkException

    with _VIEWS:
        shadowed = _register(session, tables)
        try:
            native = session.sql(with_colons(query), args=dict(parameters))
        except PySparkException as error:
            raise InvalidSql(f"The query cannot be run: {first_line(error)}") from error
        finally:
            for name in tables:
                session.catalog.dropTempView(name)
            for name, frame in shadowed.items():
                frame.createOrReplaceTempView(name)
    return relation(native)


def with_colons(query: str) -> str:
    """Return a query with ``$name`` parameters written as Spark writes them.

    >>> with_colons("select '$a' where t < $end")
    "select '$a' where t < :end"
    """
    return _QUOTED_OR_PARAMETER.sub(
        lambda found: f":{found['name']}" if found["name"] else found[0], query
    )


def last_per_key(given: Relation, key: Sequence[str]) -> Relation:
    """Return the last row of each key, in the order of the partitions as they come; rows with a null key all stay."""
    from pyspark.sql import functions as sf

    place, row = "__fs_place", "__fs_row"
    keys, columns = [column(name) for name in key], [column(name) for name in given.schema.names]
    unknown = reduce(or_, (each.isNull() for each in keys))
    known = given.native.where(~unknown).withColumn(place, sf.monotonically_increasing_id())
    last = known.groupBy(*keys).agg(sf.max_by(sf.struct(*columns), sf.col(place)).alias(row))
    rows = last.select(*(sf.col(row)[name].alias(name) for name in given.schema.names))
    return relation(rows.unionByName(given.native.where(unknown).select(*columns)), given.schema)


def explained(given: Relation) -> str:
    """Return Spark's formatted physical plan."""
    execution = given.native._jdf.queryExecution()
    with translated():
        return str(
            given.native.sparkSession._jvm.PythonSQLUtils.explainString(execution, "formatted")
        )


def cast_to(frame: Any, wanted: Any) -> Any:
    """Return a frame with a Spark schema's columns: matched by name, cast where they differ, null where missing."""
    from pyspark.sql import functions as sf

    found = {field.name.lower(): field for field in frame.schema.fields}
    columns = []
    for field in wanted.fields:
        given = found.get(field.name.lower())
        if given is None:
            columns.append(sf.lit(None).cast(field.dataType).alias(field.name))
        elif given.dataType == field.dataType:
            columns.append(column(given.name).alias(field.name))
        else:
            columns.append(column(given.name).cast(field.dataType).alias(field.name))
    return frame.select(*columns)


def _register(session: Any, tables: Mapping[str, Relation]) -> dict[str, Any]:
    """Make relations known as views; return the user's own views that they hide."""
    known = [name for name in tables if session.catalog.tableExists(name)]
    shadowed = {
        name: session.table(quoted(name))
        for name in known
        if session.catalog.getTable(name).isTemporary
    }
    for name, table in tables.items():
        table.native.createOrReplaceTempView(name)
    return shadowed
