"""Which row gives the value of a key at a time, since when it is there, and why others lost."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.delta.history import read_history
from featurestore.errors import InvalidArgument, KeyRequired, StorageError, VersionNotFound, listing
from featurestore.external import LiveSource
from featurestore.hashing import tie_hash
from featurestore.model.durations import format_duration
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.plan import Source
from featurestore.model.times import parse_moment, utc_now
from featurestore.plugins.engine import Relation
from featurestore.registry import featuregroups
from featurestore.retrieval.catalog import group_source, pinned_source
from featurestore.retrieval.rendering import cell
from featurestore.session import Session
from featurestore.usersql import quote

_KEYS_LOOKED_AT = 10_000
_SHOWN = 10
_SHOWN_OF_THE_FUTURE = 3
_FUTURE = "in the future"
_LOWEST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class ExplainedRow:
    """One row of the key.

    ``delta_version`` is the first version of the table that holds it, if that can be read.
    """

    values: Mapping[str, Any]
    event_time: datetime | None
    created_time: datetime | None
    row_hash: str
    reason: str
    delta_version: int | None = None


@dataclass(frozen=True)
class Explanation:
    """The answer for one key at one time.

    ``row`` won, None means nulls; those of ``lost`` lost, the nearest first.
    """

    group: str
    version: int
    delta_version: int
    key: Mapping[str, Any]
    at: datetime
    row: ExplainedRow | None
    lost: tuple[ExplainedRow, ...]
    lost_rows: int
    features: tuple[str, ...] = field(default=())
    near: tuple[str, ...] = ()

    def __str__(self) -> str:
        key = ", ".join([f"{name}={cell(value)}" for name, value in self.key.items()])
        lines = [
            f"{self.group}@v{self.version} at {version_text(self.delta_version)}",
            f"key {key}, at {self.at.isoformat()}",
            "",
        ]
        if self.row is None:
            lines.append("No row wins: every feature is null.")
            if not self.lost_rows:
                lines.append(f"There is no row of this key; keys near it: {_or_none(self.near)}.")
        else:
            for name in self.features:
                lines.append(f"  {name:<24} {cell(self.row.values[name])}")
            lines += ["", f"  from {_described(self.row)}: {self.row.reason}"]
        if self.lost:
            rows = f"{self.lost_rows} rows"
            if self.lost_rows == 1:
                rows = "1 row"
            lines += ["", f"lost ({rows}):"]
            for row in self.lost:
                lines.append(f"  {_described(row)}: {row.reason}")
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
    """Return which row of a group gives the features of a key at a time, as ``get_features`` would.

    Args:
        session: The connection.
        name: The group.
        version: Its version; None takes the latest.
        key: ``{column: value}`` for the whole primary key; the bare value where that is one column.
        at: The time; None is now.

    Raises:
        KeyRequired: The group has no primary key.
        InvalidArgument: The key does not fit the primary key.
    """
    with session.registry.reading() as connection:
        group = featuregroups.get(connection, name, version)
    source = group_source(session, session.featuregroup_path(group.name, group.version))
    spec = source.spec
    values = _key(spec, key)
    if at is None:
        time_asked = utc_now()
    else:
        time_asked = parse_moment(at, argument="at")
    rows = rows_of_key(session, source, values)
    winner: ExplainedRow | None = None
    others = []
    for row, won in _judged(spec, rows, time_asked):
        if won:
            winner = row
        else:
            others.append(row)
    shown = _nearest(others)
    history = _Origin(session, source, values)
    if winner is not None:
        winner = history.dated(winner)
    return Explanation(
        group=spec.name,
        version=spec.version,
        delta_version=explained_version(source),
        key=values,
        at=time_asked,
        row=winner,
        lost=tuple(history.dated(row) for row in shown),
        lost_rows=len(others),
        features=spec.features,
        near=() if rows.num_rows else _near_keys(session, source, values),
    )


def explained_version(source: Source) -> int:
    """Return the Delta version whose rows are explained; 0 for rows that are read elsewhere."""
    if isinstance(source, LiveSource):
        return 0
    return source.delta_version


def version_text(delta_version: int) -> str:
    """Return a Delta version, or that the rows are those of the source, in words."""
    if not delta_version:
        return "its source, now"
    return f"Delta version {delta_version}"


def _or_none(keys: Sequence[str]) -> str:
    return ", ".join(keys) or "none"


def _near_keys(session: Session, source: Source, key: Mapping[str, Any]) -> tuple[str, ...]:
    """Return up to five keys whose text is like the one that was asked for."""
    engine = session.engine
    names = source.spec.primary_key
    columns = ", ".join([quote(name, dialect=engine.dialect) for name in names])
    found = engine.sql(
        f"SELECT DISTINCT {columns} FROM fs_rows ORDER BY {columns} LIMIT {_KEYS_LOOKED_AT}",
        tables={
            "fs_rows": engine.read_table(
                source.path, version=source.delta_version, schema=source.spec.schema
            )
        },
        parameters={},
    )
    fields = [source.spec.schema.field(name) for name in names]
    relation = Relation(engine.name, found.native, pa.schema(fields))
    texts = []
    for row in engine.stream(relation).read_all().to_pylist():
        texts.append(_key_text(row))
    return tuple(difflib.get_close_matches(_key_text(key), texts, n=5, cutoff=0.3))


def _key_text(key: Mapping[str, Any]) -> str:
    if len(key) == 1:
        return repr(next(iter(key.values())))
    return repr(dict(key))


@dataclass(frozen=True)
class _Candidate:
    """One row of the key with what orders it."""

    values: Mapping[str, Any]
    event: datetime | None
    created: datetime | None
    tie: int

    @property
    def rank(self) -> tuple[datetime, datetime, int]:
        """What the greatest row has most of: event time, created time, tie hash."""
        return self.event or _LOWEST, self.created or _LOWEST, self.tie

    def explained(self, reason: str) -> ExplainedRow:
        """Return the row with the reason why it won or lost."""
        return ExplainedRow(self.values, self.event, self.created, f"{self.tie:016x}", reason)


def _candidates(spec: FeatureGroupSpec, rows: pa.Table) -> list[_Candidate]:
    """Return the rows of a key, the greatest by the rule first."""
    if not rows.num_rows:
        return []
    found = []
    for values, tie in zip(rows.to_pylist(), tie_hash(rows).tolist(), strict=True):
        event = created = None
        if spec.event_time:
            event = _timestamp(values[spec.event_time])
        if spec.created_time:
            created = _timestamp(values[spec.created_time])
        found.append(_Candidate(values, event, created, tie))
    return sorted(found, key=lambda candidate: candidate.rank, reverse=True)


def _judged(
    spec: FeatureGroupSpec, rows: pa.Table, at: datetime
) -> list[tuple[ExplainedRow, bool]]:
    """Return every row with its reason and whether it won, the greatest by the rule first."""
    best: _Candidate | None = None
    judged: list[tuple[ExplainedRow, bool]] = []
    later: list[tuple[ExplainedRow, bool]] = []
    for candidate in _candidates(spec, rows):
        won = False
        reason = _not_eligible(spec, candidate, at)
        if reason is None and best is None:
            best = candidate
            reason = _expired(spec, candidate.event, at)
            won = reason is None
        elif reason is None and best is not None:
            reason = _lost_to(best, candidate)
        row = candidate.explained(reason or "the latest row known at that time")
        if best is None:
            later.append((row, won))
        else:
            judged.append((row, won))
    # Rows of the future come after those of the past, the nearest first.
    return [*judged, *reversed(later)]


def _nearest(rows: list[ExplainedRow]) -> list[ExplainedRow]:
    """Return the rows that lost most closely, and a few of the future."""
    future, past = [], []
    for row in rows:
        if row.reason == _FUTURE:
            future.append(row)
        else:
            past.append(row)
    future = future[:_SHOWN_OF_THE_FUTURE]
    return past[: _SHOWN - len(future)] + future


def _not_eligible(spec: FeatureGroupSpec, candidate: _Candidate, at: datetime) -> str | None:
    """Return why a row does not count at a time; None where it does (see ``point_in_time``)."""
    if spec.event_time is None:
        return None
    if candidate.event is None:
        return f"{spec.event_time} is null"
    if candidate.event > at:
        return _FUTURE
    if spec.created_time is not None and candidate.created is None:
        return f"{spec.created_time} is null: never known"
    if candidate.created is not None and candidate.created > at:
        return "not known yet"
    return None


def _expired(spec: FeatureGroupSpec, event: datetime | None, at: datetime) -> str | None:
    if spec.ttl is None or event is None or at - event <= spec.ttl:
        return None
    return f"the latest row, but older than the ttl of {format_duration(spec.ttl)}"


def _lost_to(best: _Candidate, candidate: _Candidate) -> str:
    if candidate.event != best.event:
        return "an older event"
    if candidate.created != best.created:
        return "corrected by a row created later"
    if candidate.tie != best.tie:
        return "equal times, smaller row hash"
    return "the same row once more"


class _Origin:
    """Finds the first Delta version that holds a row, by halving.

    What a version holds of the key is read once.
    """

    def __init__(self, session: Session, source: Source, key: Mapping[str, Any]) -> None:
        self._session = session
        self._source = source
        self._key = key
        self._hashes: dict[int, frozenset[str] | None] = {}
        self._versions: list[int] = []
        if source.spec.external is None:  # the source knows no versions of its rows
            commits = read_history(source.path, before=source.delta_version + 1)
            self._versions = [each.version for each in reversed(commits) if each.rows_in]

    def dated(self, row: ExplainedRow) -> ExplainedRow:
        """Return the row with its first version."""
        low, high = 0, len(self._versions) - 1
        while low < high:
            middle = (low + high) // 2
            if self._holds(self._versions[middle], row.row_hash):
                high = middle
            else:
                low = middle + 1
        found: int | None = None
        if self._versions:
            found = self._versions[low]
        return ExplainedRow(
            row.values, row.event_time, row.created_time, row.row_hash, row.reason, found
        )

    def _holds(self, version: int, row_hash: str) -> bool:
        if version not in self._hashes:
            self._hashes[version] = self._read(version)
        return row_hash in (self._hashes[version] or ())

    def _read(self, version: int) -> frozenset[str] | None:
        try:
            source = pinned_source(self._source.path, delta_version=version)
            rows = rows_of_key(self._session, source, self._key)
        except (StorageError, VersionNotFound):
            # Vacuumed: the row is then dated by the first version still there.
            return None
        if not rows.num_rows:
            return frozenset()
        return frozenset(map("{:016x}".format, tie_hash(rows).tolist()))


def rows_of_key(session: Session, source: Source, key: Mapping[str, Any]) -> pa.Table:
    """Return the rows whose columns have given values, all columns of the group."""
    engine, schema = session.engine, source.spec.schema
    relation = engine.read_table(source.path, version=source.delta_version, schema=schema)
    conditions: list[str] = []
    parameters: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in key.items():
        if isinstance(value, bool | int | str | date):
            parameter = f"key_{len(parameters)}"
            parameters[parameter] = value
            conditions.append(f"{quote(name, dialect=engine.dialect)} = ${parameter}")
        else:
            others[name] = value
    if conditions:
        found = engine.sql(
            f"SELECT * FROM fs_rows WHERE {' AND '.join(conditions)}",
            tables={"fs_rows": relation},
            parameters=parameters,
        )
        relation = Relation(engine.name, found.native, schema)
    table = engine.stream(relation).read_all()
    for name, value in others.items():
        wanted = pa.scalar(value, schema.field(name).type)
        table = table.filter(pc.equal(table.column(name), wanted))
    return table


def _key(spec: FeatureGroupSpec, key: Any) -> dict[str, Any]:
    if not spec.primary_key:
        raise KeyRequired(
            f"Feature group {spec.name!r} has no primary key, so no row can be asked for.",
            hint="declare primary_key= when the group is created",
        )
    given = _named_parts(spec, key)
    if given is None or set(given) != set(spec.primary_key):
        parts = []
        for name in spec.primary_key:
            parts.append(f"{name!r}: <{spec.schema.field(name).type}>")
        example = ", ".join(parts)
        raise InvalidArgument(
            f"key={key!r} does not fit the primary key {listing(spec.primary_key)} of "
            f"{spec.name!r}.",
            hint=f"key={{{example}}}",
        )
    typed = {}
    for name in spec.primary_key:
        typed[name] = typed_key(given[name], spec.schema.field(name).type, name)
    return typed


def _named_parts(spec: FeatureGroupSpec, key: Any) -> dict[str, Any] | None:
    """Return the key's values by column; None when there are more or fewer of them."""
    if isinstance(key, Mapping):
        return dict(key)
    if not isinstance(key, list | tuple):
        key = [key]
    if len(key) != len(spec.primary_key):
        return None
    return dict(zip(spec.primary_key, key, strict=True))


def typed_key(value: Any, kind: pa.DataType, name: str) -> Any:
    """Return a key value as the column's type holds it."""
    if pat.is_timestamp(kind):
        return parse_moment(value, argument=name)
    try:
        return pa.scalar(value, kind).as_py()
    except (
        pa.ArrowInvalid,
        pa.ArrowTypeError,
        pa.ArrowNotImplementedError,
        OverflowError,
        ValueError,
    ) as error:
        raise InvalidArgument(
            f"key: {name}={value!r} is no {kind}.",
            hint=f"key={{{name!r}: ...}} with a {kind}; this one is of type {type(value).__name__}",
        ) from error


def _timestamp(value: datetime | date | None) -> datetime | None:
    """Return a time as a timestamp; a date is its midnight in UTC."""
    if value is None or isinstance(value, datetime):
        return value
    return datetime.combine(value, time(), tzinfo=UTC)


def _described(row: ExplainedRow) -> str:
    parts = []
    if row.event_time is not None:
        parts.append(f"event {cell(row.event_time)}")
    if row.created_time is not None:
        parts.append(f"created {cell(row.created_time)}")
    if row.delta_version is None:
        parts.append("an unknown Delta version")
    else:
        parts.append(f"Delta version {row.delta_version}")
    parts.append(f"hash {row.row_hash[:8]}")
    return ", ".join(parts)
