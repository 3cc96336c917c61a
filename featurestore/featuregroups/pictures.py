"""Pictures of groups, from their stored statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from featurestore.featuregroups.statistics import state_of, statistics_of
from featurestore.model.statistics import Statistics
from featurestore.session import Session

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Size = tuple[float, float]


def correlations(
    session: Session,
    name: str,
    *,
    version: int | None,
    compare_with: int | str | None,
    plot: bool,
    figsize: Size | None,
    cmap: str,
    annot: bool | None,
    method: str,
) -> Figure | None:
    """Draw the correlations of a group, beside those of another one."""
    from featurestore.statistics import plots

    found = statistics_of(session, name, version=version)
    other = _other(session, name, compare_with)
    figure = plots.correlations(
        found, other=other, method=method, figsize=figsize, cmap=cmap, annot=annot
    )
    return plots.shown(figure, plot=plot)


def distributions(
    session: Session,
    name: str,
    *,
    version: int | None,
    compare_with: int | str | None,
    columns: Sequence[str] | None,
    plot: bool,
    figsize: Size | None,
) -> Figure | None:
    """Draw the distribution of each feature of a group, and over it those of another one."""
    from featurestore.statistics import plots

    found = statistics_of(session, name, version=version)
    figure = plots.distributions(
        found, other=_other(session, name, compare_with), columns=columns, figsize=figsize
    )
    return plots.shown(figure, plot=plot)


def clusters(
    session: Session,
    name: str,
    *,
    version: int | None,
    number: int | None,
    plot: bool,
    figsize: Size | None,
) -> Figure | None:
    """Draw the clusters of a group's sampled rows."""
    from featurestore.statistics import plots
    from featurestore.statistics.clusters import find_clusters

    found = find_clusters(state_of(session, name, version=version), clusters=number)
    source = statistics_of(session, name, version=version).source
    return plots.shown(plots.clusters(found, source=source, figsize=figsize), plot=plot)


def descriptive_stats(session: Session, name: str, *, version: int | None) -> pd.DataFrame:
    """Return the statistics of a group as a frame, one row a feature."""
    from featurestore.statistics.describe import descriptive_stats as describe

    return describe(statistics_of(session, name, version=version))


def _other(session: Session, name: str, compare_with: int | str | None) -> Statistics | None:
    """Return the statistics to compare with: another version of the group, or another group."""
    if compare_with is None:
        return None
    if isinstance(compare_with, int):
        return statistics_of(session, name.partition("@v")[0], version=compare_with)
    return statistics_of(session, compare_with)
