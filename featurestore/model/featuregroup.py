"""Feature groups: definitions, external rows, and commits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any

import pyarrow as pa

from featurestore.arrow import types
from featurestore.arrow.column_names import check_feature_names, quoted
from featurestore.arrow.fitting import widened_schema
from featurestore.arrow.hints import cast_hint
from featurestore.arrow.untyped import format_dtypes, format_sql_casts, refuse_untyped
from featurestore.errors import (
    InvalidArgument,
    KeyRequired,
    did_you_mean,
)
from featurestore.model import display
from featurestore.model.names import check_name
from featurestore.model.records import OMIT_DEFAULT, Record

GROUP_FORMAT = 1
# Whether the store copies external rows: for each training dataset, or never.
SNAPSHOTS = ("training", "never")

VALIDATION_POLICIES = ("strict", "warn", "quarantine", "off")
COMPACTIONS = ("auto",)
# The width of the key column in the registry.
MAX_TAG_KEY = 255
WRITE_MODES = ("append", "upsert", "overwrite")


@dataclass(frozen=True)
class FeatureGroupSpec(
    Record,
    format=GROUP_FORMAT,
    subject="The definition of feature group {name!r} version {version}",
):
    """The definition of one version of a feature group: table property ``featurestore.spec``.

    ``schema`` holds feature types (see ``arrow.types``). ``expectations`` are plain dicts
    ``{"type": ..., "kwargs": {...}}``. Event times further in the future than
    ``event_time_tolerance`` cause a warning. ``compact`` "auto" merges small files after writes.
    ``iceberg`` publishes Iceberg metadata after each commit. ``external`` is the location of
    external rows, or None if the store holds the rows. Tags and description are stored in
    ``featurestore.meta``: they can change without a new version.
    """

    name: str
    version: int
    schema: pa.Schema
    primary_key: tuple[str, ...] = ()
    event_time: str | None = None
    created_time: str | None = None
    partition_by: tuple[str, ...] = ()
    ttl: timedelta | None = None
    expectations: tuple[Mapping[str, Any], ...] = ()
    validation: str = "strict"
    statistics: bool = True
    job: str | None = None
    event_time_tolerance: timedelta = timedelta(0)
    compact: Annotated[str | None, OMIT_DEFAULT] = None
    iceberg: Annotated[bool, OMIT_DEFAULT] = False
    external: Annotated[ExternalRows | None, OMIT_DEFAULT] = None

    __repr__ = display.record_repr

    def __post_init__(self) -> None:
        check_name(self.name)
        check_feature_names(self.schema.names)
        refuse_untyped(
            self.schema,
            subject=f"Feature group {self.name!r}",
            hint=lambda columns: (
                f"{format_dtypes(columns)} when the group is created, or cast the columns, "
                f"in SQL: {format_sql_casts(columns)}"
            ),
        )
        _check_roles(self)
        _check_choices(self)

    @property
    def upsert_key(self) -> tuple[str, ...]:
        """The primary key, event time and created time, if declared.

        >>> schema = pa.schema([("origin", pa.string()), ("day", pa.date32())])
        >>> FeatureGroupSpec("weather", 1, schema, ("origin",), event_time="day").upsert_key
        ('origin', 'day')
        """
        key = list(self.primary_key)
        for name in (self.event_time, self.created_time):
            if name is not None:
                key.append(name)
        return tuple(key)

    @property
    def features(self) -> tuple[str, ...]:
        """The columns that are neither keys nor times."""
        roles = set(self.upsert_key)
        return tuple(name for name in self.schema.names if name not in roles)

    @classmethod
    @lru_cache(maxsize=128)
    def from_text(cls, text: str) -> FeatureGroupSpec:
        """Parse the JSON text of ``to_json``; equal texts have the same immutable definition.

        Each retrieval reads the definition in the registry and the one in the Delta log.
        """
        return cls.from_json(json.loads(text))

    def with_wider_decimals(self, columns: pa.Schema) -> FeatureGroupSpec:
        """Return the spec with decimals that also hold the decimals of matching columns.

        >>> spec = FeatureGroupSpec("prices", 1, pa.schema([("price", pa.decimal128(3, 2))]))
        >>> wide = pa.schema([("price", pa.decimal128(5, 2))])
        >>> spec.with_wider_decimals(wide).schema.types
        [Decimal128Type(decimal128(5, 2))]
        """
        schema = widened_schema(self.schema, columns)
        if schema == self.schema:
            return self
        return replace(self, schema=schema)

    def with_columns(self, new_fields: Sequence[pa.Field]) -> FeatureGroupSpec:
        """Return the spec with nullable columns appended.

        >>> spec = FeatureGroupSpec("weather", 1, pa.schema([("origin", pa.string())]), ("origin",))
        >>> spec.with_columns([pa.field("temp", pa.float64())]).features
        ('temp',)
        """
        schema = self.schema
        for new_field in new_fields:
            schema = schema.append(new_field)
        return replace(self, schema=schema)


_EXTERNAL_KEYS = ("source", "snapshots", "table", "sql", "path", "rename")


@dataclass(frozen=True)
class ExternalRows(Record, keys=_EXTERNAL_KEYS, closed=True):
    """The location of the rows of an external feature group: a table, a query or files of a source.

    ``snapshots`` "training" copies the rows into the store for each training dataset that uses
    them, so that the dataset can be recreated; "never" stores no copy. ``rename`` is the option of
    the same name.
    """

    source: str
    table: Annotated[str | None, OMIT_DEFAULT] = None
    sql: Annotated[str | None, OMIT_DEFAULT] = None
    path: Annotated[str | None, OMIT_DEFAULT] = None
    snapshots: str = "training"
    rename: Annotated[str | None, OMIT_DEFAULT] = None

    __repr__ = display.record_repr

    def __post_init__(self) -> None:
        check_name(self.source, noun="source")
        if self.snapshots not in SNAPSHOTS:
            raise InvalidArgument(
                f"Unknown snapshots={self.snapshots!r}. 'training' copies the rows that a "
                "training dataset uses into the store, 'never' does not.",
                hint=did_you_mean(self.snapshots, SNAPSHOTS, write="snapshots={!r}")
                or "snapshots='training'",
            )

    def __str__(self) -> str:
        for name in ("table", "sql", "path"):
            value = getattr(self, name)
            if value is not None:
                # SQL may have several lines.
                return f"source {self.source!r}, {name}={' '.join(value.split())!r}"
        return f"source {self.source!r}"


@dataclass(frozen=True)
class Commit:
    """A commit of a feature group: of rows, of its definition, or of maintenance.

    ``delta_version`` and ``timestamp`` are from the Delta log; ``rows`` is the number of rows in
    the table after the commit; ``rows_in`` and ``rows_out`` count the rows that the commit added
    and removed. ``applied`` is False if the write was a repeated transaction and had no effect.
    ``changes`` describe an update of the definition.
    """

    delta_version: int
    rows: int
    timestamp: datetime
    operation: str
    run_id: str | None = None
    rows_in: int = 0
    rows_out: int = 0
    validation: str | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    unique: bool | None = None
    applied: bool = True
    changes: tuple[str, ...] = ()

    __repr__ = display.record_repr

    def _summary(self) -> dict[str, object]:
        return {
            "delta_version": self.delta_version,
            "timestamp": self.timestamp,
            "operation": self.operation,
            "rows": self.rows,
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "validation": self.validation,
            "changes": "; ".join(self.changes) or None,
            "run": self.run_id,
        }

    def _repr_html_(self) -> str:
        return display.properties_table(
            {**self._summary(), "applied": self.applied}, caption="Commit"
        )


def normalize_tags(tags: object) -> dict[str, str]:
    """Return tags as a dict; ``check_tags`` validates the values.

    Raises:
        InvalidArgument: The tags are not a mapping.
    """
    if tags is None or isinstance(tags, Mapping):
        return dict(tags or {})
    raise InvalidArgument(f"tags={tags!r} is not a mapping.", hint="tags={'team': 'traffic'}")


def check_tags(tags: Mapping[str, str]) -> None:
    """Refuse tags that are not strings."""
    for key, value in tags.items():
        if not (isinstance(key, str) and isinstance(value, str) and 0 < len(key) <= MAX_TAG_KEY):
            raise InvalidArgument(
                f"Tag {key!r}: {value!r} is not a pair of strings "
                f"(keys have 1 to {MAX_TAG_KEY} characters).",
                hint="tags={'team': 'traffic'}",
            )


def _check_roles(spec: FeatureGroupSpec) -> None:
    """Check that keys, partitions and times are columns of suitable types."""
    times = [name for name in (spec.event_time, spec.created_time) if name]
    _check_columns(spec, "primary_key", spec.primary_key)
    _check_columns(spec, "partition_by", spec.partition_by)
    for role, name in (("event_time", spec.event_time), ("created_time", spec.created_time)):
        if name:
            _check_columns(spec, role, (name,))
    for column in (*spec.primary_key, *spec.partition_by):
        dtype = spec.schema.field(column).type
        if not types.can_be_key(dtype):
            hint = "keys are integers, strings, booleans, dates, timestamps, decimals or binary"
            if pa.types.is_floating(dtype):
                hint += (
                    f"; pandas stores integers with nulls as double: {cast_hint({column: 'int64'})}"
                )
            raise InvalidArgument(
                f"Column {column!r} of type {dtype} cannot be a key or partition.", hint=hint
            )
    for column in times:
        dtype = spec.schema.field(column).type
        if dtype != types.TIMESTAMP and not pa.types.is_date(dtype):
            raise InvalidArgument(
                f"Time column {column!r} has type {dtype}; times are timestamps or dates.",
                hint=f"cast it in SQL: cast({quoted(column)} as timestamptz) as {quoted(column)}",
            )
    if len(set(times)) < len(times):
        raise InvalidArgument("event_time and created_time are the same column.")
    # The other time options refer to the history of a key, which event times define.
    if spec.event_time is None:
        _check_without_event_time(spec)


def _check_columns(spec: FeatureGroupSpec, role: str, columns: Sequence[str]) -> None:
    """Check that the columns of an argument exist and do not repeat."""
    missing_columns = [column for column in columns if column not in spec.schema.names]
    if missing_columns:
        raise InvalidArgument(
            f"{role}: unknown columns {', '.join(map(repr, missing_columns))} of the dataframe. "
            f"Available: {', '.join(map(repr, spec.schema.names))}.",
            hint=did_you_mean(missing_columns[0], spec.schema.names, write=f"{role}={{!r}}")
            or "column names are case-sensitive",
        )
    if len(set(columns)) != len(columns):
        raise InvalidArgument(f"{role} contains a column twice: {columns!r}.")


def _check_without_event_time(spec: FeatureGroupSpec) -> None:
    """Refuse options that require an event time, for a group without an event time."""
    time_arguments = {
        "created_time": spec.created_time is not None,
        "ttl": spec.ttl is not None,
        "event_time_tolerance": bool(spec.event_time_tolerance),
    }
    for argument, is_declared in time_arguments.items():
        if is_declared:
            raise KeyRequired(
                f"{argument} needs an event_time.", hint="declare event_time= as well"
            )


def _check_choices(spec: FeatureGroupSpec) -> None:
    """Check options that have a list of allowed values."""
    if spec.validation not in VALIDATION_POLICIES:
        raise InvalidArgument(
            f"validation={spec.validation!r} is not a policy.",
            hint=f"one of {', '.join(VALIDATION_POLICIES)}",
        )
    if spec.compact is not None and spec.compact not in COMPACTIONS:
        raise InvalidArgument(
            f"compact={spec.compact!r} is not supported.", hint="compact='auto', or leave it out"
        )
