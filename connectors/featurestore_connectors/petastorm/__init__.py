"""The petastorm dataset format.

Parquet files of the format ``parquet`` with petastorm metadata.

Shards have equal row groups, since petastorm distributes row groups to workers. Writing requires
petastorm, which pickles its schema. The readers of training datasets do not require it.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from featurestore.arrow.schemas import schema_from_json, schema_to_json
from featurestore.arrow.types import array_item_type, array_shape
from featurestore.errors import ReaderConfigError, UnsupportedType
from featurestore.plugins.format import (
    ColumnProfile,
    DatasetContents,
    Layout,
    ShardProblem,
    ShardReader,
    WrittenFile,
    WrittenShard,
    find_format,
)
from featurestore.plugins.plain import PlainFormat, select_fields, variable_length_columns
from featurestore.storage.shards import ShardFile
from featurestore_connectors.petastorm import metadata
from featurestore_connectors.petastorm.metadata import METADATA_FILE

if TYPE_CHECKING:
    from featurestore.model.manifest import Manifest, ManifestSplit

__all__ = ["ROW_GROUPS_PER_SHARD", "WHOLE_POOL", "PetastormFormat", "row_groups_per_shard"]

# Divisible by 1, 2, 3, 4, 6, 8, 12 and 24 workers for any number of shards.
ROW_GROUPS_PER_SHARD = 24
# Small shards have fewer row groups, as long as the total is divisible by 16 and 48 workers.
FEWER_PER_SHARD = (24, 12, 8, 6, 4, 3, 2, 1)
FEW_ROWS = 4096
ENOUGH_ROW_GROUPS = 48
# The default pool "thread" of petastorm 0.13.1 loses row groups at random: it checks that all
# ventilated items are processed, and later that ventilation is complete, but more items may be
# ventilated in between. The dummy pool has no threads.
WHOLE_POOL = "dummy"


class PetastormFormat(PlainFormat):
    """Dataset format for Parquet with petastorm metadata, which is read without petastorm."""

    name = "petastorm"
    null = "definition level"

    @property
    def extension(self) -> str:
        return "parquet"

    def check(self, schema: pa.Schema, *, compression: str | None) -> None:
        fields = [field for field in schema if not metadata.is_supported(field.type)]
        unsupported = [
            f"{field.name}: {field.type} ({_suggest_type(field.type)})" for field in fields
        ]
        if unsupported:
            raise UnsupportedType(
                f"petastorm's readers do not support these columns: {'; '.join(unsupported)}.",
                hint="change or leave out these columns, or use data_format='parquet'",
            )
        find_format("parquet").check(metadata.stored_schema(schema), compression=compression)
        metadata.petastorm()

    def columns_to_profile(self, schema: pa.Schema) -> Sequence[str]:
        """Return the columns whose lengths determine the bytes of a row, as for Parquet."""
        return variable_length_columns(schema)

    def layout(
        self,
        schema: pa.Schema,
        profiles: Sequence[ColumnProfile],
        *,
        compression: str | None,
        block_rows: int,
    ) -> Layout:
        flat_schema = metadata.stored_schema(schema)
        inner = find_format("parquet").layout(
            flat_schema, profiles, compression=compression, block_rows=block_rows
        )
        return {
            "schema": schema_to_json(schema),
            "mean_bytes": inner["mean_bytes"],
            "parquet": {**inner, "row_groups": ROW_GROUPS_PER_SHARD},
        }

    def fitted(self, layout: Layout, *, rows: int, shards: int) -> Layout:
        """Return the layout with a row group count per shard that avoids small groups."""
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
        flat = map(metadata.flatten_batch, batches)
        return find_format("parquet").write_shard(directory, path, flat, layout=layout["parquet"])

    def finish(self, directory: str, contents: DatasetContents) -> Sequence[WrittenFile]:
        written_files = []
        for split in contents.splits:
            with ShardFile(directory, f"{split.name}/{METADATA_FILE}") as file:
                pq.write_metadata(
                    metadata.schema_with_metadata(contents, split), pa.PythonFile(file, "w")
                )
            written_files.append(file.written_file)
        return written_files

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
        """Return a petastorm batch reader for a worker's row groups of a split."""
        metadata.petastorm()
        from petastorm import make_batch_reader

        manifest_split = manifest.split(split)
        _check_workers(manifest, manifest_split, worker=worker, workers=workers)
        _check_columns(manifest, manifest_split, options)
        reader_options = {"num_epochs": 1, "reader_pool_type": WHOLE_POOL, **options}
        with warnings.catch_warnings():
            # petastorm uses deprecated interfaces of pyarrow, which emit warnings.
            warnings.simplefilter("ignore")
            reader_options["filesystem"] = _split_files(directory, manifest, manifest_split)
            return make_batch_reader(
                Path(directory, split).absolute().as_uri(),
                cur_shard=worker,
                shard_count=workers,
                **reader_options,
            )


def _check_workers(manifest: Manifest, split: ManifestSplit, *, worker: int, workers: int) -> None:
    """Refuse an empty split, and numbers of workers that do not divide the row groups."""
    max_row_groups = manifest.layout["parquet"]["row_groups"]
    # A shard with few rows has fewer row groups than the layout defines.
    groups = sum(min(max_row_groups, shard.rows) for shard in split.shards)
    if groups == 0:
        raise ReaderConfigError(
            f"Split {split.name!r} has no rows, and petastorm cannot read an empty split.",
            hint="check num_rows(split) first",
        )
    # With other numbers, some workers would get more row groups than others.
    if workers >= 1 and groups % workers == 0 and 0 <= worker < workers:
        return
    fitting = [str(count) for count in range(1, min(groups, 128) + 1) if groups % count == 0]
    raise ReaderConfigError(
        f"worker={worker}, workers={workers}: the {groups} row groups of split {split.name!r} can "
        f"be divided among {', '.join(fitting)} workers.",
        hint="dataset.reader() divides rows, not row groups",
    )


def _check_columns(manifest: Manifest, split: ManifestSplit, options: Mapping[str, Any]) -> None:
    """Raise an error for columns that petastorm cannot stack to one array per batch.

    These are lists with different lengths or with nulls.
    """
    if options.get("transform_spec") is not None:  # which may change or remove them
        return
    patterns = options.get("schema_fields")
    unsupported = []
    for field in schema_from_json(manifest.layout["schema"]):
        sizes, leaf = array_shape(field.type), array_item_type(field.type)
        if not _is_selected(field.name, patterns):
            continue
        if pat.is_list(leaf):
            unsupported.append(f"{field.name} (lists of any size)")
        elif sizes and split.nulls.get(field.name):
            unsupported.append(f"{field.name} (lists, some of them null)")
    if unsupported:
        raise ReaderConfigError(
            f"petastorm's batch reader does not support these columns of split {split.name!r}: "
            f"{', '.join(unsupported)}.",
            hint="select the other columns with schema_fields=['...'], or use .reader(), which supports "
            "all columns",
        )


def _is_selected(name: str, patterns: Sequence[Any] | None) -> bool:
    """Return whether ``schema_fields`` (patterns or fields) select a column."""
    if patterns is None:
        return True
    return any(re.fullmatch(str(getattr(pattern, "name", pattern)), name) for pattern in patterns)


def _split_files(directory: str, manifest: Manifest, split: ManifestSplit) -> Any:
    """Return the file system of a split with generated metadata."""
    from featurestore_connectors.petastorm.files import SplitFiles

    sink = pa.BufferOutputStream()
    pq.write_metadata(metadata.schema_with_metadata(manifest, split, shaped=True), sink)
    shards = {
        os.path.basename(shard.path): os.path.join(directory, shard.path) for shard in split.shards
    }
    return SplitFiles(shards, sink.getvalue().to_pybytes())


class PetastormShard:
    """An open shard, read as Parquet, with restored list shapes."""

    def __init__(self, inner: ShardReader, schema: pa.Schema) -> None:
        self._inner, self._schema = inner, schema

    @property
    def rows(self) -> int:
        return self._inner.rows

    def read(self, start: int, stop: int, columns: Sequence[str]) -> pa.RecordBatch:
        batch = self._inner.read(start, stop, columns)
        schema = select_fields(self._schema, columns)
        arrays = list(map(metadata.restore_shape, batch.columns, schema.types))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def close(self) -> None:
        self._inner.close()


def _suggest_type(dtype: pa.DataType) -> str:
    if pat.is_struct(dtype):
        return "use a column for each field"
    return (
        "lists may contain booleans and numbers: encode the values as numbers, or use a column for "
        "each item"
    )


def row_groups_per_shard(rows: int, *, shards: int) -> int:
    """Return the number of row groups in each shard of a split.

    >>> row_groups_per_shard(1_000_000, shards=8), row_groups_per_shard(100_000, shards=8)
    (24, 6)
    """
    fitting = [factor for factor in FEWER_PER_SHARD if factor * shards % ENOUGH_ROW_GROUPS == 0]
    for groups in fitting:
        if rows // shards // groups >= FEW_ROWS:
            return groups
    return fitting[-1] if fitting else ROW_GROUPS_PER_SHARD
