"""Training datasets for reader tests, written shard by shard through the format interface."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from featurestore.arrow.schemas import type_to_json
from featurestore.model.manifest import (
    Manifest,
    ManifestColumn,
    ManifestFile,
    ManifestShard,
    ManifestSplit,
)
from featurestore.plugins.format import find_format
from featurestore.storage.manifests import write_manifest
from featurestore.training.dataset import TrainingDataset
from featurestore.training.export.profiles import ProfileAccumulator

ROW = "row_id"


def make_dataset(
    directory: Path,
    table: pa.Table | Mapping[str, pa.Table],
    *,
    data_format: str = "tfrecord",
    shards: int = 3,
    block_rows: int = 8,
    labels: Sequence[str] = (),
    keys: Sequence[str] = (),
    compression: str | None = None,
) -> Manifest:
    """Write a dataset and return its manifest.

    Shards differ by at most one row, larger ones first.
    """
    tables = table if isinstance(table, Mapping) else {"train": table}
    schema = next(iter(tables.values())).schema
    file_format = find_format(data_format)
    file_format.check(schema, compression=compression)
    accumulator = ProfileAccumulator(tuple(schema.names))
    state = accumulator.start()
    for split_table in tables.values():
        for batch in split_table.to_batches():
            state = accumulator.update(state, batch)
    profiles = accumulator.finish(state)
    layout = file_format.layout(schema, profiles, compression=compression, block_rows=block_rows)
    encodings = file_format.encodings(layout)
    columns = tuple(
        ManifestColumn(
            field.name,
            type_to_json(field.type),
            "label" if field.name in labels else "key" if field.name in keys else "feature",
            encodings[field.name].tf_type,
            encodings[field.name].shape,
            encodings[field.name].null,
            encodings[field.name].loss,
        )
        for field in schema
    )
    splits = tuple(
        _write_split(
            directory, name, split_table, file_format=file_format, layout=layout, shards=shards
        )
        for name, split_table in tables.items()
    )
    manifest = Manifest(
        name="example", version=1, data_format=data_format, seed=0, key=(), split_rule={}, block_rows=block_rows,
        compression=compression, columns=columns, layout=layout, splits=splits, files=(), plan=None, plan_hash=None,
        sources=(), reproducible=False, reproducible_reason="made by a test",
    )  # fmt: skip
    files = tuple(
        ManifestFile(file.path, file.bytes, file.sha256)
        for file in file_format.finish(str(directory), manifest)
    )
    manifest = replace(manifest, files=files)
    write_manifest(str(directory), manifest)
    return manifest


def _write_split(
    directory: Path, name: str, table: pa.Table, *, file_format: Any, layout: Any, shards: int
) -> ManifestSplit:
    manifest_shards, first = [], 0
    for index in range(shards):
        rows = table.num_rows // shards + (index < table.num_rows % shards)
        ending = f".{file_format.extension}" if file_format.extension else ""
        path = f"{name}/{file_format.name}-{index:05d}-of-{shards:05d}{ending}"
        batches = iter(table.slice(first, rows).to_batches(max_chunksize=100))
        summary = file_format.write_shard(str(directory), path, batches, layout=layout)
        assert summary.rows == rows
        sidecars = tuple(
            ManifestFile(sidecar.path, sidecar.bytes, sidecar.sha256)
            for sidecar in summary.sidecars
        )
        manifest_shards.append(
            ManifestShard(path, first, rows, summary.file.bytes, summary.file.sha256, sidecars)
        )
        first += rows
    nulls = {
        column: table[column].null_count
        for column in table.column_names
        if table[column].null_count
    }
    return ManifestSplit(
        name,
        table.num_rows,
        sum(shard.bytes for shard in manifest_shards),
        tuple(manifest_shards),
        nulls,
    )


def example_table(rows: int, *, nulls: bool = False, seed: int = 0) -> pa.Table:
    """Return columns of every kind that batches support; ``row_id`` is the canonical row number."""
    random = np.random.default_rng(seed)
    times = random.integers(0, 2**50, rows)

    def some(array: pa.Array) -> pa.Array:
        if not nulls:
            return array
        return pa.array(array.to_pylist(), array.type, mask=random.random(rows) < 0.2)

    texts = pa.array([f"t{number:0{1 + number % 7}d}" for number in range(rows)], pa.string())
    matrix = pa.FixedSizeListArray.from_arrays(pa.array(random.random(rows * 4, np.float32)), 4)
    return pa.table(
        {
            ROW: pa.array(np.arange(rows)),
            "count": some(pa.array(random.integers(-5, 1000, rows), pa.int32())),
            "small": pa.array(random.integers(0, 200, rows), pa.uint8()),
            "flag": some(pa.array(random.random(rows) < 0.5)),
            "ratio": some(pa.array(random.random(rows, np.float32))),
            "name": some(texts),
            "vector": some(matrix),
            "moment": some(pa.array(times, pa.timestamp("us", tz="UTC"))),
            "day": some(pa.array(random.integers(0, 20000, rows), pa.int32()).cast(pa.date32())),
            "label": pa.array(random.integers(0, 2, rows), pa.int64()),
        }
    )


def long_dataset(directory: Path) -> TrainingDataset:
    """Write more rows than a reader with batches of 64 rows reads in advance."""
    numbers = np.arange(40_000)
    manifest = make_dataset(
        directory,
        pa.table({"x": numbers * 0.5, "label": numbers % 2}),
        labels=["label"],
        block_rows=1024,
    )
    return TrainingDataset(str(directory), manifest)


def truncate_shards(dataset: TrainingDataset) -> None:
    for shard in dataset.manifest.split("train").shards:
        os.truncate(os.path.join(dataset.path, shard.path), shard.bytes // 8)
