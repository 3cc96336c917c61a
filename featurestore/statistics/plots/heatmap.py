"""Correlation heatmaps with a scale of [-1, 1], similar columns adjacent, and hatched gaps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from featurestore.errors import InvalidArgument, StatisticsNotFound, missing_extra
from featurestore.model.statistics import Correlations, Statistics
from featurestore.model.statistics_text import format_source_name
from featurestore.statistics.moments import Floats
from featurestore.statistics.plots.axes import font_size, shorten_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def correlation_matrix(correlations: Correlations) -> Floats:
    """Return the correlations as a float matrix, with NaN for missing correlations."""
    return np.array(correlations.matrix, dtype=np.float64).reshape(len(correlations.columns), -1)


def clustered_order(matrix: Floats) -> list[int]:
    """Return the leaf order of an average-linkage clustering with distance 1 - |r|.

    >>> clustered_order(np.array([[1, .1, .9], [.1, 1, .2], [.9, .2, 1]]))
    [0, 2, 1]
    """
    # Pairs without a correlation have the maximum distance, like uncorrelated pairs.
    distances = 1.0 - np.abs(np.where(np.isnan(matrix), 0.0, matrix))
    pending_distances = distances.copy()
    np.fill_diagonal(pending_distances, np.inf)
    orders = [[index] for index in range(len(matrix))]
    sizes = np.ones(len(matrix))
    for _ in range(len(matrix) - 1):
        nearest = divmod(int(np.argmin(pending_distances)), len(pending_distances))
        first, second = min(nearest), max(nearest)
        orders[first] = _join_column_orders(orders[first], orders[second], distances)
        weighted = (
            pending_distances[first] * sizes[first] + pending_distances[second] * sizes[second]
        )
        # The merged cluster continues at the first index; infinite distances exclude the second
        # index.
        mean = weighted / (sizes[first] + sizes[second])
        pending_distances[first], pending_distances[:, first] = mean, mean
        pending_distances[second], pending_distances[:, second], pending_distances[first, first] = (
            np.inf,
            np.inf,
            np.inf,
        )
        sizes[first] += sizes[second]
    return orders[0] if orders else []


def _join_column_orders(left: list[int], right: list[int], distances: Floats) -> list[int]:
    """Concatenate two orders, reversing them if necessary to join the most similar ends."""
    left_reversed, right_reversed = left[::-1], right[::-1]
    best_order: list[int] = []
    min_distance = np.inf
    for first, second in (
        (left_reversed, right),
        (left, right),
        (left, right_reversed),
        (left_reversed, right_reversed),
    ):
        distance = distances[first[-1], second[0]]
        if distance < min_distance:
            best_order, min_distance = first + second, distance
    return best_order


MAX_UNLISTED = 25
_MAX_ANNOTATED = 12
_MAX_LABELLED = 120
_MAX_GRID = 40
_TOP_PAIRS = 18
_NEUTRAL = "#8c8c8c"
_HATCH = "////"


def select_correlations(statistics: Statistics, method: str) -> Correlations:
    """Return the correlations of a method, or raise StatisticsNotFound if there are none."""
    if method not in ("pearson", "spearman"):
        raise InvalidArgument(
            f"method={method!r} is not a correlation.", hint="method='pearson' or method='spearman'"
        )
    correlations = statistics.spearman
    if method == "pearson":
        correlations = statistics.pearson
    if correlations is None:
        table = format_source_name(statistics.source) or "this table"
        raise StatisticsNotFound(
            f"Correlations need two numeric features; {table} has fewer.",
            hint="keys, times and strings have no correlations",
        )
    return correlations


def similar_order(matrix: Floats) -> list[int]:
    """Return column indices with similar columns adjacent and uncorrelated columns at the end."""
    has_any = ~np.isnan(matrix).all(axis=1)
    correlated = np.flatnonzero(has_any)
    order = clustered_order(matrix[np.ix_(correlated, correlated)])
    return [*correlated[order].tolist(), *np.flatnonzero(~has_any).tolist()]


def select_matrix(correlations: Correlations, names: Sequence[str]) -> Floats:
    """Return the correlation matrix of the named columns, in this order."""
    indices = [correlations.columns.index(name) for name in names]
    return correlation_matrix(correlations)[np.ix_(indices, indices)]


def draw_heatmap(
    axis: Axes, matrix: Floats, labels: Sequence[str], *, cmap: str, annot: bool | None
) -> None:
    """Draw a matrix as a heatmap; ``annot=None`` writes the numbers if they are readable."""
    try:
        import seaborn as sns
    except ImportError as error:
        raise missing_extra("seaborn", "plots") from error
    count = len(labels)
    missing = np.isnan(matrix)
    if annot is None:
        annot = count <= _MAX_ANNOTATED
    tick_labels: list[str] | bool = False
    if count <= _MAX_LABELLED:
        tick_labels = list(labels)
    sns.heatmap(
        matrix,
        ax=axis,
        mask=missing,
        vmin=-1.0,
        vmax=1.0,
        cmap=cmap,
        square=True,
        annot=annot and np.round(matrix, 2) + 0.0,  # no -0.00
        fmt=".2f",
        annot_kws={"fontsize": max(5.0, min(9.0, 100 / max(count, 1)))},
        linewidths=0.5 if count <= _MAX_GRID else 0.0,
        linecolor=axis.get_facecolor(),
        xticklabels=tick_labels,
        yticklabels=tick_labels,
        cbar_kws={"shrink": 0.7, "ticks": [-1, -0.5, 0, 0.5, 1]},
    )
    axis.tick_params(axis="x", rotation=90, labelsize=font_size(count), length=0)
    axis.tick_params(axis="y", rotation=0, labelsize=font_size(count), length=0)
    _hatch_missing_cells(axis, missing)


def _hatch_missing_cells(axis: Axes, missing: NDArray[np.bool_]) -> None:
    """Hatch the cells without a correlation."""
    from matplotlib.patches import Rectangle

    for row, column in zip(*np.nonzero(missing), strict=True):
        cell = Rectangle(
            (column, row), 1, 1, facecolor="none", edgecolor=_NEUTRAL, hatch=_HATCH, linewidth=0.0
        )
        axis.add_patch(cell)


def cell_inches(columns: int) -> float:
    """Return the cell size in inches: small matrices have space for numbers in the cells."""
    if columns <= _MAX_ANNOTATED:
        return 0.58
    if columns <= MAX_UNLISTED:
        return 0.36
    return 0.27


def list_pairs(axis: Axes, correlations: Correlations) -> None:
    """List the pairs with the strongest correlations in separate axes."""
    axis.set_axis_off()
    lines = ["Strongest pairs", ""]
    if len(correlations.columns) > _MAX_LABELLED:
        lines.insert(
            0, f"{len(correlations.columns):,} columns: no names above {_MAX_LABELLED} columns"
        )
    for first, second, value in correlations.top_pairs(_TOP_PAIRS):
        lines.append(f"{value:+.2f}  {shorten_name(first, 17)} · {shorten_name(second, 17)}")
    text = "\n".join(lines)
    axis.text(0.0, 0.95, text, transform=axis.transAxes, fontsize=11, va="top", linespacing=1.7)
