"""Rows of a stream: each is checked by itself, then at most one row per key is written.

The order of rows is that of their records: the offset within a partition. Where a batch ends decides
nothing: rows are compared with those of the batch and with those that the table has already.
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

from featurestore.delta.snapshot import read_snapshot
from featurestore.featuregroups import stored_values
from featurestore.featuregroups.audit import AuditedRows
from featurestore.featuregroups.table import OpenGroup
from featurestore.featuregroups.times import warn_of_odd_times
from featurestore.ingest import handed_over
from featurestore.model.column_lines import quoted
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.plugins.engine import Accumulator, Engine, Relation
from featurestore.recovery.in_flight import InFlight
from featurestore.session import Session
from featurestore.validation import audit
from featurestore.validation.quarantine import quarantine_schema
from featurestore.validation.subject import Subject

PARTITION, OFFSET = "record_partition", "record_offset"
REPEATED = "another record has the same key and times"
_LOST = "__fs_lost"


@dataclass(frozen=True)
class RecordOrder:
    """How rows of records become those of a group.

    ``columns`` are columns of records that the rows have beside those of the group, partition and
    offset among them. ``on_duplicates`` says which row of a key is written: "last", "first", or the
    first one while the others go to the "quarantine". ``deleted`` has the primary keys that records
    delete, with partition and offset. ``landed`` is given where the records come from the quarantine,
    to which rows that are not written need not go again: it gets the places of those that are.
    """

    on_duplicates: str
    columns: pa.Schema
    deleted: pa.Table | None = None
    landed: list[pa.Table] | None = None


def ranges_of_places(places: pa.Table) -> dict[str, list[list[int]]]:
    """Return partitions and offsets as a JSON object of ranges, both ends included.

    >>> places = pa.table({"record_partition": [0, 0, 0], "record_offset": [8, 4, 5]})
    >>> ranges_of_places(places)
    {'0': [[4, 5], [8, 8]]}
    """
    numbers, offsets = places.column(PARTITION).to_numpy(), places.column(OFFSET).to_numpy()
    ranges = {}
    for number in np.unique(numbers):
        present = np.sort(offsets[numbers == number])
        runs = np.split(present, np.flatnonzero(np.diff(present) != 1) + 1)
        ranges[str(number)] = [[int(run[0]), int(run[-1])] for run in runs]
    return ranges


def places_of_ranges(ranges: Mapping[str, Any]) -> pa.Table:
    """Return the partitions and offsets that ``ranges_of_places`` wrote.

    >>> places_of_ranges({"0": [[4, 5], [8, 8]]}).column("record_offset").to_pylist()
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


def needs_order(session: Session, rows: object, group: OpenGroup) -> bool:
    """Return whether a key occurs twice among the rows, or is in the table already.

    ``rows`` can be read more than once. Without a primary key nothing is a duplicate.
    """
    spec, engine = group.spec, session.engine
    if not spec.primary_key:
        return False
    keys = {name: name for name in spec.upsert_key}
    with handed_over(rows, engine=engine, like=spec.schema) as relation:
        if engine.duplicates(engine.select(relation, keys), spec.upsert_key, limit=1)[0]:
            return True
    with handed_over(rows, engine=engine, like=spec.schema) as relation:
        stored = _stored_near(engine, relation, group)
    if stored is None:
        return False
    with handed_over(rows, engine=engine, like=spec.schema) as relation:
        same = _equal("batch", "stored", spec.upsert_key)
        query = f"SELECT 1 AS n FROM stored WHERE EXISTS (SELECT 1 FROM batch WHERE {same}) LIMIT 1"
        tables = {"batch": engine.select(relation, keys), "stored": stored}
        return engine.count(_run(engine, query, tables)) > 0


def prepare_records(
    session: Session,
    relation: Relation,
    spec: FeatureGroupSpec,
    group: OpenGroup,
    *,
    order: RecordOrder,
    validation: str,
    run: InFlight,
) -> AuditedRows:
    """Return the rows that may be committed, and how.

    Rows that fail checks go to the quarantine before rows of one key are compared, so that it does
    not matter in which batch they came.

    Args:
        session: The connection.
        relation: The rows, with the columns of ``order``.
        spec: The group, with columns that it gains by this write.
        group: The group as it was opened.
        order: How rows of one key become one.
        validation: The policy of the checks.
        run: The write.

    Raises:
        ValidationFailed: Rows do not pass under "strict".
    """
    engine = session.engine
    # Each stage has a folder of its own: an engine may empty one before it reads.
    staged = engine.stage(relation, os.path.join(run.rows, "given"))
    names = {name: name for name in spec.schema.names}
    rules = stored_values.ValueRules.of(spec, has_checked_values=False)
    stored_values.check_staged(engine.select(staged, names), rules, engine=engine)
    good, audited = staged, AuditedRows(staged)
    if validation != "off":
        subject = Subject(spec.name, spec.version, staged.schema, (), spec.event_time)
        found = audit(
            staged,
            spec=subject,
            validation=validation,
            engine=engine,
            expectations=spec.expectations,
            event_time_tolerance=spec.event_time_tolerance,
            directory=os.path.join(run.rows, "parted"),
            run_id=run.run_id,
        )
        good = found.good
        audited = AuditedRows(good, found.report, found.quarantined)
        warn_of_odd_times(audited, spec)
    if not spec.primary_key:
        _note_places(engine, good, order)
        return replace(audited, relation=engine.select(good, names))
    return _one_per_key(session, good, spec, group, order=order, audited=audited, run=run)


def _one_per_key(
    session: Session,
    good: Relation,
    spec: FeatureGroupSpec,
    group: OpenGroup,
    *,
    order: RecordOrder,
    audited: AuditedRows,
    run: InFlight,
) -> AuditedRows:
    engine, key = session.engine, spec.upsert_key
    stored = _stored_near(engine, good, group)
    tables = {"batch": engine.select(good, {name: name for name in (*key, PARTITION, OFFSET)})}
    deleted = order.deleted
    if deleted is not None:
        tables["deleted"] = _typed(engine, deleted, spec, run)
    if stored is not None:
        tables["stored"] = stored
    lost = _Places()
    if deleted is not None:
        query = f"SELECT {PARTITION}, {OFFSET} FROM batch WHERE {_is_deleted(spec)}"
        lost = _places(engine, query, tables)
    repeated = _places(engine, _repeated_rows(spec, order, tables), tables)
    marked = _marked(engine, good, lost.joined(repeated))
    names = {name: name for name in spec.schema.names}
    chosen = engine.filter(marked, f"NOT {_LOST}")
    _note_places(engine, chosen, order)
    rows = engine.stage(engine.select(chosen, names), os.path.join(run.rows, "written"))
    quarantined = audited.quarantined
    if order.on_duplicates == "quarantine" and repeated.count:
        copies = engine.filter(_marked(engine, good, repeated), _LOST)
        copies = engine.map_batches(
            copies, _WithReason(good.schema), schema=quarantine_schema(good.schema)
        )
        quarantined = copies if quarantined is None else _both(engine, quarantined, copies)
    outgoing = None
    if deleted is not None:
        outgoing = _outgoing(engine, rows, spec, group, tables["deleted"], run)
    replaces = outgoing is not None or _matches(engine, rows, stored, key)
    return replace(
        audited,
        relation=rows,
        quarantined=quarantined,
        unique=True,
        mode="upsert" if replaces else "append",
        deletes=outgoing,
    )


@dataclass(frozen=True)
class _Places:
    """Partitions and offsets of records."""

    offsets: Mapping[int, Sequence[int]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(map(len, self.offsets.values()))

    def joined(self, other: _Places) -> _Places:
        merged = {number: list(offsets) for number, offsets in self.offsets.items()}
        for number, offsets in other.offsets.items():
            merged.setdefault(number, []).extend(offsets)
        return _Places(merged)


@dataclass(frozen=True)
class _Mark:
    """Adds to each row whether its record is one of some places."""

    places: _Places
    schema: pa.Schema

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        numbers = batch.column(PARTITION).to_numpy(zero_copy_only=False)
        offsets = batch.column(OFFSET).to_numpy(zero_copy_only=False)
        marked = np.zeros(batch.num_rows, dtype=np.bool_)
        for number, lost in self.places.offsets.items():
            marked |= (numbers == number) & np.isin(offsets, np.asarray(lost, dtype=np.int64))
        columns = [batch.column(name) for name in self.schema.names[:-1]]
        return pa.RecordBatch.from_arrays([*columns, pa.array(marked)], schema=self.schema)


@dataclass(frozen=True)
class _WithReason:
    """Adds the reason of repeated rows, as quarantine tables have them."""

    schema: pa.Schema

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [batch.column(name) for name in self.schema.names]
        kind = pa.list_(pa.field("item", pa.string()))
        reasons = pa.array([[REPEATED]] * batch.num_rows, kind)
        return pa.RecordBatch.from_arrays(
            [*columns, reasons], schema=quarantine_schema(self.schema)
        )


@dataclass(frozen=True)
class _Extremes(Accumulator[Any, Any]):
    """The first and the last instant of a column as the log counts them; None without rows."""

    kind: pa.DataType

    def start(self) -> Any:
        return None

    def update(self, state: Any, batch: pa.RecordBatch) -> Any:
        values = batch.column(0)
        if values.type != self.kind:
            values = values.cast(self.kind)
        number = pa.int32() if pa.types.is_date(self.kind) else pa.int64()
        found = pc.min_max(values.cast(number))
        if not found["min"].is_valid:
            return state
        return self.merge(state, (found["min"].as_py(), found["max"].as_py()))

    def merge(self, left: Any, right: Any) -> Any:
        if left is None or right is None:
            return left or right
        return min(left[0], right[0]), max(left[1], right[1])

    def finish(self, state: Any) -> Any:
        return state


def _stored_near(engine: Engine, rows: Relation, group: OpenGroup) -> Relation | None:
    """Return the keys that the table has within the times of some rows; None for no keys."""
    state, spec = read_snapshot(group.path), group.spec
    time = spec.event_time
    if not state.rows:
        return None
    predicate = None
    if time is not None:
        kind = state.schema.field(time).type
        extremes = engine.aggregate(engine.select(rows, {time: time}), _Extremes(kind))
        if extremes is None:
            return None
        bounds = state.bounds(time)
        if bounds is not None and not bounds.may_contain(*extremes).any():
            return None
        predicate = _between(engine, time, kind, extremes)
    stored = engine.read_table(group.path, version=state.version, columns=spec.upsert_key)
    stored = engine.select(stored, {name: name for name in spec.upsert_key})
    return stored if predicate is None else engine.filter(stored, predicate)


def _between(engine: Engine, time: str, kind: pa.DataType, extremes: tuple[int, int]) -> str:
    """Return the condition that a time lies between two instants, in the engine's dialect."""
    type_name = "DATE" if pa.types.is_date(kind) else "TIMESTAMPTZ"
    sides = []
    for number in extremes:
        instant = pa.scalar(number, pa.int32() if type_name == "DATE" else pa.int64())
        text = exp.Literal.string(str(instant.cast(kind).cast(pa.string()).as_py()))
        sides.append(exp.cast(text, type_name, dialect="duckdb"))
    low, high = sides
    return exp.column(time, quoted=True).between(low, high).sql(dialect=engine.dialect)


def _repeated_rows(
    spec: FeatureGroupSpec, order: RecordOrder, tables: Mapping[str, Relation]
) -> str:
    """Return the query for the rows of a key that are not the one to be written."""
    keys = ", ".join(map(quoted, spec.upsert_key))
    direction = "DESC" if order.on_duplicates == "last" else "ASC"
    live = "SELECT * FROM batch"
    if "deleted" in tables:
        live += f" WHERE NOT ({_is_deleted(spec)})"
    repeated = (
        f"SELECT {PARTITION}, {OFFSET}, row_number() OVER (PARTITION BY {keys} "
        f"ORDER BY {PARTITION} {direction}, {OFFSET} {direction}) AS n FROM live"
    )
    query = f"SELECT {PARTITION}, {OFFSET} FROM ({repeated}) AS numbered WHERE n > 1"
    if "stored" in tables and order.on_duplicates != "last":
        same = _equal("live", "stored", spec.upsert_key)
        query += (
            f" UNION SELECT {PARTITION}, {OFFSET} FROM live "
            f"WHERE EXISTS (SELECT 1 FROM stored WHERE {same})"
        )
    return f"WITH live AS ({live}) {query}"


def _is_deleted(spec: FeatureGroupSpec) -> str:
    same = _equal("batch", "deleted", (*spec.primary_key, PARTITION))
    return f"EXISTS (SELECT 1 FROM deleted WHERE {same} AND deleted.{OFFSET} > batch.{OFFSET})"


def _outgoing(
    engine: Engine,
    rows: Relation,
    spec: FeatureGroupSpec,
    group: OpenGroup,
    deleted: Relation,
    run: InFlight,
) -> Relation | None:
    """Return the keys of stored rows that records delete and no row replaces; None for none."""
    stored = engine.read_table(group.path, columns=spec.upsert_key)
    tables = {"stored": stored, "deleted": deleted, "batch": rows}
    keys = ", ".join(map(quoted, spec.upsert_key))
    query = (
        f"SELECT DISTINCT {keys} FROM stored WHERE "
        f"EXISTS (SELECT 1 FROM deleted WHERE {_equal('stored', 'deleted', spec.primary_key)}) "
        f"AND NOT EXISTS (SELECT 1 FROM batch WHERE {_equal('stored', 'batch', spec.upsert_key)})"
    )
    outgoing = engine.stage(_run(engine, query, tables), os.path.join(run.rows, "outgoing"))
    return outgoing if engine.count(outgoing) else None


def _matches(engine: Engine, rows: Relation, stored: Relation | None, key: Sequence[str]) -> bool:
    """Return whether the table has a row with the key of one of the rows."""
    if stored is None:
        return False
    same = _equal("batch", "stored", key)
    query = f"SELECT 1 AS n FROM batch WHERE EXISTS (SELECT 1 FROM stored WHERE {same}) LIMIT 1"
    return engine.count(_run(engine, query, {"batch": rows, "stored": stored})) > 0


def _typed(engine: Engine, deleted: pa.Table, spec: FeatureGroupSpec, run: InFlight) -> Relation:
    """Return deleted keys in the types of the group, to be read more than once."""
    columns = {}
    for name in deleted.schema.names:
        column = deleted.column(name)
        if name in spec.primary_key:
            column = column.cast(spec.schema.field(name).type)
        columns[name] = column
    relation = engine.from_arrow(pa.table(columns).to_reader())
    return engine.stage(relation, os.path.join(run.rows, "deleted"))


def _places(engine: Engine, query: str, tables: Mapping[str, Relation]) -> _Places:
    """Return the partitions and offsets that a query gives."""
    found = engine.stream(_run(engine, query, tables)).read_all()
    numbers = found.column(0).to_numpy()
    offsets = found.column(1).to_numpy()
    places = {}
    for number in np.unique(numbers):
        places[int(number)] = offsets[numbers == number].tolist()
    return _Places(places)


def _note_places(engine: Engine, rows: Relation, order: RecordOrder) -> None:
    if order.landed is not None:
        places = engine.select(rows, {name: name for name in (PARTITION, OFFSET)})
        order.landed.append(engine.stream(places).read_all())


def _marked(engine: Engine, rows: Relation, places: _Places) -> Relation:
    schema = rows.schema.append(pa.field(_LOST, pa.bool_()))
    return engine.map_batches(rows, _Mark(places, schema), schema=schema)


def _both(engine: Engine, first: Relation, second: Relation) -> Relation:
    names = ", ".join(map(quoted, [*first.schema.names]))
    query = f"SELECT {names} FROM first_rows UNION ALL SELECT {names} FROM second_rows"
    return _run(engine, query, {"first_rows": first, "second_rows": second})


def _run(engine: Engine, query: str, tables: Mapping[str, Relation]) -> Relation:
    """Return the result of a query that is written in DuckDB's dialect."""
    (text,) = sqlglot.transpile(query, read="duckdb", write=engine.dialect)
    named = {name: relation for name, relation in tables.items() if name in query}
    return engine.sql(text, tables=named, parameters={})


def _equal(left: str, right: str, names: Sequence[str]) -> str:
    pairs = [f"{left}.{quoted(name)} = {right}.{quoted(name)}" for name in names]
    return " AND ".join(pairs)
