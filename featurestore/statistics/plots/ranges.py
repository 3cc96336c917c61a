"""Range of an axis: all values, or without long tails, which the axis label then mentions.

A few outliers would otherwise leave one bar and an empty plot.
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

# Shares that may be clipped at either end: the smallest that leaves a range of at most
# _MAX_TAIL_RATIO times the middle 90 %. (A million normal values have a ratio of 3, exponential
# ones 5.)
_TAILS = (0.0, 0.005, 0.01, 0.025, 0.05)
_MAX_TAIL_RATIO = 6.0
_SNAP_SHARE = 0.25
_MIN_REPORTED_SHARE = 1e-4
_LOG_RATIO = 100.0
# Below this, the bins of a logarithmic axis would cover unequal numbers of integers.
_MIN_LOG_INTEGER = 100.0
_HUGE = 1e300


@dataclass(frozen=True)
class AxisRange:
    """The drawn part of a column's range, as numbers (times as seconds since 1970)."""

    low: float
    high: float
    log: bool = False

    def edges(self, column: ColumnStatistics) -> Floats:
        """Return the edges of bins over the range; bins of integers cover integers."""
        if self.log:
            return np.geomspace(self.low, self.high, BINS + 1)
        if is_integer_column(column):
            return np.array(stepped_edges(np.ceil(self.low), np.floor(self.high)))
        return np.linspace(self.low, self.high, BINS + 1)


def range_to_draw(columns: Sequence[ColumnStatistics]) -> AxisRange | None:
    """Return the range to draw the same column of several tables in; None for all values."""
    full_ranges, trimmed_ranges = [], []
    for column in columns:
        quantiles = np.array([as_number(each) for each in column.quantiles])
        if len(quantiles):
            full_ranges.append((float(quantiles[0]), float(quantiles[-1])))
            trimmed_ranges.append(_trim_tails(quantiles))
    if full_ranges == trimmed_ranges:
        return None
    full_range, trimmed_range = _union(full_ranges), _union(trimmed_ranges)
    min_value = _MIN_LOG_INTEGER if is_integer_column(columns[0]) else 0.0
    if (
        columns[0].kind == "number"
        and trimmed_range[0] > min_value
        and trimmed_range[1] / trimmed_range[0] >= _LOG_RATIO
    ):
        logs = (
            math.log(max(full_range[0], min_value, trimmed_range[0] / _HUGE)),
            math.log(full_range[1]),
        )
        low, high = _snap_to_full_range(
            logs, (math.log(trimmed_range[0]), math.log(trimmed_range[1]))
        )
        return AxisRange(math.exp(low), math.exp(high), log=True)
    return AxisRange(*_snap_to_full_range(full_range, trimmed_range))


def outside_text(column: ColumnStatistics, axis_range: AxisRange) -> str:
    """Return the label of an axis: its scale and the shares of values beyond the range."""
    lines = []
    distribution = cumulative(column)
    if distribution is not None:
        below, above = _shares_outside(distribution, axis_range)
        if below > _MIN_REPORTED_SHARE:
            lines.append(
                f"{_format_share(below)} below, from {_format_value(column, distribution.points[0])}"
            )
        if above > _MIN_REPORTED_SHARE:
            lines.append(
                f"{_format_share(above)} above, to {_format_value(column, distribution.points[-1])}"
            )
    if axis_range.log:
        lines[:1] = [", ".join(["log scale", *lines[:1]])]
    return "\n".join(lines)


def is_integer_column(column: ColumnStatistics) -> bool:
    """Return True for columns of an integer type."""
    return column.type.startswith(("int", "uint"))


def _trim_tails(quantiles: Floats) -> tuple[float, float]:
    """Return the range without long tails, or the full range if there are none."""
    steps = len(quantiles) - 1
    ranges = []
    for share in _TAILS:
        skipped = round(share * steps)
        ranges.append((float(quantiles[skipped]), float(quantiles[steps - skipped])))
    middle = ranges[-1][1] - ranges[-1][0]
    for low, high in ranges:
        # The difference itself may overflow.
        if high / _MAX_TAIL_RATIO - low / _MAX_TAIL_RATIO <= middle and low < high:
            return low, high
    return ranges[0]


def _union(ranges: Sequence[tuple[float, float]]) -> tuple[float, float]:
    lows, highs = zip(*ranges, strict=True)
    return min(lows), max(highs)


def _snap_to_full_range(
    full_range: tuple[float, float], trimmed_range: tuple[float, float]
) -> tuple[float, float]:
    """Extend a range to the ends of the full range where these are near."""
    tolerance = (trimmed_range[1] - trimmed_range[0]) * _SNAP_SHARE
    low, high = trimmed_range
    if low - full_range[0] <= tolerance:
        low = full_range[0]
    if full_range[1] - high <= tolerance:
        high = full_range[1]
    return low, high


def _shares_outside(distribution: Cumulative, axis_range: AxisRange) -> tuple[float, float]:
    ends = np.array([axis_range.low, axis_range.high])
    below, above = distribution.below(ends)[0], 1.0 - distribution.up_to(ends)[1]
    return float(below), float(above)


def _format_share(share: float) -> str:
    return percent_text(float(f"{share:.2g}"))


def _format_value(column: ColumnStatistics, value: float) -> str:
    if column.kind == "time":
        return time_text(value, days=365)
    return number_text(value)
