"""Deletes that a source reports, by a tombstone column or by missing keys.

Both run after the upsert and are idempotent, so a repeated run deletes the same rows: a tombstone
deletes the rows of its key up to its own time, and a missing key stays missing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
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
# Keys in one condition; each condition is one commit.
_KEYS_PER_COMMIT = 500
# Key columns are renamed by number, so that one query works on every engine.
_LAST_TOMBSTONES = "SELECT {keys}, max(t) AS t FROM dead GROUP BY {keys}"
_MISSING = (
    "SELECT DISTINCT {keys} FROM held WHERE {present} "
    "AND NOT EXISTS (SELECT 1 FROM given WHERE {same})"
)


def split_tombstones(
    session: Session, spec: JobSpec, rows: Relation
) -> tuple[Relation, list[dict[str, Any]]]:
    """Return the rows without tombstones, and the keys of the tombstones with their times.

    Raises:
        InvalidJob: The rows lack the tombstone column.
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
    stored_columns = [name for name in rows.schema.names if name != column]
    live = engine.select(live, dict(zip(stored_columns, stored_columns, strict=True)))
    keys = _key_aliases(spec.primary_key)
    tombstones = engine.select(marked, {**keys, "t": str(spec.event_time)})
    query = _LAST_TOMBSTONES.format(keys=", ".join(keys))
    deleted = engine.stream(
        engine.sql(query, tables={"dead": tombstones}, parameters={})
    ).read_all()
    return live, deleted.to_pylist()


def delete_tombstones(
    session: Session,
    spec: JobSpec,
    version: int,
    deleted_keys: Sequence[dict[str, Any]],
    *,
    run_id: str,
) -> None:
    """Delete the rows of keys up to the time of their tombstones."""
    """Delete the rows of keys up to the times of their tombstones."""
    conditions = []
    for each in deleted_keys:
        timestamp = _literal(each.pop("t"))
        conditions.append(f'({_same_key(spec, each)} AND "{spec.event_time}" <= {timestamp})')
    _delete(session, spec, version, conditions, run_id=run_id)


def delete_missing(
    session: Session, spec: JobSpec, version: int, source_keys: Relation, *, run_id: str
) -> None:
    """Delete the rows of keys that a source no longer has.

    Raises:
        SourceChanged: The source has no keys at all, which is more likely a fault than intended.
    """
    engine = session.engine
    if engine.count(source_keys) == 0:
        raise SourceChanged(
            f"Job {spec.name!r}: its source has no rows at all, so nothing was deleted.",
            hint="if that is correct: delete_from_featuregroup(name, 'true')",
        )
    group = open_group(session, spec.target, version)
    columns = _key_aliases(spec.primary_key)
    stored = engine.read_table(
        group.path, version=group.delta_version, schema=group.spec.schema, columns=spec.primary_key
    )
    present = [f"held.{name} IS NOT NULL" for name in columns]
    equal = [f"given.{name} = held.{name}" for name in columns]
    query = _MISSING.format(
        keys=", ".join(columns), present=" AND ".join(present), same=" AND ".join(equal)
    )
    tables = {"held": engine.select(stored, columns), "given": engine.select(source_keys, columns)}
    missing = engine.sql(query, tables=tables, parameters={})
    conditions = [
        f"({_same_key(spec, key)})" for batch in engine.stream(missing) for key in batch.to_pylist()
    ]
    _delete(session, spec, version, conditions, run_id=run_id)


def _key_aliases(columns: Sequence[str]) -> dict[str, str]:
    return {f"k{number}": name for number, name in enumerate(columns)}


def _delete(
    session: Session, spec: JobSpec, version: int, conditions: Sequence[str], *, run_id: str
) -> None:
    ordered = sorted(conditions)
    chunks = [
        ordered[start : start + _KEYS_PER_COMMIT]
        for start in range(0, len(ordered), _KEYS_PER_COMMIT)
    ]
    for number, chunk in enumerate(chunks):
        where = " OR ".join(chunk)
        delete_rows(session, spec.target, where, version=version, run_id=f"{run_id}-d{number}")
        _log.info("%d keys deleted", len(chunk))


def _same_key(spec: JobSpec, values: dict[str, Any]) -> str:
    """Return the condition that a row has a key, in DuckDB's SQL."""
    pairs = zip(spec.primary_key, values.values(), strict=True)
    return " AND ".join([f'"{name}" = {_literal(value)}' for name, value in pairs])


def _literal(value: object) -> str:
    """Return a key or time as a literal of DuckDB's SQL; DuckDB casts texts to times."""
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
