"""Records of training datasets, from their manifests."""

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
    """Return a page of the list of dataset versions."""
    with store.session.registry.reading() as connection:
        return overview.datasets(
            connection, text=text, newest_first=newest_first, limit=limit, offset=offset
        )


def versions(store: FeatureStore, name: str) -> list[int]:
    """Return the versions of a dataset, newest first."""
    with store.session.registry.reading() as connection:
        return training_datasets.versions(connection, name)[::-1]


def definition(dataset: TrainingDataset) -> dict[str, Any]:
    """Return the content of a manifest without file paths."""
    manifest = dataset.manifest
    splits = [
        {
            "name": split.name,
            "rows": split.rows,
            "shards": len(split.shards),
            "labels": split.label_counts,
        }
        for split in manifest.splits
    ]
    columns = [
        {"name": column.name, "type": column.tf_type, "role": column.role}
        for column in manifest.columns
    ]
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
    """Return the pinned versions of the source groups of a dataset."""
    return [
        {
            "text": source_text(source),
            "name": source["featuregroup"],
            "version": source["version"],
        }
        for source in dataset.manifest.sources
    ]
