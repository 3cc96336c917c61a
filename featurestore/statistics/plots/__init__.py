"""Pictures of statistics.

Correlations, distributions, clusters, drift. They need stored results only.

Figures are opaque, so they read the same in dark and light notebooks, and follow the style that is
set (``plt.style.use("dark_background")``). Functions return the figure, detached from pyplot;
``show`` displays it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from featurestore.errors import StatisticsNotFound, missing_extra
from featurestore.model.drift import DriftReport, FeatureDrift
from featurestore.model.statistics import ColumnStatistics, Statistics
from featurestore.model.statistics_text import source_name
from featurestore.statistics.clusters import Clusters
from featurestore.statistics.plots.captions import font_size, short, title_of
from featurestore.statistics.plots.heatmap import (
    LISTED,
    cell_inches,
    correlations_of,
    draw_heatmap,
    list_pairs,
    restricted,
    similar_order,
)
from featurestore.statistics.plots.panels import FIRST, SECOND, columns_to_draw, draw_distribution

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Size = tuple[float, float]
_log = logging.getLogger("featurestore.pictures")
_NEUTRAL = "#8c8c8c"
_NOTEBOOK_BACKENDS = ("inline", "ipympl", "nbagg")
_FILE_BACKENDS = ("agg", "pdf", "svg", "ps", "cairo", "pgf", "template")
_MOST_RANKED = 30
_MOST_COMPARED = 4
_MOST_CENTERS = 40


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise missing_extra("matplotlib", "plots") from error
    return plt


@contextmanager
def _new_figure(figsize: Size | None, *, default: Size) -> Iterator[Figure]:
    """Give an empty figure in the style that is set, and take it from pyplot in the end."""
    plt = _pyplot()
    figure = plt.figure(figsize=figsize or default, layout="constrained")
    try:
        yield figure
    finally:
        plt.close(figure)


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
    """Show a figure where the backend can show one (a notebook, a window).

    Elsewhere, as in a script without a screen, the log says how to save it.
    """
    plt = _pyplot()
    backend = str(plt.get_backend()).lower()
    if any(name in backend for name in _NOTEBOOK_BACKENDS):
        from IPython.display import display

        display(figure)  # type: ignore[no-untyped-call]
        return
    if backend in _FILE_BACKENDS:
        _log.warning(
            "The picture cannot be shown: there is no notebook and no window (matplotlib's backend "
            "is %r). Call with plot=False and save it: figure.savefig('picture.png')",
            backend,
        )
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

    Pairs without a correlation (a constant, no common rows) are hatched. Above 25 columns the
    strongest pairs are listed beside it.

    Args:
        statistics: What to draw.
        other: Another version, drawn beside it with the same columns in the same order.
        method: "pearson" or "spearman".
        figsize: Inches; by the number of columns when None.
        cmap: A diverging color map.
        annot: Write the numbers into the cells; None: up to 12 columns.
    """
    tables = [statistics]
    if other is not None:
        tables.append(other)
    found = [correlations_of(table, method) for table in tables]
    names = [name for name in found[0].columns if name in found[-1].columns]
    matrices = [restricted(each, names) for each in found]
    order = similar_order(matrices[0])
    labels = [short(names[index]) for index in order]
    side = min(max(cell_inches(len(names)) * len(names) + 1.6, 4.0), 22.0)
    widths = [side + 0.9] * len(tables)
    ratios = [side] * len(tables)
    listed = len(names) > LISTED and other is None
    if listed:
        widths.append(4.4)
        ratios.append(4.2)
    with _new_figure(figsize, default=(sum(widths), side)) as figure:
        axes = np.atleast_1d(figure.subplots(1, len(ratios), width_ratios=ratios))
        for axis, matrix, table, each in zip(axes, matrices, tables, found, strict=False):
            draw_heatmap(axis, matrix[np.ix_(order, order)], labels, cmap=cmap, annot=annot)
            subject = f"{method.capitalize()} correlation"
            if each.sampled:
                subject += f" (sample of {table.sample_rows:,} rows)"
            axis.set_title(title_of(table, subject))
        if listed:
            list_pairs(axes[-1], found[0])
    return figure


def distributions(
    statistics: Statistics,
    *,
    other: Statistics | None = None,
    columns: Sequence[str] | None = None,
    figsize: Size | None = None,
) -> Figure:
    """Return one small picture for each feature.

    A histogram of numbers and times, bars of frequent texts.

    Args:
        statistics: What to draw.
        other: Another version, drawn over it as a line.
        columns: Which columns; None: the features, at most 60.
        figsize: Inches; by the number of columns when None.
    """
    chosen, there = columns_to_draw(statistics, columns)
    others: dict[str, ColumnStatistics] = {}
    title = title_of(statistics, "Distributions")
    if other is not None:
        others = {column.name: column for column in other.columns}
        title += f" (bars), {source_name(other.source) or 'the other'} (line)"
    if len(chosen) < there:
        title += f"\nthe first {len(chosen)} of {there:,} features; choose with columns=[...]"
    across = _panels_across(len(chosen))
    down = math.ceil(len(chosen) / across)
    with _new_figure(figsize, default=(3.1 * across, 2.2 * down + 0.5)) as figure:
        axes = figure.subplots(down, across, squeeze=False).ravel()
        for axis, column in zip(axes, chosen, strict=False):
            draw_distribution(axis, column, others.get(column.name), rows=statistics.rows)
        for axis in axes[len(chosen) :]:
            axis.set_axis_off()
        figure.suptitle(title)
    return figure


def _panels_across(count: int) -> int:
    if count > 12:
        return 5
    if count > 6:
        return 4
    return min(count, 3)


def clusters(
    found: Clusters, *, source: Mapping[str, Any] | None = None, figsize: Size | None = None
) -> Figure:
    """Return the rows by cluster, in the plane of their principal components, and the centers.

    Args:
        found: What ``find_clusters`` returned.
        source: What was counted, for the title: featuregroup, version, split.
        figsize: Inches; by the number of columns when None.
    """
    height = max(4.2, 0.24 * min(len(found.columns), _MOST_CENTERS) + 1.6)
    with _new_figure(figsize, default=(10.5, height)) as figure:
        left, right = figure.subplots(1, 2, width_ratios=[1.35, 1])
        _draw_plane(left, found)
        rows = f"Clusters of {len(found.labels):,} sampled rows"
        left.set_title(f"{source_name(source or {})} {rows}".strip())
        image = _draw_centers(right, found)
        figure.colorbar(image, ax=right, shrink=0.6)
    return figure


def _draw_plane(axis: Axes, found: Clusters) -> None:
    palette = _pyplot().get_cmap("tab10")
    for number in range(len(found.centers)):
        members = found.labels == number
        horizontal, vertical = found.plane[members].T
        axis.scatter(
            horizontal,
            vertical,
            s=6,
            alpha=0.5,
            color=palette(number % 10),
            label=f"{number + 1}: {members.mean():.0%}",
            linewidths=0,
        )
    axis.set_xlabel(f"1st component ({found.explained[0]:.0%} of variance)")
    axis.set_ylabel(f"2nd component ({found.explained[1]:.0%})")
    axis.legend(title="cluster", markerscale=3, framealpha=0.8)
    axis.set_aspect("equal", adjustable="datalim")


def _draw_centers(axis: Axes, found: Clusters) -> Any:
    """Draw the centers; of many features those in which the clusters differ most."""
    title = "Centers, in standard deviations"
    spread = np.ptp(found.centers, axis=0)
    chosen = np.sort(np.argsort(-spread, kind="stable")[:_MOST_CENTERS])
    if len(chosen) < len(found.columns):
        title += f"\nthe {len(chosen)} of {len(found.columns):,} features that differ most"
    centers = found.centers[:, chosen]
    limit = max(1.0, float(np.abs(centers).max()))
    image = axis.imshow(centers.T, cmap="coolwarm", vmin=-limit, vmax=limit, aspect="auto")
    numbers = [str(number + 1) for number in range(len(centers))]
    axis.set_xticks(range(len(numbers)), numbers)
    names = [short(found.columns[index]) for index in chosen]
    axis.set_yticks(range(len(names)), names, fontsize=font_size(len(names)))
    axis.set_xlabel("cluster")
    axis.set_title(title)
    return image


def drift(
    report: DriftReport, before: Statistics, after: Statistics, *, figsize: Size | None = None
) -> Figure:
    """Return the stability index of every feature, and how those that changed most are spread.

    Args:
        report: What ``compare_statistics`` returned for the two tables.
        before: The statistics of the first table.
        after: Those of the second.
        figsize: Inches; by the number of features when None.
    """
    comparable = [each for each in report.features if each.psi is not None]
    if not comparable:
        raise StatisticsNotFound("There is no feature whose distributions can be compared.")
    ranked = comparable[:_MOST_RANKED]
    title = f"{source_name(before.source)} to {source_name(after.source)}".strip()
    if len(ranked) < len(comparable):
        title += f"\nthe first {len(ranked)} of {len(comparable):,} features"
    compared = ranked[:_MOST_COMPARED]
    height = max(3.2, 0.26 * len(ranked) + 1.4, 1.9 * len(compared))
    with _new_figure(figsize, default=(10.5, height)) as figure:
        halves: Any = figure.subfigures(1, 2, width_ratios=[1.2, 1])
        left, right = halves
        axis = left.subplots()
        _draw_ranking(axis, ranked, threshold=report.thresholds.psi)
        axis.set_title(title)
        right.suptitle("bars: before, line: after", fontsize=9)
        panels = right.subplots(len(compared), 1, squeeze=False).ravel()
        for panel, each in zip(panels, compared, strict=True):
            old, new = before.column(each.name), after.column(each.name)
            draw_distribution(panel, old, new, rows=before.rows)
            reasons = "; ".join(each.reasons) or "no drift"
            panel.set_title(f"{short(each.name)}: {reasons}", fontsize=9)
    return figure


def _draw_ranking(axis: Axes, ranked: Sequence[FeatureDrift], *, threshold: float) -> None:
    """Draw the stability index of each feature as a bar, the drifted ones red."""
    positions = range(len(ranked))
    values = []
    for each in ranked:
        values.append(max(each.psi or 0.0, 1e-4))
    bars = axis.barh(positions, values, color=FIRST)
    for bar, each in zip(bars.patches, ranked, strict=True):
        if each.drifted:
            bar.set_color(SECOND)
    names = [short(each.name) for each in ranked]
    axis.set_yticks(positions, names, fontsize=font_size(len(names)))
    axis.invert_yaxis()
    axis.axvline(threshold, color=_NEUTRAL, linestyle="--", linewidth=1)
    axis.set_xlabel(f"population stability index (dashed: {threshold:g}; red: drifted)")
