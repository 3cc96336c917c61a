"""Read the rows of a training dataset in canonical order, as batches or as a FeatureFrame."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from featurestore.arrow.schemas import type_from_json
from featurestore.errors import InvalidArgument
from featurestore.model.manifest import Manifest, ManifestShard
from featurestore.model.paths import TRAININGDATASETS
from featurestore.plugins.engine import find_engine
from featurestore.plugins.format import find_format
from featurestore.storage.shardcache import local_path

if TYPE_CHECKING:
    from featurestore.registry import Registry
    from featurestore.retrieval import FeatureFrame
    from featurestore.session import Session
    from featurestore.training.dataset import TrainingDataset

READ_ROWS = 65_536


def dataset_schema(manifest: Manifest) -> pa.Schema:
    """Return the feature types of a dataset's columns."""
    return pa.schema([(column.name, type_from_json(column.type)) for column in manifest.columns])


def split_batches(
    directory: str, manifest: Manifest, split: str, *, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split in canonical order.

    Raises:
        InvalidArgument: The layout cannot be read row by row (GZIP).
    """
    for shard in manifest.split(split).shards:
        yield from shard_batches(directory, manifest, shard, columns=columns)


def shard_batches(
    directory: str,
    manifest: Manifest,
    shard: ManifestShard,
    *,
    columns: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one shard."""
    dataset_format = find_format(manifest.data_format)
    refusal = dataset_format.refuse_reading(manifest.layout)
    if refusal is not None:
        raise InvalidArgument(refusal)
    if columns is None:
        columns = [column.name for column in manifest.columns]
    with local_path(directory, shard) as path:
        reader = dataset_format.open_shard(path, layout=manifest.layout)
    try:
        for start in range(0, shard.rows, READ_ROWS):
            yield reader.read(start, min(shard.rows, start + READ_ROWS), list(columns))
    finally:
        reader.close()


def split_frame(dataset: TrainingDataset, split: str) -> FeatureFrame:
    """Return the rows of a split; a dataset opened by path is read with the embedded engine."""
    from featurestore.retrieval import FeatureFrame

    dataset.manifest.split(split)
    session = dataset.session or _session_of_path(dataset.path)
    schema = dataset_schema(dataset.manifest)

    def relation() -> Any:
        batches = split_batches(dataset.path, dataset.manifest, split)
        reader = pa.RecordBatchReader.from_batches(schema, batches)
        return replace(session.engine.from_arrow(reader), schema=schema)

    frame = FeatureFrame(session, relation, schema=schema)
    if dataset.session is None:  # without a store there is no lineage to record
        return frame
    source = f"{TRAININGDATASETS}/{dataset.name}"
    return frame.made_of({"source": source, "version": dataset.version})


def _session_of_path(path: str) -> Session:
    from featurestore.session import Session

    # Reading files touches no registry.
    return Session(os.path.dirname(path), find_engine("duckdb"), cast("Registry", None))
