"""Heatmaps of correlations: the scale fixed to [-1, 1], similar columns side by side, missing ones hatched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from featurestore.errors import InvalidArgument, StatisticsNotFound, missing_extra
from featurestore.model.statistics import Correlations, Statistics
from featurestore.statistics.captions import font_size, short, source_name
from featurestore.statistics.exactsum import Floats
from featurestore.statistics.ordering import clustered_order, matrix_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LISTED = 25
_ANNOTATED = 12
_LABELLED = 120
_TOP_PAIRS = 18
_NEUTRAL = "#8c8c8c"
_HATCH = "////"


def correlations_of(statistics: Statistics, method: str) -> Correlations:
    """Return the correlations of one method; StatisticsNotFound when there are none."""
    if method not in ("pearson", "spearman"):
        raise InvalidArgument(
            f"method={method!r} is not a correlation.", hint="method='pearson' or method='spearman'"
        )
    found = statistics.pearson if method == "pearson" else statistics.spearman
    if found is None:
        raise StatisticsNotFound(
            f"Correlations need two numeric features; {source_name(statistics.source) or 'this table'} has fewer.",
            hint="keys, times and texts have none",
        )
    return found


def similar_order(matrix: Floats) -> list[int]:
    """Return similar columns side by side, those without any correlation at the end."""
    known = ~np.isnan(matrix).all(axis=1)
    places = np.flatnonzero(known)
    similar = clustered_order(matrix[np.ix_(places, places)])
    return [
        *(int(places[each]) for each in similar),
        *(int(each) for each in np.flatnonzero(~known)),
    ]


def restricted(found: Correlations, names: Sequence[str]) -> Floats:
    """Return the matrix of some columns, in their order."""
    places = [found.columns.index(name) for name in names]
    return matrix_of(found)[np.ix_(places, places)]


def draw_heatmap(
    axis: Axes, matrix: Floats, labels: Sequence[str], *, cmap: str, annot: bool | None
) -> None:
    """Draw a matrix; ``annot=None`` writes the numbers where they can be read."""
    try:
        import seaborn as sns
    except ImportError as error:
        raise missing_extra("seaborn", "plots") from error
    missing = np.isnan(matrix)
    written = len(labels) <= _ANNOTATED if annot is None else annot
    named = len(labels) <= _LABELLED
    sns.heatmap(
        matrix,
        ax=axis,
        mask=missing,
        vmin=-1.0,
        vmax=1.0,
        cmap=cmap,
        square=True,
        annot=np.round(matrix, 2) + 0.0 if written else False,  # no -0.00
        fmt=".2f",
        annot_kws={"fontsize": max(5.0, min(9.0, 100 / max(len(labels), 1)))},
        linewidths=0.5 if len(labels) <= 40 else 0.0,
        linecolor=axis.get_facecolor(),
        xticklabels=list(labels) if named else False,
        yticklabels=list(labels) if named else False,
        cbar_kws={"shrink": 0.7, "ticks": [-1, -0.5, 0, 0.5, 1]},
    )
    axis.tick_params(axis="x", rotation=90, labelsize=font_size(len(labels)), length=0)
    axis.tick_params(axis="y", rotation=0, labelsize=font_size(len(labels)), length=0)
    from matplotlib.patches import Rectangle

    for row, column in zip(*np.nonzero(missing), strict=True):
        cell = Rectangle(
            (column, row), 1, 1, facecolor="none", edgecolor=_NEUTRAL, hatch=_HATCH, linewidth=0.0
        )
        axis.add_patch(cell)


def cell_inches(columns: int) -> float:
    """Return the inches of a cell: room for a number in small matrices, for a label in large ones."""
    return 0.58 if columns <= _ANNOTATED else 0.36 if columns <= LISTED else 0.27


def list_pairs(axis: Axes, found: Correlations) -> None:
    """Write the strongest pairs into a part of the figure."""
    axis.set_axis_off()
    lines = [
        f"{value:+.2f}  {short(left, 17)} · {short(right, 17)}"
        for left, right, value in found.top_pairs(_TOP_PAIRS)
    ]
    text = "\n".join(["Strongest pairs", "", *lines])
    axis.text(0.0, 0.95, text, transform=axis.transAxes, fontsize=11, va="top", linespacing=1.7)
