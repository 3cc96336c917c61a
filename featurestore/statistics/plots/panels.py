"""One small picture for each column: a histogram of numbers and times, bars of frequent values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from featurestore.errors import StatisticsNotFound
from featurestore.model.roles import MODEL_ROLES
from featurestore.model.statistics import ColumnStatistics, Histogram, Statistics, Value
from featurestore.statistics.cumulative import Cumulative, as_number, cumulative
from featurestore.statistics.exactsum import Floats
from featurestore.statistics.plots.captions import panel_title, short
from featurestore.statistics.plots.ranges import AxisRange, is_whole, outside_text, range_to_draw
from featurestore.statistics.plots.ticks import (
    log_ticks,
    number_text,
    number_ticks,
    percent_ticks,
    time_ticks,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIRST, SECOND = "#4878cf", "#d65f5f"
_DRAWN_KINDS = ("number", "boolean", "time", "text")
_MOST_PANELS = 60
_MOST_BARS = 8
_MOST_NEW_BARS = 3
_MORE_BINS = 60
_LONG_COUNT = 10_000
_NEUTRAL = "#8c8c8c"


def columns_to_draw(
    statistics: Statistics, columns: Sequence[str] | None
) -> tuple[list[ColumnStatistics], int]:
    """Return the columns to draw, and how many there would be to choose from.

    They are those of these names, or the first 60 features and labels that can be drawn.
    """
    if columns is not None:
        chosen = [statistics.column(name) for name in columns]
        return chosen, len(chosen)
    drawable = []
    features = []
    for column in statistics.columns:
        if column.kind in _DRAWN_KINDS:
            drawable.append(column)
            if column.role in MODEL_ROLES:
                features.append(column)
    if not drawable:
        raise StatisticsNotFound("There is no column of numbers, times or texts to draw.")
    found = features or drawable
    return found[:_MOST_PANELS], len(found)


def draw_distribution(
    axis: Axes, column: ColumnStatistics, other: ColumnStatistics | None, *, rows: int
) -> None:
    """Draw one column as bars, and another table's over it as a line or points."""
    axis.set_title(panel_title(column, rows), fontsize=9)
    axis.tick_params(labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)
    if column.count == 0:
        _write(axis, "no values")
    elif column.kind not in ("text", "boolean"):
        if column.histogram is None:
            _write(axis, f"from {column.minimum}\nto {column.maximum}")
        else:
            _draw_histogram(axis, column, column.histogram, other)
    elif column.top:
        _draw_bars(axis, column, other)
    else:
        _write(axis, f"{column.distinct:,} values,\nnone of them twice")


def _write(axis: Axes, text: str) -> None:
    """Write a text where there is nothing to draw."""
    axis.text(
        0.5,
        0.5,
        text,
        transform=axis.transAxes,
        ha="center",
        va="center",
        fontsize=8,
        color=_NEUTRAL,
    )
    axis.set_xticks([])
    axis.set_yticks([])


def _draw_histogram(
    axis: Axes, column: ColumnStatistics, histogram: Histogram, other: ColumnStatistics | None
) -> None:
    compared = [column]
    if other is not None and other.count:
        compared.append(other)
    shown = range_to_draw(compared)
    # matplotlib adds up edges, which may lie near the end of float64
    with np.errstate(over="ignore"):
        if shown is None:
            _draw_whole(axis, histogram, compared)
        else:
            _draw_part(axis, shown, compared)
    percent_ticks(axis, "y")
    if shown is not None and shown.log:
        axis.set_xscale("log")
        log_ticks(axis)
    elif column.kind == "time":
        time_ticks(axis)
    else:
        number_ticks(axis, whole=is_whole(column))


def _draw_whole(axis: Axes, histogram: Histogram, compared: Sequence[ColumnStatistics]) -> None:
    edges = _edges(histogram)
    counts = np.array(histogram.counts, dtype=np.float64)
    shares = counts / max(counts.sum(), 1.0)
    _draw_bins(axis, edges, shares)
    for other in compared[1:]:
        _draw_line(axis, edges, other)


def _draw_part(axis: Axes, shown: AxisRange, compared: Sequence[ColumnStatistics]) -> None:
    """Draw the columns over a part of their range, and say so below it."""
    edges = shown.edges(compared[0])
    for number, each in enumerate(compared):
        distribution = cumulative(each)
        if distribution is None:
            continue
        shares = _shares_of_bins(distribution, edges)
        if number == 0:
            _draw_bins(axis, edges, shares)
        else:
            axis.stairs(shares, edges, color=SECOND, linewidth=1.4)
    axis.set_xlabel(outside_text(compared[0], shown), fontsize=7)


def _draw_bins(axis: Axes, edges: Floats, shares: Floats) -> None:
    axis.bar(edges[:-1], shares, width=np.diff(edges), align="edge", color=FIRST, alpha=0.85)


def _shares_of_bins(distribution: Cumulative, edges: Floats) -> Floats:
    """Return the share in each bin; bins hold their left edge, the last one both."""
    up_to = np.append(distribution.below(edges[:-1]), distribution.up_to(edges[-1:]))
    return np.diff(up_to)


def _edges(histogram: Histogram) -> Floats:
    edges = np.array([as_number(each) for each in histogram.edges])
    if edges[-1] > edges[0]:
        return edges
    # One value, too large for bins of any width between its float64 neighbors.
    half = max(0.5, 4 * float(np.spacing(abs(edges[0]))))
    return np.linspace(edges[0] - half, edges[0] + half, len(edges))


def _draw_line(axis: Axes, edges: Floats, other: ColumnStatistics) -> None:
    """Draw another table's distribution over the bars, in bins of their width."""
    distribution = cumulative(other)
    if distribution is None:
        return
    wider = _covering(edges, distribution.points[0], distribution.points[-1])
    axis.stairs(_shares_of_bins(distribution, wider), wider, color=SECOND, linewidth=1.4)


def _covering(edges: Floats, low: float, high: float) -> Floats:
    """Return the edges with more bins of their width, to cover another column's range, too."""
    width = float((edges[-1] - edges[0]) / (len(edges) - 1))
    before = _bins_between(low, edges[0], width)
    after = _bins_between(edges[-1], high, width)
    left = edges[0] - width * np.arange(before, 0, -1)
    right = edges[-1] + width * np.arange(1, after + 1)
    covering = np.concatenate((left, edges, right))
    return covering[np.isfinite(covering)]


def _bins_between(start: float, end: float, width: float) -> int:
    """Return how many bins of a width lie between two numbers, at most 60."""
    if end <= start:
        return 0
    bins = end / width - start / width  # the difference itself may leave float64
    return math.ceil(min(bins, _MORE_BINS))


def _draw_bars(axis: Axes, column: ColumnStatistics, other: ColumnStatistics | None) -> None:
    """Draw the most frequent values as bars, and all others together as a gray one."""
    shares = _value_shares(column)
    drawn = list(shares)[:_MOST_BARS]
    left = (column.distinct or 0) - len(drawn)
    other_shares: dict[Value, float] = {}
    if other is not None:
        other_shares = _value_shares(other)
    new = [value for value in other_shares if value not in shares]
    new.sort(key=lambda value: -other_shares[value])
    drawn += new[:_MOST_NEW_BARS]
    widths = [shares.get(value, 0.0) for value in drawn]
    points = [other_shares.get(value, 0.0) for value in drawn]
    names = []
    for value in drawn:
        names.append(short(str(value), 14) or '""')
    colors = [FIRST] * len(drawn)
    if left > 0:
        widths.append(max(1.0 - sum(widths), 0.0))
        points.append(max(1.0 - sum(points), 0.0))
        names.append(_others_text(left, exact=column.distinct_exact))
        colors.append(_NEUTRAL)
    positions = range(len(names))
    axis.barh(positions, widths, color=colors, alpha=0.85)
    if other is not None and other.count:
        axis.scatter(points, positions, color=SECOND, s=18, zorder=3)
    axis.set_yticks(positions, names, fontsize=7)
    axis.invert_yaxis()
    percent_ticks(axis, "x")


def _others_text(count: int, *, exact: bool) -> str:
    """Return the name of the bar of all values that have none of their own."""
    text = f"{count:,}"
    if count >= _LONG_COUNT:
        text = number_text(count)
    if not exact:
        text = f"about {text}"
    return f"{text} others"


def _value_shares(column: ColumnStatistics) -> dict[Value, float]:
    total = column.sampled or column.count
    if column.top_complete:
        total = sum(each.count for each in column.top)
    shares = {}
    for each in column.top:
        shares[each.value] = each.count / max(total, 1)
    return shares
