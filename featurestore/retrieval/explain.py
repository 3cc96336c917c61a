"""Explanations of feature values: the row a value comes from, and why other rows were not used."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.values import ConversionError, to_scalar, to_value
from featurestore.delta.history import read_history
from featurestore.errors import InvalidArgument, KeyRequired, StorageError, VersionNotFound, listing
from featurestore.external import LiveSource
from featurestore.hashing import tie_hash
from featurestore.model import display
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.plan import Source
from featurestore.model.times import format_duration, parse_moment, utc_now
from featurestore.plugins.engine import Relation
from featurestore.registry import featuregroups
from featurestore.retrieval.catalog import group_source, pinned_source
from featurestore.retrieval.conversions import format_cell
from featurestore.session import Session
from featurestore.usersql import quote

# Keys are searched in order, and large groups have too many to compare.
_SEARCHED_KEYS = 10_000
_MAX_SHOWN_ROWS = 10
_MAX_FUTURE_ROWS = 3
_FUTURE = "in the future"
# A time below all times: null times have the lowest rank.
_LOWEST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class ExplainedRow:
    """A row of the explained key.

    ``delta_version`` is the first table version that contains the row, if it can be read.
    """

    values: Mapping[str, object]
    event_time: datetime | None
    created_time: datetime | None
    row_hash: str
    reason: str
    delta_version: int | None = None

    __repr__ = display.record_repr


@dataclass(frozen=True)
class Explanation:
    """The explanation of the feature values of a key at a time.

    ``row`` is the matching row; None means that all features are null. ``lost`` are the other rows,
    closest first.
    """

    group: str
    version: int
    delta_version: int
    key: Mapping[str, object]
    at: datetime
    row: ExplainedRow | None
    lost: tuple[ExplainedRow, ...]
    lost_rows: int
    features: tuple[str, ...] = field(default=())
    near: tuple[str, ...] = ()

    __repr__ = display.record_repr

    def __str__(self) -> str:
        key = ", ".join([f"{name}={format_cell(value)}" for name, value in self.key.items()])
        lines = [
            f"{self.group}@v{self.version} at {format_version(self.delta_version)}",
            f"key {key}, at {self.at.isoformat()}",
            "",
        ]
        if self.row is None:
            lines.append("No row matches: every feature is null.")
            if not self.lost_rows:
                lines.append(
                    f"No row has this key. Similar keys: {', '.join(self.near) or 'none'}."
                )
        else:
            for name in self.features:
                lines.append(f"  {name:<24} {format_cell(self.row.values[name])}")
            lines += ["", f"  from {_describe_row(self.row)}: {self.row.reason}"]
        if self.lost:
            rows = f"{self.lost_rows} rows"
            if self.lost_rows == 1:
                rows = "1 row"
            lines += ["", f"not used ({rows}):"]
            for row in self.lost:
                lines.append(f"  {_describe_row(row)}: {row.reason}")
        if self.lost_rows > len(self.lost):
            lines.append(f"  and {self.lost_rows - len(self.lost)} more")
        return "\n".join(lines) + "\n"


def explain_value(
    session: Session,
    name: str,
    *,
    version: int | None = None,
    key: Any,
    at: datetime | str | None = None,
) -> Explanation:
    """Explain which row of a group ``get_features`` would return for a key at a time.

    Args:
        session: The connection.
        name: The group.
        version: The version of the group; None means the latest.
        key: ``{column: value}`` for all primary-key columns, or only the value if there is a single
            column.
        at: The time; None means now.

    Raises:
        KeyRequired: The group has no primary key.
        InvalidArgument: The key does not fit the primary key.
    """
    with session.registry.reading() as connection:
        group = featuregroups.get(connection, name, version)
    source = group_source(session, session.featuregroup_path(group.name, group.version))
    spec = source.spec
    values = _parse_key(spec, key)
    if at is None:
        timestamp = utc_now()
    else:
        timestamp = parse_moment(at, argument="at")
    rows = read_key_rows(session, source, values)
    winner: ExplainedRow | None = None
    losers = []
    for row, is_winner in _rank_rows(spec, rows, timestamp):
        if is_winner:
            winner = row
        else:
            losers.append(row)
    shown_losers = _closest_losers(losers)
    first_versions = _FirstVersions(session, source, values)
    if winner is not None:
        winner = first_versions.with_first_version(winner)
    return Explanation(
        group=spec.name,
        version=spec.version,
        delta_version=source_version(source),
        key=values,
        at=timestamp,
        row=winner,
        lost=tuple(first_versions.with_first_version(row) for row in shown_losers),
        lost_rows=len(losers),
        features=spec.features,
        near=() if rows.num_rows else _find_similar_keys(session, source, values),
    )


def source_version(source: Source) -> int:
    """Return the Delta version of a source, or 0 for an external source."""
    if isinstance(source, LiveSource):
        return 0
    return source.delta_version


def format_version(delta_version: int) -> str:
    """Format a Delta version, or describe the current rows of an external source."""
    if not delta_version:
        return "the current state of its source"
    return f"Delta version {delta_version}"


def _find_similar_keys(
    session: Session, source: Source, key: Mapping[str, object]
) -> tuple[str, ...]:
    """Return up to five keys whose string forms are similar."""
    engine = session.engine
    names = source.spec.primary_key
    columns = ", ".join([quote(name, dialect=engine.dialect) for name in names])
    distinct_keys = engine.sql(
        f"SELECT DISTINCT {columns} FROM fs_rows ORDER BY {columns} LIMIT {_SEARCHED_KEYS}",
        tables={
            "fs_rows": engine.read_table(
                source.path, version=source.delta_version, schema=source.spec.schema
            )
        },
        parameters={},
    )
    fields = [source.spec.schema.field(name) for name in names]
    relation = Relation(engine.name, distinct_keys.native, pa.schema(fields))
    formatted_keys = list(map(_format_key, engine.stream(relation).read_all().to_pylist()))
    return tuple(difflib.get_close_matches(_format_key(key), formatted_keys, n=5, cutoff=0.3))


def _format_key(key: Mapping[str, object]) -> str:
    if len(key) == 1:
        return repr(next(iter(key.values())))
    return repr(dict(key))


@dataclass(frozen=True)
class _Candidate:
    """A row of the key with the values that determine its rank."""

    values: Mapping[str, object]
    event: datetime | None
    created: datetime | None
    tie: int

    @property
    def rank(self) -> tuple[datetime, datetime, int]:
        """The sort key of the point-in-time rule: event time, created time, tie hash."""
        return self.event or _LOWEST, self.created or _LOWEST, self.tie

    def to_explained_row(self, reason: str) -> ExplainedRow:
        """Convert to an ``ExplainedRow`` with the reason why the row was or was not selected."""
        return ExplainedRow(self.values, self.event, self.created, f"{self.tie:016x}", reason)


def _candidates(spec: FeatureGroupSpec, rows: pa.Table) -> list[_Candidate]:
    """Return the candidates for a key, in descending rank."""
    if not rows.num_rows:
        return []
    candidates = []
    for values, tie_hash_value in zip(rows.to_pylist(), tie_hash(rows).tolist(), strict=True):
        event = created = None
        if spec.event_time:
            event = _to_timestamp(values[spec.event_time])
        if spec.created_time:
            created = _to_timestamp(values[spec.created_time])
        candidates.append(_Candidate(values, event, created, tie_hash_value))
    return sorted(candidates, key=lambda candidate: candidate.rank, reverse=True)


def _rank_rows(
    spec: FeatureGroupSpec, rows: pa.Table, timestamp: datetime
) -> list[tuple[ExplainedRow, bool]]:
    """Return all rows with their reasons and whether they were selected, in descending rank."""
    best: _Candidate | None = None
    ranked_rows: list[tuple[ExplainedRow, bool]] = []
    future_rows: list[tuple[ExplainedRow, bool]] = []
    for candidate in _candidates(spec, rows):
        is_winner = False
        reason = _ineligibility_reason(spec, candidate, timestamp)
        # The first eligible candidate in descending rank wins. If it is too old, no older row
        # replaces it.
        if reason is None and best is None:
            best = candidate
            reason = _expiry_reason(spec, candidate.event, timestamp)
            is_winner = reason is None
        elif reason is None and best is not None:
            reason = _losing_reason(best, candidate)
        row = candidate.to_explained_row(reason or "the latest row known at that time")
        if best is None:
            future_rows.append((row, is_winner))
        else:
            ranked_rows.append((row, is_winner))
    # Future rows come last, closest first.
    return [*ranked_rows, *reversed(future_rows)]


def _closest_losers(rows: list[ExplainedRow]) -> list[ExplainedRow]:
    """Return the past rows with the highest ranks, and a few future rows."""
    future, past = [], []
    for row in rows:
        if row.reason == _FUTURE:
            future.append(row)
        else:
            past.append(row)
    # Future rows would hide the past rows near the time, which explain more.
    future = future[:_MAX_FUTURE_ROWS]
    return past[: _MAX_SHOWN_ROWS - len(future)] + future


def _ineligibility_reason(
    spec: FeatureGroupSpec, candidate: _Candidate, timestamp: datetime
) -> str | None:
    """Return the reason why a row is not eligible at a time, or None (see ``point_in_time``)."""
    if spec.event_time is None:
        return None
    if candidate.event is None:
        return f"{spec.event_time} is null"
    if candidate.event > timestamp:
        return _FUTURE
    if spec.created_time is not None and candidate.created is None:
        return f"{spec.created_time} is null, so the row is never known"
    if candidate.created is not None and candidate.created > timestamp:
        return "not known yet"
    return None


def _expiry_reason(
    spec: FeatureGroupSpec, event_time: datetime | None, timestamp: datetime
) -> str | None:
    if spec.ttl is None or event_time is None or timestamp - event_time <= spec.ttl:
        return None
    return f"the latest row, but older than the ttl of {format_duration(spec.ttl)}"


def _losing_reason(best: _Candidate, candidate: _Candidate) -> str:
    """Return the reason why a candidate ranks below the best one."""
    if candidate.event != best.event:
        return "an older event"
    if candidate.created != best.created:
        return "corrected by a row created later"
    if candidate.tie != best.tie:
        return "equal times, smaller row hash"
    return "a duplicate of the row"


class _FirstVersions:
    """A binary search for the first Delta version that contains a row of a key.

    The rows of the key are read at most once per version.
    """

    def __init__(self, session: Session, source: Source, key: Mapping[str, object]) -> None:
        self._session = session
        self._source = source
        self._key = key
        self._hashes: dict[int, frozenset[str] | None] = {}
        self._versions: list[int] = []
        if source.spec.external is None:  # the source knows no versions of its rows
            commits = read_history(source.path, before=source.delta_version + 1)
            # Only a commit that added rows can be the first to contain one.
            self._versions = [commit.version for commit in reversed(commits) if commit.rows_in]

    def with_first_version(self, row: ExplainedRow) -> ExplainedRow:
        """Return a copy of the row with the first version that contains it."""
        low, high = 0, len(self._versions) - 1
        # Upserts and deletes can remove a row again, so the search assumes that it stayed since its
        # first commit.
        while low < high:
            middle = (low + high) // 2
            version = self._versions[middle]
            if version not in self._hashes:
                self._hashes[version] = self._read_hashes(version)
            if row.row_hash in (self._hashes[version] or ()):
                high = middle
            else:
                low = middle + 1
        first_version: int | None = None
        if self._versions:
            first_version = self._versions[low]
        return ExplainedRow(
            row.values, row.event_time, row.created_time, row.row_hash, row.reason, first_version
        )

    def _read_hashes(self, version: int) -> frozenset[str] | None:
        """Return the hashes of the key's rows at a version; None if it cannot be read."""
        try:
            source = pinned_source(self._source.path, delta_version=version)
            rows = read_key_rows(self._session, source, self._key)
        except (StorageError, VersionNotFound):
            # The version was vacuumed, so report the first remaining version.
            return None
        if not rows.num_rows:
            return frozenset()
        return frozenset(map("{:016x}".format, tie_hash(rows).tolist()))


def read_key_rows(session: Session, source: Source, key: Mapping[str, object]) -> pa.Table:
    """Read the rows of a key with all columns of the group."""
    engine, schema = session.engine, source.spec.schema
    relation = engine.read_table(source.path, version=source.delta_version, schema=schema)
    conditions: list[str] = []
    parameters: dict[str, Any] = {}
    unbound_values: dict[str, Any] = {}
    for name, value in key.items():
        # Engines bind these types as parameters. Decimals, floats and bytes are compared in Arrow.
        if isinstance(value, bool | int | str | date):
            parameter = f"key_{len(parameters)}"
            parameters[parameter] = value
            conditions.append(f"{quote(name, dialect=engine.dialect)} = ${parameter}")
        else:
            unbound_values[name] = value
    if conditions:
        matching_relation = engine.sql(
            f"SELECT * FROM fs_rows WHERE {' AND '.join(conditions)}",
            tables={"fs_rows": relation},
            parameters=parameters,
        )
        relation = Relation(engine.name, matching_relation.native, schema)
    table = engine.stream(relation).read_all()
    for name, value in unbound_values.items():
        key_scalar = to_scalar(value, schema.field(name).type)
        table = table.filter(pc.equal(table.column(name), key_scalar))
    return table


def _parse_key(spec: FeatureGroupSpec, key: Any) -> dict[str, Any]:
    if not spec.primary_key:
        raise KeyRequired(
            f"Feature group {spec.name!r} has no primary key, so a row cannot be explained.",
            hint="declare primary_key= when the group is created",
        )
    key_values = _key_values(spec, key)
    if key_values is None or set(key_values) != set(spec.primary_key):
        types = {name: spec.schema.field(name).type for name in spec.primary_key}
        examples = [f"{name!r}: {example_value(data_type)}" for name, data_type in types.items()]
        raise InvalidArgument(
            f"key={key!r} does not match the primary key {listing(spec.primary_key)} of "
            f"{spec.name!r}, of type {', '.join(map(str, types.values()))}.",
            hint=f"key={{{', '.join(examples)}}}",
        )
    converted_key = {}
    for name in spec.primary_key:
        converted_key[name] = convert_key(key_values[name], spec.schema.field(name).type, name)
    return converted_key


def _key_values(spec: FeatureGroupSpec, key: Any) -> dict[str, Any] | None:
    """Return the key values by column, or None if their number differs from that of key columns."""
    if isinstance(key, Mapping):
        return dict(key)
    if not isinstance(key, list | tuple):
        key = [key]
    if len(key) != len(spec.primary_key):
        return None
    return dict(zip(spec.primary_key, key, strict=True))


def example_value(data_type: pa.DataType) -> str:
    """Return the code of a key value of a type."""
    if pat.is_timestamp(data_type):
        return "'2024-01-31T12:00:00Z'"
    if pat.is_date(data_type):
        return "datetime.date(2024, 1, 31)"
    if pat.is_boolean(data_type):
        return "True"
    if pat.is_integer(data_type) or pat.is_decimal(data_type) or pat.is_floating(data_type):
        return "1"
    return "b'a'" if pat.is_binary(data_type) else "'a'"


def convert_key(value: Any, data_type: pa.DataType, name: str) -> Any:
    """Convert a key value to the column type; times may be ISO 8601 texts, too.

    Raises:
        InvalidArgument: The column type has no equal value.
        OutOfRange: A time is outside of the years 1 to 9999.
    """
    if pat.is_timestamp(data_type) and isinstance(value, str):
        return parse_moment(value, argument=name)
    try:
        return to_value(value, data_type)
    except ConversionError as error:
        raise InvalidArgument(
            f"key: {name}={value!r} {error.reason}.",
            hint=f"key={{{name!r}: {example_value(data_type)}}}",
        ) from error


def _to_timestamp(value: datetime | date | None) -> datetime | None:
    """Convert a time to a timestamp; a date becomes midnight in UTC."""
    if value is None or isinstance(value, datetime):
        return value
    return datetime.combine(value, time(), tzinfo=UTC)


def _describe_row(row: ExplainedRow) -> str:
    phrases = []
    if row.event_time is not None:
        phrases.append(f"event {format_cell(row.event_time)}")
    if row.created_time is not None:
        phrases.append(f"created {format_cell(row.created_time)}")
    if row.delta_version is None:
        phrases.append("an unknown Delta version")
    else:
        phrases.append(f"Delta version {row.delta_version}")
    phrases.append(f"hash {row.row_hash[:8]}")
    return ", ".join(phrases)
