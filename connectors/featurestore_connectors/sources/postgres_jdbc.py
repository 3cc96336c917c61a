"""Rows of Postgres read by the tasks of Spark, through JDBC, all in one snapshot.

A connection of this process holds the snapshot open, and the session of each task joins it by its
first statement. What Java's types would change (times, days, lists) comes as numbers and texts, and
becomes what it is on the executors.
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
from featurestore_connectors.sources.failures import told
from featurestore_connectors.sources.postgres_parts import PART, Parts
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
class PartedRead:
    """What tasks read: columns of a table or subquery, in a snapshot that is held open."""

    config: SourceConfig
    secret: str | None
    snapshot: str
    columns: Sequence[SourceColumn]
    source: str
    condition: str | None
    parts: Parts

    def stage(self, engine: Engine, directory: str) -> Relation:
        """Have each part written as files of a directory by a task, and return the rows from there.

        Raises:
            ConfigurationError: The session has no driver; the hint is how to get it.
            UnsupportedType: A value does not fit; names its column.
            SourceError: What else the server said.
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
        expressions = []
        for number, column in enumerate(self.columns):
            expressions.append(f"{_sent(column)} AS c{number}")
        if self.parts.cut is not None:
            expressions.append(f"{self.parts.cut} AS {PART}")
        text = sqltext.select(expressions, source=self.source, condition=self.condition)
        try:
            frame = session.read.jdbc(
                url,
                f"({text}) AS rows",
                predicates=list(self.parts.conditions),
                properties=settings,
            )
        except PySparkException as error:
            raise _failure(self.config, error, self.secret) from None
        received = []
        for number, column in enumerate(self.columns):
            received.append(_received(frame[f"c{number}"], column))
        return frame.select(*received)


def _sent(column: SourceColumn) -> str:
    """Return the SQL of a column in a type that Java takes as it is."""
    given, kind = column.expression, column.kind
    assert kind is not None
    if pat.is_timestamp(kind):
        micros = f"(extract(epoch FROM {given}) * 1000000)::bigint"
        return _finite(given, micros, _NO_MICROS)
    if pat.is_date(kind):
        return _finite(given, f"{given} - DATE '1970-01-01'", _NO_DAY)
    if column.axes is not None:
        return f"CASE WHEN {column.axes} > 1 THEN '{_AXES}' ELSE array_to_json({given})::text END"
    if pat.is_string(kind) and column.native != "bpchar":
        return f"{given}::text"
    return given


def _finite(given: str, value: str, other: int) -> str:
    return (
        f"CASE WHEN {given} IS NULL THEN NULL WHEN {given} BETWEEN '{_FIRST}' AND '{_LAST}' "
        f"THEN {value} ELSE {other} END"
    )


def _received(given: Any, column: SourceColumn) -> Any:
    """Return the column of a frame as its feature type."""
    from pyspark.sql import functions as sf

    kind = column.kind
    assert kind is not None
    if pat.is_timestamp(kind):
        value = sf.timestamp_micros(_refused(given, _NO_MICROS, column, "times"))
    elif pat.is_date(kind):
        value = sf.date_from_unix_date(_refused(given, _NO_DAY, column, "times"))
    elif column.axes is not None:
        texts = _refused(given, _AXES, column, "lists")
        value = sf.from_json(texts, f"array<{_NAMES[kind.value_type]}>", {"mode": "FAILFAST"})
    elif pat.is_decimal(kind):
        value = given.cast(f"decimal({kind.precision},{kind.scale})")
    else:
        value = given.cast(_NAMES[kind])
    return value.alias(column.name)


def _refused(given: Any, sign: object, column: SourceColumn, what: str) -> Any:
    """Return a column, which raises where a value is the sign for one that does not fit."""
    from pyspark.sql import functions as sf

    text = _MARK + json.dumps([column.name, what])
    return sf.when(given == sf.lit(sign), sf.raise_error(sf.lit(text))).otherwise(given)


def _failure(config: SourceConfig, error: Exception, secret: str | None) -> FeatureStoreError:
    """Return what the executors or the server said, without the secret."""
    said = told(str(error), secret)
    _, found, rest = said.partition(_MARK)
    if not found:
        return SourceError(
            f"Source {config.name!r}, read by the tasks of Spark: {said}",
            hint="the executors need to reach the server; without options= partitions this process "
            "reads all of it",
        )
    (name, what), _ = json.JSONDecoder().raw_decode(rest)
    if what == "lists":
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
    parts = urlsplit(config.uri)
    options = {}
    for name, value in parse_qsl(parts.query):
        options[_RENAMED.get(name, name)] = value
    if not parts.hostname:
        raise InvalidArgument(
            f"Source {config.name!r}: the URI names no server that tasks can reach.",
            hint="postgresql://user@host:5432/database",
        )
    options.setdefault("connectTimeout", _CONNECT_SECONDS)
    place = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    if parts.port is not None:
        place = f"{place}:{parts.port}"
    user = {} if parts.username is None else {"user": unquote(parts.username)}
    database = quote(unquote(parts.path.lstrip("/")), safe="")
    return f"jdbc:postgresql://{place}/{database}?{urlencode(options)}", user


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
