"""Aggregates over windows by looking at every row: slow, and obviously right.

It shares no code with the kernel. The leak check and the tests compare with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

from featurestore.model.plan import WindowJoin, WindowOutput

Row = Mapping[str, Any]
# More than any sum of decimals of 38 digits has.
_DIGITS = 100
# More than the square of a double has before its point.
_SQUARE_DIGITS = 700


@dataclass(frozen=True)
class EventRow:
    """One row of a group: its values, its times and the hash that decides between equal ones."""

    values: Row
    event: datetime | None
    created: datetime | None
    tie: int


def rows_of(
    join: WindowJoin,
    rows: Sequence[EventRow],
    key: tuple[Any, ...],
    moment: datetime,
    *,
    waits: bool,
) -> list[EventRow]:
    """Return the events of a key that are known at a moment, the oldest first.

    Of several versions of one event only the last that is known.
    """
    if None in key:
        return []
    versions: dict[tuple[Any, ...], EventRow] = {}
    for row in rows:
        if tuple(row.values[name] for _, name in join.on) != key or row.event is None:
            continue
        if row.event > moment:
            continue
        if waits and (row.created is None or row.created > moment):
            continue
        event = (row.event, *[row.values[name] for name in join.members])
        held = versions.get(event)
        if held is None or _order(row) > _order(held):
            versions[event] = row
    return sorted(versions.values(), key=lambda row: (row.event, *_order(row)))


def _order(row: EventRow) -> tuple[bool, Any, int]:
    return (row.created is not None, row.created or row.event, row.tie)


def counted(output: WindowOutput, rows: Sequence[EventRow], moment: datetime) -> list[EventRow]:
    """Return the rows of one key that lie in an aggregate's window, in their order.

    Conditions are not looked at here.
    """
    end = moment - output.offset
    inside = []
    for row in rows:
        assert row.event is not None
        if row.event > end:
            continue
        if output.over is not None and end - row.event >= output.over:
            continue
        inside.append(row)
    return inside


def answer(output: WindowOutput, given: Sequence[Any]) -> Any:
    """Return what a function answers for the values that count, the oldest first."""
    values = [value for value in given if value is not None]
    if output.function == "count":
        return len(values)
    if output.function == "count_distinct":
        return len(set(map(_identity, values)))
    if output.function == "last_n":
        kept = values[-output.n :]
        return [None] * (output.n - len(kept)) + kept
    if not values:
        return output.fill_value
    found = _of_some(output.function, values)
    if found is None:
        return output.fill_value
    return found


def _of_some(function: str, values: Sequence[Any]) -> Any:
    if function == "first":
        return values[0]
    if function == "last":
        return values[-1]
    if function == "any":
        return any(values)
    if function == "all":
        return all(values)
    if function == "min":
        return _one_zero(min(values, key=_rank))
    if function == "max":
        return _one_zero(max(values, key=_rank))
    if function == "sum":
        return _sum(values)
    if function == "mean":
        return _mean(values)
    if function == "var":
        variance = _variance(values)
        return _rounded(variance) if isinstance(variance, Fraction) else variance
    return _deviation(values)


def _deviation(values: Sequence[Any]) -> float | None:
    variance = _variance(values)
    if not isinstance(variance, Fraction):
        return variance
    rounded = _rounded(variance)
    if math.isfinite(rounded):
        return math.sqrt(rounded)
    with localcontext(prec=_SQUARE_DIGITS):
        return float((Decimal(variance.numerator) / Decimal(variance.denominator)).sqrt())


def _identity(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else _one_zero(value)
    return value


def _one_zero(value: Any) -> Any:
    """Return 0.0 for -0.0: of equal numbers it must not matter which one is found."""
    return value + 0.0 if isinstance(value, float) else value


def _rank(value: Any) -> tuple[bool, Any]:
    if isinstance(value, float):
        return (True, 0.0) if math.isnan(value) else (False, value)
    return (False, value)


def _sum(values: Sequence[Any]) -> Any:
    if isinstance(values[0], Decimal):
        with localcontext(prec=_DIGITS):
            return sum(values)
    if not isinstance(values[0], float):
        return sum(values)
    if all(map(math.isfinite, values)):
        return _rounded(sum(map(Fraction, values), Fraction(0)))
    # Infinities of one sign are the sum; with both, or with NaN, there is none.
    odd = {value for value in values if not math.isfinite(value)}
    if len(odd) == 1:
        return odd.pop()
    return math.nan


def _mean(values: Sequence[Any]) -> float:
    total = _sum(values)
    if isinstance(total, Decimal):
        scale = -int(values[0].as_tuple().exponent)
        with localcontext(prec=_DIGITS):
            units = int(total.scaleb(scale))
        return float(units) / len(values) / 10.0**scale
    return float(total) / len(values)


def _variance(values: Sequence[Any]) -> Fraction | float | None:
    count = len(values)
    if count < 2:
        return None
    numbers = list(map(float, values))
    if not all(map(math.isfinite, numbers)):
        return math.nan
    exact = list(map(Fraction, numbers))
    squares = sum((number * number for number in exact), Fraction(0))
    return Fraction(count * squares - sum(exact) ** 2) / (count * (count - 1))


def _rounded(number: Fraction) -> float:
    """Return the nearest double; infinity for what is beyond them all."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf
