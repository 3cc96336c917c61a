"""Statistics of the splits of a training dataset, computed at export or from its rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from featurestore.statistics import (
    Statistics,
    StatisticsState,
    finish,
    statistics_accumulator,
)
from featurestore.statistics.clusters import cluster_rows, rows_from_bytes
from featurestore.storage import files
from featurestore.training.dataset import TrainingDataset


def split_statistics(
    dataset: TrainingDataset, split: str | None, compare_with: str | None = None
) -> tuple[Statistics, Statistics | None]:
    """Return the statistics of a split (by default the first) and of the one to compare with."""
    statistics = dataset.statistics(split or dataset.splits[0])
    if compare_with is None:
        return statistics, None
    return statistics, dataset.statistics(compare_with)


def cluster_sample(
    dataset: TrainingDataset, split: str | None
) -> tuple[pa.RecordBatch, dict[str, Any]]:
    """Return the sampled rows of a split (by default the first) for clustering, and their source.

    If the export computed no statistics, the split is read.
    """
    name = split or dataset.splits[0]
    source = {"training_dataset": dataset.name, "version": dataset.version, "split": name}
    sample = dataset.manifest.statistics.get(name, {}).get("sample")
    if sample is not None:
        path = files.inside(dataset.path, sample["path"])
        return rows_from_bytes(files.read_bytes(path)), source
    return cluster_rows(_state(dataset, name)), source


def count(dataset: TrainingDataset, split: str) -> Statistics:
    """Return the statistics of a split, counted from its rows."""
    return finish(_state(dataset, split), source={"training_dataset": dataset.name, "split": split})


def _state(dataset: TrainingDataset, split: str) -> StatisticsState:
    frame = dataset.read(split)
    accumulator = statistics_accumulator(frame.schema, roles=dataset.roles)
    state = accumulator.start()
    for batch in frame.to_batches():
        state = accumulator.update(state, batch)
    return accumulator.finish(state)
