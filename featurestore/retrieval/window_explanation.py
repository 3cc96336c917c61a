"""Which rows an aggregate over a window counts for a key at a time, and why not others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from featurestore.aggregates import reference
from featurestore.aggregates.reference import EventRow
from featurestore.errors import InvalidArgument, listing
from featurestore.model.plan import ROW, Source, WindowJoin
from featurestore.model.times import parse_moment, utc_now
from featurestore.model.window_features import WindowFeature, parse_window
from featurestore.registry import featuregroups
from featurestore.retrieval.catalog import group_source
from featurestore.retrieval.explain import (
    explained_version,
    rows_of_key,
    typed_key,
    version_text,
)
from featurestore.retrieval.rendering import cell
from featurestore.retrieval.resolve import Feature
from featurestore.retrieval.window_leaks import events_of, matching_rows
from featurestore.retrieval.windows import window_join
from featurestore.session import Session

_SHOWN = 20


@dataclass(frozen=True)
class WindowExplanation:
    """The value of an aggregate for one key at one time.

    ``rows`` are the rows that count, the newest first; ``left_out`` says how many rows of the key
    do not, by the reason.
    """

    window: WindowFeature
    group: str
    version: int
    delta_version: int
    key: Mapping[str, Any]
    at: datetime
    value: Any
    rows: tuple[Mapping[str, Any], ...]
    left_out: Mapping[str, int]

    def __str__(self) -> str:
        key = ", ".join([f"{name}={cell(value)}" for name, value in self.key.items()])
        column = self.window.reference.feature
        lines = [
            f"{self.window} of {self.group}@v{self.version} at {version_text(self.delta_version)}",
            f"key {key}, at {self.at.isoformat()}",
            "",
            f"  {self.window.name:<24} {cell(self.value)}",
            "",
            f"counted ({len(self.rows)} rows):",
        ]
        for row in self.rows[:_SHOWN]:
            others = [f"{name}={cell(row[name])}" for name in row if name != column]
            lines.append(f"  {cell(row[column])}  ({', '.join(others)})")
        if len(self.rows) > _SHOWN:
            lines.append(f"  and {len(self.rows) - _SHOWN} more")
        for reason, count in self.left_out.items():
            lines.append(f"left out: {count} {reason}")
        return "\n".join(lines) + "\n"


def explain_window(
    session: Session,
    name: str,
    *,
    version: int | None,
    key: Any,
    at: datetime | str | None,
    window: WindowFeature | str,
) -> WindowExplanation:
    """Return the rows that an aggregate counts for a key at a time, as ``get_features`` would.

    Args:
        session: The connection.
        name: The group.
        version: Its version; None takes the latest.
        key: ``{column: value}`` for the columns that the labels would be matched on.
        at: The time; None is now.
        window: The aggregate.

    Raises:
        InvalidArgument: The aggregate is of another group, or the key names no columns of it.
    """
    wanted = window
    if isinstance(wanted, str):
        wanted = parse_window(wanted)
    if wanted.reference.group != name:
        raise InvalidArgument(
            f"{wanted} is an aggregate of {wanted.reference.group!r}, not of {name!r}.",
            hint=f"ask featuregroup({wanted.reference.group!r})",
        )
    with session.registry.reading() as connection:
        group = featuregroups.get(connection, name, version)
    source = group_source(session, session.featuregroup_path(group.name, group.version))
    values = _key(source, key)
    moment = utc_now() if at is None else parse_moment(at, argument="at")
    feature = Feature(source.spec, wanted.reference.feature, wanted.name)
    join = window_join(source, [(feature, wanted)], on=tuple((each, each) for each in values))
    output = join.outputs[0]
    table = rows_of_key(session, source, values)
    rows = events_of(join, table)
    known = reference.visible_events(
        join, rows, tuple(values.values()), moment, filters_created_time=_waits(join)
    )
    inside = reference.rows_in_window(output, known, moment)
    met = matching_rows(session, output, table)
    counted = [row for row in inside if row.values[ROW] in met]
    present = [row for row in counted if row.values[output.column] is not None]
    reasons = Counter(_reason(join, row, moment) for row in rows if row not in known)
    reasons["outside the window"] += len(known) - len(inside)
    reasons[f"for which {output.where} is not true"] += len(inside) - len(counted)
    reasons[f"without a value in {output.column}"] += len(counted) - len(present)
    values_counted, shown = [], []
    for row in present:
        values_counted.append(row.values[output.column])
        shown.append(_shown(row))
    left_out = {reason: count for reason, count in reasons.items() if count}
    return WindowExplanation(
        window=wanted,
        group=name,
        version=source.spec.version,
        delta_version=explained_version(source),
        key=values,
        at=moment,
        value=reference.apply_function(output, values_counted),
        rows=tuple(reversed(shown)),
        left_out=left_out,
    )


def _key(source: Source, key: Any) -> dict[str, Any]:
    spec = source.spec
    given = key
    if not isinstance(key, Mapping) and spec.primary_key:
        given = {spec.primary_key[0]: key}
    unknown = [name for name in given if name not in spec.schema.names]
    if unknown:
        raise InvalidArgument(
            f"key= names {listing(unknown)}; {spec.name!r} has {listing(spec.schema.names)}.",
            hint="key={'column': value} for the columns that the labels are matched on",
        )
    typed = {}
    for name, value in given.items():
        typed[name] = typed_key(value, spec.schema.field(name).type, name)
    return typed


def _waits(join: WindowJoin) -> bool:
    return join.created_time is not None


def _reason(join: WindowJoin, row: EventRow, moment: datetime) -> str:
    if row.event is None or row.event > moment:
        return "in the future"
    if _waits(join) and (row.created is None or row.created > moment):
        return "not known yet"
    return "replaced by a later version of the same event"


def _shown(row: EventRow) -> dict[str, Any]:
    return {name: value for name, value in row.values.items() if name != ROW}
