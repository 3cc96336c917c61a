"""Row-by-row window aggregates, for explanations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any

import numpy as np
import pyarrow as pa

from featurestore.aggregates import reference
from featurestore.aggregates.reference import EventRow
from featurestore.errors import InvalidArgument, listing
from featurestore.hashing import tie_hash
from featurestore.model import display
from featurestore.model.plan import ROW, Source, WindowJoin, WindowOutput
from featurestore.model.times import parse_moment, utc_now
from featurestore.model.window_features import WindowFeature, parse_window
from featurestore.registry import featuregroups
from featurestore.retrieval.catalog import group_source
from featurestore.retrieval.conversions import format_cell
from featurestore.retrieval.explain import (
    convert_key,
    format_version,
    read_key_rows,
    source_version,
)
from featurestore.retrieval.resolve import Feature
from featurestore.retrieval.windows import window_join
from featurestore.session import Session
from featurestore.usersql import predicate

_MAX_SHOWN_ROWS = 20


@dataclass(frozen=True)
class WindowExplanation:
    """The explanation of an aggregate for a key at a time.

    ``rows`` are the aggregated rows, newest first. ``left_out`` has the number of the key's other
    rows, by reason.
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

    __repr__ = display.record_repr

    def __str__(self) -> str:
        key = ", ".join([f"{name}={format_cell(value)}" for name, value in self.key.items()])
        column = self.window.reference.feature
        lines = [
            f"{self.window} of {self.group}@v{self.version} at {format_version(self.delta_version)}",
            f"key {key}, at {self.at.isoformat()}",
            "",
            f"  {self.window.name:<24} {format_cell(self.value)}",
            "",
            f"counted ({len(self.rows)} rows):",
        ]
        for row in self.rows[:_MAX_SHOWN_ROWS]:
            other_values = [f"{name}={format_cell(row[name])}" for name in row if name != column]
            lines.append(f"  {format_cell(row[column])}  ({', '.join(other_values)})")
        if len(self.rows) > _MAX_SHOWN_ROWS:
            lines.append(f"  and {len(self.rows) - _MAX_SHOWN_ROWS} more")
        for reason, count in self.left_out.items():
            lines.append(f"excluded: {count} {reason}")
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
    """Explain which rows ``get_features`` would aggregate for a key at a time.

    Args:
        session: The connection.
        name: The group.
        version: The version of the group; None means the latest.
        key: ``{column: value}`` for the columns on which labels would be matched.
        at: The time; None means now.
        window: The aggregate.

    Raises:
        InvalidArgument: The aggregate belongs to another group, or the key has unknown columns.
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
        source, [(feature, aggregate)], column_pairs=tuple((name, name) for name in values)
    )
    output = join.outputs[0]
    table = read_key_rows(session, source, values)
    rows = to_event_rows(join, table)
    # The reference implementation counts the rows, so the explanation is independent of the kernel.
    known_rows = reference.visible_events(
        join, rows, tuple(values.values()), timestamp, filters_created_time=_has_created_time(join)
    )
    window_rows = reference.rows_in_window(output, known_rows, timestamp)
    matching_numbers = matching_rows(session, output, table)
    counted_rows = [row for row in window_rows if row.values[ROW] in matching_numbers]
    rows_with_value = [row for row in counted_rows if row.values[output.column] is not None]
    # Each step of the retrieval excludes rows for one reason, so the counts add up.
    reasons = Counter(
        _exclusion_reason(join, row, timestamp) for row in rows if row not in known_rows
    )
    reasons["outside the window"] += len(known_rows) - len(window_rows)
    reasons[f"for which {output.where} is not true"] += len(window_rows) - len(counted_rows)
    reasons[f"without a value in {output.column}"] += len(counted_rows) - len(rows_with_value)
    values_counted, shown_rows = [], []
    for row in rows_with_value:
        values_counted.append(row.values[output.column])
        # The row number is internal and not a column of the group.
        shown_rows.append({name: value for name, value in row.values.items() if name != ROW})
    left_out = {reason: count for reason, count in reasons.items() if count}
    return WindowExplanation(
        window=aggregate,
        group=name,
        version=source.spec.version,
        delta_version=source_version(source),
        key=values,
        at=timestamp,
        value=reference.apply_function(output, values_counted),
        rows=tuple(reversed(shown_rows)),
        left_out=left_out,
    )


def _parse_key(source: Source, key: Any) -> dict[str, Any]:
    spec = source.spec
    key_values = key
    # A plain value is the value of the first key column.
    if not isinstance(key, Mapping) and spec.primary_key:
        key_values = {spec.primary_key[0]: key}
    unknown = [name for name in key_values if name not in spec.schema.names]
    if unknown:
        raise InvalidArgument(
            f"Unknown columns {listing(unknown)} in key=. Available: {listing(spec.schema.names)}.",
            hint="key={'column': value} for the columns that the labels are matched on",
        )
    converted_key = {}
    for name, value in key_values.items():
        converted_key[name] = convert_key(value, spec.schema.field(name).type, name)
    return converted_key


def _has_created_time(join: WindowJoin) -> bool:
    return join.created_time is not None


def _exclusion_reason(join: WindowJoin, row: EventRow, timestamp: datetime) -> str:
    if row.event is None or row.event > timestamp:
        return "in the future"
    if _has_created_time(join) and (row.created is None or row.created > timestamp):
        return "not known yet"
    # A row that is available but not visible has a later version that is available, too.
    return "replaced by a later version of the same event"


def to_event_rows(join: WindowJoin, rows: pa.Table) -> list[EventRow]:
    """Convert table rows to event rows with row number, times and hash."""
    ties: Sequence[Any] = ()
    if rows.num_rows:
        ties = tie_hash(rows).tolist()
    events = []
    for number, (values, tie) in enumerate(zip(rows.to_pylist(), ties, strict=True)):
        values[ROW] = number
        created = None
        if join.created_time is not None:
            created = _as_timestamp(values[join.created_time])
        events.append(EventRow(values, _as_timestamp(values[join.event_time]), created, int(tie)))
    return events


def _as_timestamp(value: date | None) -> datetime | None:
    """Convert a time to a timestamp; a date becomes midnight in UTC."""
    if value is None or isinstance(value, datetime):
        return value
    return datetime.combine(value, time(), UTC)


def matching_rows(session: Session, output: WindowOutput, rows: pa.Table) -> set[int]:
    """Return the numbers of the rows that satisfy the condition of an aggregate."""
    condition_sql = output.where
    if condition_sql is None:
        return set(range(rows.num_rows))
    engine = session.engine
    numbered = rows.append_column(ROW, pa.array(np.arange(rows.num_rows), pa.int64()))
    condition = predicate(condition_sql, schema=rows.schema, dialect=engine.dialect)
    # The engine evaluates conditions, because only SQL defines their meaning.
    relation = engine.filter(engine.from_arrow(numbered.to_reader()), condition)
    return set(engine.stream(relation).read_all().column(ROW).to_pylist())
