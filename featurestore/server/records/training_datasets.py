"""Training datasets: what their manifests say."""

from __future__ import annotations

from typing import Any

from featurestore.model.manifest import source_text
from featurestore.registry import overview, training_datasets
from featurestore.registry.overview import DatasetLine
from featurestore.store import FeatureStore
from featurestore.training import TrainingDataset


def lines(
    store: FeatureStore, *, text: str = "", newest_first: bool = False, limit: int, offset: int = 0
) -> list[DatasetLine]:
    """Return versions of datasets, a page of them."""
    with store.session.registry.reading() as connection:
        return overview.datasets(
            connection, text=text, newest_first=newest_first, limit=limit, offset=offset
        )


def versions(store: FeatureStore, name: str) -> list[int]:
    """Return the versions of a dataset, the newest first."""
    with store.session.registry.reading() as connection:
        return training_datasets.versions(connection, name)[::-1]


def definition(dataset: TrainingDataset) -> dict[str, Any]:
    """Return what a manifest says, without the paths of its files."""
    manifest = dataset.manifest
    splits = []
    for split in manifest.splits:
        shards = {"shards": len(split.shards), "labels": split.label_counts}
        splits.append({"name": split.name, "rows": split.rows, **shards})
    columns = []
    for column in manifest.columns:
        columns.append({"name": column.name, "type": column.tf_type, "role": column.role})
    return {
        "name": dataset.name,
        "version": dataset.version,
        "description": dataset.description,
        "tags": dataset.tags,
        "data_format": manifest.data_format,
        "created": manifest.created,
        "rows": sum(split.rows for split in manifest.splits),
        "seed": manifest.seed,
        "key": list(manifest.key),
        "content_hash": manifest.content_hash,
        "plan_hash": manifest.plan_hash,
        "reproducible": manifest.reproducible,
        "reproducible_reason": manifest.reproducible_reason,
        "stale": dataset.stale,
        "splits": splits,
        "columns": columns,
        "sources": list(map(dict, manifest.sources)),
        "windows": list(map(str, manifest.windows)),
    }


def sources(dataset: TrainingDataset) -> list[dict[str, Any]]:
    """Return the pinned versions of the groups that a dataset was made from."""
    found = []
    for each in dataset.manifest.sources:
        found.append(
            {"text": source_text(each), "name": each["featuregroup"], "version": each["version"]}
        )
    return found
