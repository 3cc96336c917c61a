"""Rows of Postgres read by the tasks of Spark, through JDBC, all in one snapshot.

A connection of this process holds the snapshot open, and the session of each task joins it by its
first statement. Values that Java's types would change (times, dates, lists) are sent as numbers and
text, and converted on the executors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import (
    ConfigurationError,
    EngineError,
    FeatureStoreError,
    InvalidArgument,
    SourceError,
    UnsupportedType,
)
from featurestore.plugins.engine import Engine, Relation
from featurestore.plugins.source import SourceConfig
from featurestore_connectors.sources import sqltext
from featurestore_connectors.sources.failures import one_line
from featurestore_connectors.sources.postgres_partitions import PARTITION_KEY, Partitions
from featurestore_connectors.sources.typed_columns import SourceColumn, schema_of

_DRIVER = "org.postgresql.Driver"
_PACKAGE = "org.postgresql:postgresql:42.7.7"
_FETCH_ROWS = "10000"
_CONNECT_SECONDS = "10"
_JOIN = (
    "SET TIME ZONE 'UTC'; SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY; "
    "SET TRANSACTION SNAPSHOT {}"
)
# Options of libpq that Java's driver calls by another name.
_RENAMED = {
    "application_name": "ApplicationName",
    "channel_binding": "channelBinding",
    "connect_timeout": "connectTimeout",
    "gssencmode": "gssEncMode",
}
_FIRST, _LAST = "0001-01-01 00:00:00+00", "9999-12-31 23:59:59.999999+00"
# What comes instead of a time outside of those years, or an infinite one, and of a list with axes.
_NO_MICROS, _NO_DAY, _AXES = 2**63 - 1, 2**31 - 1, "axes"
# Errors of the executors begin with this, in JSON, so that they keep their words.
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
class PartitionedRead:
    """A read by tasks: columns of a table or subquery, in a snapshot that stays open."""

    config: SourceConfig
    secret: str | None
    snapshot: str
    columns: Sequence[SourceColumn]
    source: str
    condition: str | None
    partitions: Partitions

    def stage(self, engine: Engine, directory: str) -> Relation:
        """Have each part written as files of a directory by a task, and return the rows from there.

        Raises:
            ConfigurationError: The session has no driver; the hint is how to get it.
            UnsupportedType: A value does not fit; names its column.
            SourceError: Any other error of the server.
        """
        rows = engine.adopt(self._frame(_session(engine)))
        assert rows is not None
        try:
            staged = engine.stage(rows, directory)
        except EngineError as error:
            raise _failure(self.config, error, self.secret) from None
        return replace(staged, schema=schema_of(self.columns))

    def _frame(self, session: Any) -> Any:
        from pyspark.errors import PySparkException

        url, settings = _address(self.config)
        if self.secret is not None:
            settings["password"] = self.secret
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
            raise _failure(self.config, error, self.secret) from None
        received = [
            _received_column(frame[f"c{number}"], column)
            for number, column in enumerate(self.columns)
        ]
        return frame.select(*received)


def _sent_expression(column: SourceColumn) -> str:
    """Return the SQL of a column in a type that Java takes as it is."""
    expression, kind = column.expression, column.kind
    assert kind is not None
    if pat.is_timestamp(kind):
        micros = f"(extract(epoch FROM {expression}) * 1000000)::bigint"
        return _finite_or(expression, micros, _NO_MICROS)
    if pat.is_date(kind):
        return _finite_or(expression, f"{expression} - DATE '1970-01-01'", _NO_DAY)
    if column.axes is not None:
        return (
            f"CASE WHEN {column.axes} > 1 THEN '{_AXES}' ELSE array_to_json({expression})::text END"
        )
    if pat.is_string(kind) and column.native != "bpchar":
        return f"{expression}::text"
    return expression


def _finite_or(expression: str, value: str, replacement: int) -> str:
    return (
        f"CASE WHEN {expression} IS NULL THEN NULL WHEN {expression} BETWEEN '{_FIRST}' AND '{_LAST}' "
        f"THEN {value} ELSE {replacement} END"
    )


def _received_column(frame_column: Any, column: SourceColumn) -> Any:
    """Return the column of a frame as its feature type."""
    from pyspark.sql import functions as sf

    kind = column.kind
    assert kind is not None
    if pat.is_timestamp(kind):
        value = sf.timestamp_micros(_raise_at_marker(frame_column, _NO_MICROS, column, "times"))
    elif pat.is_date(kind):
        value = sf.date_from_unix_date(_raise_at_marker(frame_column, _NO_DAY, column, "times"))
    elif column.axes is not None:
        json_lists = _raise_at_marker(frame_column, _AXES, column, "lists")
        value = sf.from_json(json_lists, f"array<{_NAMES[kind.value_type]}>", {"mode": "FAILFAST"})
    elif pat.is_decimal(kind):
        value = frame_column.cast(f"decimal({kind.precision},{kind.scale})")
    else:
        value = frame_column.cast(_NAMES[kind])
    return value.alias(column.name)


def _raise_at_marker(frame_column: Any, marker: object, column: SourceColumn, noun: str) -> Any:
    """Return a column, which raises where a value is the sign for one that does not fit."""
    from pyspark.sql import functions as sf

    text = _MARK + json.dumps([column.name, noun])
    return sf.when(frame_column == sf.lit(marker), sf.raise_error(sf.lit(text))).otherwise(
        frame_column
    )


def _failure(config: SourceConfig, error: Exception, secret: str | None) -> FeatureStoreError:
    """Convert an error of the executors or the server, without the secret."""
    message = one_line(str(error), secret)
    _, separator, payload = message.partition(_MARK)
    if not separator:
        return SourceError(
            f"Source {config.name!r}, read by the tasks of Spark: {message}",
            hint="the executors need to reach the server; without options= partitions this process "
            "reads all of it",
        )
    (name, noun), _ = json.JSONDecoder().raw_decode(payload)
    if noun == "lists":
        return UnsupportedType(
            f"Column {name!r} has arrays of several axes, which cannot be read without loss.",
            hint=f"sql='select {sqltext.quote(name)}::text ...', or unnest them",
        )
    return UnsupportedType(
        f"Column {name!r} has times outside of the years 1 to 9999, or infinite ones.",
        hint=f"sql='select nullif({sqltext.quote(name)}, 'infinity') ...' makes infinite times null",
    )


def _address(config: SourceConfig) -> tuple[str, dict[str, str]]:
    """Return a URI as Java's driver takes it, and the user."""
    partitions = urlsplit(config.uri)
    options = {_RENAMED.get(name, name): value for name, value in parse_qsl(partitions.query)}
    if not partitions.hostname:
        raise InvalidArgument(
            f"Source {config.name!r}: the URI names no server that tasks can reach.",
            hint="postgresql://user@host:5432/database",
        )
    options.setdefault("connectTimeout", _CONNECT_SECONDS)
    netloc = f"[{partitions.hostname}]" if ":" in partitions.hostname else partitions.hostname
    if partitions.port is not None:
        netloc = f"{netloc}:{partitions.port}"
    user = {} if partitions.username is None else {"user": unquote(partitions.username)}
    database = quote(unquote(partitions.path.lstrip("/")), safe="")
    return f"jdbc:postgresql://{netloc}/{database}?{urlencode(options)}", user


def _session(engine: Engine) -> Any:
    """Return the engine's session, which has to have the driver."""
    from py4j.protocol import Py4JJavaError

    session = engine.session  # type: ignore[attr-defined]
    machine = session._jvm
    loader = machine.Thread.currentThread().getContextClassLoader()
    try:
        machine.java.lang.Class.forName(_DRIVER, True, loader)
    except Py4JJavaError:
        raise ConfigurationError(
            f"The Spark session has no {_DRIVER}, by which tasks read Postgres.",
            hint=f"start it with spark.jars.packages={_PACKAGE}, or name the jar in "
            "FEATURESTORE_SPARK_JARS; without options= partitions no driver is needed",
        ) from None
    return session
