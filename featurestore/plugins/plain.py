"""Shared implementation of formats that preserve all feature types and accept any batch size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from featurestore.errors import DatasetDamaged, InvalidArgument
from featurestore.plugins.format import (
    ColumnEncoding,
    ColumnProfile,
    DatasetFormat,
    Layout,
    ShardProblem,
)

if TYPE_CHECKING:
    import pyarrow as pa


# Verification reads this many rows at a time, so that its memory is bounded.
_VERIFIED_ROWS = 8192


def select_fields(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """Select columns of a schema, in this order."""
    import pyarrow as pa

    return pa.schema([schema.field(name) for name in columns])


class PlainFormat(DatasetFormat):
    """Base class for formats without fixed-width records; they preserve all types.

    The layouts of these formats have the entries ``mean_bytes``, the expected bytes per row, and
    ``schema``, the feature types as JSON.
    """

    name = ""
    null = "null"

    @property
    def extension(self) -> str:
        return self.name

    def encodings(self, layout: Layout) -> dict[str, ColumnEncoding]:
        """Return lossless encodings for all columns."""
        from featurestore.arrow.schemas import schema_from_json

        return plain_encodings(schema_from_json(layout["schema"]), null=self.null)

    def bytes_per_row(self, layout: Layout, profiles: Sequence[ColumnProfile]) -> float:
        """Return the expected bytes per row in the layout."""
        return float(layout["mean_bytes"])

    def refuse_compression(self, compression: str | None, reason: str) -> None:
        """Raise InvalidArgument if a compression is requested; ``reason`` continues the sentence."""
        if compression is not None:
            raise InvalidArgument(
                f"compression={compression!r} is not supported for {self.name}{reason}.",
                hint="compression=None, or data_format='parquet'",
            )

    def verify_shard(self, path: str, *, layout: Layout, rows: int) -> Sequence[ShardProblem]:
        """Read all rows of a shard, and return its defects."""
        names = [column["name"] for column in layout["schema"]]
        try:
            shard = self.open_shard(path, layout=layout)
            for start in range(0, shard.rows, _VERIFIED_ROWS):
                shard.read(start, min(start + _VERIFIED_ROWS, shard.rows), names)
            shard.close()
        except DatasetDamaged as error:
            return [ShardProblem(path, error.message)]
        if shard.rows != rows:
            return [ShardProblem(path, f"has {shard.rows:,} rows; the manifest lists {rows:,}")]
        return []


def damaged_shard_error(path: str, section: str, error: BaseException) -> DatasetDamaged:
    """Return the error for a section of a shard, such as its rows, that cannot be read."""
    return DatasetDamaged(
        f"{section} of the shard {path!r} cannot be read: {error}.",
        hint="featurestore td verify lists the damage",
    )


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch without rows."""
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def stored_batches(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, *, rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of ``rows`` rows, with buffers that depend on values only."""
    import pyarrow as pa

    from featurestore.arrow.batches import without_hidden_values

    for batch in rebatch(batches, rows=rows):
        arrays = [without_hidden_values(batch.column(name)) for name in schema.names]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def rebatch(batches: Iterator[pa.RecordBatch], *, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of ``rows`` rows; the last batch may be shorter."""
    buffered: list[pa.RecordBatch] = []
    missing_rows = rows
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            rows_slice = batch.slice(start, missing_rows)
            buffered.append(rows_slice)
            start, missing_rows = start + rows_slice.num_rows, missing_rows - rows_slice.num_rows
            if missing_rows == 0:
                yield from _combine_batches(buffered)
                buffered, missing_rows = [], rows
    yield from _combine_batches(buffered)


def _combine_batches(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of several batches as one batch if possible."""
    import pyarrow as pa

    if len(batches) > 1:
        # Columns of more than 2 GiB have several chunks, so there may be several batches.
        batches = pa.Table.from_batches(batches).combine_chunks().to_batches()
    yield from batches


def combine_chunks(column: pa.ChunkedArray) -> pa.Array:
    """Combine the chunks of a column into one array."""
    import pyarrow as pa

    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks)


def plain_encodings(schema: pa.Schema, *, null: str) -> dict[str, ColumnEncoding]:
    """Return the column encodings of a format that preserves all feature types."""
    import pyarrow.types as pat

    encodings = {}
    for field in schema:
        dtype = field.type
        sizes: list[int] = []
        is_ragged = False
        while pat.is_fixed_size_list(dtype) or pat.is_list(dtype):
            if pat.is_fixed_size_list(dtype):
                sizes.append(dtype.list_size)
            else:
                is_ragged = True
            dtype = dtype.value_type
        shape = None if is_ragged else tuple(sizes)
        encodings[field.name] = ColumnEncoding(_tf_type(dtype), shape, null)
    return encodings


def _tf_type(dtype: pa.DataType) -> str:
    """Return the ``tf_type`` of a column encoding for a scalar type."""
    import pyarrow.types as pat

    if pat.is_float64(dtype):
        return "float64"
    if pat.is_floating(dtype):
        return "float32"
    if pat.is_struct(dtype):
        return "struct"
    if pat.is_string(dtype) or pat.is_binary(dtype) or pat.is_decimal(dtype):
        return "bytes"
    return "int64"


def variable_length_columns(schema: pa.Schema) -> list[str]:
    """Return the string, binary and list columns, whose lengths ``plain_bytes_per_row`` requires."""
    return [field.name for field in schema if _has_variable_length(field.type)]


def _has_variable_length(dtype: pa.DataType) -> bool:
    """Return True if the length of values is not determined by the type."""
    import pyarrow.types as pat

    if pat.is_fixed_size_list(dtype):
        return _has_variable_length(dtype.value_type)
    return bool(
        pat.is_string(dtype) or pat.is_binary(dtype) or pat.is_list(dtype) or pat.is_struct(dtype)
    )


def plain_bytes_per_row(schema: pa.Schema, profiles: Sequence[ColumnProfile]) -> float:
    """Estimate the bytes per row in memory, for formats that neither pack nor pad values."""
    return sum(_value_bytes(schema.field(profile.name).type, profile) for profile in profiles)


def _value_bytes(dtype: pa.DataType, profile: ColumnProfile) -> float:
    """Estimate the bytes of a value from the lengths in its profile."""
    import pyarrow.types as pat

    if pat.is_fixed_size_list(dtype):
        return float(dtype.list_size * _value_bytes(dtype.value_type, profile))
    mean = profile.total_length / max(profile.rows, 1)
    if pat.is_list(dtype):
        item_bytes = 8.0
        if not pat.is_nested(dtype.value_type):
            item_bytes = _value_bytes(dtype.value_type, profile)
        return mean * item_bytes + 4
    if pat.is_string(dtype) or pat.is_binary(dtype):
        return mean + 4
    if pat.is_struct(dtype):
        return float(sum(_value_bytes(field.type, profile) for field in dtype))
    return float(max(1, dtype.bit_width // 8))
