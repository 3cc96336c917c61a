"""Plots of statistics: correlations, distributions, clusters, drift.

Plots require only stored statistics, not the table. Figures have an opaque background, so that they
look the same in dark and light notebooks, and use the current matplotlib style
(``plt.style.use("dark_background")``). Functions return figures that are detached from pyplot;
``show`` displays a figure.
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
from featurestore.model.statistics_text import format_source_name
from featurestore.statistics.clusters import Clusters
from featurestore.statistics.plots import heatmap
from featurestore.statistics.plots.axes import figure_title, font_size, shorten_name
from featurestore.statistics.plots.heatmap import MAX_UNLISTED
from featurestore.statistics.plots.panels import FIRST, SECOND, columns_to_draw, draw_distribution

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Size = tuple[float, float]
_log = logging.getLogger("featurestore.pictures")
_NEUTRAL = "#8c8c8c"
_NOTEBOOK_BACKENDS = ("inline", "ipympl", "nbagg")
_FILE_BACKENDS = ("agg", "pdf", "svg", "ps", "cairo", "pgf", "template")
_MAX_RANKED = 30
_MAX_COMPARED = 4
_MAX_CENTERS = 40


def _import_pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise missing_extra("matplotlib", "plots") from error
    return plt


@contextmanager
def _new_figure(figsize: Size | None, *, default: Size) -> Iterator[Figure]:
    """Create an empty figure in the current style, and detach it from pyplot afterwards."""
    plt = _import_pyplot()
    figure = plt.figure(figsize=figsize or default, layout="constrained")
    try:
        yield figure
    finally:
        # Notebooks display every figure that is registered in pyplot at the end of a cell, so the
        # figure would appear twice.
        plt.close(figure)


def show_or_return(figure: Figure, *, plot: bool) -> Figure | None:
    """Show a figure and return None if ``plot``, otherwise return the figure.

    >>> from matplotlib.figure import Figure
    >>> show_or_return(Figure(), plot=False) is None
    False
    """
    if not plot:
        return figure
    show(figure)
    return None


def show(figure: Figure) -> None:
    """Show a figure if the backend can display it, in a notebook or window.

    Without a display, a log message explains how to save the figure.
    """
    plt = _import_pyplot()
    backend = str(plt.get_backend()).lower()
    if any(name in backend for name in _NOTEBOOK_BACKENDS):
        from IPython.display import display

        display(figure)  # type: ignore[no-untyped-call]
        return
    if backend in _FILE_BACKENDS:
        _log.warning(
            "The figure cannot be shown: the matplotlib backend %r has no display. "
            "Use plot=False and save the figure: figure.savefig('figure.png')",
            backend,
        )
        return
    # The figure was closed and has no window, so it is attached to the window of a new figure.
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
    """Return a heatmap of correlations with a scale of [-1, 1] and similar columns adjacent.

    Pairs without a correlation (constant columns, no common rows) are hatched. With more than 25
    columns, the strongest pairs are listed next to the heatmap.

    Args:
        statistics: The statistics to draw.
        other: Statistics of another version, drawn in a second heatmap with the same columns.
        method: "pearson" or "spearman".
        figsize: The size in inches; None derives it from the number of columns.
        cmap: A diverging color map.
        annot: Whether to write the numbers into the cells; None for up to 12 columns.
    """
    tables = [statistics]
    if other is not None:
        tables.append(other)
    tables_correlations = [heatmap.select_correlations(table, method) for table in tables]
    names = [
        name for name in tables_correlations[0].columns if name in tables_correlations[-1].columns
    ]
    matrices = [heatmap.select_matrix(correlation, names) for correlation in tables_correlations]
    order = heatmap.similar_order(matrices[0])
    labels = [shorten_name(names[index]) for index in order]
    side = min(max(heatmap.cell_inches(len(names)) * len(names) + 1.6, 4.0), 22.0)
    widths = [side + 0.9] * len(tables)
    ratios = [side] * len(tables)
    lists_pairs = len(names) > MAX_UNLISTED and other is None
    if lists_pairs:
        widths.append(4.4)
        ratios.append(4.2)
    with _new_figure(figsize, default=(sum(widths), side)) as figure:
        axes = np.atleast_1d(figure.subplots(1, len(ratios), width_ratios=ratios))
        for axis, matrix, table, tables_correlation in zip(
            axes, matrices, tables, tables_correlations, strict=False
        ):
            heatmap.draw_heatmap(axis, matrix[np.ix_(order, order)], labels, cmap=cmap, annot=annot)
            subject = f"{method.capitalize()} correlation"
            if tables_correlation.sampled:
                subject += f" (sample of {table.sample_rows:,} rows)"
            axis.set_title(figure_title(table, subject))
        if lists_pairs:
            heatmap.list_pairs(axes[-1], tables_correlations[0])
    return figure


def distributions(
    statistics: Statistics,
    *,
    other: Statistics | None = None,
    columns: Sequence[str] | None = None,
    figsize: Size | None = None,
) -> Figure:
    """Return a figure with a panel for each feature.

    Numbers and times are drawn as histograms, strings as bars of the most frequent values.

    Args:
        statistics: The statistics to draw.
        other: Statistics of another version, drawn as a line on top.
        columns: The columns to draw; None for the first 60 features.
        figsize: The size in inches; None derives it from the number of columns.
    """
    drawn_columns, drawable_count = columns_to_draw(statistics, columns)
    compared_columns: dict[str, ColumnStatistics] = {}
    title = figure_title(statistics, "Distributions")
    if other is not None:
        compared_columns = {column.name: column for column in other.columns}
        title += f" (bars), {format_source_name(other.source) or 'the other table'} (line)"
    if len(drawn_columns) < drawable_count:
        title += f"\nthe first {len(drawn_columns)} of {drawable_count:,} features; choose with columns=[...]"
    columns_across = _panel_columns(len(drawn_columns))
    rows_down = math.ceil(len(drawn_columns) / columns_across)
    with _new_figure(figsize, default=(3.1 * columns_across, 2.2 * rows_down + 0.5)) as figure:
        axes = figure.subplots(rows_down, columns_across, squeeze=False).ravel()
        for axis, column in zip(axes, drawn_columns, strict=False):
            draw_distribution(axis, column, compared_columns.get(column.name), rows=statistics.rows)
        for axis in axes[len(drawn_columns) :]:
            axis.set_axis_off()
        figure.suptitle(title)
    return figure


def _panel_columns(count: int) -> int:
    if count > 12:
        return 5
    if count > 6:
        return 4
    return min(count, 3)


def clusters(
    clustering: Clusters, *, source: Mapping[str, Any] | None = None, figsize: Size | None = None
) -> Figure:
    """Return a scatter plot of the clustered rows and a heatmap of the cluster centers.

    Args:
        clustering: The result of ``find_clusters``.
        source: The description of the table, for the title: featuregroup, version, split.
        figsize: The size in inches; None derives it from the number of columns.
    """
    height = max(4.2, 0.24 * min(len(clustering.columns), _MAX_CENTERS) + 1.6)
    with _new_figure(figsize, default=(10.5, height)) as figure:
        scatter_axis, centers_axis = figure.subplots(1, 2, width_ratios=[1.35, 1])
        _draw_plane(scatter_axis, clustering)
        rows = f"Clusters of {len(clustering.labels):,} sampled rows"
        scatter_axis.set_title(f"{format_source_name(source or {})} {rows}".strip())
        image = _draw_centers(centers_axis, clustering)
        figure.colorbar(image, ax=centers_axis, shrink=0.6)
    return figure


def _draw_plane(axis: Axes, clustering: Clusters) -> None:
    """Draw the projected rows, with a color for each cluster."""
    palette = _import_pyplot().get_cmap("tab10")
    for number in range(len(clustering.centers)):
        members = clustering.labels == number
        horizontal, vertical = clustering.plane[members].T
        axis.scatter(
            horizontal,
            vertical,
            s=6,
            alpha=0.5,
            color=palette(number % 10),
            label=f"{number + 1}: {members.mean():.0%}",
            linewidths=0,
        )
    axis.set_xlabel(f"1st component ({clustering.explained[0]:.0%} of variance)")
    axis.set_ylabel(f"2nd component ({clustering.explained[1]:.0%})")
    axis.legend(title="cluster", markerscale=3, framealpha=0.8)
    axis.set_aspect("equal", adjustable="datalim")


def _draw_centers(axis: Axes, clustering: Clusters) -> Any:
    """Draw the cluster centers, limited to the 40 features in which they differ most."""
    title = "Centers, in standard deviations"
    spread = np.ptp(clustering.centers, axis=0)
    shown_features = np.sort(np.argsort(-spread, kind="stable")[:_MAX_CENTERS])
    if len(shown_features) < len(clustering.columns):
        title += (
            f"\nthe {len(shown_features)} of {len(clustering.columns):,} features that differ most"
        )
    centers = clustering.centers[:, shown_features]
    limit = max(1.0, float(np.abs(centers).max()))
    image = axis.imshow(centers.T, cmap="coolwarm", vmin=-limit, vmax=limit, aspect="auto")
    numbers = [str(number + 1) for number in range(len(centers))]
    axis.set_xticks(range(len(numbers)), numbers)
    names = [shorten_name(clustering.columns[index]) for index in shown_features]
    axis.set_yticks(range(len(names)), names, fontsize=font_size(len(names)))
    axis.set_xlabel("cluster")
    axis.set_title(title)
    return image


def drift(
    report: DriftReport, before: Statistics, after: Statistics, *, figsize: Size | None = None
) -> Figure:
    """Return a figure with the PSI of all features, and the distributions that changed most.

    Args:
        report: The report of ``compare_statistics`` for the two tables.
        before: The statistics of the first table.
        after: The statistics of the second table.
        figsize: The size in inches; None derives it from the number of features.
    """
    comparable = [feature for feature in report.features if feature.psi is not None]
    if not comparable:
        raise StatisticsNotFound("No feature has a distribution in both tables.")
    ranked = comparable[:_MAX_RANKED]
    title = f"{format_source_name(before.source)} to {format_source_name(after.source)}".strip()
    if len(ranked) < len(comparable):
        title += f"\nthe first {len(ranked)} of {len(comparable):,} features"
    compared = ranked[:_MAX_COMPARED]
    height = max(3.2, 0.26 * len(ranked) + 1.4, 1.9 * len(compared))
    with _new_figure(figsize, default=(10.5, height)) as figure:
        halves: Any = figure.subfigures(1, 2, width_ratios=[1.2, 1])
        ranking_half, panels_half = halves
        axis = ranking_half.subplots()
        _draw_ranking(axis, ranked, threshold=report.thresholds.psi)
        axis.set_title(title)
        panels_half.suptitle("bars: before, line: after", fontsize=9)
        panels = panels_half.subplots(len(compared), 1, squeeze=False).ravel()
        for panel, columns in zip(panels, compared, strict=True):
            old, new = before.column(columns.name), after.column(columns.name)
            draw_distribution(panel, old, new, rows=before.rows)
            reasons = "; ".join(columns.reasons) or "no drift"
            panel.set_title(f"{shorten_name(columns.name)}: {reasons}", fontsize=9)
    return figure


def _draw_ranking(axis: Axes, ranked: Sequence[FeatureDrift], *, threshold: float) -> None:
    """Draw the PSI of each feature as a bar, in red if the feature drifted."""
    positions = range(len(ranked))
    # A bar of length zero would not be visible.
    values = [max(feature.psi or 0.0, 1e-4) for feature in ranked]
    bars = axis.barh(positions, values, color=FIRST)
    for bar, feature in zip(bars.patches, ranked, strict=True):
        if feature.drifted:
            bar.set_color(SECOND)
    names = [shorten_name(feature.name) for feature in ranked]
    axis.set_yticks(positions, names, fontsize=font_size(len(names)))
    axis.invert_yaxis()
    axis.axvline(threshold, color=_NEUTRAL, linestyle="--", linewidth=1)
    axis.set_xlabel(f"population stability index (dashed: {threshold:g}; red: drifted)")
