"""A training dataset's rows as a FeatureFrame, and the drift between two datasets' statistics."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from featurestore.plugins.engine import find_engine
from featurestore.retrieval import FeatureFrame
from featurestore.session import Session
from featurestore.training.rows import dataset_schema, split_batches

if TYPE_CHECKING:
    from featurestore.registry import Registry
    from featurestore.training.dataset import TrainingDataset


def split_frame(dataset: TrainingDataset, split: str) -> FeatureFrame:
    """Return the rows of a split; a dataset opened by its path is read with the embedded engine."""
    dataset.manifest.split(split)
    session = dataset.session or _session_of_path(dataset.path)
    schema = dataset_schema(dataset.manifest)

    def relation() -> Any:
        batches = split_batches(dataset.path, dataset.manifest, split)
        reader = pa.RecordBatchReader.from_batches(schema, batches)
        return replace(session.engine.from_arrow(reader), schema=schema)

    return FeatureFrame(session, relation, schema=schema)


def _session_of_path(path: str) -> Session:
    # Reading files touches no registry.
    return Session(os.path.dirname(path), find_engine("duckdb"), cast("Registry", None))


def drift_between(dataset: TrainingDataset, other: TrainingDataset) -> dict[str, Any] | None:
    """Return the drift report of each split that both have with statistics; None when there is none."""
    from featurestore.statistics import compare_statistics

    shared = [split for split in dataset.splits if split in dataset.manifest.statistics]
    shared = [split for split in shared if split in other.manifest.statistics]
    reports = {
        split: compare_statistics(dataset.statistics(split), other.statistics(split))
        for split in shared
    }
    return {split: report.to_json() for split, report in reports.items()} or None
