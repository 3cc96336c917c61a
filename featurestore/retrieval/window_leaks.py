"""Aggregates over windows computed once more, row by row, for the leak check."""

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


def window_answers(
    session: Session,
    join: WindowJoin,
    rows: pa.Table,
    keys: Sequence[tuple[Any, ...]],
    times: Sequence[int | None],
) -> dict[str, pa.Array]:
    """Return the values of each aggregate for each label, by its name.

    Rows count from their created time on, also where the retrieval did not look at it.

    Args:
        session: The connection, whose engine answers the conditions.
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
    met = {}
    for output in join.outputs:
        met[output.name] = matching_rows(session, output, rows)
    found: dict[str, list[Any]] = {output.name: [] for output in join.outputs}
    for key, micros in zip(keys, times, strict=True):
        known: list[EventRow] = []
        moment = from_micros(0)
        if micros is not None:
            moment = from_micros(micros)
            known = reference.visible_events(
                join, by_key.get(key, []), key, moment, filters_created_time=waits
            )
        for output in join.outputs:
            inside = reference.rows_in_window(output, known, moment)
            values = []
            for event in inside:
                if int(event.values[ROW]) in met[output.name]:
                    values.append(event.values[output.column])
            found[output.name].append(reference.apply_function(output, values))
    answers = {}
    for output in join.outputs:
        answers[output.name] = pa.array(found[output.name], output.kind)
    return answers


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
            created = _moment(values[join.created_time])
        events.append(EventRow(values, _moment(values[join.event_time]), created, int(tie)))
    return events


def _moment(value: date | None) -> datetime | None:
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
