"""Proofs that one query over a chunk of windows returns the rows of one query per window.

A query over a chunk reads the inputs of all its windows at once. This is a hundred times as fast as
a query per window, and allowed only if the syntax tree proves that the rows are the same:

- The query is one SELECT that computes its rows from single input rows or from groups of rows.
- Exactly one of its tables is an input with a time. That input is read once, and no join adds rows
  without one of its rows. All windows read the same rows of the other tables. Therefore each input
  row, joined, belongs to exactly one window.
- The event time is computed from the time of the input, or from the bounds of the window, by
  monotonic steps such as ``date_trunc`` and the addition of a fixed interval. It is then enough to
  check the first and the last instant of a window: if their event times are inside the window, so
  are all event times between them.

The query remains as it is, with ``$window_start`` and ``$window_end`` bound to the bounds of the
chunk, if two more conditions hold:

- The parameters are only the half-open bounds of the time of the input. Its rows are between the
  bounds of their window and of the chunk, so these conditions are always true.
- Rows are grouped by the event time. Rows of two windows never have the same event time, so no
  group has rows of two windows.

Otherwise the bounds of the window of each input row become columns of the input. They replace the
parameters, and rows are also grouped by them.

The proof does not cover the last bits of floating point sums, which depend on the order of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from featurestore.jobs.query import Unproven, WindowedQuery, find_parameters, quote_sql
from featurestore.model.job import SqlWork
from featurestore.model.times import Window, to_micros

if TYPE_CHECKING:
    from sqlglot import exp

Micros = NDArray[np.int64]
TimeTransform = Callable[[Micros], Micros]
# Seconds of the units with a fixed length, and NumPy's codes of the units for truncation.
_FIXED = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 7 * 86_400}
_CALENDAR = {"second": "s", "minute": "m", "hour": "h", "day": "D", "month": "M", "year": "Y"}
# 1970-01-01 was a Thursday, and weeks begin on Monday.
_MONDAY = 3
_DAY = 86_400_000_000
# A thousand years: longer intervals may overflow.
_LONGEST = 1000 * 366 * _DAY
_TRUNCATIONS = ("date_trunc", "datetrunc")
# Casts of a time that keep it, in a session whose time zone is UTC.
_TIME_TYPES = frozenset({"TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPNTZ"})


@dataclass(frozen=True)
class ChunkQuery:
    """A query that returns the rows of all windows of a chunk.

    Attributes:
        code: The query of the job; or, with ``input``, the query with ``WINDOW_COLUMNS`` of this
            input instead of parameters.
        input: The name of the input that needs these columns.
    """

    code: str
    input: str | None = None


def prove_chunk(
    work: SqlWork,
    windows: Sequence[Window],
    *,
    schemas: Mapping[str, pa.Schema],
    times: Mapping[str, str],
) -> ChunkQuery:
    """Return the query that computes a chunk of windows with the rows of separate queries.

    Args:
        work: The work of the job, whose query was validated.
        windows: The windows, oldest first.
        schemas: The schema of each input.
        times: The columns by which inputs are filtered to the window; inputs without one are read
            completely.

    Raises:
        Unproven: The rows may differ from those of separate queries.
    """
    if any(before.end != after.start for before, after in pairwise(windows)):
        raise Unproven("there is time between the windows")
    query = WindowedQuery.resolve(work, schemas=schemas, times=times)
    event_time = query.event_time()
    if event_time is not None:
        proof = EventTimeProof(query, event_time, TimeExpression.parse(event_time))
        proof.check_inside(windows)
        if proof.separates_windows() and has_only_bounds(query):
            return ChunkQuery(work.code)
    elif work.closed == "left":
        raise Unproven(f"the result has no column {work.options.event_time!r}")
    return ChunkQuery(query.with_window_columns(), query.input)


def windows_to_micros(windows: Sequence[Window]) -> Micros:
    """Return the starts and ends of windows in microseconds, one row per window."""
    return np.array(
        [(to_micros(window.start), to_micros(window.end)) for window in windows], np.int64
    )


@dataclass(frozen=True)
class EventTimeProof:
    """The proof that the event times of result rows are in the window of their input rows."""

    query: WindowedQuery
    event_time: exp.Expr
    steps: TimeExpression

    def check_inside(self, windows: Sequence[Window]) -> None:
        """Check that the event time of every row is inside the window of its input row.

        Raises:
            Unproven: It may be outside.
        """
        starts, ends = windows_to_micros(windows).T
        operand = self.steps.operand
        if self.query.is_time(operand):
            # Inputs are read in [start, end), so the last instant is one microsecond before the end.
            first, last = starts, ends - 1
        elif operand in find_parameters(self.event_time):
            first = last = ends if operand.name == "window_end" else starts
        else:
            raise Unproven(
                f"{quote_sql(self.event_time)} is not a known function of {self.query.time}"
            )
        first, last = self.steps.compute(first), self.steps.compute(last)
        closed = self.query.work.closed
        if closed == "right":
            is_inside = (first > starts).all() and (last <= ends).all()
        else:
            is_inside = (first >= starts).all() and (last < ends).all()
        if not is_inside:
            raise Unproven(
                f"{quote_sql(self.event_time)} may be outside of its window (closed={closed!r})"
            )

    def separates_windows(self) -> bool:
        """Return whether no row and no group depends on input rows of two windows."""
        group_by = self.query.select.args.get("group")
        if not self.query.is_time(self.steps.operand):
            return False
        if group_by is None or group_by.args.get("all"):
            return True
        return any(self._determines_window(key) for key in group_by.expressions)

    def _determines_window(self, key: exp.Expr) -> bool:
        """Return whether a key of GROUP BY is the event time, or the time of the input."""
        from sqlglot import exp

        if key == self.event_time or self.query.is_time(key):
            return True
        name = str(self.query.work.options.event_time)
        if isinstance(key, exp.Literal):
            names = [output_name for output_name, _ in self.query.outputs()]
            return key.name == str(names.index(name) + 1)
        # A column of a table hides the result column of the same name.
        is_hidden = any(key.name.lower() in names for names in self.query.columns.values())
        is_name = isinstance(key, exp.Column) and not key.table and not is_hidden
        return is_name and key.name.lower() == name.lower()


def has_only_bounds(query: WindowedQuery) -> bool:
    """Return whether the parameters of a query are only the half-open bounds of the time."""
    clause = query.select.args.get("where")
    conditions = [] if clause is None else list(_split_conjunction(clause.this))
    in_bounds = {
        id(node)
        for condition in conditions
        if is_bound(condition, query)
        for node in find_parameters(condition)
    }
    return all(id(node) in in_bounds for node in find_parameters(query.select))


def is_bound(condition: exp.Expr, query: WindowedQuery) -> bool:
    """Return whether a condition is ``time >= $window_start`` or ``time < $window_end``."""
    from sqlglot import exp

    if isinstance(condition, exp.LTE | exp.GT):  # $window_start <= time
        column, parameter = condition.expression, condition.this
        name = "window_start" if isinstance(condition, exp.LTE) else "window_end"
    elif isinstance(condition, exp.GTE | exp.LT):
        column, parameter = condition.this, condition.expression
        name = "window_start" if isinstance(condition, exp.GTE) else "window_end"
    else:
        return False
    is_parameter = isinstance(parameter, exp.Parameter | exp.Placeholder)
    return is_parameter and parameter.name == name and query.is_time(column)


def _split_conjunction(condition: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the conditions that AND combines."""
    from sqlglot import exp

    condition = condition.unnest()
    if isinstance(condition, exp.And):
        yield from _split_conjunction(condition.this)
        yield from _split_conjunction(condition.expression)
    else:
        yield condition


@dataclass(frozen=True)
class TimeExpression:
    """The expression of a time as monotonic steps from an operand, such as a column."""

    operand: exp.Expr
    steps: tuple[TimeTransform, ...]

    @classmethod
    def parse(cls, node: exp.Expr) -> TimeExpression:
        """Parse an expression; the operand is the innermost expression that is not a step."""
        steps = list[TimeTransform]()
        while True:
            node = node.unnest()
            step, operand = cls._parse_step(node)
            if step is None or operand is None:
                return cls(node, tuple(reversed(steps)))
            steps.append(step)
            node = operand

    def compute(self, micros: Micros) -> Micros:
        """Return the times for values of the operand, in microseconds."""
        for step in self.steps:
            micros = step(micros)
        return micros

    @staticmethod
    def _parse_step(node: exp.Expr) -> tuple[TimeTransform | None, exp.Expr | None]:
        """Return the monotonic step of an expression and its operand; None if it is not a step."""
        from sqlglot import exp

        if isinstance(node, exp.Cast) and not node.to.expressions:
            type_name = str(node.to.this.name)
            if type_name in _TIME_TYPES:
                return (lambda micros: micros), node.this
            return (_truncate_to("day") if type_name == "DATE" else None), node.this
        if isinstance(node, exp.Add | exp.Sub):
            shift = TimeExpression._interval_micros(node.expression)
            sign = -1 if isinstance(node, exp.Sub) else 1
            return (lambda micros: micros + sign * shift) if shift is not None else None, node.this
        is_truncation = isinstance(node, exp.Anonymous) and node.name.lower() in _TRUNCATIONS
        if not is_truncation or len(node.expressions) != 2 or not node.expressions[0].is_string:
            return None, None
        unit, operand = node.expressions
        return _truncate_to(_singular(unit.name)), operand

    @staticmethod
    def _interval_micros(node: Any) -> int | None:
        """Return the length of a fixed interval; None for calendar units such as months."""
        from sqlglot import exp

        if not isinstance(node, exp.Interval):
            return None
        amount, unit = node.this, node.args.get("unit")
        if not isinstance(amount, exp.Literal) or not isinstance(unit, exp.Var):
            return None
        seconds = _FIXED.get(_singular(unit.name))
        if seconds is None or not amount.name.isdigit():
            return None
        micros = int(amount.name) * seconds * 1_000_000
        return micros if micros < _LONGEST else None


def _singular(unit: str) -> str:
    return unit.lower().removesuffix("s")


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
