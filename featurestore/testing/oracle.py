"""Brute-force implementation of the point-in-time rules, and random test cases for engines.

It compares every label with every row, which is slow and obviously correct. Results are compared
bit by bit. The cases are small: few keys, few times, many collisions. Many cases share one table
and one query, separated by the first key column ``case``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from featurestore.arrow.types import TIMESTAMP
from featurestore.hashing import tie_hash
from featurestore.model.plan import FeaturePlan, Join

Tables = Mapping[tuple[str, int], pa.Table]
# Steps of a microsecond cross midnight before a leap day, so that dates differ from timestamps.
_BASE = datetime(2024, 2, 28, 23, 59, 59, 999_998, tzinfo=UTC)
_STEPS = 6
# Some pairs of keys are equal if they are concatenated, with or without a separator.
# The values of the rows by column.
ColumnValues: TypeAlias = dict[str, list[Any]]
_KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int": (pa.int64(), [1, 2, None]),
    "text": (pa.string(), ["a", "a|", "|a", "", None]),
    "pair": (pa.int32(), [1, 11, 12, 2, None]),
    "bytes": (pa.binary(), [b"", b"\x00", None]),
    "decimal": (pa.decimal128(5, 1), [Decimal("0.1"), Decimal("-0.1"), None]),
    "unsigned": (pa.uint64(), [2**64 - 1, 0, None]),
}
_FEATURES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int32(), [0, 1, -1, None]),
    "x": (pa.float64(), [float("nan"), 0.0, -0.0, 1.5, float("-inf"), None]),
    "s": (pa.string(), ["", "a", "\x00", "é", None]),
    "v": (pa.list_(pa.float32()), [[], [1.0], [None], [float("nan"), 2.0], None]),
    "p": (
        pa.struct([("a", pa.int8()), ("b", pa.string())]),
        [{"a": 1, "b": None}, {"a": None, "b": ""}, None],
    ),
    "q": (pa.list_(pa.field("item", pa.uint8()), 2), [[1, 2], [2, 1], None]),
    "u": (pa.uint64(), [2**64 - 1, 1, None]),
}


def brute_force(plan: FeaturePlan, *, tables: Tables, labels: pa.Table | None = None) -> pa.Table:
    """Return the expected rows of a plan, in the order of its left side.

    Args:
        plan: The plan; without filters and without a nested plan.
        tables: All rows of each group of the plan, by name and version, in feature types.
        labels: The left side, if it is not a group.
    """
    if plan.drops_rows or plan.left_plan is not None:
        raise ValueError("the oracle does not support filters or nested plans")
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
            join, rows, label_rows, label_times, filters_created_time=plan.created_time_filter
        )
        # An inner join requires a match in every group, so labels are removed only after all joins.
        if plan.how == "inner":
            matched_labels = {index for index in matched_labels if row_indexes[index] is not None}
        for output in join.outputs:
            columns[output.name] = _take_or_null(rows.column(output.column), row_indexes)
    table = pa.table(list(map(columns.__getitem__, plan.columns)), schema=plan.schema)
    return table.take(pa.array(sorted(matched_labels), pa.int64()))


def bits(table: pa.Table) -> list[tuple[Any, ...]]:
    """Convert rows to tuples that are equal only if their bits are equal.

    NaN equals NaN, 0.0 differs from -0.0, null differs from NaN.
    """
    columns = [list(map(_value_to_bits, column.to_pylist())) for column in table.columns]
    if not columns:
        return [()] * table.num_rows
    return list(zip(*columns, strict=True))


@dataclass(frozen=True)
class _Row:
    """The key, times and tie hash of a row in a group."""

    index: int
    key: tuple[Any, ...]
    event: datetime | None
    created: datetime | None
    tie: int

    @property
    def rank(self) -> tuple[datetime, datetime, int]:
        # A missing time precedes all times.
        lowest = datetime.min.replace(tzinfo=UTC)
        return self.event or lowest, self.created or lowest, self.tie


def _latest_rows(
    join: Join,
    table: pa.Table,
    labels: list[dict[str, Any]],
    label_times: list[datetime | None],
    *,
    filters_created_time: bool,
) -> list[int | None]:
    """Return the index of the matching row of each label, or None without a match."""
    rows = _to_rows(join, table)
    winners: list[int | None] = []
    for label, label_time in zip(labels, label_times, strict=True):
        key = tuple(label[label_name] for label_name, _ in join.on)
        best: _Row | None = None
        for row in rows:
            if (
                row.key != key
                or None in key
                or not _is_eligible(
                    join, row, label_time, filters_created_time=filters_created_time
                )
            ):
                continue
            if best is None or row.rank > best.rank:
                best = row
        if best is None or _is_stale(join, best, label_time):
            winners.append(None)
        else:
            winners.append(best.index)
    return winners


def _to_rows(join: Join, table: pa.Table) -> list[_Row]:
    """Convert a table to rows with key, times and tie hash."""
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


def _is_eligible(
    join: Join, row: _Row, label_time: datetime | None, *, filters_created_time: bool
) -> bool:
    """Return True if a row is known at the label time."""
    if join.event_time is None:
        return True
    if label_time is None or row.event is None or row.event > label_time:
        return False
    if join.created_time is None or not filters_created_time:
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
    # An empty array has no row to take, not even for null indices.
    if not len(column):
        return pa.nulls(len(indices), column.type)
    return column.combine_chunks().take(pa.array(indices, pa.int64()))


def _value_to_bits(value: Any) -> Any:
    """Convert a value to one that is equal only to values with the same bits."""
    if isinstance(value, float):
        return "float", struct.pack("<d", value)
    if isinstance(value, list):
        return tuple(map(_value_to_bits, value))
    if isinstance(value, dict):
        return tuple(zip(value, map(_value_to_bits, value.values()), strict=True))
    return value


@dataclass(frozen=True)
class JoinShape:
    """Common settings of cases: key and time types, and the rules of the join."""

    key: str = "int"
    time: str = "timestamp"
    created: bool = False
    waits: bool = True
    ttl: int | None = None
    unique: bool = False
    how: str = "left"
    fixed: bool = False
    label_time: str = "timestamp"

    def __str__(self) -> str:
        plain = JoinShape()
        changed = [
            f"{name}={value}" for name, value in vars(self).items() if value != getattr(plain, name)
        ]
        return "-".join(changed) or "plain"


SHAPES = (
    JoinShape(),
    JoinShape(unique=True),
    JoinShape(created=True),
    JoinShape(created=True, unique=True),
    JoinShape(created=True, waits=False),
    JoinShape(created=True, waits=False, unique=True),
    JoinShape(created=True, ttl=2, key="pair"),
    JoinShape(created=True, ttl=0, key="text", unique=True),
    JoinShape(ttl=0, key="bytes"),
    JoinShape(ttl=1, key="decimal", how="inner"),
    JoinShape(created=True, ttl=1, how="inner", key="unsigned"),
    JoinShape(time="date", created=True, key="text"),
    JoinShape(time="date", label_time="date", ttl=1),
    JoinShape(time="timestamp", label_time="date", unique=True),
    JoinShape(time="none"),
    JoinShape(time="none", unique=True, key="pair", how="inner"),
    JoinShape(fixed=True, created=True, ttl=3),
    JoinShape(fixed=True, key="pair"),
)


def any_shape() -> st.SearchStrategy[JoinShape]:
    """Return a strategy for all valid combinations of key, times, ttl, join and uniqueness."""
    timed = st.builds(
        JoinShape,
        key=st.sampled_from(sorted(_KEYS)),
        time=st.sampled_from(["timestamp", "date"]),
        created=st.booleans(),
        waits=st.booleans(),
        ttl=st.sampled_from([None, 0, 1, 2, 4]),
        unique=st.booleans(),
        how=st.sampled_from(["left", "inner"]),
        fixed=st.booleans(),
        label_time=st.sampled_from(["timestamp", "date"]),
    )
    timeless = st.builds(
        JoinShape,
        time=st.just("none"),
        unique=st.booleans(),
        how=st.sampled_from(["left", "inner"]),
    )
    return st.one_of(timed, timeless)


@dataclass(frozen=True)
class Cases:
    """Many cases, in one group and one table of labels."""

    rows: pa.Table
    labels: pa.Table
    roles: dict[str, Any]
    options: dict[str, Any]
    features: tuple[str, ...]
    unique: bool


def random_cases(shape: JoinShape, *, count: int, seed: int) -> Cases:
    """Generate ``count`` cases of up to eight rows and five labels each."""
    random = np.random.default_rng(seed)
    keys = _key_columns(shape)
    rows: ColumnValues = {}
    for name in ("case", *keys, "event", "created", *_FEATURES):
        rows[name] = []
    labels: ColumnValues = {}
    for name in ("case", *keys, "at", "n"):
        labels[name] = []
    draw = _RandomValues(random)
    for case in range(count):
        time_count = int(random.integers(1, _STEPS + 1))
        for _ in range(int(random.integers(0, 9))):
            rows["case"].append(case)
            for name, (_, values) in keys.items():
                rows[name].append(draw.value(values, null=0.1))
            rows["event"].append(draw.time(shape.time, time_count, null=0.05))
            rows["created"].append(draw.time("timestamp", time_count + 2, null=0.1))
            for name, (_, values) in _FEATURES.items():
                rows[name].append(draw.value(values, null=0.3))
        for number in range(int(random.integers(0, 6))):
            labels["case"].append(case)
            for name, (_, values) in keys.items():
                labels[name].append(draw.value(values, null=0.1))
            # Some labels are later than all rows.
            labels["at"].append(draw.time(shape.label_time, time_count + 2, null=0.05))
            labels["n"].append(number)
    return _build_cases(shape, rows, labels, keys, random)


class _RandomValues:
    """Generator of random values, including nulls."""

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random

    def value(self, values: list[Any], *, null: float) -> Any:
        if self._random.random() < null:
            return None
        present = [value for value in values if value is not None]
        return present[int(self._random.integers(len(present)))]

    def time(self, time_type: str, time_count: int, *, null: float) -> Any:
        if time_type == "none" or self._random.random() < null:
            return None
        return _TIMES[time_type](int(self._random.integers(time_count)))


_TIMES: dict[str, Callable[[int], date]] = {
    "timestamp": lambda step: _BASE + timedelta(microseconds=step),
    "date": lambda step: _BASE.date() + timedelta(days=step),
}


def _key_columns(shape: JoinShape) -> dict[str, tuple[pa.DataType, list[Any]]]:
    dtype = _KEYS[shape.key]
    if shape.key in ("pair", "text"):
        return {"k": dtype, "k2": dtype}
    return {"k": dtype}


def _build_cases(
    shape: JoinShape,
    rows: ColumnValues,
    labels: ColumnValues,
    keys: dict[str, Any],
    random: np.random.Generator,
) -> Cases:
    """Return the generated rows and labels as tables, with the roles and options of a shape."""
    kinds = {"case": pa.int64(), "created": TIMESTAMP, "n": pa.int64()}
    kinds |= {"event": TIMESTAMP, "at": TIMESTAMP}
    for name, (dtype, _) in (_FEATURES | keys).items():
        kinds[name] = dtype
    step = timedelta(microseconds=1)
    if shape.time == "date":
        kinds["event"] = pa.date32()
        step = timedelta(days=1)
    if shape.label_time == "date":
        kinds["at"] = pa.date32()
    roles: dict[str, Any] = {
        "primary_key": ("case", *keys),
        "event_time": "event",
        "created_time": "created",
        "ttl": None,
    }
    table, key_columns = _table(rows, kinds), ["case", *keys]
    if shape.time == "none":
        table, roles["event_time"] = table.drop(["event"]), None
    else:
        key_columns.append("event")
    if shape.created:
        key_columns.append("created")
    else:
        table, roles["created_time"] = table.drop(["created"]), None
    if shape.ttl is not None:
        roles["ttl"] = shape.ttl * step
    if shape.unique:
        table = _keep_one_row_per_key(table, key_columns)
    # Rows are shuffled, so that no engine can depend on their order.
    table = table.take(pa.array(random.permutation(table.num_rows), pa.int64()))
    options = {"created_time_filter": shape.waits, "join": shape.how, "label_time": "at"}
    if shape.fixed:
        options["label_time"] = _TIMES["timestamp"](3)
    return Cases(
        rows=table,
        labels=_table(labels, kinds),
        roles=roles,
        options=options,
        features=tuple(_FEATURES),
        unique=shape.unique,
    )


def _table(columns: ColumnValues, kinds: dict[str, pa.DataType]) -> pa.Table:
    return pa.table({name: pa.array(values, kinds[name]) for name, values in columns.items()})


def _keep_one_row_per_key(table: pa.Table, key_columns: list[str]) -> pa.Table:
    first_indexes: dict[tuple[Any, ...], int] = {}
    for index, row in enumerate(table.select(key_columns).to_pylist()):
        first_indexes.setdefault(tuple(row.values()), index)
    return table.take(pa.array(list(first_indexes.values()), pa.int64()))


__all__ = [
    "SHAPES",
    "Cases",
    "JoinShape",
    "Tables",
    "any_shape",
    "bits",
    "brute_force",
    "random_cases",
]
