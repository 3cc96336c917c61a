"""The format ``petastorm``.

Parquet files as the format ``parquet`` writes them, with petastorm's metadata beside them.

Shards have equal row groups, because petastorm hands out row groups to workers. Writing needs
petastorm, which pickles its schema; the readers of training datasets do without it.
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

from featurestore.errors import ReaderConfigError, UnsupportedType
from featurestore.model.arrow_json import schema_from_json, schema_to_json
from featurestore.model.shapes import items_of, shape_of
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
from featurestore.plugins.plain import PlainFormat, columns_of_any_length, selected
from featurestore.storage.shardfile import ShardFile
from featurestore_connectors.petastorm.metadata import METADATA_FILE, described_schema, petastorm
from featurestore_connectors.petastorm.shapes import (
    fits,
    flattened,
    shaped,
    stored_schema,
)

if TYPE_CHECKING:
    from featurestore.model.manifest import Manifest, ManifestSplit

# Divided by 1, 2, 3, 4, 6, 8, 12 and 24 workers, whatever the number of shards.
ROW_GROUPS_PER_SHARD = 24
# Where shards have few rows, fewer groups do, as long as those of all shards are divided by 16 and
# 48 workers, too.
FEWER_PER_SHARD = (24, 12, 8, 6, 4, 3, 2, 1)
FEW_ROWS = 4096
ENOUGH_ROW_GROUPS = 48
# petastorm 0.13.1's default pool, "thread", loses row groups at random: it takes "all that was
# handed out is done" and, a moment later, "all was handed out" for the end, though more was handed
# out in between. This one has no threads.
WHOLE_POOL = "dummy"


class PetastormFormat(PlainFormat):
    """Writes Parquet with petastorm's metadata, and reads it without petastorm."""

    name = "petastorm"
    null = "definition level"

    @property
    def extension(self) -> str:
        return "parquet"

    def check(self, schema: pa.Schema, *, compression: str | None) -> None:
        refused = []
        for field in schema:
            if not fits(field.type):
                refused.append(f"{field.name}: {field.type} ({_way_out(field.type)})")
        if refused:
            raise UnsupportedType(
                f"petastorm's readers cannot give these columns back: {'; '.join(refused)}.",
                hint="change or leave out these columns, or use data_format='parquet'",
            )
        find_format("parquet").check(stored_schema(schema), compression=compression)
        petastorm()

    def profiled(self, schema: pa.Schema) -> Sequence[str]:
        """Return the columns whose lengths decide how many bytes a row has, as for Parquet."""
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
        flat = map(flattened, batches)
        return find_format("parquet").write_shard(directory, path, flat, layout=layout["parquet"])

    def finish(self, directory: str, manifest: Manifest) -> Sequence[WrittenFile]:
        written = []
        for split in manifest.splits:
            with ShardFile(directory, f"{split.name}/{METADATA_FILE}") as file:
                pq.write_metadata(described_schema(manifest, split), pa.PythonFile(file, "w"))
            written.append(file.written)
        return written

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
        """Return petastorm's batch reader of one worker's share of a split's row groups."""
        petastorm()
        from petastorm import make_batch_reader

        part = manifest.split(split)
        _check_workers(manifest, part, worker=worker, workers=workers)
        _check_columns(manifest, part, options)
        chosen = {"num_epochs": 1, "reader_pool_type": WHOLE_POOL, **options}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            chosen["filesystem"] = _files_of(directory, manifest, part)
            return make_batch_reader(
                Path(directory, split).absolute().as_uri(),
                cur_shard=worker,
                shard_count=workers,
                **chosen,
            )


def _check_workers(manifest: Manifest, split: ManifestSplit, *, worker: int, workers: int) -> None:
    most = manifest.layout["parquet"]["row_groups"]
    groups = sum(min(most, shard.rows) for shard in split.shards)
    if groups == 0:
        raise ReaderConfigError(
            f"Split {split.name!r} has no rows, and petastorm refuses to read nothing.",
            hint="num_rows(split) tells before",
        )
    if workers >= 1 and groups % workers == 0 and 0 <= worker < workers:
        return
    fitting = [str(each) for each in range(1, min(groups, 128) + 1) if groups % each == 0]
    raise ReaderConfigError(
        f"worker={worker}, workers={workers}: the {groups} row groups of split {split.name!r} can "
        "be shared by "
        f"{', '.join(fitting)} workers.",
        hint="our own .reader() shares rows, not row groups",
    )


def _check_columns(manifest: Manifest, split: ManifestSplit, options: Mapping[str, Any]) -> None:
    """Refuse columns that petastorm puts into one array a batch, and cannot.

    Lists of different sizes or with nulls.
    """
    if options.get("transform_spec") is not None:  # which may change or remove them
        return
    wanted = options.get("schema_fields")
    refused = []
    for field in schema_from_json(manifest.layout["schema"]):
        sizes, leaf = shape_of(field.type), items_of(field.type)
        if not _is_wanted(field.name, wanted):
            continue
        if pat.is_list(leaf):
            refused.append(f"{field.name} (lists of any size)")
        elif sizes and split.nulls.get(field.name):
            refused.append(f"{field.name} (lists, some of them null)")
    if refused:
        raise ReaderConfigError(
            f"petastorm's batch reader cannot give these columns of split {split.name!r} back: "
            f"{', '.join(refused)}.",
            hint="name the others, schema_fields=['...'], or use .reader(), which reads all of "
            "them",
        )


def _is_wanted(name: str, wanted: Sequence[Any] | None) -> bool:
    """Tell whether petastorm chooses a column.

    ``schema_fields`` are patterns or fields of its schema.
    """
    if wanted is None:
        return True
    return any(re.fullmatch(str(getattr(each, "name", each)), name) for each in wanted)


def _files_of(directory: str, manifest: Manifest, split: ManifestSplit) -> Any:
    from featurestore_connectors.petastorm.files import SplitFiles

    sink = pa.BufferOutputStream()
    pq.write_metadata(described_schema(manifest, split, shaped=True), sink)
    shards = {}
    for shard in split.shards:
        shards[os.path.basename(shard.path)] = os.path.join(directory, shard.path)
    return SplitFiles(shards, sink.getvalue().to_pybytes())


class PetastormShard:
    """An open shard, read as Parquet and given its shapes back."""

    def __init__(self, inner: ShardReader, schema: pa.Schema) -> None:
        self._inner, self._schema = inner, schema

    @property
    def rows(self) -> int:
        return self._inner.rows

    def read(self, start: int, stop: int, columns: Sequence[str]) -> pa.RecordBatch:
        batch = self._inner.read(start, stop, columns)
        schema = selected(self._schema, columns)
        arrays = list(map(shaped, batch.columns, schema.types))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def close(self) -> None:
        self._inner.close()


def _way_out(kind: pa.DataType) -> str:
    if pat.is_struct(kind):
        return "make its fields columns of their own"
    return (
        "lists may hold booleans and numbers: encode the values as numbers, or give each a column"
    )


def row_groups_per_shard(rows: int, *, shards: int) -> int:
    """Return the row groups of each shard of a split.

    >>> row_groups_per_shard(1_000_000, shards=8), row_groups_per_shard(100_000, shards=8)
    (24, 6)
    """
    fitting = [each for each in FEWER_PER_SHARD if each * shards % ENOUGH_ROW_GROUPS == 0]
    for groups in fitting:
        if rows // shards // groups >= FEW_ROWS:
            return groups
    return fitting[-1] if fitting else ROW_GROUPS_PER_SHARD


if TYPE_CHECKING:
    _contract: DatasetFormat = PetastormFormat()
