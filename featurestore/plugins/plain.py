"""What formats share that keep every feature type as it is and take batches of any size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from featurestore.errors import DatasetDamaged, InvalidArgument
from featurestore.plugins.format import (
    ColumnEncoding,
    ColumnProfile,
    Layout,
    RecordAccess,
    ShardProblem,
    ShardReader,
    WrittenFile,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from featurestore.model.manifest import Manifest


_VERIFIED_ROWS = 8192


def selected(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """Return the fields of some columns, in their order."""
    import pyarrow as pa

    return pa.schema([schema.field(name) for name in columns])


class PlainFormat:
    """The parts of ``DatasetFormat`` that are alike in formats without records of one width.

    Layouts of such formats have an entry ``mean_bytes``, the expected bytes of a row, and an entry
    ``schema``, the feature types as JSON.
    """

    name = ""
    null = "null"

    @property
    def extension(self) -> str:
        return self.name

    def encodings(self, layout: Layout) -> dict[str, ColumnEncoding]:
        """Return that every column is held as it is."""
        from featurestore.arrow.arrow_json import schema_from_json

        return plain_encodings(schema_from_json(layout["schema"]), null=self.null)

    def bytes_per_row(self, layout: Layout, profiles: Sequence[ColumnProfile]) -> float:
        """Return the entry ``mean_bytes`` of the layout."""
        return float(layout["mean_bytes"])

    def open_shard(self, path: str, *, layout: Layout) -> ShardReader:
        """Return an open shard; each format has its own."""
        raise NotImplementedError

    def verify_shard(self, path: str, *, layout: Layout, rows: int) -> Sequence[ShardProblem]:
        """Return what is wrong in a shard, by reading all of it."""
        names = [each["name"] for each in layout["schema"]]
        try:
            shard = self.open_shard(path, layout=layout)
            for start in range(0, shard.rows, _VERIFIED_ROWS):
                shard.read(start, min(start + _VERIFIED_ROWS, shard.rows), names)
            shard.close()
        except DatasetDamaged as error:
            return [ShardProblem(path, error.message)]
        if shard.rows != rows:
            return [ShardProblem(path, f"holds {shard.rows:,} rows, the manifest says {rows:,}")]
        return []

    def finish(self, directory: str, manifest: Manifest) -> Sequence[WrittenFile]:
        """Write nothing beside the shards."""
        return []

    def record_access(self, layout: Layout) -> RecordAccess | None:
        """Return None: rows are read, records are not."""
        return None

    def feature_spec(self, manifest: Manifest) -> dict[str, Any]:
        """Raise InvalidArgument: only TFRecord is parsed as Example."""
        raise InvalidArgument(
            f"Files of the format {self.name!r} are not parsed as tf.train.Example.",
            hint="use reader(...).tf_dataset(), or data_format='tfrecord'",
        )

    def refuse_reading(self, layout: Layout) -> str | None:
        """Return None: rows can be read."""
        return None


def rebatch(batches: Iterator[pa.RecordBatch], *, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of ``rows``, however they were cut; the last may be short."""
    held: list[pa.RecordBatch] = []
    missing = rows
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            part = batch.slice(start, missing)
            held.append(part)
            start, missing = start + part.num_rows, missing - part.num_rows
            if missing == 0:
                yield from _joined(held)
                held, missing = [], rows
    yield from _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    if len(batches) > 1:
        # Columns of more than 2 GiB stay in several pieces.
        batches = pa.Table.from_batches(batches).combine_chunks().to_batches()
    yield from batches


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column in one piece."""
    import pyarrow as pa

    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks)


def plain_encodings(schema: pa.Schema, *, null: str) -> dict[str, ColumnEncoding]:
    """Return encodings of a format that keeps every feature type as it is."""
    return {field.name: _plain_encoding(field.type, null=null) for field in schema}


def _plain_encoding(kind: pa.DataType, *, null: str) -> ColumnEncoding:
    import pyarrow.types as pat

    sizes: list[int] = []
    is_ragged = False
    while pat.is_fixed_size_list(kind) or pat.is_list(kind):
        if pat.is_fixed_size_list(kind):
            sizes.append(kind.list_size)
        else:
            is_ragged = True
        kind = kind.value_type
    shape = None if is_ragged else tuple(sizes)
    return ColumnEncoding(_tf_type(kind), shape, null)


def _tf_type(kind: pa.DataType) -> str:
    import pyarrow.types as pat

    if pat.is_float64(kind):
        return "float64"
    if pat.is_floating(kind):
        return "float32"
    if pat.is_struct(kind):
        return "struct"
    if pat.is_string(kind) or pat.is_binary(kind) or pat.is_decimal(kind):
        return "bytes"
    return "int64"


def columns_of_any_length(schema: pa.Schema) -> list[str]:
    """Return the columns whose values ``plain_bytes_per_row`` has to know.

    Texts, binaries and lists.
    """
    return [field.name for field in schema if _has_any_length(field.type)]


def _has_any_length(kind: pa.DataType) -> bool:
    import pyarrow.types as pat

    if pat.is_fixed_size_list(kind):
        return _has_any_length(kind.value_type)
    return bool(
        pat.is_string(kind) or pat.is_binary(kind) or pat.is_list(kind) or pat.is_struct(kind)
    )


def plain_bytes_per_row(schema: pa.Schema, profiles: Sequence[ColumnProfile]) -> float:
    """Return the bytes that a row takes in memory, about.

    What a format may take that neither packs nor pads.
    """
    return sum(_value_bytes(schema.field(each.name).type, each) for each in profiles)


def _value_bytes(kind: pa.DataType, profile: ColumnProfile) -> float:
    import pyarrow.types as pat

    if pat.is_fixed_size_list(kind):
        return float(kind.list_size * _value_bytes(kind.value_type, profile))
    mean = profile.total_length / max(profile.rows, 1)
    if pat.is_list(kind):
        item_bytes = 8.0
        if not pat.is_nested(kind.value_type):
            item_bytes = _value_bytes(kind.value_type, profile)
        return mean * item_bytes + 4
    if pat.is_string(kind) or pat.is_binary(kind):
        return mean + 4
    if pat.is_struct(kind):
        return float(sum(_value_bytes(field.type, profile) for field in kind))
    return float(max(1, kind.bit_width // 8))
