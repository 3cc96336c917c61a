"""Queries that keep to their windows, proven from their text: then no window has to be computed alone to compare.

The event time of such a query is made of its input's time alone, by steps that never turn the order of times around:
``date_trunc`` and the adding of a fixed interval. So it is enough to look at the first and the last moment of a window:
when their event times lie in the window, those of all rows between them do, and rows of two windows never have the same
event time, which is among the keys of their groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from featurestore.jobs.query import parsed
from featurestore.model.job import JobSpec
from featurestore.model.times import to_micros
from featurestore.model.window import Window

if TYPE_CHECKING:
    from sqlglot import exp

Micros = NDArray[np.int64]
Steps = Callable[[Micros], Micros]
_FIXED = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 7 * 86_400}
_CALENDAR = {"second": "s", "minute": "m", "hour": "h", "day": "D", "month": "M", "year": "Y"}
# 1970-01-01 was a Thursday, and weeks begin on Mondays.
_MONDAY = 3


def keeps_to_windows(spec: JobSpec, windows: Sequence[Window], *, time: str) -> bool:
    """Tell whether every row of a query is proven to lie in the window of the input row or rows that it is made of.

    Args:
        spec: The job; its query has a form that may take many windows (``query.may_take_many``).
        windows: The windows.
        time: The column by which its input is cut.
    """
    steps = event_time_steps(spec, time=time)
    if steps is None:
        return False
    starts = np.array([to_micros(each.start) for each in windows], np.int64)
    ends = np.array([to_micros(each.end) for each in windows], np.int64)
    first, last = steps(starts), steps(ends - 1)
    if spec.closed == "right":
        return bool((first > starts).all() and (last <= ends).all())
    return bool((first >= starts).all() and (last < ends).all())


def event_time_steps(spec: JobSpec, *, time: str) -> Steps | None:
    """Return how a query makes its event time of the time of its only input; None where its text does not tell."""
    from sqlglot import exp

    tree = parsed(spec.code)
    if not isinstance(tree, exp.Select) or sum(1 for _ in tree.find_all(exp.Table)) != 1:
        return None
    found = next((each for each in tree.expressions if each.alias_or_name == spec.event_time), None)
    return None if found is None else _steps(found.unalias(), time)


def _steps(node: exp.Expr, time: str) -> Steps | None:
    from sqlglot import exp

    if isinstance(node, exp.Column):
        return (lambda micros: micros) if node.name.lower() == time.lower() else None
    if isinstance(node, exp.Paren):
        return _steps(node.this, time)
    if isinstance(node, exp.TimestampTrunc) and isinstance(node.args.get("unit"), exp.Var):
        return _then(_steps(node.this, time), _truncation(_unit(node)))
    if isinstance(node, exp.Add | exp.Sub) and isinstance(node.expression, exp.Interval):
        return _then(
            _steps(node.this, time), _shift(node.expression, back=isinstance(node, exp.Sub))
        )
    return None


def _then(first: Steps | None, second: Steps | None) -> Steps | None:
    if first is None or second is None:
        return None
    return lambda micros: second(first(micros))


def _unit(node: exp.Expr) -> str:
    return str(node.args["unit"].name).lower().removesuffix("s")


def _truncation(unit: str) -> Steps | None:
    if unit == "week":
        return lambda micros: (
            _floor(micros + _MONDAY * 86_400_000_000, 7 * 86_400_000_000) - _MONDAY * 86_400_000_000
        )
    code = _CALENDAR.get(unit)
    if code is None:
        return None
    return lambda micros: (
        micros.view("M8[us]").astype(f"M8[{code}]").astype("M8[us]").view(np.int64)
    )


def _floor(micros: Micros, width: int) -> Micros:
    return micros // width * width


def _shift(interval: exp.Interval, *, back: bool) -> Steps | None:
    from sqlglot import exp

    amount, unit = interval.this, interval.args.get("unit")
    if (
        not isinstance(amount, exp.Literal)
        or not isinstance(unit, exp.Var)
        or not amount.name.isdigit()
    ):
        return None
    seconds = _FIXED.get(_unit(interval))
    if seconds is None:
        return None
    micros_each = int(amount.name) * seconds * 1_000_000 * (-1 if back else 1)
    return lambda micros: micros + micros_each
