"""Register training datasets from their manifests.

The dataset, its pins, tags and lineage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.engine import Connection

from featurestore.model.feature_view import view_source
from featurestore.model.manifest import Manifest
from featurestore.model.times import parse_moment
from featurestore.registry import lineage, tags, training_datasets, window_features
from featurestore.registry.training_datasets import KIND, RegisteredDataset


def register(connection: Connection, manifest: Manifest) -> None:
    """Register a finished dataset; nothing happens when it is there."""
    name, version = manifest.name, manifest.version
    if training_datasets.find(connection, name, version) is not None:
        return
    rows = sum(split.rows for split in manifest.splits)
    dataset = RegisteredDataset(
        name=name,
        version=version,
        manifest_hash=manifest.content_hash,
        format=manifest.data_format,
        rows=rows,
        description=manifest.description,
        run_id=manifest.run_id,
        created=parse_moment(manifest.created) if manifest.created else None,
        pins=training_datasets.pins_of(map(dict, manifest.sources)),
    )
    training_datasets.add(connection, dataset)
    tags.replace(connection, KIND, name, version, manifest.tags)
    inputs: list[Mapping[str, Any]] = list(manifest.sources)
    inputs += manifest.reads
    if manifest.view is not None:
        source = view_source(str(manifest.view["name"]))
        inputs.append({"source": source, "version": manifest.view["version"]})
    lineage.add(
        connection,
        KIND,
        name,
        version,
        delta_version=None,
        inputs=inputs,
        run_id=manifest.run_id,
    )
    window_features.replace(connection, KIND, name, version, manifest.windows)


def remove(connection: Connection, name: str, version: int) -> None:
    """Remove a version with everything that ``register`` recorded."""
    training_datasets.remove(connection, name, version)
    lineage.remove(connection, KIND, name, version)
    window_features.remove(connection, KIND, name, version)
