"""The rows that an aggregate over a window counts for a key at a time, and why others do not."""

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
    convert_key,
    read_key_rows,
    version_of_source,
    version_text,
)
from featurestore.retrieval.rendering import cell
from featurestore.retrieval.resolve import Feature
from featurestore.retrieval.window_leaks import events_of, matching_rows
from featurestore.retrieval.windows import window_join
from featurestore.session import Session

_MAX_SHOWN_ROWS = 20


@dataclass(frozen=True)
class WindowExplanation:
    """The value of an aggregate for one key at one time.

    ``rows`` are the rows that count, the newest first; ``left_out`` has the number of the other
    rows of the key, by reason.
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
        for row in self.rows[:_MAX_SHOWN_ROWS]:
            other_values = [f"{name}={cell(row[name])}" for name in row if name != column]
            lines.append(f"  {cell(row[column])}  ({', '.join(other_values)})")
        if len(self.rows) > _MAX_SHOWN_ROWS:
            lines.append(f"  and {len(self.rows) - _MAX_SHOWN_ROWS} more")
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
        InvalidArgument: The aggregate is of another group, or the key has unknown columns.
    """
    aggregate = window
    if isinstance(aggregate, str):
        aggregate = parse_window(aggregate)
    if aggregate.reference.group != name:
        raise InvalidArgument(
            f"{aggregate} is an aggregate of {aggregate.reference.group!r}, not of {name!r}.",
            hint=f"use featuregroup({aggregate.reference.group!r})",
        )
    with session.registry.reading() as connection:
        group = featuregroups.get(connection, name, version)
    source = group_source(session, session.featuregroup_path(group.name, group.version))
    values = _parse_key(source, key)
    timestamp = utc_now() if at is None else parse_moment(at, argument="at")
    feature = Feature(source.spec, aggregate.reference.feature, aggregate.name)
    join = window_join(
        source, [(feature, aggregate)], column_pairs=tuple((each, each) for each in values)
    )
    output = join.outputs[0]
    table = read_key_rows(session, source, values)
    rows = events_of(join, table)
    known_rows = reference.visible_events(
        join, rows, tuple(values.values()), timestamp, filters_created_time=_has_created_time(join)
    )
    window_rows = reference.rows_in_window(output, known_rows, timestamp)
    matching_numbers = matching_rows(session, output, table)
    counted_rows = [row for row in window_rows if row.values[ROW] in matching_numbers]
    rows_with_value = [row for row in counted_rows if row.values[output.column] is not None]
    reasons = Counter(_reason(join, row, timestamp) for row in rows if row not in known_rows)
    reasons["outside the window"] += len(known_rows) - len(window_rows)
    reasons[f"for which {output.where} is not true"] += len(window_rows) - len(counted_rows)
    reasons[f"without a value in {output.column}"] += len(counted_rows) - len(rows_with_value)
    values_counted, shown_rows = [], []
    for row in rows_with_value:
        values_counted.append(row.values[output.column])
        shown_rows.append(_without_row_number(row))
    left_out = {reason: count for reason, count in reasons.items() if count}
    return WindowExplanation(
        window=aggregate,
        group=name,
        version=source.spec.version,
        delta_version=version_of_source(source),
        key=values,
        at=timestamp,
        value=reference.apply_function(output, values_counted),
        rows=tuple(reversed(shown_rows)),
        left_out=left_out,
    )


def _parse_key(source: Source, key: Any) -> dict[str, Any]:
    spec = source.spec
    key_values = key
    if not isinstance(key, Mapping) and spec.primary_key:
        key_values = {spec.primary_key[0]: key}
    unknown = [name for name in key_values if name not in spec.schema.names]
    if unknown:
        raise InvalidArgument(
            f"key= names {listing(unknown)}; {spec.name!r} has {listing(spec.schema.names)}.",
            hint="key={'column': value} for the columns that the labels are matched on",
        )
    converted_key = {}
    for name, value in key_values.items():
        converted_key[name] = convert_key(value, spec.schema.field(name).type, name)
    return converted_key


def _has_created_time(join: WindowJoin) -> bool:
    return join.created_time is not None


def _reason(join: WindowJoin, row: EventRow, timestamp: datetime) -> str:
    if row.event is None or row.event > timestamp:
        return "in the future"
    if _has_created_time(join) and (row.created is None or row.created > timestamp):
        return "not known yet"
    return "replaced by a later version of the same event"


def _without_row_number(row: EventRow) -> dict[str, Any]:
    return {name: value for name, value in row.values.items() if name != ROW}
