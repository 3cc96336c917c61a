"""One small picture for each column: a histogram of numbers and times, bars of frequent values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from featurestore.errors import StatisticsNotFound
from featurestore.model.statistics import ColumnStatistics, Histogram, Statistics, Value
from featurestore.statistics.cumulative import as_number, cumulative
from featurestore.statistics.exactsum import Floats
from featurestore.statistics.plots.captions import panel_title, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIRST, SECOND = "#4878cf", "#d65f5f"
_DRAWN_KINDS = ("number", "boolean", "time", "text")
_MOST_PANELS = 60
_MOST_BARS = 8
_MOST_NEW_BARS = 3
_MORE_BINS = 60
_NEUTRAL = "#8c8c8c"


def columns_to_draw(
    statistics: Statistics, columns: Sequence[str] | None
) -> list[ColumnStatistics]:
    """Return the columns of these names, or the features that can be drawn, at most 60."""
    if columns is not None:
        return [statistics.column(name) for name in columns]
    drawable = []
    features = []
    for column in statistics.columns:
        if column.kind in _DRAWN_KINDS:
            drawable.append(column)
            if column.role == "feature":
                features.append(column)
    if not drawable:
        raise StatisticsNotFound("There is no column of numbers, times or texts to draw.")
    return (features or drawable)[:_MOST_PANELS]


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
        if column.histogram is not None:
            _draw_histogram(axis, column, column.histogram, other)
        axis.locator_params(axis="y", nbins=4)
    elif column.top:
        _draw_bars(axis, column, other)
        axis.locator_params(axis="x", nbins=4)
    else:
        _write(axis, f"{column.distinct:,} values,\nno frequent one")


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
    edges = _edges(histogram)
    counts = np.array(histogram.counts, dtype=np.float64)
    shares = counts / max(counts.sum(), 1.0)
    with np.errstate(
        over="ignore"
    ):  # matplotlib adds up edges, which may lie near the end of float64
        axis.bar(edges[:-1], shares, width=np.diff(edges), align="edge", color=FIRST, alpha=0.85)
        if other is not None:
            _draw_line(axis, edges, other)
    if column.kind == "time":
        _date_ticks(axis)
    elif column.type.startswith(("int", "uint")):
        axis.locator_params(axis="x", integer=True)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")


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
    # Bins hold their left edge, the last one both, like those of the bars.
    up_to = np.append(distribution.below(wider[:-1]), distribution.up_to(wider[-1:]))
    axis.stairs(np.diff(up_to), wider, color=SECOND, linewidth=1.4)


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
    values = [each.value for each in column.top[:_MOST_BARS]]
    shares = _value_shares(column)
    other_shares: dict[Value, float] = {}
    if other is not None:
        other_shares = _value_shares(other)
    new = [value for value in other_shares if value not in shares]
    new.sort(key=lambda value: -other_shares[value])
    values += new[:_MOST_NEW_BARS]
    positions = range(len(values))
    widths = [shares.get(value, 0.0) for value in values]
    axis.barh(positions, widths, color=FIRST, alpha=0.85)
    if other is not None:
        points = [other_shares.get(value, 0.0) for value in values]
        axis.scatter(points, positions, color=SECOND, s=18, zorder=3)
    names = []
    for value in values:
        names.append(short(str(value), 14) or '""')
    axis.set_yticks(positions, names, fontsize=7)
    axis.invert_yaxis()
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")


def _value_shares(column: ColumnStatistics) -> dict[Value, float]:
    total = column.count
    if column.top_complete:
        total = sum(each.count for each in column.top)
    shares = {}
    for each in column.top:
        shares[each.value] = each.count / max(total, 1)
    return shares


def _date_ticks(axis: Axes) -> None:
    """Write times as months, days or minutes; also those that Python's calendar does not have."""
    axis.locator_params(axis="x", nbins=3)
    low, high = axis.get_xlim()
    days = (high - low) / 86_400

    def text(seconds: float, _: object) -> str:
        instant = np.datetime64(round(seconds), "s")
        year, month, day = str(instant.astype("datetime64[D]")).rsplit("-", 2)
        if days > 90:
            return f"{year}-{month}"
        if days > 3:
            return f"{month}-{day}"
        time = str(instant).partition("T")[2]
        return f"{day} {time[:5]}"

    axis.xaxis.set_major_formatter(text)
