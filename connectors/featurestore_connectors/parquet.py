"""Training datasets as Parquet files.

Row groups have a fixed number of rows, independent of the written batches, and all writer options
are fixed here. The bytes of a shard therefore depend only on its rows, the layout, and the Arrow
release, which is recorded in the footer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import count, pairwise
from weakref import finalize

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from featurestore.arrow.casts import cast_array
from featurestore.arrow.schemas import schema_from_json, schema_to_json, type_to_json
from featurestore.arrow.types import is_nested
from featurestore.errors import DatasetDamaged, InvalidArgument, UnsupportedType, listing
from featurestore.model.runtime import ForkSafeLock
from featurestore.plugins import plain
from featurestore.plugins.format import (
    ColumnProfile,
    Layout,
    ShardProblem,
    ShardReader,
    WrittenShard,
)
from featurestore.plugins.plain import PlainFormat
from featurestore.storage.shards import ShardFile

CODECS = ("SNAPPY", "ZSTD", "GZIP", "NONE")
BLOCKS_PER_ROW_GROUP = 8
CACHED_ROW_GROUPS = 32  # shared by all open shards: readers keep many open
BUFFER_BYTES = 1 << 20


class ParquetFormat(PlainFormat):
    """Parquet dataset format (implements ``DatasetFormat``)."""

    name = "parquet"
    null = "definition level"

    def check(self, schema: pa.Schema, *, compression: str | None) -> None:
        if compression is not None and compression not in CODECS:
            raise InvalidArgument(
                f"Unknown compression={compression!r} for parquet. Available: {listing(CODECS)}.",
                hint="compression=None uses SNAPPY",
            )
        refused = [
            f"{field.name}: {field.type}" for field in schema if not _is_feature_type(field.type)
        ]
        if refused:
            raise UnsupportedType(
                f"Parquet does not support these columns: {'; '.join(refused)}.",
                hint="convert or leave out these columns",
            )

    def columns_to_profile(self, schema: pa.Schema) -> Sequence[str]:
        """Return the columns whose lengths determine the bytes of a row.

        Other column profiles do not affect the layout.
        """
        return plain.variable_length_columns(schema)

    def layout(
        self,
        schema: pa.Schema,
        profiles: Sequence[ColumnProfile],
        *,
        compression: str | None,
        block_rows: int,
    ) -> Layout:
        self.check(schema, compression=compression)
        return {
            "version": 1,
            "schema": schema_to_json(schema),
            "codec": compression or "SNAPPY",
            "row_group_rows": BLOCKS_PER_ROW_GROUP * block_rows,
            "mean_bytes": plain.plain_bytes_per_row(schema, profiles),
        }

    def write_shard(
        self, directory: str, path: str, batches: Iterator[pa.RecordBatch], *, layout: Layout
    ) -> WrittenShard:
        """Write a shard to a Parquet file.

        If the layout has ``row_groups``, the shard has that many equal row groups, and its rows are
        collected in memory first.
        """
        schema = schema_from_json(layout["schema"])
        rows = 0
        file_schema = stored_schema(schema)
        string_columns = [field.name for field in file_schema if pat.is_string(field.type)]
        with (
            ShardFile(directory, path) as file,
            # Arrow writes each page and its header separately. The buffer joins these small writes.
            pa.BufferedOutputStream(pa.PythonFile(file, "w"), BUFFER_BYTES) as sink,
            pq.ParquetWriter(
                sink,
                file_schema,
                version="2.6",
                data_page_version="1.0",
                compression=layout["codec"],
                store_schema=False,
                # Rows are ordered by hash, so every row group spans all values and statistics
                # cannot exclude any.
                write_statistics=False,
                # Dictionary encoding of numbers takes three times as long as all other steps, and
                # makes files larger.
                use_dictionary=string_columns or False,
            ) as writer,
        ):
            for group in _row_groups(batches, layout):
                writer.write_table(
                    _to_stored_table(group, file_schema), row_group_size=group.num_rows
                )
                rows += group.num_rows
        return WrittenShard(file.written_file, rows)

    def open_shard(self, path: str, *, layout: Layout) -> ShardReader:
        return ParquetShard(path, schema_from_json(layout["schema"]))

    def verify_shard(self, path: str, *, layout: Layout, rows: int) -> Sequence[ShardProblem]:
        try:
            with pq.ParquetFile(path) as file:
                row_count = file.metadata.num_rows
                for group in range(file.metadata.num_row_groups):
                    try:
                        file.read_row_group(group, use_threads=False)
                    except (OSError, pa.ArrowException) as error:
                        begin = _group_offset(file.metadata.row_group(group))
                        message = f"row group {group} cannot be read: {error}"
                        return [ShardProblem(path, message, offset=begin)]
        except (OSError, pa.ArrowException) as error:
            return [ShardProblem(path, f"is not a readable Parquet file: {error}")]
        if row_count != rows:
            return [ShardProblem(path, f"has {row_count:,} rows; the manifest lists {rows:,}")]
        return []


def _group_offset(group: pq.RowGroupMetaData) -> int:
    """Return the file offset at which a row group begins."""
    first = group.column(0)
    begin: int | None = first.dictionary_page_offset
    if begin is None:
        begin = first.data_page_offset
    return int(begin)


_decoded: OrderedDict[tuple[int, int, tuple[str, ...]], pa.Table] = OrderedDict()
_lock = ForkSafeLock()  # the finalizer of a shard may run in a thread that owns the lock
_numbers = count()


class ParquetShard:
    """An open Parquet shard.

    Recently read row groups stay decoded, since adjacent rows are often read next.
    """

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self._path, self._schema, self._number = path, schema, next(_numbers)
        self._forget = finalize(self, _drop_cached_groups, self._number)
        try:
            # Not memory-mapped: a truncation during a read would end the process with SIGBUS.
            self._file = pq.ParquetFile(path)
        except (OSError, pa.ArrowException) as error:
            raise DatasetDamaged(f"The shard {path!r} cannot be read: {error}.") from error
        metadata = self._file.metadata
        self._starts = [0]
        for group in range(metadata.num_row_groups):
            self._starts.append(self._starts[-1] + metadata.row_group(group).num_rows)

    @property
    def rows(self) -> int:
        return self._starts[-1]

    def read(self, start: int, stop: int, columns: Sequence[str]) -> pa.RecordBatch:
        schema = plain.select_fields(self._schema, columns)
        slices = []
        for group, (first, end) in enumerate(pairwise(self._starts)):
            if first < stop and end > start:
                table = self._group(group, tuple(columns))
                slices.append(
                    table.slice(max(start - first, 0), min(stop, end) - max(start, first))
                )
        if not slices:
            return plain.empty_batch(schema)
        try:
            table = pa.concat_tables(slices).combine_chunks()
            arrays = [
                cast_array(plain.combine_chunks(table[field.name]), field.type) for field in schema
            ]
        # A damaged footer has other names or types.
        except (KeyError, pa.ArrowException) as error:
            raise plain.damaged_shard_error(
                self._path, f"Rows {start:,} to {stop:,}", error
            ) from error
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _group(self, group: int, columns: tuple[str, ...]) -> pa.Table:
        """Return a decoded row group, from the cache if possible."""
        key = self._number, group, columns
        with _lock:
            table = _decoded.get(key)
            if table is not None:
                _decoded.move_to_end(key)
        if table is None:
            try:
                # The lock is not held while reading, so that threads do not wait for each other.
                table = self._file.read_row_group(group, columns=list(columns), use_threads=False)
                # Arrow does not check that texts are UTF-8 while it reads them.
                table.validate(full=True)
            except (OSError, pa.ArrowException) as error:
                raise plain.damaged_shard_error(self._path, f"Row group {group}", error) from error
            with _lock:
                _decoded[key] = table
                while len(_decoded) > CACHED_ROW_GROUPS:
                    _decoded.popitem(last=False)
        return table

    def close(self) -> None:
        self._forget()
        self._file.close()


def _drop_cached_groups(number: int) -> None:
    with _lock:
        for key in list(_decoded):
            if key[0] == number:
                _decoded.pop(key, None)


def _row_groups(batches: Iterator[pa.RecordBatch], layout: Layout) -> Iterator[pa.RecordBatch]:
    """Yield the row groups of a shard, as the layout defines them."""
    groups = layout.get("row_groups")
    if groups is None:
        yield from plain.rebatch(batches, rows=layout["row_group_rows"])
        return
    # A single batch contains all rows, so that the groups differ by at most one row.
    for all_rows in plain.rebatch(batches, rows=2**62):
        bounds = [all_rows.num_rows * index // groups for index in range(groups + 1)]
        for first, end in pairwise(bounds):
            if end > first:
                yield all_rows.slice(first, end - first)


def _to_stored_table(group: pa.RecordBatch, file_schema: pa.Schema) -> pa.Table:
    # Equal schemas may have different names for list items. Wide tables rarely contain lists.
    if group.schema.equals(file_schema) and not any(map(is_nested, file_schema.types)):
        return pa.Table.from_batches([group])
    columns = [cast_array(group.column(field.name), field.type) for field in file_schema]
    return pa.Table.from_arrays(columns, schema=file_schema)


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of the Parquet files."""
    fields = [(field.name, parquet_type(field.type)) for field in schema]
    return pa.schema(fields)


def parquet_type(dtype: pa.DataType) -> pa.DataType:
    """Return the type in which a feature type is stored.

    Parquet has no fixed-size lists.

    >>> parquet_type(pa.list_(pa.float32(), 3))
    ListType(list<element: float>)
    """
    if pat.is_fixed_size_list(dtype) or pat.is_list(dtype):
        return pa.list_(pa.field("element", parquet_type(dtype.value_type)))
    if pat.is_struct(dtype):
        return pa.struct(list(stored_schema(pa.schema(list(dtype)))))
    return dtype


def _is_feature_type(dtype: pa.DataType) -> bool:
    try:
        type_to_json(dtype)
    except TypeError:
        return False
    return True
