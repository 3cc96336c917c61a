"""Plot axes: ranges, titles and tick labels.

Long tails may be clipped, because a few outliers would reduce a histogram to a single bar.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from featurestore.model.statistics import ColumnStatistics, Statistics
from featurestore.model.statistics_text import format_share, format_source_name
from featurestore.model.statistics_text import short as shorten_middle
from featurestore.statistics.distribution import BINS, stepped_edges
from featurestore.statistics.drift import as_number, cumulative
from featurestore.statistics.moments import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_NAME = 22


_UNITS = ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k"))
_LARGE, _SCIENTIFIC = 1e4, 1e15
_DAY = 86_400


# The shares that may be clipped at each end. The smallest share is used for which the range is at
# most _MAX_TAIL_RATIO times the range of the middle 90 %. (The ratio of a million values is 3 for a
# normal and 5 for an exponential distribution.)
_TAILS = (0.0, 0.005, 0.01, 0.025, 0.05)
_MAX_TAIL_RATIO = 6.0
# A clipped range is extended to the end of the data if this share of its width suffices.
_SNAP_SHARE = 0.25
# Smaller shares outside of the range are not worth a line below the axis.
_MIN_REPORTED_SHARE = 1e-4
_LOG_RATIO = 100.0
# Below this value, the bins of a logarithmic axis would cover unequal numbers of integers.
_MIN_LOG_INTEGER = 100.0
_HUGE = 1e300


def figure_title(statistics: Statistics, subject: str) -> str:
    """Return a figure title with the table name and the subject."""
    return f"{format_source_name(statistics.source)} {subject}".strip()


def panel_title(column: ColumnStatistics, rows: int) -> str:
    """Return a panel title with the column name, and the share of missing values if any."""
    name = shorten_name(column.name)
    if not column.missing or not rows:
        return name
    return f"{name}  ({format_share(column.missing / rows)} missing)"


def shorten_name(name: str, longest: int = _MAX_NAME) -> str:
    """Shorten a long name by omitting characters in the middle."""
    return shorten_middle(name, longest)


def font_size(count: int) -> float:
    """Return the font size for ``count`` labels."""
    return max(5.0, min(10.0, 10.5 - 0.045 * count))


def number_text(value: float) -> str:
    """Format a number with three digits, and a unit if it is large.

    >>> number_text(100_000), number_text(1_234), number_text(-2.5e6), number_text(0.0312)
    ('100 k', '1234', '-2.5 M', '0.0312')
    """
    return _format_with_unit(value, _select_unit(abs(value)), digits=3)


def number_texts(values: Sequence[float]) -> list[str]:
    """Format axis numbers with the same unit and enough digits to distinguish them.

    >>> number_texts([0, 5_000, 10_000]), number_texts([1990, 2000])
    (['0', '5 k', '10 k'], ['1990', '2000'])
    >>> number_texts([1_000_000, 1_000_002])
    ['1,000,000', '1,000,002']
    """
    unit = _select_unit(max(map(abs, values), default=0.0))
    for digits in range(3, 6):
        texts = [_format_with_unit(value, unit, digits=digits) for value in values]
        if len(set(texts)) == len(values):
            return texts
    return [f"{value:,.10g}" for value in values]


def percent_text(share: float) -> str:
    """Format a share as a percentage, without padding.

    >>> percent_text(0.025), percent_text(0.5), percent_text(0.0005)
    ('2.5 %', '50 %', '0.05 %')
    """
    return f"{100 * share:.3g} %"


def time_text(seconds: float, *, days: float) -> str:
    """Format an instant as month, day or minute, depending on the days that the axis spans.

    Instants outside of Python's calendar are supported.

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
    """Format the ticks of an axis as percentages, with at most five ticks."""
    axis.locator_params(axis=axis_name, nbins=4)
    _get_axis(axis, axis_name).set_major_formatter(lambda value, _: percent_text(value))


def number_ticks(axis: Axes, axis_name: str = "x", *, integers_only: bool = False) -> None:
    """Format the ticks of an axis with the same unit."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    # The class is defined here, because matplotlib is imported only when a plot is drawn. All ticks
    # of an axis must be formatted together to have the same unit.
    class InOneUnit(FuncFormatter):
        def format_ticks(self, values: Any) -> list[str]:
            return number_texts([float(value) for value in values])

    ticked_axis = _get_axis(axis, axis_name)
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


def _get_axis(axis: Axes, axis_name: str) -> Any:
    return axis.xaxis if axis_name == "x" else axis.yaxis


def _select_unit(largest: float) -> tuple[float, str]:
    """Return divisor and name of the unit for numbers up to a magnitude."""
    if not math.isfinite(largest) or not _LARGE <= largest < _SCIENTIFIC:
        return 1.0, ""
    for unit in _UNITS:
        if largest >= unit[0]:
            return unit
    return 1.0, ""


def _format_with_unit(value: float, unit: tuple[float, str], *, digits: int) -> str:
    """Format a number in a unit with a number of significant digits."""
    divisor, name = unit
    if value == 0:
        return "0"
    if divisor == 1.0 and 1_000 <= abs(value) < _LARGE:
        digits = max(digits, 4)
    return f"{value / divisor:.{digits}g}{name}"


@dataclass(frozen=True)
class AxisRange:
    """The displayed range of a column, as numbers (seconds since 1970 for times)."""

    low: float
    high: float
    log: bool = False

    def edges(self, column: ColumnStatistics) -> Floats:
        """Return the bin edges of the range; each bin of an integer column covers whole integers."""
        if self.log:
            return np.geomspace(self.low, self.high, BINS + 1)
        if is_integer_column(column):
            return np.array(stepped_edges(np.ceil(self.low), np.floor(self.high)))
        return np.linspace(self.low, self.high, BINS + 1)


def range_to_draw(columns: Sequence[ColumnStatistics]) -> AxisRange | None:
    """Return a common range for the same column of several tables, or None for the full range."""
    full_ranges, trimmed_ranges = [], []
    for column in columns:
        quantiles = np.array([as_number(quantile) for quantile in column.quantiles])
        if len(quantiles):
            full_ranges.append((float(quantiles[0]), float(quantiles[-1])))
            trimmed_ranges.append(_trim_tails(quantiles))
    # Without long tails, the stored histogram is drawn, which counts all rows.
    if full_ranges == trimmed_ranges:
        return None
    full_range, trimmed_range = _merge_ranges(full_ranges), _merge_ranges(trimmed_ranges)
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
        low, high = _extend_to_full_range(
            logs, (math.log(trimmed_range[0]), math.log(trimmed_range[1]))
        )
        return AxisRange(math.exp(low), math.exp(high), log=True)
    return AxisRange(*_extend_to_full_range(full_range, trimmed_range))


def range_label(column: ColumnStatistics, axis_range: AxisRange) -> str:
    """Return an axis label with the scale and the shares of values outside of the range."""
    lines = []
    distribution = cumulative(column)
    if distribution is not None:
        ends = np.array([axis_range.low, axis_range.high])
        below = float(distribution.share_below(ends)[0])
        above = 1.0 - float(distribution.share_up_to(ends)[1])
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
    """Return the range without long tails, or the full range if it has no long tails."""
    steps = len(quantiles) - 1
    ranges = []
    for share in _TAILS:
        skipped = round(share * steps)
        ranges.append((float(quantiles[skipped]), float(quantiles[steps - skipped])))
    middle = ranges[-1][1] - ranges[-1][0]
    for low, high in ranges:
        # The difference may overflow.
        if high / _MAX_TAIL_RATIO - low / _MAX_TAIL_RATIO <= middle and low < high:
            return low, high
    return ranges[0]


def _merge_ranges(ranges: Sequence[tuple[float, float]]) -> tuple[float, float]:
    lows, highs = zip(*ranges, strict=True)
    return min(lows), max(highs)


def _extend_to_full_range(
    full_range: tuple[float, float], trimmed_range: tuple[float, float]
) -> tuple[float, float]:
    """Extend a range to the end of the full range on each side where the end is close."""
    tolerance = (trimmed_range[1] - trimmed_range[0]) * _SNAP_SHARE
    low, high = trimmed_range
    if low - full_range[0] <= tolerance:
        low = full_range[0]
    if full_range[1] - high <= tolerance:
        high = full_range[1]
    return low, high


def _format_share(share: float) -> str:
    return percent_text(float(f"{share:.2g}"))


def _format_value(column: ColumnStatistics, value: float) -> str:
    if column.kind == "time":
        return time_text(value, days=365)
    return number_text(value)
