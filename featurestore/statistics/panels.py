"""One small picture a column: a histogram of numbers and times, bars of frequent values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from featurestore.errors import StatisticsNotFound
from featurestore.model.statistics import ColumnStatistics, Statistics
from featurestore.statistics.captions import panel_title, short
from featurestore.statistics.cumulative import as_number, cumulative
from featurestore.statistics.exactsum import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIRST, SECOND = "#4878cf", "#d65f5f"
_MOST_PANELS = 60
_MORE_BINS = 60
_NEUTRAL = "#8c8c8c"


def columns_to_draw(
    statistics: Statistics, columns: Sequence[str] | None
) -> list[ColumnStatistics]:
    """Return the columns of these names, or the features that can be drawn, at most 60."""
    if columns is not None:
        return [statistics.column(name) for name in columns]
    kinds = ("number", "boolean", "time", "text")
    chosen = [each for each in statistics.columns if each.role == "feature" and each.kind in kinds]
    chosen = chosen or [each for each in statistics.columns if each.kind in kinds]
    if not chosen:
        raise StatisticsNotFound("There is no column of numbers, times or texts to draw.")
    return chosen[:_MOST_PANELS]


def draw_distribution(
    axis: Axes, column: ColumnStatistics, other: ColumnStatistics | None, *, rows: int
) -> None:
    """Draw one column as bars, and another table's over it as a line or points."""
    axis.set_title(panel_title(column, rows), fontsize=9)
    axis.tick_params(labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)
    if column.count == 0:
        axis.text(
            0.5,
            0.5,
            "no values",
            transform=axis.transAxes,
            ha="center",
            va="center",
            color=_NEUTRAL,
        )
        axis.set_xticks([])
        axis.set_yticks([])
        return
    if column.kind in ("text", "boolean"):
        _bars(axis, column, other)
    elif column.histogram is not None:
        _histogram(axis, column, other)
    axis.locator_params(axis="y" if column.kind not in ("text", "boolean") else "x", nbins=4)


def _histogram(axis: Axes, column: ColumnStatistics, other: ColumnStatistics | None) -> None:
    edges, shares = _bins(column)
    axis.bar(edges[:-1], shares, width=np.diff(edges), align="edge", color=FIRST, alpha=0.85)
    if other is not None and (theirs := cumulative(other)) is not None:
        wider = _covering(edges, theirs.points[0], theirs.points[-1])
        # Bins hold their left edge, the last one both, like those of the bars.
        beside = np.diff(np.append(theirs.below(wider[:-1]), theirs.up_to(wider[-1:])))
        axis.stairs(beside, wider, color=SECOND, linewidth=1.4)
    if column.kind == "time":
        _date_ticks(axis)
    elif column.type.startswith(("int", "uint")):
        axis.locator_params(axis="x", integer=True)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")


def _covering(edges: Floats, low: float, high: float) -> Floats:
    """Return the edges with more bins of their width, so that they cover another column's range, too."""
    width = float(edges[1] - edges[0])
    before = min(max(math.ceil((edges[0] - low) / width), 0), _MORE_BINS)
    after = min(max(math.ceil((high - edges[-1]) / width), 0), _MORE_BINS)
    left = edges[0] - width * np.arange(before, 0, -1)
    return np.concatenate((left, edges, edges[-1] + width * np.arange(1, after + 1)))


def _bars(axis: Axes, column: ColumnStatistics, other: ColumnStatistics | None) -> None:
    top = column.top[:8]
    if not top:
        text = f"{column.distinct:,} values,\nno frequent one"
        axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", va="center", fontsize=8)
        axis.set_xticks([])
        axis.set_yticks([])
        return
    shares = _value_shares(column)
    theirs = {} if other is None else _value_shares(other)
    new = sorted(
        (value for value in theirs if value not in shares), key=lambda value: -theirs[value]
    )[:3]
    values = [each.value for each in top] + new
    axis.barh(
        range(len(values)), [shares.get(each, 0.0) for each in values], color=FIRST, alpha=0.85
    )
    if other is not None:
        axis.scatter(
            [theirs.get(each, 0.0) for each in values],
            range(len(values)),
            color=SECOND,
            s=18,
            zorder=3,
        )
    axis.set_yticks(
        range(len(values)), [short(str(each), 14) or '""' for each in values], fontsize=7
    )
    axis.invert_yaxis()
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")


def _value_shares(column: ColumnStatistics) -> dict[Any, float]:
    total = sum(each.count for each in column.top) if column.top_complete else column.count
    return {each.value: each.count / max(total, 1) for each in column.top}


def _bins(column: ColumnStatistics) -> tuple[Floats, Floats]:
    if column.histogram is None:
        raise StatisticsNotFound(f"Column {column.name!r} has no histogram.")
    edges = np.array([as_number(each) for each in column.histogram.edges])
    counts = np.array(column.histogram.counts, dtype=np.float64)
    return edges, counts / max(counts.sum(), 1.0)


def _date_ticks(axis: Axes) -> None:
    from datetime import UTC, datetime

    axis.locator_params(axis="x", nbins=3)
    low, high = axis.get_xlim()
    days = (high - low) / 86_400
    pattern = "%Y-%m" if days > 90 else "%m-%d" if days > 3 else "%d %H:%M"
    axis.xaxis.set_major_formatter(
        lambda value, _: datetime.fromtimestamp(value, UTC).strftime(pattern)
    )
