"""Proofs that one query over a chunk of windows returns the rows of one query per window.

A query over a chunk reads the inputs of all its windows at once. This is a hundred times as fast as
a query per window, and allowed only if the syntax tree proves that the rows are the same:

- The query is one SELECT that computes its rows from single input rows or from groups of them.
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
  bounds of their window and of the chunk, so these conditions are true for all of them.
- Rows are grouped by the event time. Rows of two windows never have the same event time, so no
  group has rows of two windows.

Otherwise the bounds of the window of each input row become columns of the input. They replace the
parameters, and rows are also grouped by them.

The proof does not cover the last bits of floating point sums, which depend on the order of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from featurestore.jobs.query import Unproven, WindowedQuery, find_parameters, quote_sql
from featurestore.model.job import JobSpec
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
# The origin of time_bucket is Monday, 2000-01-03.
_BUCKET_ORIGIN = 946_857_600_000_000
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
    spec: JobSpec,
    windows: Sequence[Window],
    *,
    schemas: Mapping[str, pa.Schema],
    times: Mapping[str, str],
) -> ChunkQuery:
    """Return the query that computes a chunk of windows with the rows of separate queries.

    Args:
        spec: The job, whose query was validated.
        windows: The windows, oldest first.
        schemas: The schema of each input.
        times: The columns by which inputs are filtered to the window; inputs without one are read
            completely.

    Raises:
        Unproven: The rows may differ from those of separate queries.
    """
    if any(before.end != after.start for before, after in pairwise(windows)):
        raise Unproven("there is time between the windows")
    query = WindowedQuery.resolve(spec, schemas=schemas, times=times)
    event_time = query.event_time()
    if event_time is None and spec.closed == "left":
        raise Unproven(f"the result has no column {spec.event_time!r}")
    if event_time is not None:
        base, steps = parse_time(event_time)
        _check_inside(query, event_time, base, steps, windows)
        if query.is_time(base) and _has_only_bounds(query) and _is_grouped(query, event_time):
            return ChunkQuery(spec.code)
    return ChunkQuery(query.with_window_columns(), query.input)


def windows_to_micros(windows: Sequence[Window]) -> Micros:
    """Return the starts and ends of windows in microseconds, one row per window."""
    return np.array([(to_micros(each.start), to_micros(each.end)) for each in windows], np.int64)


def _check_inside(
    query: WindowedQuery,
    event_time: exp.Expr,
    base: exp.Expr,
    steps: TimeTransform,
    windows: Sequence[Window],
) -> None:
    """Check that the event time of every row is inside the window of its input row."""
    starts, ends = windows_to_micros(windows).T
    if query.is_time(base):
        # Inputs are read in [start, end), so the last instant is one microsecond before the end.
        first, last = starts, ends - 1
    elif base in find_parameters(event_time):
        first = last = ends if base.name == "window_end" else starts
    else:
        raise Unproven(f"{quote_sql(event_time)} is not a known function of {query.time}")
    first, last = steps(first), steps(last)
    if query.spec.closed == "right":
        is_inside = (first > starts).all() and (last <= ends).all()
    else:
        is_inside = (first >= starts).all() and (last < ends).all()
    if not is_inside:
        closed = query.spec.closed
        raise Unproven(f"{quote_sql(event_time)} may be outside of its window (closed={closed!r})")


def _has_only_bounds(query: WindowedQuery) -> bool:
    """Return whether parameters are only the half-open bounds of the time."""
    where = query.select.args.get("where")
    conditions = [] if where is None else list(_split_conjunction(where.this))
    in_bounds = {
        id(node)
        for condition in conditions
        if _is_bound(condition, query)
        for node in find_parameters(condition)
    }
    return all(id(node) in in_bounds for node in find_parameters(query.select))


def _is_bound(condition: exp.Expr, query: WindowedQuery) -> bool:
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


def _is_grouped(query: WindowedQuery, event_time: exp.Expr) -> bool:
    """Return whether no group has rows of two event times."""
    group_by = query.select.args.get("group")
    if group_by is None or group_by.args.get("all"):
        return True
    return any(_determines_window(key, event_time, query) for key in group_by.expressions)


def _determines_window(key: exp.Expr, event_time: exp.Expr, query: WindowedQuery) -> bool:
    """Return whether a key of GROUP BY is the event time, or the time of the input."""
    from sqlglot import exp

    if key == event_time or query.is_time(key):
        return True
    name = str(query.spec.event_time)
    if isinstance(key, exp.Literal):
        names = [output_name for output_name, _ in query.outputs()]
        return key.name == str(names.index(name) + 1)
    # A column of a table hides the result column of the same name.
    is_hidden = any(key.name.lower() in names for names in query.columns.values())
    is_name = isinstance(key, exp.Column) and len(key.parts) == 1 and not is_hidden
    return is_name and key.name.lower() == name.lower()


# -- Monotonic steps of times -------------------------------------------------------------------


def _parse_step(node: exp.Expr) -> tuple[TimeTransform | None, exp.Expr | None]:
    """Return the monotonic step of an expression and its operand; None if unknown."""
    from sqlglot import exp

    if isinstance(node, exp.Cast):
        return _cast_to(str(node.to.this.name)), node.this
    if isinstance(node, exp.Add | exp.Sub):
        micros = _interval_micros(node.expression)
        if micros is None:
            return None, None
        return _shift_by(-micros if isinstance(node, exp.Sub) else micros), node.this
    if not isinstance(node, exp.Anonymous) or len(node.expressions) != 2:
        return None, None
    name, (first, operand) = node.name.lower(), node.expressions
    if name in ("date_trunc", "datetrunc") and isinstance(first, exp.Literal):
        return _truncate_to(_singular(first.name)), operand
    if name == "time_bucket":
        width = _interval_micros(first)
        return (_bucket_by(width) if width else None), operand
    return None, None


def parse_time(node: exp.Expr) -> tuple[exp.Expr, TimeTransform]:
    """Split the expression of a time into the innermost operand and a monotonic function of it."""
    steps = list[TimeTransform]()
    while True:
        node = node.unnest()
        step, operand = _parse_step(node)
        if step is None or operand is None:
            return node, partial(_apply, tuple(reversed(steps)))
        steps.append(step)
        node = operand


def _apply(steps: tuple[TimeTransform, ...], micros: Micros) -> Micros:
    for step in steps:
        micros = step(micros)
    return micros


def _identity(micros: Micros) -> Micros:
    return micros


def _singular(unit: str) -> str:
    return unit.lower().removesuffix("s")


def _cast_to(type_name: str) -> TimeTransform | None:
    if type_name == "DATE":
        return _truncate_to("day")
    return _identity if type_name in _TIME_TYPES else None


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


def _shift_by(shift: int) -> TimeTransform:
    return lambda micros: micros + shift


def _bucket_by(width: int) -> TimeTransform:
    return lambda micros: (micros - _BUCKET_ORIGIN) // width * width + _BUCKET_ORIGIN


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
    return int(amount.name) * seconds * 1_000_000
