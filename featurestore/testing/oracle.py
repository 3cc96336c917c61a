"""The point-in-time rules by brute force.

For every label, look at every row. Slow, and obviously right.

Engines are compared with it, value by value and bit by bit.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any

import pyarrow as pa

from featurestore.hashing import tie_hash
from featurestore.model.plan import FeaturePlan, Join

Tables = Mapping[tuple[str, int], pa.Table]


def brute_force(plan: FeaturePlan, *, tables: Tables, labels: pa.Table | None = None) -> pa.Table:
    """Return the rows that a plan must give, in the order of its left side.

    Args:
        plan: The plan; without filters and without a nested plan.
        tables: All rows of each group that the plan reads, by name and version, in feature types.
        labels: The left side, where it is not a group.
    """
    if plan.cuts_rows or plan.left_plan is not None:
        raise ValueError("the oracle knows neither filters nor nested plans")
    left = labels
    if plan.left_source is not None:
        left = tables[plan.left_source.spec.name, plan.left_source.spec.version]
    if left is None:
        raise ValueError("the plan needs labels")
    label_rows = left.to_pylist()
    moments = [_label_moment(plan, row) for row in label_rows]
    columns = {}
    for output in plan.left_outputs:
        columns[output.name] = left.column(output.column)
    kept = set(range(left.num_rows))
    for join in plan.joins:
        rows = tables[join.source.spec.name, join.source.spec.version]
        won = _winners(join, rows, label_rows, moments, waits=plan.created_time_filter)
        if plan.how == "inner":
            kept = {index for index in kept if won[index] is not None}
        for output in join.outputs:
            columns[output.name] = _taken(rows.column(output.column), won)
    table = pa.table(list(map(columns.__getitem__, plan.columns)), schema=plan.schema)
    return table.take(pa.array(sorted(kept), pa.int64()))


def bits(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return the rows as tuples in which only equal bits are equal.

    NaN is itself, 0.0 is not -0.0, null not NaN.
    """
    columns = []
    for column in table.columns:
        columns.append(list(map(_bits, column.to_pylist())))
    if not columns:
        return [()] * table.num_rows
    return list(zip(*columns, strict=True))


@dataclass(frozen=True)
class _Row:
    """One row of a group, ready to be compared."""

    index: int
    key: tuple[Any, ...]
    event: datetime | None
    created: datetime | None
    tie: int

    @property
    def rank(self) -> tuple[datetime, datetime, int]:
        lowest = datetime.min.replace(tzinfo=UTC)
        return self.event or lowest, self.created or lowest, self.tie


def _winners(
    join: Join,
    table: pa.Table,
    labels: list[dict[str, Any]],
    moments: list[datetime | None],
    *,
    waits: bool,
) -> list[int | None]:
    rows = _rows(join, table)
    won: list[int | None] = []
    for label, moment in zip(labels, moments, strict=True):
        key = tuple(label[left] for left, _ in join.on)
        best: _Row | None = None
        for row in rows:
            if row.key != key or None in key or not _is_eligible(join, row, moment, waits=waits):
                continue
            if best is None or row.rank > best.rank:
                best = row
        if best is None or _is_stale(join, best, moment):
            won.append(None)
        else:
            won.append(best.index)
    return won


def _rows(join: Join, table: pa.Table) -> list[_Row]:
    rows: list[_Row] = []
    if not table.num_rows:
        return rows
    for index, (row, tie) in enumerate(zip(table.to_pylist(), tie_hash(table), strict=True)):
        event = created = None
        if join.event_time is not None:
            event = _moment(row[join.event_time])
        if join.created_time is not None:
            created = _moment(row[join.created_time])
        key = tuple(row[name] for _, name in join.on)
        rows.append(_Row(index, key, event, created, int(tie)))
    return rows


def _is_eligible(join: Join, row: _Row, moment: datetime | None, *, waits: bool) -> bool:
    if join.event_time is None:
        return True
    if moment is None or row.event is None or row.event > moment:
        return False
    if join.created_time is None or not waits:
        return True
    return row.created is not None and row.created <= moment


def _is_stale(join: Join, row: _Row, moment: datetime | None) -> bool:
    if join.ttl is None or moment is None or row.event is None:
        return False
    return moment - row.event > join.ttl


def _label_moment(plan: FeaturePlan, label: Mapping[str, Any]) -> datetime | None:
    if plan.fixed_time is not None:
        return plan.fixed_time
    if plan.left_time is None:
        return None
    return _moment(label[plan.left_time])


def _moment(value: datetime | date | None) -> datetime | None:
    if value is None or isinstance(value, datetime):
        return value
    return datetime.combine(value, time(), tzinfo=UTC)


def _taken(column: pa.ChunkedArray, indices: list[int | None]) -> Any:
    if not len(column):
        return pa.nulls(len(indices), column.type)
    return column.combine_chunks().take(pa.array(indices, pa.int64()))


def _bits(value: Any) -> Any:
    if isinstance(value, float):
        return "float", struct.pack("<d", value)
    if isinstance(value, list):
        return tuple(map(_bits, value))
    if isinstance(value, dict):
        return tuple(zip(value, map(_bits, value.values()), strict=True))
    return value


__all__ = ["Tables", "bits", "brute_force"]
