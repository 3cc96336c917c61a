"""Aggregates over windows, evaluated row by row for the leak check and explanations."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from typing import Any

import numpy as np
import pyarrow as pa

from featurestore.aggregates import reference
from featurestore.aggregates.reference import EventRow
from featurestore.hashing import tie_hash
from featurestore.model.plan import ROW, WindowJoin, WindowOutput
from featurestore.model.times import from_micros
from featurestore.session import Session
from featurestore.usersql import predicate


def window_values(
    session: Session,
    join: WindowJoin,
    rows: pa.Table,
    keys: Sequence[tuple[Any, ...]],
    times: Sequence[int | None],
) -> dict[str, pa.Array]:
    """Return the values of each aggregate for each label, by its name.

    Rows count from their created time on, also where the retrieval ignores it.

    Args:
        session: The connection, whose engine evaluates the conditions.
        join: The group and its aggregates; conditions in DuckDB's SQL.
        rows: All rows of the labels' keys.
        keys: The labels' keys.
        times: The labels' times in microseconds; None where a label has none.
    """
    events = events_of(join, rows)
    waits = join.created_time is not None
    by_key: dict[tuple[Any, ...], list[EventRow]] = {}
    for event in events:
        key = tuple(event.values[name] for _, name in join.on)
        by_key.setdefault(key, []).append(event)
    matching_numbers = {}
    for output in join.outputs:
        matching_numbers[output.name] = matching_rows(session, output, rows)
    values_by_name: dict[str, list[Any]] = {output.name: [] for output in join.outputs}
    for key, micros in zip(keys, times, strict=True):
        known_rows: list[EventRow] = []
        timestamp = from_micros(0)
        if micros is not None:
            timestamp = from_micros(micros)
            known_rows = reference.visible_events(
                join, by_key.get(key, []), key, timestamp, filters_created_time=waits
            )
        for output in join.outputs:
            window_rows = reference.rows_in_window(output, known_rows, timestamp)
            values = []
            for event in window_rows:
                if int(event.values[ROW]) in matching_numbers[output.name]:
                    values.append(event.values[output.column])
            values_by_name[output.name].append(reference.apply_function(output, values))
    arrays = {}
    for output in join.outputs:
        arrays[output.name] = pa.array(values_by_name[output.name], output.kind)
    return arrays


def events_of(join: WindowJoin, rows: pa.Table) -> list[EventRow]:
    """Return the rows of a table, each with its number, times and hash."""
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
    """Return a time of a row; a date is its midnight in UTC."""
    if value is None or isinstance(value, datetime):
        return value
    return datetime.combine(value, time(), UTC)


def matching_rows(session: Session, output: WindowOutput, rows: pa.Table) -> set[int]:
    """Return the numbers of the rows for which an aggregate's condition is true."""
    if output.where is None:
        return set(range(rows.num_rows))
    engine = session.engine
    numbered = rows.append_column(ROW, pa.array(np.arange(rows.num_rows), pa.int64()))
    condition = predicate(output.where, schema=rows.schema, dialect=engine.dialect)
    relation = engine.filter(engine.from_arrow(numbered.to_reader()), condition)
    return set(engine.stream(relation).read_all().column(ROW).to_pylist())
