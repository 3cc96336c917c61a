"""Reference implementation of window aggregates, which scans every row for every label.

It shares no code with the kernel. The leakage check and the tests compare the kernel with it.
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
# More digits than any sum of 38-digit decimals.
DIGITS = 100
# More integer digits than the square of any double.
_SQUARE_DIGITS = 700


@dataclass(frozen=True)
class EventRow:
    """A row of a group: values, times, and the hash that orders rows with equal times."""

    values: Row
    event: datetime | None
    created: datetime | None
    tie: int


def visible_events(
    join: WindowJoin,
    rows: Sequence[EventRow],
    key: tuple[Any, ...],
    timestamp: datetime,
    *,
    filters_created_time: bool,
) -> list[EventRow]:
    """Return the events of a key that are available at a timestamp, oldest first.

    Only the latest available version of each event is included.
    """
    # A label with a null key matches no rows, as in a join.
    if None in key:
        return []
    versions: dict[tuple[Any, ...], EventRow] = {}
    for row in rows:
        if tuple(row.values[name] for _, name in join.on) != key or row.event is None:
            continue
        if row.event > timestamp:
            continue
        if filters_created_time and (row.created is None or row.created > timestamp):
            continue
        event = (row.event, *[row.values[name] for name in join.members])
        previous = versions.get(event)
        if previous is None or _version_order(row) > _version_order(previous):
            versions[event] = row
    return sorted(versions.values(), key=lambda row: (row.event, *_version_order(row)))


def _version_order(row: EventRow) -> tuple[bool, Any, int]:
    return (row.created is not None, row.created or row.event, row.tie)


def rows_in_window(
    output: WindowOutput, rows: Sequence[EventRow], timestamp: datetime
) -> list[EventRow]:
    """Return the rows of one key in the window of an aggregate, in order.

    Conditions are not evaluated here.
    """
    end = timestamp - output.offset
    window_rows = []
    for row in rows:
        assert row.event is not None
        if row.event > end:
            continue
        # Half-open: the event at the start of the window is excluded, the one at its end is
        # included.
        if output.over is not None and end - row.event >= output.over:
            continue
        window_rows.append(row)
    return window_rows


def apply_function(output: WindowOutput, arguments: Sequence[Any]) -> Any:
    """Apply an aggregate function to the values in a window, oldest first."""
    values = [value for value in arguments if value is not None]
    if output.function == "count":
        return len(values)
    if output.function == "count_distinct":
        return len(set(map(identity, values)))
    if output.function == "last_n":
        last_values = values[-output.n :]
        return [output.fill_value] * (output.n - len(last_values)) + last_values
    if not values:
        return output.fill_value
    aggregated = _aggregate_values(output.function, values)
    if aggregated is None:
        return output.fill_value
    return aggregated


def _aggregate_values(function: str, values: Sequence[Any]) -> Any:
    if function == "first":
        return values[0]
    if function == "last":
        return values[-1]
    if function == "any":
        return any(values)
    if function == "all":
        return all(values)
    if function == "min":
        return normalize_zero(min(values, key=comparison_key))
    if function == "max":
        return normalize_zero(max(values, key=comparison_key))
    if function == "sum":
        return _sum(values)
    if function == "mean":
        return _mean(values)
    sample_variance = _variance(values)
    if not isinstance(sample_variance, Fraction):
        return sample_variance
    return nearest_double(sample_variance) if function == "var" else deviation(sample_variance)


def deviation(sample_variance: Fraction) -> float:
    """Return the square root of a variance."""
    rounded = nearest_double(sample_variance)
    if math.isfinite(rounded):
        return math.sqrt(rounded)
    # The variance exceeds the range of doubles, but its root may not.
    with localcontext(prec=_SQUARE_DIGITS):
        quotient = Decimal(sample_variance.numerator) / Decimal(sample_variance.denominator)
        return float(quotient.sqrt())


def identity(value: Any) -> Any:
    """Return a hashable value that is equal for equal values, NaN included."""
    if isinstance(value, float):
        # A set would treat each NaN object as different.
        return "NaN" if math.isnan(value) else normalize_zero(value)
    return value


def normalize_zero(value: Any) -> Any:
    """Replace -0.0 with 0.0, so that the result does not depend on which zero is selected."""
    return value + 0.0 if isinstance(value, float) else value


def comparison_key(value: Any) -> tuple[bool, Any]:
    """Return a sort key, in which NaN is greater than every number."""
    if isinstance(value, float):
        return (True, 0.0) if math.isnan(value) else (False, value)
    return (False, value)


def _sum(values: Sequence[Any]) -> Any:
    if isinstance(values[0], Decimal):
        with localcontext(prec=DIGITS):
            return sum(values)
    if not isinstance(values[0], float):
        return sum(values)
    if all(map(math.isfinite, values)):
        return nearest_double(sum(map(Fraction, values), Fraction(0)))
    return add_non_finite({value for value in values if not math.isfinite(value)})


def add_non_finite(values: set[float]) -> float:
    """Add the distinct infinities and NaN of a window, which determine the sum."""
    # Infinities of both signs give NaN.
    return next(iter(values)) if len(values) == 1 else math.nan


def _mean(values: Sequence[Any]) -> float:
    total = _sum(values)
    if isinstance(total, Decimal):
        scale = -int(values[0].as_tuple().exponent)
        with localcontext(prec=DIGITS):
            # The unscaled sum is rounded first, as in the kernel.
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
    return variance(
        count, sum(exact, Fraction(0)), sum((value * value for value in exact), Fraction(0))
    )


def variance(count: int, total: Fraction, squares: Fraction) -> Fraction:
    """Return the sample variance of at least two numbers from their sum and sum of squares."""
    return (count * squares - total**2) / (count * (count - 1))


def nearest_double(number: Fraction) -> float:
    """Return the nearest double, or infinity beyond the double range."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf
