"""Writes of stream records: each row is checked separately, then one row per key is written.

Rows are ordered by partition and offset of their records. The result does not depend on batch
boundaries, because rows are compared with the other rows of the batch and with the stored rows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from featurestore.arrow.column_names import quoted
from featurestore.featuregroups import record_queries as queries
from featurestore.featuregroups.log_order import find_replaced_rows
from featurestore.featuregroups.record_queries import OFFSET, PARTITION
from featurestore.featuregroups.table import OpenGroup
from featurestore.ingest import open_relation
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.plugins.engine import Engine, Relation
from featurestore.session import Session
from featurestore.validation.quarantine import quarantine_schema

REPEATED = "another record has the same key and times"
_IS_MARKED = "__fs_lost"


@dataclass(frozen=True)
class RecordOrder:
    """Options for records with duplicate keys, and for records that delete rows.

    ``columns`` are the record columns of the rows, including partition and offset, in addition to
    the columns of the group. ``on_duplicates`` selects the row that is written for a key: "last",
    "first", or "quarantine", which writes the first row and quarantines the others. ``deleted`` has
    the primary keys of delete records, with partition and offset. ``written_positions`` collects
    the positions of written records when quarantined records are written again. ``is_log_time`` is
    set if the event time is the time of a change in the log of a database (``log_order``).
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
        stored_keys = queries.read_stored_keys(engine, relation, group)
    if stored_keys is None:
        return False
    with open_relation(rows, engine=engine, like=spec.schema) as relation:
        same = queries.equality_condition("batch", "stored", spec.upsert_key)
        query = f"SELECT 1 AS n FROM stored WHERE EXISTS (SELECT 1 FROM batch WHERE {same}) LIMIT 1"
        tables = {"batch": engine.select(relation, keys), "stored": stored_keys}
        return engine.count(queries.run_query(engine, query, tables)) > 0


@dataclass(frozen=True)
class ResolvedRecords:
    """The rows of stream records to commit: one row per key.

    Attributes:
        rows: The rows, with the columns of the group.
        is_unique: Whether the keys are unique; None for a group without a primary key.
        mode: The mode of the commit; None for that of the write.
        deletes: The keys of stored rows to delete in the same commit.
        repeated: The rows to quarantine because their key is repeated, with their reasons.
    """

    rows: Relation
    is_unique: bool | None = None
    mode: str | None = None
    deletes: Relation | None = None
    repeated: Relation | None = None

    def add_to(self, quarantined: Relation | None, *, engine: Engine) -> Relation | None:
        """Return the quarantined rows with those whose key is repeated."""
        if quarantined is None or self.repeated is None:
            return quarantined or self.repeated
        return _union_rows(engine, quarantined, self.repeated)


def resolve_records(
    engine: Engine,
    records: Relation,
    spec: FeatureGroupSpec,
    group: OpenGroup,
    *,
    order: RecordOrder,
    directory: str,
) -> ResolvedRecords:
    """Select one row per key, the repeated rows to quarantine, and the keys to delete.

    Args:
        engine: The engine of the rows.
        records: The rows that passed the audit, with the columns of ``order``.
        spec: The definition of the group, with new columns of the rows.
        group: The group before the write.
        order: The options for duplicate keys.
        directory: The directory of staged rows.
    """
    names = {name: name for name in spec.schema.names}
    if not spec.primary_key:
        _add_written_positions(engine, records, order)
        return ResolvedRecords(engine.select(records, names))
    key = spec.upsert_key
    stored_keys = queries.read_stored_keys(engine, records, group, with_later=order.is_log_time)
    tables = {"batch": engine.select(records, {name: name for name in (*key, PARTITION, OFFSET)})}
    deleted = order.deleted
    if deleted is not None:
        tables["deleted"] = _stage_keys(engine, deleted, spec, directory, "deleted")
    if stored_keys is not None:
        tables["stored"] = stored_keys
    deleted_positions = _Positions()
    if deleted is not None:
        query = f"SELECT {PARTITION}, {OFFSET} FROM batch WHERE {queries.deleted_condition(spec)}"
        deleted_positions = _query_positions(engine, query, tables)
    repeated_positions = _query_positions(
        engine, _repeated_positions_query(spec, order, tables), tables
    )
    unwritten_positions = deleted_positions.merge(repeated_positions)
    if order.is_log_time:
        replaced = find_replaced_rows(engine, spec, tables)
        unwritten_positions = unwritten_positions.merge(_positions_of_table(replaced.positions))
        if replaced.stored_keys is not None:
            tables["replaced"] = _stage_keys(
                engine, replaced.stored_keys, spec, directory, "replaced"
            )
    marked = _mark_rows(engine, records, unwritten_positions)
    written_rows = engine.filter(marked, f"NOT {_IS_MARKED}")
    _add_written_positions(engine, written_rows, order)
    rows = engine.stage(engine.select(written_rows, names), os.path.join(directory, "written"))
    repeated = None
    if order.on_duplicates == "quarantine" and repeated_positions.count:
        repeated = engine.filter(_mark_rows(engine, records, repeated_positions), _IS_MARKED)
        repeated = engine.map_batches(
            repeated, _AddReason(records.schema), schema=quarantine_schema(records.schema)
        )
    deleted_keys = None
    if deleted is not None:
        tables["stored"] = engine.read_table(group.path, columns=key)  # of any time
    if deleted is not None or "replaced" in tables:
        query = _deleted_keys_query(spec, tables)
        deleted_keys = engine.stage(
            queries.run_query(engine, query, {**tables, "batch": rows}),
            os.path.join(directory, "outgoing"),
        )
        deleted_keys = deleted_keys if engine.count(deleted_keys) else None
    # An append adds only files. An upsert also rewrites files, so it is used only if stored rows
    # are replaced or deleted.
    replaces = deleted_keys is not None or _has_matches(engine, rows, stored_keys, key)
    return ResolvedRecords(
        rows,
        is_unique=True,
        mode="upsert" if replaces else "append",
        deletes=deleted_keys,
        repeated=repeated,
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
        texts = pa.list_(pa.field("item", pa.string()))
        reasons = pa.array([[REPEATED]] * batch.num_rows, texts)
        return pa.RecordBatch.from_arrays(
            [*columns, reasons], schema=quarantine_schema(self.schema)
        )


def _repeated_positions_query(
    spec: FeatureGroupSpec, order: RecordOrder, tables: Mapping[str, Relation]
) -> str:
    """Return the query for positions of rows that are not written because their key is repeated."""
    keys = ", ".join(map(quoted, spec.upsert_key))
    direction = "DESC" if order.on_duplicates == "last" else "ASC"
    repeated = (
        f"SELECT {PARTITION}, {OFFSET}, row_number() OVER (PARTITION BY {keys} "
        f"ORDER BY {PARTITION} {direction}, {OFFSET} {direction}) AS n FROM live"
    )
    query = f"SELECT {PARTITION}, {OFFSET} FROM ({repeated}) AS numbered WHERE n > 1"
    if "stored" in tables and order.on_duplicates != "last":
        same = queries.equality_condition("live", "stored", spec.upsert_key)
        query += (
            f" UNION SELECT {PARTITION}, {OFFSET} FROM live "
            f"WHERE EXISTS (SELECT 1 FROM stored WHERE {same})"
        )
    return f"WITH live AS ({queries.live_records_query(spec, tables)}) {query}"


def _deleted_keys_query(spec: FeatureGroupSpec, tables: Mapping[str, Relation]) -> str:
    """Return the query for keys of stored rows that are deleted or replaced, and not written."""
    keys = ", ".join(map(quoted, spec.upsert_key))
    conditions = []
    for table, key in (("deleted", spec.primary_key), ("replaced", spec.upsert_key)):
        if table in tables:
            same = queries.equality_condition("stored", table, key)
            conditions.append(f"EXISTS (SELECT 1 FROM {table} WHERE {same})")
    same = queries.equality_condition("stored", "batch", spec.upsert_key)
    return (
        f"SELECT DISTINCT {keys} FROM stored WHERE ({' OR '.join(conditions)}) "
        f"AND NOT EXISTS (SELECT 1 FROM batch WHERE {same})"
    )


def _has_matches(
    engine: Engine, rows: Relation, stored_keys: Relation | None, key: Sequence[str]
) -> bool:
    """Return True if a key of the rows is among the stored keys."""
    if stored_keys is None:
        return False
    same = queries.equality_condition("batch", "stored", key)
    query = f"SELECT 1 AS n FROM batch WHERE EXISTS (SELECT 1 FROM stored WHERE {same}) LIMIT 1"
    return (
        engine.count(queries.run_query(engine, query, {"batch": rows, "stored": stored_keys})) > 0
    )


def _stage_keys(
    engine: Engine, keys: pa.Table, spec: FeatureGroupSpec, directory: str, name: str
) -> Relation:
    """Stage keys with the column types of the group, so that they can be read repeatedly."""
    columns = {}
    for column_name in keys.schema.names:
        column = keys.column(column_name)
        if column_name in spec.upsert_key:
            column = column.cast(spec.schema.field(column_name).type)
        columns[column_name] = column
    relation = engine.from_arrow(pa.table(columns).to_reader())
    return engine.stage(relation, os.path.join(directory, name))


def _query_positions(engine: Engine, query: str, tables: Mapping[str, Relation]) -> _Positions:
    """Run a query and return the partitions and offsets of its result."""
    return _positions_of_table(engine.stream(queries.run_query(engine, query, tables)).read_all())


def _positions_of_table(position_rows: pa.Table) -> _Positions:
    """Convert a table with the columns partition and offset."""
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
    return queries.run_query(engine, query, {"first_rows": first, "second_rows": second})
