"""SQL jobs: the query of one window, and of many windows at once where that gives the same rows.

A query over a chunk of consecutive windows reads the inputs of all windows, and binds
``$window_start`` and ``$window_end`` to the bounds of the chunk. For many queries this gives the
same rows as separate queries in a fraction of the time. ``can_batch_windows`` accepts a query only
if its form cannot mix rows of different windows: one SELECT without subqueries, window functions,
limits or set operations; parameters only as outer bounds; and, if rows are grouped, the event time
is a group key. The form cannot prove that each row's event time is inside its window. Therefore
some windows are also computed separately and compared; see ``compute``.

For many queries even this can be proven from the text (``is_proven_per_window``): the event time is
computed only from the input's time, by monotonic steps, namely ``date_trunc`` and the addition of a
fixed interval. It is then enough to check the first and the last instant of a window: if their
event times are inside the window, so are all event times between them. Rows of two windows then
never have the same event time, which is one of their group keys.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from numpy.typing import NDArray

from featurestore import usersql
from featurestore.arrow.batches import select_rows
from featurestore.arrow.types import TIMESTAMP
from featurestore.hashing import row_hash
from featurestore.jobs.inputs import TimeBounds
from featurestore.model.job import JobSpec
from featurestore.model.times import Window, to_micros
from featurestore.plugins import observers
from featurestore.plugins.engine import Accumulator, Engine, Relation, TimeRange

if TYPE_CHECKING:
    from sqlglot import exp

# Sums of floats depend on the row order, which may differ between a separate query for a window and
# a query for many windows.
_FLOATS_AGREE = 1e-9
Micros = NDArray[np.int64]
TimeTransform = Callable[[Micros], Micros]
# Seconds of the units with a fixed length, and NumPy's codes of the units for truncation.
_FIXED = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 7 * 86_400}
_CALENDAR = {"second": "s", "minute": "m", "hour": "h", "day": "D", "month": "M", "year": "Y"}
# 1970-01-01 was a Thursday, and weeks begin on Monday.
_MONDAY = 3
_DAY = 86_400_000_000
_START, _END = "window_start", "window_end"


@dataclass(frozen=True)
class JobQuery:
    """A job query, transpiled for an engine."""

    spec: JobSpec
    engine: Engine

    def run(self, inputs: Mapping[str, Relation], window: Window) -> Relation:
        """Compute the rows of a window from filtered inputs."""
        query = _transpile(self.spec.code, tuple(inputs), self.engine.dialect)
        tables = {}
        for name, relation in inputs.items():
            # Only the columns that the query names are read.
            columns = usersql.find_columns(self.spec.code, relation.schema.names)
            columns_by_name = dict(zip(columns, columns, strict=True))
            tables[name] = self.engine.select(relation, columns_by_name)
        work = observers.current()
        if work is not None:
            work.input_columns = {
                name: tuple(relation.schema.names) for name, relation in tables.items()
            }
        parameter_names = set(re.findall(r"\$([A-Za-z_][A-Za-z0-9_]*)", self.spec.code))
        # DuckDB rejects values for parameters that the query does not contain.
        parameters = {}
        if _START in parameter_names:
            parameters[_START] = window.start
        if _END in parameter_names:
            parameters[_END] = window.end
        return self.engine.user_sql(query, tables=tables, parameters=parameters)


@lru_cache(maxsize=256)
def _transpile(code: str, tables: tuple[str, ...], dialect: str) -> str:
    return usersql.query(code, tables=tables, dialect=dialect)


@lru_cache(maxsize=256)
def parse_query(code: str) -> exp.Expr:
    """Return the syntax tree of a query. The tree is cached: callers must not modify it."""
    import sqlglot

    return sqlglot.parse_one(code, dialect=usersql.DIALECT)


def can_batch_windows(spec: JobSpec, *, times: Sequence[str]) -> bool:
    """Return whether one query over many windows gives the same rows as a query per window.

    Args:
        spec: The job.
        times: The columns that filter its inputs; with two such inputs, a join could match rows of
            different windows.
    """
    from sqlglot import exp

    tree = parse_query(spec.code)
    # With a lookback, an input row belongs to several windows.
    if spec.lookback or len(times) != 1 or not isinstance(tree, exp.Select):
        return False
    mixing = (exp.Subquery, exp.CTE, exp.Window, exp.Limit, exp.Offset, exp.Distinct, exp.Qualify)
    # Unknown functions may aggregate.
    if tree.find(*mixing, exp.Anonymous) is not None or len(list(tree.find_all(exp.Select))) != 1:
        return False
    if not _are_outer_bounds(tree, times[0]) or any(
        expression.is_star for expression in tree.expressions
    ):
        return False
    time = _event_time_expression(tree, spec)
    if time is None:
        return False
    group_by = tree.args.get("group")
    # An aggregate without GROUP BY would give one row per chunk instead of one per window.
    if group_by is None:
        return tree.find(exp.AggFunc) is None
    return _is_group_key(time, group_by, tree)


def _event_time_expression(tree: exp.Select, spec: JobSpec) -> exp.Expr | None:
    """Return the result column that contains the event time of the rows."""
    for column in tree.expressions:
        if column.alias_or_name == spec.event_time:
            return column
    return None


def _is_group_key(time: exp.Expr, group_by: exp.Expr, tree: exp.Select) -> bool:
    """Return whether rows are grouped by the event time or by all columns."""
    from sqlglot import exp

    if group_by.args.get("all"):
        return time.find(exp.AggFunc) is None
    position = str(tree.expressions.index(time) + 1)
    for key in group_by.expressions:
        by_name = isinstance(key, exp.Column) and not key.table and key.name == time.alias_or_name
        by_position = isinstance(key, exp.Literal) and key.name == position
        if by_name or by_position or key == time.unalias():
            return True
    return False


def _are_outer_bounds(tree: exp.Select, time: str) -> bool:
    """Return whether parameters only bound the time: the start from below, the end from above."""
    from sqlglot import exp

    bounds = {exp.GT: _START, exp.GTE: _START, exp.LT: _END, exp.LTE: _END}
    for node in tree.walk():
        if not isinstance(node, exp.Parameter | exp.Placeholder):
            continue
        comparison = node.parent
        if isinstance(comparison, exp.Parameter):
            continue  # the name within a parameter
        if not isinstance(comparison, exp.Binary) or node.arg_key != "expression":
            return False
        column = comparison.this
        if not isinstance(column, exp.Column) or column.name.lower() != time.lower():
            return False
        # Anywhere else, a parameter would have the bounds of the chunk instead of those of the
        # window.
        if bounds.get(type(comparison)) != node.name:
            return False
    return True


def is_proven_per_window(spec: JobSpec, windows: Sequence[Window], *, time: str) -> bool:
    """Return whether every result row is proven to be in the window of its input rows.

    Args:
        spec: The job; its query satisfies ``can_batch_windows``.
        windows: The windows to check.
        time: The column that filters its input.
    """
    steps = event_time_transform(spec, time=time)
    if steps is None:
        return False
    starts = np.array([to_micros(window.start) for window in windows], np.int64)
    ends = np.array([to_micros(window.end) for window in windows], np.int64)
    # Inputs are read in [start, end), so the last instant is one microsecond before the end.
    first, last = steps(starts), steps(ends - 1)
    if spec.closed == "right":
        return bool((first > starts).all() and (last <= ends).all())
    return bool((first >= starts).all() and (last < ends).all())


def event_time_transform(spec: JobSpec, *, time: str) -> TimeTransform | None:
    """Return the function that maps the time of a query's only input to the event time of a row.

    None if the query text does not determine it.
    """
    from sqlglot import exp

    tree = parse_query(spec.code)
    # With a second table, including a self-join, the time may belong to a row of another window.
    if not isinstance(tree, exp.Select) or sum(1 for _ in tree.find_all(exp.Table)) != 1:
        return None
    column = _event_time_expression(tree, spec)
    if column is None:
        return None
    return _build_transform(column.unalias(), time)


def _build_transform(node: exp.Expr, time: str) -> TimeTransform | None:
    """Build the transform of an expression over the input time; None if it is not provable."""
    from sqlglot import exp

    if isinstance(node, exp.Column):
        return _identity if node.name.lower() == time.lower() else None
    if isinstance(node, exp.Paren):
        return _build_transform(node.this, time)
    if isinstance(node, exp.TimestampTrunc) and isinstance(node.args.get("unit"), exp.Var):
        return _compose(_build_transform(node.this, time), _truncate_to(_unit_name(node)))
    if isinstance(node, exp.Add | exp.Sub) and isinstance(node.expression, exp.Interval):
        return _compose(
            _build_transform(node.this, time),
            _shift_by(node.expression, back=isinstance(node, exp.Sub)),
        )
    return None


def _identity(micros: Micros) -> Micros:
    return micros


def _compose(first: TimeTransform | None, second: TimeTransform | None) -> TimeTransform | None:
    if first is None or second is None:
        return None
    return lambda micros: second(first(micros))


def _unit_name(node: exp.Expr) -> str:
    return str(node.args["unit"].name).lower().removesuffix("s")


def _truncate_to(unit: str) -> TimeTransform | None:
    """Return the truncation to a calendar unit in UTC; None for unknown units."""
    if unit == "week":
        # Weeks begin on Monday.
        return lambda micros: ((micros // _DAY + _MONDAY) // 7 * 7 - _MONDAY) * _DAY
    code = _CALENDAR.get(unit)
    if code is None:
        return None
    return lambda micros: (
        micros.view("M8[us]").astype(f"M8[{code}]").astype("M8[us]").view(np.int64)
    )


def _shift_by(interval: exp.Interval, *, back: bool) -> TimeTransform | None:
    """Return the addition of a fixed interval; None for calendar units such as months."""
    from sqlglot import exp

    amount, unit = interval.this, interval.args.get("unit")
    if not isinstance(amount, exp.Literal) or not isinstance(unit, exp.Var):
        return None
    seconds = _FIXED.get(_unit_name(interval))
    if seconds is None or not amount.name.isdigit():
        return None
    shift = int(amount.name) * seconds * 1_000_000
    if back:
        shift = -shift
    return lambda micros: micros + shift


@dataclass(frozen=True)
class RowDigest:
    """A digest of rows that is independent of their order.

    It contains the number of rows, a sum of hashes of the exact columns, and sums of float columns.
    """

    rows: int = 0
    hashed: int = 0
    floats: tuple[float, ...] = ()

    def agrees(self, digest: RowDigest) -> bool:
        """Return whether two digests describe the same rows, up to rounding of floats."""
        if (self.rows, self.hashed) != (digest.rows, digest.hashed):
            return False
        # A digest of zero rows has no sums, even if the rows would have float columns.
        for a, b in zip(self.floats, digest.floats, strict=bool(self.rows)):
            if not math.isclose(a, b, rel_tol=_FLOATS_AGREE, abs_tol=_FLOATS_AGREE):
                return False
        return True


@dataclass(frozen=True)
class DigestAccumulator(Accumulator[RowDigest, RowDigest]):
    """Accumulates a digest of rows in any order."""

    def start(self) -> RowDigest:
        """Return the digest of zero rows."""
        return RowDigest()

    def update(self, state: RowDigest, batch: pa.RecordBatch) -> RowDigest:
        """Add the rows of a batch."""
        if not batch.num_rows:
            return state
        exact, sums = [], list[float]()
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if not pat.is_floating(field.type):
                exact.append(field.name)
                continue
            # One NaN would make the sum NaN, so NaN and null are counted instead.
            values: Any = pc.drop_null(column).to_numpy()
            sums += [float(np.nansum(values)), column.null_count, float(np.isnan(values).sum())]
        hashed = 0
        if exact:
            hashes: Any = row_hash(batch, columns=exact)
            # The sum wraps around at 2**64, as in ``merge``, so it does not depend on the order of
            # rows.
            hashed = int(hashes.sum(dtype=np.uint64))
        return self.merge(state, RowDigest(batch.num_rows, hashed, tuple(sums)))

    def merge(self, left: RowDigest, right: RowDigest) -> RowDigest:
        """Merge two digests."""
        if not left.rows:
            return right
        if not right.rows:
            return left
        floats = tuple(a + b for a, b in zip(left.floats, right.floats, strict=True))
        return RowDigest(left.rows + right.rows, (left.hashed + right.hashed) % 2**64, floats)

    def finish(self, state: RowDigest) -> RowDigest:
        """Return the digest."""
        return state


@dataclass(frozen=True)
class RangesAccumulator(Accumulator[list[RowDigest], list[RowDigest]]):
    """Accumulates the digests of several time ranges in one pass."""

    ranges: tuple[TimeRange, ...]

    def start(self) -> list[RowDigest]:
        """Return digests of zero rows."""
        return [RowDigest() for _ in self.ranges]

    def update(self, state: list[RowDigest], batch: pa.RecordBatch) -> list[RowDigest]:
        """Add each row of a batch to the digests of the ranges that contain it."""
        return [
            DigestAccumulator().update(digest, _select_range(batch, time_range))
            for digest, time_range in zip(state, self.ranges, strict=True)
        ]

    def merge(self, left: list[RowDigest], right: list[RowDigest]) -> list[RowDigest]:
        """Merge the digests of each range."""
        return [DigestAccumulator().merge(*both) for both in zip(left, right, strict=True)]

    def finish(self, state: list[RowDigest]) -> list[RowDigest]:
        """Return the digest of each range."""
        return state


def _select_range(batch: pa.RecordBatch, time_range: TimeRange) -> pa.RecordBatch:
    times = batch.column(batch.schema.get_field_index(time_range.column))
    return select_rows(batch, pc.indices_nonzero(time_range.contains(times)))


@dataclass(frozen=True)
class BoundsAccumulator(Accumulator[TimeBounds, TimeBounds]):
    """Accumulates the bounds of a time column."""

    column: str

    def start(self) -> TimeBounds:
        """Return the bounds of zero rows."""
        return TimeBounds()

    def update(self, state: TimeBounds, batch: pa.RecordBatch) -> TimeBounds:
        """Extend the bounds by a batch."""
        values = batch.column(batch.schema.get_field_index(self.column))
        micros: npt.NDArray[np.int64] = pc.cast(
            pc.cast(values.drop_null(), TIMESTAMP), pa.int64()
        ).to_numpy()
        if len(micros):
            state = state.merge(TimeBounds(int(micros.min()), int(micros.max())))
        return state.merge(TimeBounds(nulls=values.null_count, rows=len(values)))

    def merge(self, left: TimeBounds, right: TimeBounds) -> TimeBounds:
        """Merge two bounds."""
        return left.merge(right)

    def finish(self, state: TimeBounds) -> TimeBounds:
        """Return the bounds."""
        return state
