"""Writes of stream records: each row is checked separately, then one row per key is written.

Rows are ordered by partition and offset of their records. The result does not depend on batch
boundaries, because rows are compared with the other rows of the batch and with the stored rows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp

from featurestore.arrow.column_lines import quoted
from featurestore.delta.snapshot import read_snapshot
from featurestore.featuregroups import checks
from featurestore.featuregroups.checks import warn_about_implausible_times
from featurestore.featuregroups.conform import Batch
from featurestore.featuregroups.table import OpenGroup
from featurestore.ingest import open_relation
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.plugins.engine import Accumulator, Engine, Relation
from featurestore.recovery.in_flight import InFlight
from featurestore.session import Session
from featurestore.validation import audit
from featurestore.validation.checks import Subject
from featurestore.validation.quarantine import quarantine_schema

PARTITION, OFFSET = "record_partition", "record_offset"
REPEATED = "another record has the same key and times"
_IS_MARKED = "__fs_lost"
_TIME = "__fs_time"
_MAX_TIME = 2**63 - 1


@dataclass(frozen=True)
class RecordOrder:
    """Options for records with duplicate keys, and for records that delete rows.

    ``columns`` are the record columns of the rows, including partition and offset, in addition to
    the columns of the group. ``on_duplicates`` selects the row that is written for a key: "last",
    "first", or "quarantine", which writes the first row and quarantines the others. ``deleted`` has
    the primary keys of delete records, with partition and offset. ``written_positions`` collects
    the positions of written records when quarantined records are written again.

    ``is_log_time`` is set if the event time is the time at which a database logged a change. Then a
    new change replaces the earlier records of its primary key that have a later event time, such as
    rows of a snapshot, whose event time is that of the snapshot. A change is new if no earlier
    record has its key and event time. Other changes are repetitions, which replace nothing.
    """

    on_duplicates: str
    columns: pa.Schema
    deleted: pa.Table | None = None
    written_positions: list[pa.Table] | None = None
    is_log_time: bool = False


def ranges_of_positions(positions: pa.Table) -> dict[str, list[list[int]]]:
    """Convert partitions and offsets to a JSON object of inclusive offset ranges by partition.

    >>> places = pa.table({"record_partition": [0, 0, 0], "record_offset": [8, 4, 5]})
    >>> ranges_of_positions(places)
    {'0': [[4, 5], [8, 8]]}
    """
    numbers, offsets = positions.column(PARTITION).to_numpy(), positions.column(OFFSET).to_numpy()
    ranges = {}
    for number in np.unique(numbers):
        # Positions are stored in the commit metadata, where ranges of consecutive offsets need less
        # space.
        present = np.sort(offsets[numbers == number])
        runs = np.split(present, np.flatnonzero(np.diff(present) != 1) + 1)
        ranges[str(number)] = [[int(run[0]), int(run[-1])] for run in runs]
    return ranges


def positions_of_ranges(ranges: Mapping[str, Any]) -> pa.Table:
    """Convert the ranges of ``ranges_of_positions`` back to partitions and offsets.

    >>> positions_of_ranges({"0": [[4, 5], [8, 8]]}).column("record_offset").to_pylist()
    [4, 5, 8]
    """
    numbers: list[int] = []
    offsets: list[int] = []
    for number, runs in ranges.items():
        for first, last in runs:
            offsets += range(first, last + 1)
            numbers += [int(number)] * (last + 1 - first)
    columns = [pa.array(numbers, pa.int32()), pa.array(offsets, pa.int64())]
    return pa.table(columns, [PARTITION, OFFSET])


def has_repeated_keys(session: Session, rows: object, group: OpenGroup) -> bool:
    """Return True if the rows have duplicate keys or keys that are already in the table.

    ``rows`` must be readable more than once. Groups without a primary key have no duplicates.
    """
    spec, engine = group.spec, session.engine
    if not spec.primary_key:
        return False
    keys = {name: name for name in spec.upsert_key}
    with open_relation(rows, engine=engine, like=spec.schema) as relation:
        if engine.duplicates(engine.select(relation, keys), spec.upsert_key, limit=1)[0]:
            return True
    with open_relation(rows, engine=engine, like=spec.schema) as relation:
        stored_keys = _read_stored_keys(engine, relation, group)
    if stored_keys is None:
        return False
    with open_relation(rows, engine=engine, like=spec.schema) as relation:
        same = _equality_condition("batch", "stored", spec.upsert_key)
        query = f"SELECT 1 AS n FROM stored WHERE EXISTS (SELECT 1 FROM batch WHERE {same}) LIMIT 1"
        tables = {"batch": engine.select(relation, keys), "stored": stored_keys}
        return engine.count(_run_query(engine, query, tables)) > 0


def has_decreasing_times(session: Session, rows: object, group: OpenGroup) -> bool:
    """Return True if a row has an earlier event time than an earlier record of its primary key.

    ``rows`` have partition and offset of their records, and must be readable more than once.
    """
    spec, engine = group.spec, session.engine
    keys = ", ".join(map(quoted, (*spec.primary_key, PARTITION)))
    time = quoted(spec.event_time or "")
    latest = (
        f"SELECT {time} AS {_TIME}, max({time}) OVER (PARTITION BY {keys} ORDER BY {OFFSET} "
        "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS n FROM batch"
    )
    query = f"SELECT 1 AS n FROM ({latest}) AS times WHERE n > {_TIME} LIMIT 1"
    with open_relation(rows, engine=engine, like=spec.schema) as relation:
        if engine.count(_run_query(engine, query, {"batch": relation})):
            return True
    with open_relation(rows, engine=engine, like=spec.schema) as relation:
        stored_keys = _read_stored_keys(engine, relation, group, with_later=True)
    if stored_keys is None:
        return False
    same = _equality_condition("batch", "stored", spec.primary_key)
    query = (
        "SELECT 1 AS n FROM stored WHERE EXISTS "
        f"(SELECT 1 FROM batch WHERE {same} AND batch.{time} < stored.{time}) LIMIT 1"
    )
    with open_relation(rows, engine=engine, like=spec.schema) as relation:
        tables = {"batch": relation, "stored": stored_keys}
        return engine.count(_run_query(engine, query, tables)) > 0


def prepare_records(
    session: Session,
    batch: Batch,
    group: OpenGroup,
    *,
    order: RecordOrder,
    validation: str,
    run: InFlight,
) -> Batch:
    """Check records and return the rows to commit, with the mode of the commit.

    Rows that fail a check are quarantined before duplicate keys are resolved, so that the result
    does not depend on batch boundaries.

    Args:
        session: The connection.
        batch: The rows, with the columns of ``order``.
        group: The group before the write.
        order: The options for duplicate keys.
        validation: The validation policy.
        run: The write.

    Raises:
        ValidationFailed: Rows fail a check under the policy "strict".
    """
    engine, spec = session.engine, batch.spec
    # Each stage has its own folder, because an engine may empty the folder before it reads the
    # rows.
    staged = engine.stage(batch.relation, os.path.join(run.rows, "given"))
    names = {name: name for name in spec.schema.names}
    rules = checks.ValueRules.for_group(spec, has_checked_values=False)
    checks.check_staged_rows(engine.select(staged, names), rules, engine=engine)
    batch = replace(batch, relation=staged)
    if validation != "off":
        # The audit receives no key, because duplicate keys are resolved afterwards.
        subject = Subject(spec.name, spec.version, staged.schema, (), spec.event_time)
        outcome = audit(
            staged,
            spec=subject,
            validation=validation,
            engine=engine,
            expectations=spec.expectations,
            event_time_tolerance=spec.event_time_tolerance,
            directory=os.path.join(run.rows, "parted"),
            run_id=run.run_id,
        )
        batch = replace(
            batch, relation=outcome.good, report=outcome.report, quarantined=outcome.quarantined
        )
        warn_about_implausible_times(outcome.report, spec)
    if not spec.primary_key:
        _add_written_positions(engine, batch.relation, order)
        return replace(batch, relation=engine.select(batch.relation, names))
    return _resolve_duplicates(session, batch, group, order=order, run=run)


def _resolve_duplicates(
    session: Session, batch: Batch, group: OpenGroup, *, order: RecordOrder, run: InFlight
) -> Batch:
    """Return a batch with one row per key, the quarantined duplicates, and the keys to delete."""
    engine, spec, good = session.engine, batch.spec, batch.relation
    key = spec.upsert_key
    stored_keys = _read_stored_keys(engine, good, group, with_later=order.is_log_time)
    tables = {"batch": engine.select(good, {name: name for name in (*key, PARTITION, OFFSET)})}
    deleted = order.deleted
    if deleted is not None:
        tables["deleted"] = _stage_deleted_keys(engine, deleted, spec, run)
    if stored_keys is not None:
        tables["stored"] = stored_keys
    deleted_positions = _Positions()
    if deleted is not None:
        query = f"SELECT {PARTITION}, {OFFSET} FROM batch WHERE {_deleted_condition(spec)}"
        deleted_positions = _query_positions(engine, query, tables)
    repeated_positions = _query_positions(
        engine, _repeated_positions_query(spec, order, tables), tables
    )
    unwritten_positions = deleted_positions.merge(repeated_positions)
    if order.is_log_time:
        query = _replaced_positions_query(spec, tables)
        unwritten_positions = unwritten_positions.merge(_query_positions(engine, query, tables))
    marked = _mark_rows(engine, good, unwritten_positions)
    names = {name: name for name in spec.schema.names}
    written_rows = engine.filter(marked, f"NOT {_IS_MARKED}")
    _add_written_positions(engine, written_rows, order)
    rows = engine.stage(engine.select(written_rows, names), os.path.join(run.rows, "written"))
    quarantined = batch.quarantined
    if order.on_duplicates == "quarantine" and repeated_positions.count:
        copies = engine.filter(_mark_rows(engine, good, repeated_positions), _IS_MARKED)
        copies = engine.map_batches(
            copies, _AddReason(good.schema), schema=quarantine_schema(good.schema)
        )
        quarantined = copies if quarantined is None else _union_rows(engine, quarantined, copies)
    deleted_keys = None
    if deleted is not None:
        # A delete applies to rows of any time.
        tables["stored"] = engine.read_table(group.path, columns=key)
    if deleted is not None or (order.is_log_time and stored_keys is not None):
        query = _deleted_keys_query(spec, order)
        deleted_keys = engine.stage(
            _run_query(engine, query, {**tables, "batch": rows}), os.path.join(run.rows, "outgoing")
        )
        deleted_keys = deleted_keys if engine.count(deleted_keys) else None
    # An append adds only files. An upsert also rewrites files, so it is used only if stored rows
    # are replaced or deleted.
    replaces = deleted_keys is not None or _has_matches(engine, rows, stored_keys, key)
    return replace(
        batch,
        relation=rows,
        quarantined=quarantined,
        unique=True,
        mode="upsert" if replaces else "append",
        deletes=deleted_keys,
    )


@dataclass(frozen=True)
class _Positions:
    """Partitions and offsets of records."""

    offsets: Mapping[int, Sequence[int]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(map(len, self.offsets.values()))

    def merge(self, more: _Positions) -> _Positions:
        merged = {number: list(offsets) for number, offsets in self.offsets.items()}
        for number, offsets in more.offsets.items():
            merged.setdefault(number, []).extend(offsets)
        return _Positions(merged)


@dataclass(frozen=True)
class _MarkPositions:
    """Batch function that adds a boolean column, true for rows at the given record positions."""

    positions: _Positions
    schema: pa.Schema

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        numbers = batch.column(PARTITION).to_numpy(zero_copy_only=False)
        offsets = batch.column(OFFSET).to_numpy(zero_copy_only=False)
        marked = np.zeros(batch.num_rows, dtype=np.bool_)
        for number, marked_offsets in self.positions.offsets.items():
            marked |= (numbers == number) & np.isin(
                offsets, np.asarray(marked_offsets, dtype=np.int64)
            )
        columns = [batch.column(name) for name in self.schema.names[:-1]]
        return pa.RecordBatch.from_arrays([*columns, pa.array(marked)], schema=self.schema)


@dataclass(frozen=True)
class _AddReason:
    """Batch function that adds the column ``reasons`` to duplicate rows for the quarantine."""

    schema: pa.Schema

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [batch.column(name) for name in self.schema.names]
        kind = pa.list_(pa.field("item", pa.string()))
        reasons = pa.array([[REPEATED]] * batch.num_rows, kind)
        return pa.RecordBatch.from_arrays(
            [*columns, reasons], schema=quarantine_schema(self.schema)
        )


@dataclass(frozen=True)
class _TimeRangeAccumulator(Accumulator[Any, Any]):
    """Accumulator of minimum and maximum of a time column, as integers of the storage type.

    For a column without values, the result becomes None.
    """

    kind: pa.DataType

    def start(self) -> Any:
        return None

    def update(self, state: Any, batch: pa.RecordBatch) -> Any:
        values = batch.column(0)
        if values.type != self.kind:
            values = values.cast(self.kind)
        number = pa.int32() if pa.types.is_date(self.kind) else pa.int64()
        extremes = pc.min_max(values.cast(number))
        if not extremes["min"].is_valid:
            return state
        return self.merge(state, (extremes["min"].as_py(), extremes["max"].as_py()))

    def merge(self, first: Any, second: Any) -> Any:
        if first is None or second is None:
            return first or second
        return min(first[0], second[0]), max(first[1], second[1])

    def finish(self, state: Any) -> Any:
        return state


def _read_stored_keys(
    engine: Engine, rows: Relation, group: OpenGroup, *, with_later: bool = False
) -> Relation | None:
    """Return the stored keys in the time range of the rows, or None if there are none.

    ``with_later`` also returns the keys with later times.
    """
    state, spec = read_snapshot(group.path), group.spec
    time = spec.event_time
    if not state.rows:
        return None
    predicate = None
    if time is not None:
        kind = state.schema.field(time).type
        extremes = engine.aggregate(engine.select(rows, {time: time}), _TimeRangeAccumulator(kind))
        if extremes is None:
            return None
        # The time statistics of the files may exclude matches without reading rows.
        bounds = state.bounds(time)
        low, high = extremes
        last = _MAX_TIME if with_later else high
        if bounds is not None and not bounds.may_contain(low, last).any():
            return None
        high = None if with_later else high
        predicate = _time_range_condition(engine, time, kind, low, high)
    stored_rows = engine.read_table(group.path, version=state.version, columns=spec.upsert_key)
    stored_rows = engine.select(stored_rows, {name: name for name in spec.upsert_key})
    return stored_rows if predicate is None else engine.filter(stored_rows, predicate)


def _time_range_condition(
    engine: Engine, time: str, kind: pa.DataType, low: int, high: int | None
) -> str:
    """Return the SQL condition for a range of times, in the engine's dialect."""
    column = exp.column(time, quoted=True)
    condition: exp.Expression = exp.GTE(this=column, expression=_time_literal(low, kind))
    if high is not None:
        condition = column.between(_time_literal(low, kind), _time_literal(high, kind))
    return condition.sql(dialect=engine.dialect)


def _time_literal(number: int, kind: pa.DataType) -> exp.Expression:
    """Return an instant in the storage type of a time column as SQL."""
    type_name = "DATE" if pa.types.is_date(kind) else "TIMESTAMPTZ"
    instant = pa.scalar(number, pa.int32() if type_name == "DATE" else pa.int64())
    text = exp.Literal.string(str(instant.cast(kind).cast(pa.string()).as_py()))
    return exp.cast(text, type_name, dialect="duckdb")


def _repeated_positions_query(
    spec: FeatureGroupSpec, order: RecordOrder, tables: Mapping[str, Relation]
) -> str:
    """Return the query for positions of rows that are not written because their key is repeated."""
    keys = ", ".join(map(quoted, spec.upsert_key))
    direction = "DESC" if order.on_duplicates == "last" else "ASC"
    live = "SELECT * FROM batch"
    if "deleted" in tables:
        live += f" WHERE NOT ({_deleted_condition(spec)})"
    repeated = (
        f"SELECT {PARTITION}, {OFFSET}, row_number() OVER (PARTITION BY {keys} "
        f"ORDER BY {PARTITION} {direction}, {OFFSET} {direction}) AS n FROM live"
    )
    query = f"SELECT {PARTITION}, {OFFSET} FROM ({repeated}) AS numbered WHERE n > 1"
    if "stored" in tables and order.on_duplicates != "last":
        same = _equality_condition("live", "stored", spec.upsert_key)
        query += (
            f" UNION SELECT {PARTITION}, {OFFSET} FROM live "
            f"WHERE EXISTS (SELECT 1 FROM stored WHERE {same})"
        )
    return f"WITH live AS ({live}) {query}"


def _deleted_condition(spec: FeatureGroupSpec) -> str:
    # A delete applies to earlier records of its partition. Offsets of different partitions are not
    # comparable.
    same = _equality_condition("batch", "deleted", (*spec.primary_key, PARTITION))
    return f"EXISTS (SELECT 1 FROM deleted WHERE {same} AND deleted.{OFFSET} > batch.{OFFSET})"


def _replaced_positions_query(spec: FeatureGroupSpec, tables: Mapping[str, Relation]) -> str:
    """Return the query for positions of rows that a later record with an earlier time replaces."""
    keys = ", ".join(map(quoted, (*spec.primary_key, PARTITION)))
    time = quoted(spec.event_time or "")
    live = "SELECT * FROM batch"
    if "deleted" in tables:
        live += f" WHERE NOT ({_deleted_condition(spec)})"
    is_new = "n = 1"
    if "stored" in tables:
        same = _equality_condition("counted", "stored", (*spec.primary_key, spec.event_time or ""))
        is_new += f" AND NOT EXISTS (SELECT 1 FROM stored WHERE {same})"
    return (
        f"WITH live AS ({live}), counted AS (SELECT *, row_number() OVER "
        f"(PARTITION BY {keys}, {time} ORDER BY {OFFSET}) AS n FROM live), "
        f"changes AS (SELECT *, CASE WHEN {is_new} THEN {time} END AS {_TIME} FROM counted), "
        f"following AS (SELECT *, min({_TIME}) OVER (PARTITION BY {keys} ORDER BY {OFFSET} "
        f"ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS next_time FROM changes) "
        f"SELECT {PARTITION}, {OFFSET} FROM following WHERE next_time < {time}"
    )


def _deleted_keys_query(spec: FeatureGroupSpec, order: RecordOrder) -> str:
    """Return the query for keys of stored rows that are deleted and not replaced."""
    keys = ", ".join(map(quoted, spec.upsert_key))
    changes = "SELECT 1 AS n"
    conditions = []
    if order.deleted is not None:
        same = _equality_condition("stored", "deleted", spec.primary_key)
        conditions.append(f"EXISTS (SELECT 1 FROM deleted WHERE {same})")
    if order.is_log_time:
        time, names = quoted(spec.event_time or ""), ", ".join(map(quoted, spec.primary_key))
        same = _equality_condition("batch", "stored", (*spec.primary_key, spec.event_time or ""))
        changes = (
            f"SELECT {names}, min({time}) AS {_TIME} FROM batch "
            f"WHERE NOT EXISTS (SELECT 1 FROM stored WHERE {same}) GROUP BY {names}"
        )
        same = _equality_condition("stored", "changes", spec.primary_key)
        conditions.append(
            f"EXISTS (SELECT 1 FROM changes WHERE {same} AND changes.{_TIME} < stored.{time})"
        )
    same = _equality_condition("stored", "batch", spec.upsert_key)
    return (
        f"WITH changes AS ({changes}) SELECT DISTINCT {keys} FROM stored "
        f"WHERE ({' OR '.join(conditions)}) AND NOT EXISTS (SELECT 1 FROM batch WHERE {same})"
    )


def _has_matches(
    engine: Engine, rows: Relation, stored_keys: Relation | None, key: Sequence[str]
) -> bool:
    """Return True if a key of the rows is among the stored keys."""
    if stored_keys is None:
        return False
    same = _equality_condition("batch", "stored", key)
    query = f"SELECT 1 AS n FROM batch WHERE EXISTS (SELECT 1 FROM stored WHERE {same}) LIMIT 1"
    return engine.count(_run_query(engine, query, {"batch": rows, "stored": stored_keys})) > 0


def _stage_deleted_keys(
    engine: Engine, deleted: pa.Table, spec: FeatureGroupSpec, run: InFlight
) -> Relation:
    """Stage deleted keys with the column types of the group, so that they can be read repeatedly."""
    columns = {}
    for name in deleted.schema.names:
        column = deleted.column(name)
        if name in spec.primary_key:
            column = column.cast(spec.schema.field(name).type)
        columns[name] = column
    relation = engine.from_arrow(pa.table(columns).to_reader())
    return engine.stage(relation, os.path.join(run.rows, "deleted"))


def _query_positions(engine: Engine, query: str, tables: Mapping[str, Relation]) -> _Positions:
    """Run a query and return the partitions and offsets of its result."""
    position_rows = engine.stream(_run_query(engine, query, tables)).read_all()
    numbers = position_rows.column(0).to_numpy()
    offsets = position_rows.column(1).to_numpy()
    offsets_by_partition = {}
    for number in np.unique(numbers):
        offsets_by_partition[int(number)] = offsets[numbers == number].tolist()
    return _Positions(offsets_by_partition)


def _add_written_positions(engine: Engine, rows: Relation, order: RecordOrder) -> None:
    if order.written_positions is not None:
        positions = engine.select(rows, {name: name for name in (PARTITION, OFFSET)})
        order.written_positions.append(engine.stream(positions).read_all())


def _mark_rows(engine: Engine, rows: Relation, positions: _Positions) -> Relation:
    schema = rows.schema.append(pa.field(_IS_MARKED, pa.bool_()))
    return engine.map_batches(rows, _MarkPositions(positions, schema), schema=schema)


def _union_rows(engine: Engine, first: Relation, second: Relation) -> Relation:
    names = ", ".join(map(quoted, [*first.schema.names]))
    query = f"SELECT {names} FROM first_rows UNION ALL SELECT {names} FROM second_rows"
    return _run_query(engine, query, {"first_rows": first, "second_rows": second})


def _run_query(engine: Engine, query: str, tables: Mapping[str, Relation]) -> Relation:
    """Transpile a query from DuckDB's dialect to the engine's, and return its result."""
    (text,) = sqlglot.transpile(query, read="duckdb", write=engine.dialect)
    used_tables = {name: relation for name, relation in tables.items() if name in query}
    return engine.sql(text, tables=used_tables, parameters={})


def _equality_condition(first: str, second: str, names: Sequence[str]) -> str:
    pairs = [f"{first}.{quoted(name)} = {second}.{quoted(name)}" for name in names]
    return " AND ".join(pairs)
