"""Queries over stream records and the stored keys of a group, in the dialect of each engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from featurestore.arrow.column_names import quoted
from featurestore.delta.snapshot import read_snapshot
from featurestore.featuregroups.table import OpenGroup
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.plugins.engine import Accumulator, Engine, Relation

if TYPE_CHECKING:
    from sqlglot import exp

PARTITION, OFFSET = "record_partition", "record_offset"
_MAX_TIME = 2**63 - 1
# The minimum and maximum of a time column, as integers of its storage type.
TimeBounds: TypeAlias = tuple[int, int]


def run_query(engine: Engine, query: str, tables: Mapping[str, Relation]) -> Relation:
    """Transpile a query from DuckDB's dialect to the engine's, and return its result."""
    import sqlglot

    (text,) = sqlglot.transpile(query, read="duckdb", write=engine.dialect)
    used_tables = {name: relation for name, relation in tables.items() if name in query}
    return engine.sql(text, tables=used_tables, parameters={})


def equality_condition(first: str, second: str, names: Sequence[str]) -> str:
    """Return the condition that two tables have equal values in all columns."""
    pairs = [f"{first}.{quoted(name)} = {second}.{quoted(name)}" for name in names]
    return " AND ".join(pairs)


def deleted_condition(spec: FeatureGroupSpec) -> str:
    """Return the condition that a later record of the batch deletes the key of a row."""
    # A delete applies to earlier records of its partition. Offsets of different partitions are not
    # comparable.
    same = equality_condition("batch", "deleted", (*spec.primary_key, PARTITION))
    return f"EXISTS (SELECT 1 FROM deleted WHERE {same} AND deleted.{OFFSET} > batch.{OFFSET})"


def live_records_query(spec: FeatureGroupSpec, tables: Mapping[str, Relation]) -> str:
    """Return the query for the records of ``batch`` that no later record deletes."""
    if "deleted" not in tables:
        return "SELECT * FROM batch"
    return f"SELECT * FROM batch WHERE NOT ({deleted_condition(spec)})"


def read_stored_keys(
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
        dtype = state.schema.field(time).type
        extremes = engine.aggregate(engine.select(rows, {time: time}), _TimeRangeAccumulator(dtype))
        if extremes is None:
            return None
        # The time statistics of the files may exclude matches without reading rows.
        bounds = state.bounds(time)
        low, high = extremes
        last = _MAX_TIME if with_later else high
        if bounds is not None and not bounds.may_contain(low, last).any():
            return None
        predicate = _time_range_condition(engine, time, dtype, low, None if with_later else high)
    stored_rows = engine.read_table(group.path, version=state.version, columns=spec.upsert_key)
    stored_rows = engine.select(stored_rows, {name: name for name in spec.upsert_key})
    return stored_rows if predicate is None else engine.filter(stored_rows, predicate)


def _time_range_condition(
    engine: Engine, time: str, dtype: pa.DataType, low: int, high: int | None
) -> str:
    """Return the SQL condition for a range of times, in the engine's dialect."""
    from sqlglot import exp

    column = exp.column(time, quoted=True)
    condition: exp.Expression = exp.GTE(this=column, expression=_time_literal(low, dtype))
    if high is not None:
        condition = column.between(_time_literal(low, dtype), _time_literal(high, dtype))
    return condition.sql(dialect=engine.dialect)


def _time_literal(number: int, dtype: pa.DataType) -> exp.Expression:
    """Return an instant in the storage type of a time column as SQL."""
    from sqlglot import exp

    type_name = "DATE" if pa.types.is_date(dtype) else "TIMESTAMPTZ"
    instant = pa.scalar(number, pa.int32() if type_name == "DATE" else pa.int64())
    text = exp.Literal.string(str(instant.cast(dtype).cast(pa.string()).as_py()))
    return exp.cast(text, type_name, dialect="duckdb")


@dataclass(frozen=True)
class _TimeRangeAccumulator(Accumulator["TimeBounds | None", "TimeBounds | None"]):
    """Accumulator of minimum and maximum of a time column, as integers of the storage type.

    For a column without values, the result becomes None.
    """

    dtype: pa.DataType

    def start(self) -> TimeBounds | None:
        return None

    def update(self, state: TimeBounds | None, batch: pa.RecordBatch) -> TimeBounds | None:
        values = batch.column(0)
        if values.type != self.dtype:
            values = values.cast(self.dtype)
        number = pa.int32() if pa.types.is_date(self.dtype) else pa.int64()
        extremes = pc.min_max(values.cast(number))
        if not extremes["min"].is_valid:
            return state
        return self.merge(state, (extremes["min"].as_py(), extremes["max"].as_py()))

    def merge(self, first: TimeBounds | None, second: TimeBounds | None) -> TimeBounds | None:
        if first is None or second is None:
            return first or second
        return min(first[0], second[0]), max(first[1], second[1])

    def finish(self, state: TimeBounds | None) -> TimeBounds | None:
        return state
