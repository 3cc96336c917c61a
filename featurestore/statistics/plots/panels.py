"""Plot panels: histograms of numbers and times, bars of frequent values, effect intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from featurestore.errors import StatisticsNotFound, missing_extra
from featurestore.model.display import escape_line
from featurestore.model.roles import MODEL_ROLES
from featurestore.model.statistics import ColumnStatistics, Histogram, Statistics, Value
from featurestore.statistics.drift import Cumulative, as_number, cumulative
from featurestore.statistics.moments import Floats
from featurestore.statistics.plots.axes import (
    AxisRange,
    is_integer_column,
    log_ticks,
    number_text,
    number_ticks,
    panel_title,
    percent_ticks,
    range_label,
    range_to_draw,
    shorten_name,
    time_ticks,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAR_COLOR = "#4878cf"
_MAX_LABEL = 40


FIRST, SECOND = "#4878cf", "#d65f5f"
_DRAWN_KINDS = ("number", "boolean", "time", "text")
_MAX_PANELS = 60
_MAX_BARS = 8
_MAX_NEW_BARS = 3
_MAX_EXTRA_BINS = 60
_LONG_COUNT = 10_000
_NEUTRAL = "#8c8c8c"


def columns_to_draw(
    statistics: Statistics, columns: Sequence[str] | None
) -> tuple[list[ColumnStatistics], int]:
    """Return the columns to draw, by default the first 60 features, and the number of candidates."""
    if columns is not None:
        named_columns = [statistics.column(name) for name in columns]
        return named_columns, len(named_columns)
    drawable = []
    features = []
    for column in statistics.columns:
        if column.kind in _DRAWN_KINDS:
            drawable.append(column)
            if column.role in MODEL_ROLES:
                features.append(column)
    if not drawable:
        raise StatisticsNotFound("No numeric, time or string column to plot.")
    candidates = features or drawable
    return candidates[:_MAX_PANELS], len(candidates)


def draw_distribution(
    axis: Axes, column: ColumnStatistics, compared: ColumnStatistics | None, *, rows: int
) -> None:
    """Draw a column as bars, and the same column of another table as a line or points."""
    axis.set_title(panel_title(column, rows), fontsize=9)
    axis.tick_params(labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)
    if column.count == 0:
        _write_note(axis, "no values")
    elif column.kind not in ("text", "boolean"):
        if column.histogram is None:
            _write_note(axis, f"from {column.minimum}\nto {column.maximum}")
        else:
            _draw_histogram(axis, column, column.histogram, compared)
    elif column.top:
        _draw_bars(axis, column, compared)
    else:
        _write_note(axis, f"{column.distinct:,} values,\nall distinct")


def _write_note(axis: Axes, text: str) -> None:
    """Write a note instead of a plot."""
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
    axis: Axes, column: ColumnStatistics, histogram: Histogram, second: ColumnStatistics | None
) -> None:
    """Draw a histogram over the full or a clipped range, with a second column as a line."""
    columns = [column]
    if second is not None and second.count:
        columns.append(second)
    axis_range = range_to_draw(columns)
    # matplotlib adds edges, which may overflow near the limits of float64.
    with np.errstate(over="ignore"):
        if axis_range is None:
            _draw_full_range(axis, histogram, columns)
        else:
            _draw_clipped_range(axis, axis_range, columns)
    percent_ticks(axis, "y")
    if axis_range is not None and axis_range.log:
        axis.set_xscale("log")
        log_ticks(axis)
    elif column.kind == "time":
        time_ticks(axis)
    else:
        number_ticks(axis, integers_only=is_integer_column(column))


def _draw_full_range(axis: Axes, histogram: Histogram, columns: Sequence[ColumnStatistics]) -> None:
    """Draw the stored histogram, and the other columns as lines."""
    edges = _histogram_edges(histogram)
    counts = np.array(histogram.counts, dtype=np.float64)
    shares = counts / max(counts.sum(), 1.0)
    _draw_bins(axis, edges, shares)
    for column in columns[1:]:
        _draw_line(axis, edges, column)


def _draw_clipped_range(
    axis: Axes, axis_range: AxisRange, compared: Sequence[ColumnStatistics]
) -> None:
    """Draw histograms over a clipped range, with a note below the axis."""
    edges = axis_range.edges(compared[0])
    for index, column in enumerate(compared):
        distribution = cumulative(column)
        if distribution is None:
            continue
        shares = _bin_shares(distribution, edges)
        if index == 0:
            _draw_bins(axis, edges, shares)
        else:
            axis.stairs(shares, edges, color=SECOND, linewidth=1.4)
    axis.set_xlabel(range_label(compared[0], axis_range), fontsize=7)


def _draw_bins(axis: Axes, edges: Floats, shares: Floats) -> None:
    axis.bar(edges[:-1], shares, width=np.diff(edges), align="edge", color=FIRST, alpha=0.85)


def _bin_shares(distribution: Cumulative, edges: Floats) -> Floats:
    """Return the share in each bin; bins include the left edge, the last bin both edges."""
    up_to = np.append(distribution.share_below(edges[:-1]), distribution.share_up_to(edges[-1:]))
    return np.diff(up_to)


def _histogram_edges(histogram: Histogram) -> Floats:
    """Return the edges of a stored histogram, which are widened if they are all equal."""
    edges = np.array([as_number(edge) for edge in histogram.edges])
    if edges[-1] > edges[0]:
        return edges
    # For a large constant, there are too few floats between its neighbors for 30 bins.
    half = max(0.5, 4 * float(np.spacing(abs(edges[0]))))
    return np.linspace(edges[0] - half, edges[0] + half, len(edges))


def _draw_line(axis: Axes, edges: Floats, column: ColumnStatistics) -> None:
    """Draw the distribution of another table as a line, in bins of the same width."""
    distribution = cumulative(column)
    if distribution is None:
        return
    wider = _extend_edges(edges, distribution.points[0], distribution.points[-1])
    axis.stairs(_bin_shares(distribution, wider), wider, color=SECOND, linewidth=1.4)


def _extend_edges(edges: Floats, low: float, high: float) -> Floats:
    """Add bins of the same width to cover the range of another column."""
    width = float((edges[-1] - edges[0]) / (len(edges) - 1))
    bins_before = _count_bins(low, edges[0], width)
    bins_after = _count_bins(edges[-1], high, width)
    left = edges[0] - width * np.arange(bins_before, 0, -1)
    right = edges[-1] + width * np.arange(1, bins_after + 1)
    # Edges beyond the limits of float64 are infinite and cannot be drawn.
    covering = np.concatenate((left, edges, right))
    return covering[np.isfinite(covering)]


def _count_bins(start: float, end: float, width: float) -> int:
    """Return the number of bins between two numbers for a bin width, at most 60."""
    if end <= start:
        return 0
    bins = end / width - start / width  # the difference itself may overflow
    return math.ceil(min(bins, _MAX_EXTRA_BINS))


def _draw_bars(axis: Axes, column: ColumnStatistics, compared: ColumnStatistics | None) -> None:
    """Draw the most frequent values as bars, and all other values as one gray bar."""
    shares = _value_shares(column)
    drawn = list(shares)[:_MAX_BARS]
    hidden_count = (column.distinct or 0) - len(drawn)
    other_shares: dict[Value, float] = {}
    if compared is not None:
        other_shares = _value_shares(compared)
    new_values = [value for value in other_shares if value not in shares]
    new_values.sort(key=lambda value: -other_shares[value])
    drawn += new_values[:_MAX_NEW_BARS]
    widths = [shares.get(value, 0.0) for value in drawn]
    points = [other_shares.get(value, 0.0) for value in drawn]
    names = [shorten_name(str(value), 14) or '""' for value in drawn]
    colors = [FIRST] * len(drawn)
    if hidden_count > 0:
        # Rounding may make the sum slightly larger than 1.
        widths.append(max(1.0 - sum(widths), 0.0))
        points.append(max(1.0 - sum(points), 0.0))
        names.append(_others_label(hidden_count, exact=column.distinct_exact))
        colors.append(_NEUTRAL)
    positions = range(len(names))
    axis.barh(positions, widths, color=colors, alpha=0.85)
    if compared is not None and compared.count:
        axis.scatter(points, positions, color=SECOND, s=18, zorder=3)
    axis.set_yticks(positions, names, fontsize=7)
    axis.invert_yaxis()
    percent_ticks(axis, "x")


def _others_label(count: int, *, exact: bool) -> str:
    """Return the label of the bar for all other values."""
    text = f"{count:,}"
    if count >= _LONG_COUNT:
        text = number_text(count)
    if not exact:
        text = f"about {text}"
    return f"{text} others"


def _value_shares(column: ColumnStatistics) -> dict[Value, float]:
    """Return the share of each listed value, in descending order."""
    total = column.sampled or column.count
    if column.top_complete:
        total = sum(top_value.count for top_value in column.top)
    shares = {}
    for top_value in column.top:
        shares[top_value.value] = top_value.count / max(total, 1)
    return shares


def draw_intervals(
    rows: Sequence[tuple[str, float, float | None, float | None]], *, label: str
) -> Figure:
    """Return a figure with a bar for each (name, value, low, high), in order from the top.

    Args:
        rows: The bars; ``low`` and ``high`` are None for bars without an interval.
        label: The label of the value axis.
    """
    try:
        import matplotlib.pyplot as plt  # notebooks draw figures once it is loaded
    except ImportError as error:
        raise missing_extra("matplotlib", "plots") from error

    figure = plt.figure(figsize=(8, 1 + 0.35 * len(rows)), layout="constrained")
    plt.close(figure)
    axes = figure.subplots()
    names = []
    for position, (name, value, low, high) in enumerate(rows):
        label_text = escape_line(name)
        if len(label_text) > _MAX_LABEL:
            label_text = f"{label_text[: _MAX_LABEL - 1]}…"
        # matplotlib formats text between dollar signs as mathematics.
        names.append(label_text.replace("$", r"\$"))
        axes.barh(position, value, color=_BAR_COLOR, height=0.7)
        if low is not None and high is not None:
            error_sizes = [[value - low], [high - value]]
            axes.errorbar(value, position, xerr=error_sizes, color="black", capsize=3, linewidth=1)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
