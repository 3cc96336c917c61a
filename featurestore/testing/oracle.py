"""Brute-force implementation of the point-in-time rules, to compare engines with.

It compares every label with every row: slow and obviously correct. Results are compared bit by bit.
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
    """Return the expected rows of a plan, in the order of its left side.

    Args:
        plan: The plan; without filters and without a nested plan.
        tables: All rows of each group of the plan, by name and version, in feature types.
        labels: The left side, if it is not a group.
    """
    if plan.cuts_rows or plan.left_plan is not None:
        raise ValueError("the oracle does not support filters and nested plans")
    label_table = labels
    if plan.left_source is not None:
        label_table = tables[plan.left_source.spec.name, plan.left_source.spec.version]
    if label_table is None:
        raise ValueError("the plan needs labels")
    label_rows = label_table.to_pylist()
    label_times = [_label_time(plan, row) for row in label_rows]
    columns = {output.name: label_table.column(output.column) for output in plan.left_outputs}
    matched_labels = set(range(label_table.num_rows))
    for join in plan.joins:
        rows = tables[join.source.spec.name, join.source.spec.version]
        row_indexes = _latest_rows(
            join, rows, label_rows, label_times, waits=plan.created_time_filter
        )
        if plan.how == "inner":
            matched_labels = {index for index in matched_labels if row_indexes[index] is not None}
        for output in join.outputs:
            columns[output.name] = _take_or_null(rows.column(output.column), row_indexes)
    table = pa.table(list(map(columns.__getitem__, plan.columns)), schema=plan.schema)
    return table.take(pa.array(sorted(matched_labels), pa.int64()))


def bits(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return the rows as tuples that are equal only if their bits are equal.

    NaN equals NaN, 0.0 differs from -0.0, null differs from NaN.
    """
    columns = [list(map(_bits, column.to_pylist())) for column in table.columns]
    if not columns:
        return [()] * table.num_rows
    return list(zip(*columns, strict=True))


@dataclass(frozen=True)
class _Row:
    """The key, times and tie hash of one row of a group."""

    index: int
    key: tuple[Any, ...]
    event: datetime | None
    created: datetime | None
    tie: int

    @property
    def rank(self) -> tuple[datetime, datetime, int]:
        lowest = datetime.min.replace(tzinfo=UTC)
        return self.event or lowest, self.created or lowest, self.tie


def _latest_rows(
    join: Join,
    table: pa.Table,
    labels: list[dict[str, Any]],
    label_times: list[datetime | None],
    *,
    waits: bool,
) -> list[int | None]:
    rows = _rows(join, table)
    winners: list[int | None] = []
    for label, label_time in zip(labels, label_times, strict=True):
        key = tuple(label[label_name] for label_name, _ in join.on)
        best: _Row | None = None
        for row in rows:
            if (
                row.key != key
                or None in key
                or not _is_eligible(join, row, label_time, waits=waits)
            ):
                continue
            if best is None or row.rank > best.rank:
                best = row
        if best is None or _is_stale(join, best, label_time):
            winners.append(None)
        else:
            winners.append(best.index)
    return winners


def _rows(join: Join, table: pa.Table) -> list[_Row]:
    rows: list[_Row] = []
    if not table.num_rows:
        return rows
    for index, (row, tie) in enumerate(zip(table.to_pylist(), tie_hash(table), strict=True)):
        event = created = None
        if join.event_time is not None:
            event = _to_datetime(row[join.event_time])
        if join.created_time is not None:
            created = _to_datetime(row[join.created_time])
        key = tuple(row[name] for _, name in join.on)
        rows.append(_Row(index, key, event, created, int(tie)))
    return rows


def _is_eligible(join: Join, row: _Row, label_time: datetime | None, *, waits: bool) -> bool:
    if join.event_time is None:
        return True
    if label_time is None or row.event is None or row.event > label_time:
        return False
    if join.created_time is None or not waits:
        return True
    return row.created is not None and row.created <= label_time


def _is_stale(join: Join, row: _Row, label_time: datetime | None) -> bool:
    if join.ttl is None or label_time is None or row.event is None:
        return False
    return label_time - row.event > join.ttl


def _label_time(plan: FeaturePlan, label: Mapping[str, Any]) -> datetime | None:
    if plan.fixed_time is not None:
        return plan.fixed_time
    if plan.left_time is None:
        return None
    return _to_datetime(label[plan.left_time])


def _to_datetime(value: datetime | date | None) -> datetime | None:
    if value is None or isinstance(value, datetime):
        return value
    return datetime.combine(value, time(), tzinfo=UTC)


def _take_or_null(column: pa.ChunkedArray, indices: list[int | None]) -> Any:
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
