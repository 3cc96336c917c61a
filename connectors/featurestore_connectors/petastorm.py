"""Training datasets for petastorm: Parquet files with petastorm's own metadata beside them.

The files are those of the format ``parquet`` (reached through the door), cut into equal row groups, because petastorm
hands out row groups to workers. Writing needs petastorm, which pickles its schema; our own readers do without it.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import warnings
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from featurestore.errors import ReaderConfigError, UnsupportedType, missing_extra
from featurestore.model.arrow_cast import cast_array
from featurestore.model.arrow_json import schema_from_json, schema_to_json
from featurestore.plugins.format import (
    ColumnProfile,
    DatasetFormat,
    Layout,
    ShardProblem,
    ShardReader,
    WrittenFile,
    WrittenShard,
    find_format,
)
from featurestore.plugins.plain import PlainFormat, columns_of_any_length
from featurestore.storage.shardfile import ShardFile

if TYPE_CHECKING:
    from featurestore.model.manifest import Manifest, ManifestSplit

# Divided by 1, 2, 3, 4, 6, 8, 12 and 24 workers, whatever the number of shards.
ROW_GROUPS_PER_SHARD = 24
# Where shards have few rows, fewer groups do, as long as those of all shards are divided by 16 and 48 workers, too.
FEWER_PER_SHARD = (24, 12, 8, 6, 4, 3, 2, 1)
FEW_ROWS = 4096
ENOUGH_ROW_GROUPS = 48
METADATA_FILE = "_common_metadata"
# petastorm 0.13.1's default pool, "thread", loses row groups at random: it takes "all that was handed out is done" and,
# a moment later, "all was handed out" for the end, though more was handed out in between. This one has no threads.
WHOLE_POOL = "dummy"
UNISCHEMA = "features"


class PetastormFormat(PlainFormat):
    """Writes Parquet with petastorm's metadata, reads it without petastorm (``formats.DatasetFormat``)."""

    name = "petastorm"
    null = "definition level"

    @property
    def extension(self) -> str:
        return "parquet"

    def check(self, schema: pa.Schema, *, compression: str | None) -> None:
        refused = [
            f"{field.name}: {field.type} ({_way_out(field.type)})"
            for field in schema
            if not _fits(field.type)
        ]
        if refused:
            raise UnsupportedType(
                f"petastorm's readers cannot give these columns back: {'; '.join(refused)}.",
                hint="change or leave out these columns, or use data_format='parquet'",
            )
        find_format("parquet").check(stored_schema(schema), compression=compression)
        _petastorm()

    def profiled(self, schema: pa.Schema) -> Sequence[str]:
        """Return the columns whose lengths decide how many bytes a row has; nothing else of a layout needs values."""
        return columns_of_any_length(schema)

    def layout(
        self,
        schema: pa.Schema,
        profiles: Sequence[ColumnProfile],
        *,
        compression: str | None,
        block_rows: int,
    ) -> Layout:
        stored = stored_schema(schema)
        inner = find_format("parquet").layout(
            stored, profiles, compression=compression, block_rows=block_rows
        )
        return {
            "schema": schema_to_json(schema),
            "mean_bytes": inner["mean_bytes"],
            "parquet": {**inner, "row_groups": ROW_GROUPS_PER_SHARD},
        }

    def fitted(self, layout: Layout, *, rows: int, shards: int) -> Layout:
        """Return the layout with so many row groups a shard that none is needlessly small."""
        return {
            **layout,
            "parquet": {
                **layout["parquet"],
                "row_groups": row_groups_per_shard(rows, shards=shards),
            },
        }

    def write_shard(
        self, directory: str, path: str, batches: Iterator[pa.RecordBatch], *, layout: Layout
    ) -> WrittenShard:
        flat = (_flattened(batch) for batch in batches)
        return find_format("parquet").write_shard(directory, path, flat, layout=layout["parquet"])

    def finish(self, directory: str, manifest: Manifest) -> Sequence[WrittenFile]:
        schema = schema_from_json(manifest.layout["schema"])
        nullable = frozenset(name for split in manifest.splits for name in split.nulls)
        columns = unischema_of(schema, nullable=nullable)
        groups = manifest.layout["parquet"]["row_groups"]
        return [
            _write_metadata(directory, split, stored_schema(schema), columns, row_groups=groups)
            for split in manifest.splits
        ]

    def open_shard(self, path: str, *, layout: Layout) -> ShardReader:
        inner = find_format("parquet").open_shard(path, layout=layout["parquet"])
        return PetastormShard(inner, schema_from_json(layout["schema"]))

    def verify_shard(self, path: str, *, layout: Layout, rows: int) -> Sequence[ShardProblem]:
        return find_format("parquet").verify_shard(path, layout=layout["parquet"], rows=rows)

    def native_reader(
        self,
        directory: str,
        manifest: Manifest,
        *,
        split: str,
        worker: int,
        workers: int,
        **options: Any,
    ) -> Any:
        """Return petastorm's batch reader of one worker's share of a split's row groups (``formats.NativeReading``)."""
        _petastorm()
        from petastorm import make_batch_reader

        shards = manifest.split(split).shards
        groups = sum(min(manifest.layout["parquet"]["row_groups"], shard.rows) for shard in shards)
        if workers < 1 or groups % workers or not 0 <= worker < workers:
            fitting = [each for each in range(1, min(groups, 128) + 1) if groups % each == 0]
            raise ReaderConfigError(
                f"worker={worker}, workers={workers}: the {groups} row groups of split {split!r} can be shared by "
                f"{', '.join(map(str, fitting))} workers.",
                hint="our own .reader() shares rows, not row groups",
            )
        url = Path(directory, split).absolute().as_uri()
        chosen = {"num_epochs": 1, "reader_pool_type": WHOLE_POOL, **options}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make_batch_reader(url, cur_shard=worker, shard_count=workers, **chosen)


class PetastormShard:
    """An open shard, read as Parquet and given its shapes back."""

    def __init__(self, inner: ShardReader, schema: pa.Schema) -> None:
        self._inner, self._schema = inner, schema

    @property
    def rows(self) -> int:
        return self._inner.rows

    def read(self, start: int, stop: int, columns: Sequence[str]) -> pa.RecordBatch:
        batch = self._inner.read(start, stop, columns)
        schema = pa.schema([self._schema.field(name) for name in columns])
        arrays = [
            _shaped(array, field.type) for array, field in zip(batch.columns, schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def close(self) -> None:
        self._inner.close()


def row_groups_per_shard(rows: int, *, shards: int) -> int:
    """Return the row groups of each shard of a split.

    >>> row_groups_per_shard(1_000_000, shards=8), row_groups_per_shard(100_000, shards=8)
    (24, 6)
    """
    fitting = [each for each in FEWER_PER_SHARD if each * shards % ENOUGH_ROW_GROUPS == 0]
    if not fitting:
        return ROW_GROUPS_PER_SHARD
    return next((each for each in fitting if rows // shards // each >= FEW_ROWS), fitting[-1])


# -- shapes: petastorm reads lists, not lists of lists ---------------------------------------------------------------


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of the files: nested lists of fixed size lie flat.

    >>> stored_schema(pa.schema([("image", pa.list_(pa.list_(pa.uint8(), 3), 2))])).field("image").type
    FixedSizeListType(fixed_size_list<item: uint8>[6])
    """
    return pa.schema([(field.name, _flat_type(field.type)) for field in schema])


def _flat_type(kind: pa.DataType) -> pa.DataType:
    sizes, leaf = _shape(kind)
    return pa.list_(pa.field("item", leaf), prod(sizes)) if sizes else kind


def _shape(kind: pa.DataType) -> tuple[list[int], pa.DataType]:
    sizes = []
    while pat.is_fixed_size_list(kind):
        sizes.append(kind.list_size)
        kind = kind.value_type
    return sizes, kind


def _flattened(batch: pa.RecordBatch) -> pa.RecordBatch:
    schema = stored_schema(batch.schema)
    arrays = []
    for array, field in zip(batch.columns, schema, strict=True):
        inner = array
        for size in _shape(array.type)[0]:
            inner = inner.values.slice(inner.offset * size, len(inner) * size)
        arrays.append(array if inner is array else _lists_of(inner, array, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _shaped(array: pa.Array, kind: pa.DataType) -> pa.Array:
    sizes, _ = _shape(kind)
    if len(sizes) < 2:
        return cast_array(array, kind)
    values = array.values.slice(array.offset * prod(sizes), len(array) * prod(sizes))
    kinds = [kind]
    while pat.is_fixed_size_list(kinds[-1].value_type):
        kinds.append(kinds[-1].value_type)
    for each in reversed(kinds[1:]):
        values = pa.FixedSizeListArray.from_arrays(values, type=each)
    return _lists_of(values, array, kind)


def _lists_of(values: pa.Array, like: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values as lists of fixed size with the nulls of another array."""
    valid = None
    if like.null_count:
        valid = pa.py_buffer(
            np.packbits(like.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
        )
    return pa.Array.from_buffers(kind, len(like), [valid], like.null_count, children=[values])


def _fits(kind: pa.DataType) -> bool:
    sizes, leaf = _shape(kind)
    if pat.is_list(leaf) and not sizes:
        sizes, leaf = [0], leaf.value_type
    if sizes:
        return bool(pat.is_boolean(leaf) or pat.is_integer(leaf) or pat.is_floating(leaf))
    return not pat.is_nested(leaf)


def _way_out(kind: pa.DataType) -> str:
    if pat.is_struct(kind):
        return "make its fields columns of their own"
    return (
        "lists may hold booleans and numbers: encode the values as numbers, or give each a column"
    )


# -- metadata --------------------------------------------------------------------------------------------------------


def _petastorm() -> Any:
    """Return petastorm's modules ``unischema`` and ``etl.dataset_metadata``; MissingExtra without a working one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from petastorm import unischema
            from petastorm.etl import dataset_metadata
    except ImportError as error:
        raise missing_extra("petastorm", "petastorm") from error
    return unischema, dataset_metadata


def unischema_of(schema: pa.Schema, *, nullable: frozenset[str] = frozenset()) -> Any:
    """Return petastorm's schema of feature types; ``nullable`` are the columns that have nulls."""
    unischema, _ = _petastorm()
    fields = []
    for field in schema:
        sizes, leaf = _shape(field.type)
        shape: tuple[int | None, ...] = (prod(sizes),) if sizes else ()
        if pat.is_list(leaf):
            shape, leaf = (None,), leaf.value_type
        kind = _numpy_type(leaf)
        if kind is np.datetime64 and field.name in nullable:
            kind = np.object_  # petastorm calls the type with each value, and numpy makes no datetime64 of pandas' NaT
        # Interned, because a pickle tells equal texts from the same text, and its bytes are in the manifest's hash.
        name = sys.intern(field.name)
        fields.append(unischema.UnischemaField(name, kind, shape, None, name in nullable))
    return unischema.Unischema(UNISCHEMA, fields)


def _numpy_type(kind: pa.DataType) -> Any:
    from decimal import Decimal

    if pat.is_decimal(kind):
        return Decimal
    if pat.is_string(kind):
        return np.str_
    if pat.is_binary(kind):
        return np.bytes_
    if pat.is_date(kind) or pat.is_timestamp(kind):
        return np.datetime64
    return np.dtype(kind.to_pandas_dtype()).type


def _write_metadata(
    directory: str, split: ManifestSplit, stored: pa.Schema, columns: Any, *, row_groups: int
) -> WrittenFile:
    """Write the file by which petastorm knows a split's columns and row groups."""
    _, dataset_metadata = _petastorm()
    groups = {os.path.basename(shard.path): min(row_groups, shard.rows) for shard in split.shards}
    described = stored.with_metadata(
        {
            dataset_metadata.UNISCHEMA_KEY: pickle.dumps(columns, protocol=4),
            dataset_metadata.ROW_GROUPS_PER_FILE_KEY: json.dumps(groups).encode(),
        }
    )
    with ShardFile(directory, f"{split.name}/{METADATA_FILE}") as file:
        pq.write_metadata(described, pa.PythonFile(file, "w"))
    return file.written


if TYPE_CHECKING:
    _contract: DatasetFormat = PetastormFormat()
