"""Pictures of statistics: correlations, distributions, clusters, drift. They need stored results only.

Figures are opaque, so they read the same in dark and light notebooks, and follow the style that is set
(``plt.style.use("dark_background")``). Functions return the figure, detached from pyplot; ``show`` displays it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from featurestore.errors import StatisticsNotFound, missing_extra
from featurestore.model.drift import DriftReport
from featurestore.model.statistics import Statistics
from featurestore.statistics.captions import font_size, short, source_name, title_of
from featurestore.statistics.clusters import Clusters
from featurestore.statistics.heatmap import (
    LISTED,
    cell_inches,
    correlations_of,
    draw_heatmap,
    list_pairs,
    restricted,
    similar_order,
)
from featurestore.statistics.panels import FIRST, SECOND, columns_to_draw, draw_distribution

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Size = tuple[float, float]
_NEUTRAL = "#8c8c8c"


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise missing_extra("matplotlib", "plots") from error
    return plt


def shown(figure: Figure, *, plot: bool) -> Figure | None:
    """Return the figure, or show it and return None.

    >>> from matplotlib.figure import Figure
    >>> shown(Figure(), plot=False) is None
    False
    """
    if not plot:
        return figure
    show(figure)
    return None


def show(figure: Figure) -> None:
    """Show a figure where the backend can show one (a notebook, a window); elsewhere nothing happens."""
    plt = _pyplot()
    backend = str(plt.get_backend()).lower()
    if "inline" in backend or "ipympl" in backend or "nbagg" in backend:
        from IPython.display import display

        display(figure)  # type: ignore[no-untyped-call]
        return
    if backend == "agg" or backend in {"pdf", "svg", "ps", "cairo", "pgf", "template"}:
        return
    manager = plt.figure().canvas.manager
    manager.canvas.figure = figure
    figure.set_canvas(manager.canvas)
    plt.show()


def correlations(
    statistics: Statistics,
    *,
    other: Statistics | None = None,
    method: str = "pearson",
    figsize: Size | None = None,
    cmap: str = "coolwarm",
    annot: bool | None = None,
) -> Figure:
    """Return a heatmap of the correlations, from -1 to 1, with similar columns side by side.

    Pairs without a correlation (a constant, no common rows) are hatched. Above 25 columns the strongest pairs
    are listed beside it.

    Args:
        statistics: What to draw.
        other: Another version, drawn beside it with the same columns in the same order.
        method: "pearson" or "spearman".
        figsize: Inches; by the number of columns when None.
        cmap: A diverging colour map.
        annot: Write the numbers into the cells; None: up to 12 columns.
    """
    plt = _pyplot()
    found = [correlations_of(each, method) for each in (statistics, other) if each is not None]
    names = [name for name in found[0].columns if all(name in each.columns for each in found)]
    matrices = [restricted(each, names) for each in found]
    order = similar_order(matrices[0])
    listed = len(names) > LISTED and other is None
    side = min(max(cell_inches(len(names)) * len(names) + 1.6, 4.0), 22.0)
    width = (side + 0.9) * len(found) + (4.4 if listed else 0.0)
    figure = plt.figure(figsize=figsize or (width, side), layout="constrained")
    ratios = [side] * len(found) + ([4.2] if listed else [])
    axes = np.atleast_1d(figure.subplots(1, len(ratios), width_ratios=ratios))
    labels = [short(names[index]) for index in order]
    for axis, matrix, each in zip(axes, matrices, (statistics, other), strict=False):
        draw_heatmap(axis, matrix[np.ix_(order, order)], labels, cmap=cmap, annot=annot)
        axis.set_title(title_of(each, f"{method.capitalize()} correlation"))
    if listed:
        list_pairs(axes[-1], found[0])
    plt.close(figure)
    return figure


def distributions(
    statistics: Statistics,
    *,
    other: Statistics | None = None,
    columns: Sequence[str] | None = None,
    figsize: Size | None = None,
) -> Figure:
    """Return one small picture a feature: a histogram of numbers and times, bars of frequent texts.

    Args:
        statistics: What to draw.
        other: Another version, drawn over it as a line.
        columns: Which columns; None: the features, at most 60.
        figsize: Inches; by the number of columns when None.
    """
    plt = _pyplot()
    chosen = columns_to_draw(statistics, columns)
    across = min(len(chosen), 5 if len(chosen) > 12 else 4 if len(chosen) > 6 else 3)
    down = math.ceil(len(chosen) / across)
    figure = plt.figure(figsize=figsize or (3.1 * across, 2.2 * down + 0.5), layout="constrained")
    axes = np.atleast_1d(figure.subplots(down, across, squeeze=False)).ravel()
    for axis, column in zip(axes, chosen, strict=False):
        beside = (
            None
            if other is None
            else next((each for each in other.columns if each.name == column.name), None)
        )
        draw_distribution(axis, column, beside, rows=statistics.rows)
    for axis in axes[len(chosen) :]:
        axis.set_axis_off()
    title = title_of(statistics, "Distributions")
    if other is not None:
        title += f" (bars), {title_of(other, '').strip() or 'the other'} (line)"
    figure.suptitle(title)
    plt.close(figure)
    return figure


def clusters(
    found: Clusters, *, source: Mapping[str, Any] | None = None, figsize: Size | None = None
) -> Figure:
    """Return the rows in the plane of their principal components, by cluster, and the centre of each cluster."""
    plt = _pyplot()
    height = max(4.2, 0.24 * len(found.columns) + 1.6)
    figure = plt.figure(figsize=figsize or (10.5, min(height, 18)), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.35, 1])
    palette = plt.get_cmap("tab10")
    for number in range(len(found.centres)):
        mine = found.labels == number
        share = f"{number + 1}: {mine.mean():.0%}"
        left.scatter(
            *found.plane[mine].T,
            s=6,
            alpha=0.5,
            color=palette(number % 10),
            label=share,
            linewidths=0,
        )
    left.set_xlabel(f"1st component ({found.explained[0]:.0%} of variance)")
    left.set_ylabel(f"2nd component ({found.explained[1]:.0%})")
    left.legend(title="cluster", markerscale=3, framealpha=0.8)
    left.set_title(
        f"{source_name(source or {})} Clusters of {len(found.labels):,} sampled rows".strip()
    )
    limit = max(1.0, float(np.abs(found.centres).max()))
    names = [short(name) for name in found.columns]
    image = right.imshow(found.centres.T, cmap="coolwarm", vmin=-limit, vmax=limit, aspect="auto")
    right.set_xticks(
        range(len(found.centres)), [str(number + 1) for number in range(len(found.centres))]
    )
    right.set_yticks(range(len(names)), names, fontsize=font_size(len(names)))
    right.set_xlabel("cluster")
    right.set_title("Centres, in standard deviations")
    figure.colorbar(image, ax=right, shrink=0.6)
    plt.close(figure)
    return figure


def drift(
    report: DriftReport, before: Statistics, after: Statistics, *, figsize: Size | None = None
) -> Figure:
    """Return the stability index of every feature, and the distributions of those that changed most."""
    plt = _pyplot()
    ranked = [each for each in report.features if each.psi is not None][:30]
    if not ranked:
        raise StatisticsNotFound("There is no feature whose distributions can be compared.")
    shown = ranked[:4]
    height = max(3.2, 0.26 * len(ranked) + 1.4, 1.9 * len(shown))
    figure = plt.figure(figsize=figsize or (10.5, height), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[1.2, 1])
    axis = left.subplots()
    values = [max(each.psi or 0.0, 1e-4) for each in ranked]
    colours = [SECOND if each.drifted else FIRST for each in ranked]
    axis.barh(range(len(ranked)), values, color=colours)
    axis.set_yticks(
        range(len(ranked)), [short(each.name) for each in ranked], fontsize=font_size(len(ranked))
    )
    axis.invert_yaxis()
    axis.axvline(report.thresholds.psi, color=_NEUTRAL, linestyle="--", linewidth=1)
    axis.set_xlabel(f"population stability index (dashed: {report.thresholds.psi:g}; red: drifted)")
    axis.set_title(f"{source_name(before.source)} to {source_name(after.source)}".strip())
    right.suptitle("bars: before, line: after", fontsize=9)
    panels = np.atleast_1d(right.subplots(len(shown), 1, squeeze=False)).ravel()
    for panel, each in zip(panels, shown, strict=True):
        draw_distribution(
            panel, before.column(each.name), after.column(each.name), rows=before.rows
        )
        panel.set_title(f"{short(each.name)}: {'; '.join(each.reasons) or 'no drift'}", fontsize=9)
    plt.close(figure)
    return figure
