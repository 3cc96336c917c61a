"""What part of a column an axis shows: all of it, or without its long tail, which is said.

A few values far from all others would leave one bar and an empty picture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from featurestore.model.statistics import ColumnStatistics
from featurestore.statistics.bins import BINS, stepped_edges
from featurestore.statistics.cumulative import Cumulative, as_number, cumulative
from featurestore.statistics.exactsum import Floats
from featurestore.statistics.plots.ticks import number_text, percent_text, time_text

# Shares that may be cut off at either end: the least that leaves a range of at most _LONG times
# that of the middle 90 %. (Of a million normal values the factor is 3, of exponential ones 5.)
_TAILS = (0.0, 0.005, 0.01, 0.025, 0.05)
_LONG = 6.0
_NEAR = 0.25
_LEAST_SAID = 1e-4
_DECADES = 100.0
# Below this, bins of a logarithmic axis would hold unequally many whole numbers.
_LEAST_WHOLE = 100.0
_HUGE = 1e300


@dataclass(frozen=True)
class AxisRange:
    """The part of a column's range that is drawn, in numbers (times: seconds since 1970)."""

    low: float
    high: float
    log: bool = False

    def edges(self, column: ColumnStatistics) -> Floats:
        """Return the edges of bins over the range, whole-number ones for whole numbers."""
        if self.log:
            return np.geomspace(self.low, self.high, BINS + 1)
        if is_whole(column):
            return np.array(stepped_edges(np.ceil(self.low), np.floor(self.high)))
        return np.linspace(self.low, self.high, BINS + 1)


def range_to_draw(columns: Sequence[ColumnStatistics]) -> AxisRange | None:
    """Return the range in which the columns can be told apart; None: all of it.

    They are the same column of two tables.
    """
    wholes, parts = [], []
    for column in columns:
        quantiles = np.array([as_number(each) for each in column.quantiles])
        if len(quantiles):
            wholes.append((float(quantiles[0]), float(quantiles[-1])))
            parts.append(_without_tails(quantiles))
    if wholes == parts:
        return None
    whole, part = _union(wholes), _union(parts)
    least = _LEAST_WHOLE if is_whole(columns[0]) else 0.0
    if columns[0].kind == "number" and part[0] > least and part[1] / part[0] >= _DECADES:
        logs = (math.log(max(whole[0], least, part[0] / _HUGE)), math.log(whole[1]))
        low, high = _extended(logs, (math.log(part[0]), math.log(part[1])))
        return AxisRange(math.exp(low), math.exp(high), log=True)
    return AxisRange(*_extended(whole, part))


def outside_text(column: ColumnStatistics, shown: AxisRange) -> str:
    """Return what an axis says of itself: its scale, and what lies outside, in two lines."""
    lines = []
    distribution = cumulative(column)
    if distribution is not None:
        below, above = _shares_outside(distribution, shown)
        if below > _LEAST_SAID:
            lines.append(f"{_share(below)} below, from {_value(column, distribution.points[0])}")
        if above > _LEAST_SAID:
            lines.append(f"{_share(above)} above, to {_value(column, distribution.points[-1])}")
    if shown.log:
        lines[:1] = [", ".join(["log scale", *lines[:1]])]
    return "\n".join(lines)


def is_whole(column: ColumnStatistics) -> bool:
    """Tell whether a column's type holds whole numbers only."""
    return column.type.startswith(("int", "uint"))


def _without_tails(quantiles: Floats) -> tuple[float, float]:
    """Return the range without tails that are longer than the rest; the whole one without such."""
    steps = len(quantiles) - 1
    ranges = []
    for share in _TAILS:
        skipped = round(share * steps)
        ranges.append((float(quantiles[skipped]), float(quantiles[steps - skipped])))
    middle = ranges[-1][1] - ranges[-1][0]
    for low, high in ranges:
        # The difference itself may leave float64.
        if high / _LONG - low / _LONG <= middle and low < high:
            return low, high
    return ranges[0]


def _union(ranges: Sequence[tuple[float, float]]) -> tuple[float, float]:
    lows, highs = zip(*ranges, strict=True)
    return min(lows), max(highs)


def _extended(whole: tuple[float, float], part: tuple[float, float]) -> tuple[float, float]:
    """Return a part of a range, up to the end of the whole where that is near."""
    near = (part[1] - part[0]) * _NEAR
    low, high = part
    if low - whole[0] <= near:
        low = whole[0]
    if whole[1] - high <= near:
        high = whole[1]
    return low, high


def _shares_outside(distribution: Cumulative, shown: AxisRange) -> tuple[float, float]:
    ends = np.array([shown.low, shown.high])
    below, above = distribution.below(ends)[0], 1.0 - distribution.up_to(ends)[1]
    return float(below), float(above)


def _share(share: float) -> str:
    return percent_text(float(f"{share:.2g}"))


def _value(column: ColumnStatistics, value: float) -> str:
    if column.kind == "time":
        return time_text(value, days=365)
    return number_text(value)
