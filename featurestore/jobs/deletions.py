"""Deletes of a source in the group that a job fills: by a tombstone column, or by missing keys.

Both are settled after the upsert, and again by a run that is repeated: a tombstone deletes the rows
of its key up to its own time, and a missing key is missing whoever looks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow.types as pat

from featurestore import usersql
from featurestore.errors import InvalidJob, SourceChanged
from featurestore.featuregroups.deletes import delete_rows
from featurestore.featuregroups.table import open_group
from featurestore.model.job import JobSpec
from featurestore.plugins.engine import Relation
from featurestore.session import Session

_log = logging.getLogger("featurestore.jobs")
# Keys in one condition, which is one commit.
_KEYS_AT_ONCE = 500
# Columns of keys are renamed by their number, so that one query is right on every engine.
_LAST_OF_KEYS = "SELECT {keys}, max(t) AS t FROM dead GROUP BY {keys}"
_MISSING = (
    "SELECT DISTINCT {keys} FROM held WHERE {present} "
    "AND NOT EXISTS (SELECT 1 FROM given WHERE {same})"
)


def split(session: Session, spec: JobSpec, rows: Relation) -> tuple[Relation, list[dict[str, Any]]]:
    """Return the rows without tombstones, and the keys of those with the time of each.

    Raises:
        InvalidJob: The result lacks the column.
    """
    if spec.tombstone is None:
        return rows, []
    engine, column = session.engine, spec.tombstone
    if column not in rows.schema.names:
        raise InvalidJob(
            f"Job {spec.name!r}: its rows have no column {column!r}, which tombstone= names."
        )
    is_set = f'"{column}" IS NOT NULL'
    if pat.is_boolean(rows.schema.field(column).type):
        is_set = f'coalesce("{column}", false)'
    marked, live = [
        engine.filter(rows, usersql.predicate(each, schema=rows.schema, dialect=engine.dialect))
        for each in (is_set, f"NOT ({is_set})")
    ]
    kept = [name for name in rows.schema.names if name != column]
    live = engine.select(live, dict(zip(kept, kept, strict=True)))
    keys = _numbered(spec.primary_key)
    dead = engine.select(marked, {**keys, "t": str(spec.event_time)})
    query = _LAST_OF_KEYS.format(keys=", ".join(keys))
    found = engine.stream(engine.sql(query, tables={"dead": dead}, parameters={})).read_all()
    return live, found.to_pylist()


def delete_dead(
    session: Session, spec: JobSpec, version: int, dead: Sequence[dict[str, Any]], *, run_id: str
) -> None:
    """Delete the rows of keys up to the time of their tombstones."""
    conditions = []
    for each in dead:
        at = _literal(each.pop("t"))
        conditions.append(f'({_same_key(spec, each)} AND "{spec.event_time}" <= {at})')
    _delete(session, spec, version, conditions, run_id=run_id)


def delete_missing(
    session: Session, spec: JobSpec, version: int, given: Relation, *, run_id: str
) -> None:
    """Delete the rows of keys that a source no longer has.

    Raises:
        SourceChanged: It has no keys at all, which is more often a fault than meant.
    """
    engine = session.engine
    if engine.count(given) == 0:
        raise SourceChanged(
            f"Job {spec.name!r}: its source has no rows at all, so nothing was deleted.",
            hint="if that is meant: delete_from_featuregroup(name, 'true')",
        )
    group = open_group(session, spec.target, version)
    columns = _numbered(spec.primary_key)
    held = engine.read_table(
        group.path, version=group.delta_version, schema=group.spec.schema, columns=spec.primary_key
    )
    present, same = [], []
    for name in columns:
        present.append(f"held.{name} IS NOT NULL")
        same.append(f"given.{name} = held.{name}")
    query = _MISSING.format(
        keys=", ".join(columns), present=" AND ".join(present), same=" AND ".join(same)
    )
    tables = {"held": engine.select(held, columns), "given": engine.select(given, columns)}
    missing = engine.sql(query, tables=tables, parameters={})
    conditions = []
    for batch in engine.stream(missing):
        for each in batch.to_pylist():
            conditions.append(f"({_same_key(spec, each)})")
    _delete(session, spec, version, conditions, run_id=run_id)


def _numbered(columns: Sequence[str]) -> dict[str, str]:
    return {f"k{number}": name for number, name in enumerate(columns)}


def _delete(
    session: Session, spec: JobSpec, version: int, conditions: Sequence[str], *, run_id: str
) -> None:
    for number, part in enumerate(_parts(sorted(conditions))):
        where = " OR ".join(part)
        delete_rows(session, spec.target, where, version=version, run_id=f"{run_id}-d{number}")
        _log.info("%d keys deleted", len(part))


def _parts(conditions: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(conditions), _KEYS_AT_ONCE):
        yield conditions[start : start + _KEYS_AT_ONCE]


def _same_key(spec: JobSpec, values: dict[str, Any]) -> str:
    """Return the condition that a row has a key, in DuckDB's SQL."""
    pairs = zip(spec.primary_key, values.values(), strict=True)
    return " AND ".join([f'"{name}" = {_literal(value)}' for name, value in pairs])


def _literal(value: object) -> str:
    """Return a value of a key or time as a condition has it; texts beside times are times."""
    if isinstance(value, bool | int):
        return str(value).lower()
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, datetime):
        return f"'{value.astimezone(UTC).isoformat(sep=' ', timespec='microseconds')}'"
    if isinstance(value, date):
        return f"'{value.isoformat()}'"
    if isinstance(value, Decimal):
        return f"{value:f}"
    raise InvalidJob(f"A key of type {type(value).__name__} cannot be deleted by a job.")
