"""Tick labels: 100 k instead of 100000, and 2.5 % is never rounded to 2 %."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_UNITS = ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k"))
_LARGE, _HUGE = 1e4, 1e15
_DAY = 86_400


def number_text(value: float) -> str:
    """Format a number with three digits, and a unit for large ones.

    >>> number_text(100_000), number_text(1_234), number_text(-2.5e6), number_text(0.0312)
    ('100 k', '1234', '-2.5 M', '0.0312')
    """
    return _with_unit(value, _unit_of(abs(value)), digits=3)


def number_texts(values: Sequence[float]) -> list[str]:
    """Format the numbers of an axis with one unit and enough digits to distinguish them.

    >>> number_texts([0, 5_000, 10_000]), number_texts([1990, 2000])
    (['0', '5 k', '10 k'], ['1990', '2000'])
    >>> number_texts([1_000_000, 1_000_002])
    ['1,000,000', '1,000,002']
    """
    unit = _unit_of(max(map(abs, values), default=0.0))
    for digits in range(3, 6):
        texts = [_with_unit(value, unit, digits=digits) for value in values]
        if len(set(texts)) == len(values):
            return texts
    return [f"{value:,.10g}" for value in values]


def percent_text(share: float) -> str:
    """Format a share in per cent, without padding.

    >>> percent_text(0.025), percent_text(0.5), percent_text(0.0005)
    ('2.5 %', '50 %', '0.05 %')
    """
    return f"{100 * share:.3g} %"


def time_text(seconds: float, *, days: float) -> str:
    """Format an instant as month, day or minute, by the days that the axis spans.

    Instants outside Python's calendar are supported.

    >>> time_text(0, days=400), time_text(0, days=30), time_text(3600, days=1)
    ('1970-01', '01-01', '01 01:00')
    """
    instant = np.datetime64(round(seconds), "s")
    year, month, day = str(instant.astype("datetime64[D]")).rsplit("-", 2)
    if days > 90:
        return f"{year}-{month}"
    if days > 3:
        return f"{month}-{day}"
    time = str(instant).partition("T")[2]
    return f"{day} {time[:5]}"


def percent_ticks(axis: Axes, axis_name: Literal["x", "y"]) -> None:
    """Format the ticks of an axis ("x" or "y") in per cent, with at most five ticks."""
    axis.locator_params(axis=axis_name, nbins=4)
    _axis(axis, axis_name).set_major_formatter(lambda value, _: percent_text(value))


def number_ticks(axis: Axes, axis_name: str = "x", *, integers_only: bool = False) -> None:
    """Format the ticks of an axis with one unit; ``whole`` restricts them to integers."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    class InOneUnit(FuncFormatter):
        def format_ticks(self, values: Any) -> list[str]:
            return number_texts([float(value) for value in values])

    ticked_axis = _axis(axis, axis_name)
    ticked_axis.set_major_locator(MaxNLocator(nbins=5, integer=integers_only, steps=[1, 2, 5, 10]))
    ticked_axis.set_major_formatter(InOneUnit(lambda value, _: number_text(value)))


def log_ticks(axis: Axes) -> None:
    """Format the ticks of a logarithmic axis, at powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.xaxis.set_major_locator(LogLocator(numticks=5))
    axis.xaxis.set_major_formatter(lambda value, _: number_text(value))
    axis.xaxis.set_minor_formatter(NullFormatter())


def time_ticks(axis: Axes) -> None:
    """Format the ticks of a time axis as months, days or minutes."""
    axis.locator_params(axis="x", nbins=3)
    low, high = axis.get_xlim()
    days = (high - low) / _DAY
    axis.xaxis.set_major_formatter(lambda seconds, _: time_text(seconds, days=days))


def _axis(axis: Axes, axis_name: str) -> Any:
    return axis.xaxis if axis_name == "x" else axis.yaxis


def _unit_of(largest: float) -> tuple[float, str]:
    if not math.isfinite(largest) or not _LARGE <= largest < _HUGE:
        return 1.0, ""
    for unit in _UNITS:
        if largest >= unit[0]:
            return unit
    return 1.0, ""


def _with_unit(value: float, unit: tuple[float, str], *, digits: int) -> str:
    divisor, name = unit
    if value == 0:
        return "0"
    if divisor == 1.0 and 1_000 <= abs(value) < _LARGE:
        digits = max(digits, 4)
    return f"{value / divisor:.{digits}g}{name}"
