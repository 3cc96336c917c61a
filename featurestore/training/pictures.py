"""Pictures of training datasets, from the statistics that were counted at export."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from featurestore.statistics import Statistics, StatisticsState, statistics_accumulator
from featurestore.storage import files
from featurestore.training.dataset import TrainingDataset

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Size = tuple[float, float]


def correlations(
    dataset: TrainingDataset,
    *,
    split: str | None,
    compare_with: str | None,
    plot: bool,
    figsize: Size | None,
    cmap: str,
    annot: bool | None,
    method: str,
) -> Figure | None:
    """Draw the correlations of a split, beside those of another split."""
    from featurestore.statistics import plots

    found, other = (
        _of(dataset, split),
        None if compare_with is None else dataset.statistics(compare_with),
    )
    figure = plots.correlations(
        found, other=other, method=method, figsize=figsize, cmap=cmap, annot=annot
    )
    return plots.shown(figure, plot=plot)


def distributions(
    dataset: TrainingDataset,
    *,
    split: str | None,
    compare_with: str | None,
    columns: Sequence[str] | None,
    plot: bool,
    figsize: Size | None,
) -> Figure | None:
    """Draw the distribution of each column of a split, and over it those of another split."""
    from featurestore.statistics import plots

    found, other = (
        _of(dataset, split),
        None if compare_with is None else dataset.statistics(compare_with),
    )
    figure = plots.distributions(found, other=other, columns=columns, figsize=figsize)
    return plots.shown(figure, plot=plot)


def clusters(
    dataset: TrainingDataset,
    *,
    split: str | None,
    number: int | None,
    plot: bool,
    figsize: Size | None,
) -> Figure | None:
    """Draw the clusters of the rows that the export sampled of a split; where it counted nothing, the split is read."""
    from featurestore.statistics import plots
    from featurestore.statistics.clusters import find_clusters, rows_from_bytes

    name = split or dataset.splits[0]
    sample = dataset.manifest.statistics.get(name, {}).get("sample")
    if sample is None:
        found = find_clusters(_counted(dataset, name), clusters=number)
    else:
        kept = files.read_bytes(files.inside(dataset.path, sample["path"]))
        found = find_clusters(rows_from_bytes(kept), clusters=number)
    source = {"training_dataset": dataset.name, "version": dataset.version, "split": name}
    return plots.shown(plots.clusters(found, source=source, figsize=figsize), plot=plot)


def descriptive_stats(dataset: TrainingDataset, *, split: str | None) -> pd.DataFrame:
    """Return the statistics of a split as a frame, one row a column."""
    from featurestore.statistics.describe import descriptive_stats as describe

    return describe(_of(dataset, split))


def _counted(dataset: TrainingDataset, split: str) -> StatisticsState:
    frame = dataset.read(split)
    accumulator = statistics_accumulator(frame.schema)
    state = accumulator.start()
    for batch in frame.to_batches():
        state = accumulator.update(state, batch)
    return state


def _of(dataset: TrainingDataset, split: str | None) -> Statistics:
    """Return the statistics of a split; None: the first one."""
    return dataset.statistics(split or dataset.splits[0])
