"""Rows of a training dataset read back from its files, in canonical order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from featurestore.errors import InvalidArgument
from featurestore.model.arrow_json import type_from_json
from featurestore.model.manifest import Manifest, ManifestShard
from featurestore.plugins.format import find_format
from featurestore.storage import files

READ_ROWS = 65_536


def dataset_schema(manifest: Manifest, *, columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the feature types of a dataset's columns."""
    chosen = (
        [manifest.column(name) for name in columns] if columns is not None else manifest.columns
    )
    return pa.schema([(column.name, type_from_json(column.type)) for column in chosen])


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
    chosen = find_format(manifest.data_format)
    refused = chosen.refuse_reading(manifest.layout)
    if refused is not None:
        raise InvalidArgument(refused)
    names = list(columns) if columns is not None else [column.name for column in manifest.columns]
    reader = chosen.open_shard(files.inside(directory, shard.path), layout=manifest.layout)
    try:
        for start in range(0, shard.rows, READ_ROWS):
            yield reader.read(start, min(shard.rows, start + READ_ROWS), names)
    finally:
        reader.close()
