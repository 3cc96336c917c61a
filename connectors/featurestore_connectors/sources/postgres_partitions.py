"""Partitioned reads of Postgres: Spark tasks read partitions of a table or query over JDBC.

A connection of this process keeps the snapshot open, and the session of each task imports it with
its first statement. Types that Java would not preserve (times, dates, lists) are sent as numbers or
strings and converted on the executors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.spark_frames import is_connect_object
from featurestore.errors import (
    ConfigurationError,
    EngineError,
    FeatureStoreError,
    InvalidArgument,
    SourceError,
    UnsupportedType,
    did_you_mean,
    listing,
)
from featurestore.plugins.engine import Engine, Relation
from featurestore.plugins.source import SourceConfig, SourceQuery
from featurestore_connectors.sources import sqltext
from featurestore_connectors.sources.drivers import to_single_line
from featurestore_connectors.sources.typed_columns import (
    SourceColumn,
    out_of_range_times_error,
    schema_of,
)

OPTIONS = ("partitions", "partition_column")
# The column of the query that contains the partition key.
PARTITION_KEY = "part"
_MAX_PARTITIONS = 10_000
_PAGES = """
    SELECT pg_relation_size(c.oid) / current_setting('block_size')::bigint
    FROM pg_catalog.pg_class c WHERE c.oid = {}::regclass AND c.relkind IN ('r', 'm')
"""
_DRIVER = "org.postgresql.Driver"
_PACKAGE = "org.postgresql:postgresql:42.7.7"
_FETCH_ROWS = "10000"
_CONNECT_SECONDS = "10"
# Each task is a separate session, which must import the snapshot before its first query.
_JOIN = (
    "SET TIME ZONE 'UTC'; SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY; "
    "SET TRANSACTION SNAPSHOT {}"
)
# The JDBC driver's names of libpq options.
_RENAMED = {
    "application_name": "ApplicationName",
    "channel_binding": "channelBinding",
    "connect_timeout": "connectTimeout",
    "gssencmode": "gssEncMode",
}
_FIRST, _LAST = "0001-01-01 00:00:00+00", "9999-12-31 23:59:59.999999+00"
# Markers for times outside of those years, for infinite times, and for arrays with several axes.
_NO_MICROS, _NO_DAY, _AXES = 2**63 - 1, 2**31 - 1, "axes"
# Executor errors start with this prefix, followed by JSON for the driver process.
_MARK = "unsupported column "
_NAMES = {
    pa.bool_(): "boolean",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
}


@dataclass(frozen=True)
class Partitions:
    """Partition conditions on ``PARTITION_KEY``.

    ``key`` is the SQL expression of the partition key, or None for a single partition.
    """

    key: str | None
    conditions: Sequence[str]


def parse_partition_count(options: Mapping[str, str]) -> int | None:
    """Parse the partition count from source options, or return None for a single stream.

    Raises:
        InvalidArgument: An option is unknown, or the count is invalid.
    """
    unknown = [name for name in options if name not in OPTIONS]
    if unknown:
        raise InvalidArgument(
            f"Unknown options {listing(unknown)} of a Postgres source. Available: {listing(OPTIONS)}.",
            hint=did_you_mean(unknown[0], OPTIONS, write="options={{{!r}: ...}}"),
        )
    text = options.get("partitions")
    if text is None:
        if options:
            raise InvalidArgument(
                "partition_column requires partitions, the number of partitions.",
                hint="options={'partitions': '8', 'partition_column': 'id'}",
            )
        return None
    if not text.isdecimal() or not 0 < int(text) <= _MAX_PARTITIONS:
        raise InvalidArgument(
            f"partitions={text!r} is not a number from 1 to {_MAX_PARTITIONS:,}.",
            hint="options={'partitions': '8'}",
        )
    return int(text)


def partition_rows(
    query: SourceQuery,
    columns: Sequence[SourceColumn],
    *,
    partition_count: int,
    column: str | None,
    source: str,
    rows: Callable[[str], list[Any]],
) -> Partitions:
    """Partition rows by a column, by the pages of the table, or not at all.

    Args:
        query: The table or query to read.
        columns: All columns of the table or query.
        partition_count: The requested number of partitions; there may be fewer.
        column: The numeric or time column to partition by; ignored if the query lacks it.
        source: The table or subquery, as SQL.
        rows: Runs a query in the snapshot and returns its rows.

    Raises:
        InvalidArgument: The column is neither numeric nor a time.
    """
    if partition_count == 1:
        return Partitions(None, ["true"])
    for candidate in columns:
        if candidate.name == column:
            bounds = rows(_bounds_query(candidate, partition_count, source))[0]
            literals = [
                f"{sqltext.text(bound)}::{candidate.native}"
                for bound in bounds
                if bound is not None
            ]
            # The bounds are text in the type of the column, so that the server compares exact
            # values.
            return Partitions(sqltext.quote(candidate.name), _range_conditions(literals))
    if query.table is None:
        return Partitions(None, ["true"])
    page_counts = rows(_PAGES.format(sqltext.text(sqltext.table_name(query.table))))
    if not page_counts:  # a view, a partitioned table, or one of another server
        return Partitions(None, ["true"])
    pages = int(page_counts[0][0])
    # A small table has fewer pages than partitions, so equal bounds are merged.
    first_pages = sorted(
        {pages * number // partition_count for number in range(1, partition_count)} - {0}
    )
    # Postgres scans only the pages in a range of ctid (a TID range scan).
    return Partitions("ctid", _range_conditions([f"'({page},0)'::tid" for page in first_pages]))


def _bounds_query(column: SourceColumn, partition_count: int, source: str) -> str:
    """Return the query for equally spaced partition bounds of a column."""
    name, dtype = sqltext.quote(column.name), column.dtype
    minimum, maximum = f"min({name})", f"max({name})"
    step = "({maximum} - {minimum}) * {number} / {count}"
    if dtype is not None and (pat.is_integer(dtype) or pat.is_decimal(dtype)):
        # The difference of two integers may exceed their type.
        minimum, maximum = f"{minimum}::numeric", f"{maximum}::numeric"
    elif dtype is not None and (pat.is_floating(dtype) or pat.is_timestamp(dtype)):
        step = "({maximum} - {minimum}) * ({number} / {count}::float8)"
    elif dtype is None or not pat.is_date(dtype):
        raise InvalidArgument(
            f"partition_column={column.name!r} is {column.native}, which is neither numeric nor a time.",
            hint="omit it to partition the rows by the pages of the table",
        )
    values = []
    for number in range(1, partition_count):
        distance = step.format(
            minimum=minimum, maximum=maximum, number=number, count=partition_count
        )
        values.append(f"({minimum} + {distance})::{column.native}::text")
    return f"SELECT {', '.join(values)} FROM {source}"


def _range_conditions(literals: Sequence[str]) -> list[str]:
    """Return the partition conditions before, between and after sorted bounds."""
    if not literals:
        return ["true"]
    # Each row belongs to exactly one partition, and null keys belong to the first.
    conditions = [f"{PARTITION_KEY} < {literals[0]} OR {PARTITION_KEY} IS NULL"]
    for first, last in pairwise(literals):
        conditions.append(f"{PARTITION_KEY} >= {first} AND {PARTITION_KEY} < {last}")
    conditions.append(f"{PARTITION_KEY} >= {literals[-1]}")
    return conditions


@dataclass(frozen=True)
class PartitionedRead:
    """A read of table or subquery columns by Spark tasks, in an exported snapshot."""

    config: SourceConfig
    secret: str | None
    snapshot: str
    columns: Sequence[SourceColumn]
    source: str
    condition: str | None
    partitions: Partitions

    def stage(self, engine: Engine, directory: str) -> Relation:
        """Write each partition to files in a directory, one task each; return their relation.

        Raises:
            ConfigurationError: The session has no JDBC driver. The hint shows how to add it.
            UnsupportedType: A value does not fit its type. The message includes the column.
            SourceError: Any other server error.
        """
        rows = engine.adopt(self._frame(_session_with_driver(engine)))
        assert rows is not None
        try:
            staged = engine.stage(rows, directory)
        except EngineError as error:
            raise _convert_error(self.config, error, self.secret) from None
        return replace(staged, schema=schema_of(self.columns))

    def _frame(self, session: Any) -> Any:
        """Return a data frame whose tasks read one partition each."""
        from pyspark.errors import PySparkException

        url, settings = _jdbc_address(self.config)
        if self.secret is not None:
            settings["password"] = self.secret
        elif not self.config.uses_environment:
            # Otherwise the driver reads the password file of each executor.
            settings["password"] = ""
        settings |= {
            "driver": _DRIVER,
            "fetchsize": _FETCH_ROWS,
            "sessionInitStatement": _JOIN.format(sqltext.text(self.snapshot)),
        }
        expressions = [
            f"{_sent_expression(column)} AS c{number}" for number, column in enumerate(self.columns)
        ]
        if self.partitions.key is not None:
            expressions.append(f"{self.partitions.key} AS {PARTITION_KEY}")
        text = sqltext.select(expressions, source=self.source, condition=self.condition)
        try:
            frame = session.read.jdbc(
                url,
                f"({text}) AS rows",
                predicates=list(self.partitions.conditions),
                properties=settings,
            )
        except PySparkException as error:
            raise _convert_error(self.config, error, self.secret) from None
        received = [
            _received_column(frame[f"c{number}"], column)
            for number, column in enumerate(self.columns)
        ]
        return frame.select(*received)


def _sent_expression(column: SourceColumn) -> str:
    """Return the SQL of a column in a type that JDBC transfers without loss."""
    expression, dtype = column.expression, column.dtype
    assert dtype is not None
    if pat.is_timestamp(dtype):
        micros = f"(extract(epoch FROM {expression}) * 1000000)::bigint"
        return _finite_or(expression, micros, _NO_MICROS)
    if pat.is_date(dtype):
        return _finite_or(expression, f"{expression} - DATE '1970-01-01'", _NO_DAY)
    if column.axes is not None:
        return (
            f"CASE WHEN {column.axes} > 1 THEN '{_AXES}' ELSE array_to_json({expression})::text END"
        )
    # A cast to text would remove the trailing spaces of bpchar.
    if pat.is_string(dtype) and column.native != "bpchar":
        return f"{expression}::text"
    return expression


def _finite_or(expression: str, value: str, replacement: int) -> str:
    return (
        f"CASE WHEN {expression} IS NULL THEN NULL WHEN {expression} BETWEEN '{_FIRST}' AND '{_LAST}' "
        f"THEN {value} ELSE {replacement} END"
    )


def _received_column(frame_column: Any, column: SourceColumn) -> Any:
    """Convert a transferred column to its feature type."""
    from pyspark.sql import functions as sf

    dtype = column.dtype
    assert dtype is not None
    if pat.is_timestamp(dtype):
        value = sf.timestamp_micros(_raise_at_marker(frame_column, _NO_MICROS, column, "times"))
    elif pat.is_date(dtype):
        value = sf.date_from_unix_date(_raise_at_marker(frame_column, _NO_DAY, column, "times"))
    elif column.axes is not None:
        json_lists = _raise_at_marker(frame_column, _AXES, column, "lists")
        # By default Spark returns null for text that it cannot parse.
        value = sf.from_json(json_lists, f"array<{_NAMES[dtype.value_type]}>", {"mode": "FAILFAST"})
    elif pat.is_decimal(dtype):
        value = frame_column.cast(f"decimal({dtype.precision},{dtype.scale})")
    else:
        value = frame_column.cast(_NAMES[dtype])
    return value.alias(column.name)


def _raise_at_marker(frame_column: Any, marker: object, column: SourceColumn, noun: str) -> Any:
    """Return a column that raises an error for values equal to a marker."""
    from pyspark.sql import functions as sf

    text = _MARK + json.dumps([column.name, noun])
    return sf.when(frame_column == sf.lit(marker), sf.raise_error(sf.lit(text))).otherwise(
        frame_column
    )


def _convert_error(config: SourceConfig, error: Exception, secret: str | None) -> FeatureStoreError:
    """Convert an executor or server error, without the secret."""
    message = to_single_line(str(error), secret)
    _, separator, payload = message.partition(_MARK)
    if not separator:
        return SourceError(
            f"Source {config.name!r}, read by Spark tasks: {message}",
            hint="the executors must reach the server; without 'partitions' in options= this process "
            "reads all rows",
        )
    # The message of Spark continues after the JSON.
    (name, noun), _ = json.JSONDecoder().raw_decode(payload)
    if noun == "lists":
        return UnsupportedType(
            f"Column {name!r} has arrays with several axes, which cannot be read without loss.",
            hint=f"sql='select {sqltext.quote(name)}::text ...', or unnest them",
        )
    return out_of_range_times_error(name)


def _jdbc_address(config: SourceConfig) -> tuple[str, dict[str, str]]:
    """Return the JDBC URL of a source, and its user as connection properties."""
    address = urlsplit(config.uri)
    options = {_RENAMED.get(name, name): value for name, value in parse_qsl(address.query)}
    if not address.hostname:
        raise InvalidArgument(
            f"Source {config.name!r}: the URI has no server that Spark tasks can reach.",
            hint="postgresql://user@host:5432/database",
        )
    options.setdefault("connectTimeout", _CONNECT_SECONDS)
    # urlsplit removes the brackets of IPv6 addresses.
    netloc = f"[{address.hostname}]" if ":" in address.hostname else address.hostname
    if address.port is not None:
        netloc = f"{netloc}:{address.port}"
    user = {} if address.username is None else {"user": unquote(address.username)}
    database = quote(unquote(address.path.lstrip("/")), safe="")
    return f"jdbc:postgresql://{netloc}/{database}?{urlencode(options)}", user


def _session_with_driver(engine: Engine) -> Any:
    """Return the engine's Spark session after checking that it has the JDBC driver."""
    from py4j.protocol import Py4JJavaError

    session = engine.session  # type: ignore[attr-defined]
    if is_connect_object(session):
        raise ConfigurationError(
            "'partitions' in options= needs Spark in this process, but the active SparkSession is "
            "a Spark Connect session.",
            hint="leave 'partitions' out of options=",
        )
    machine = session._jvm
    # Only the context class loader has the jars of spark.jars.packages.
    loader = machine.Thread.currentThread().getContextClassLoader()
    try:
        machine.java.lang.Class.forName(_DRIVER, True, loader)
    except Py4JJavaError:
        raise ConfigurationError(
            f"The Spark session has no JDBC driver {_DRIVER}, which the tasks need to read Postgres.",
            hint=f"start it with spark.jars.packages={_PACKAGE}, or name the jar in "
            "FEATURESTORE_SPARK_JARS; without 'partitions' in options= no driver is needed",
        ) from None
    return session
