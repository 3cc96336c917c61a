"""Training datasets as TFRecord files of ``tf.train.Example``, with random access to rows.

This module implements the format: layouts, shards, schema files, and record plans for engines.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.batches import coalesce_batches
from featurestore.errors import InvalidArgument, missing_extra
from featurestore.model.manifest import ManifestColumn
from featurestore.plugins.format import (
    ColumnEncoding,
    ColumnProfile,
    DatasetContents,
    DatasetFormat,
    Layout,
    RecordAccess,
    ShardProblem,
    ShardReader,
    WrittenFile,
    WrittenShard,
)
from featurestore.plugins.native import (
    NullMark,
    RecordPlan,
    RecordSlot,
    RecordTail,
    ValueLengths,
)
from featurestore.storage.shards import ShardFile
from featurestore_connectors.tfrecord import wire
from featurestore_connectors.tfrecord.fixed import Encoder
from featurestore_connectors.tfrecord.layout import (
    RecordLayout,
    check_compression,
    choose_layout,
    read_layout,
)
from featurestore_connectors.tfrecord.reader import (
    FixedAccess,
    FixedShard,
    VariableShard,
    read_compressed,
    verify_shard,
)
from featurestore_connectors.tfrecord.template import NullByte, OpenEntry, Slot
from featurestore_connectors.tfrecord.variable import INDEX_SUFFIX, VariableEncoder, index_bytes
from featurestore_connectors.tfrecord.wire_columns import wire_columns

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


__all__ = ["TFRecordFormat"]

SCHEMA_FILE = "schema.pbtxt"
_TYPES = {"int64": "INT", "float32": "FLOAT", "bytes": "BYTES"}
GZIP_LEVEL = 6


class TFRecordFormat(DatasetFormat):
    """Dataset format of ``tf.train.Example`` records."""

    @property
    def name(self) -> str:
        return "tfrecord"

    @property
    def extension(self) -> str:
        return ""

    def check(self, schema: pa.Schema, *, compression: str | None) -> None:
        check_compression(compression)
        wire_columns(schema)

    def layout(
        self,
        schema: pa.Schema,
        profiles: Sequence[ColumnProfile],
        *,
        compression: str | None,
        block_rows: int,
    ) -> Layout:
        self.check(schema, compression=compression)
        return choose_layout(schema, profiles, compression=compression)

    def encodings(self, layout: Layout) -> dict[str, ColumnEncoding]:
        fields = read_layout(layout).fields
        return {
            field.column.name: field.column.encoding(nullable=field.nullable) for field in fields
        }

    def bytes_per_row(self, layout: Layout, profiles: Sequence[ColumnProfile]) -> float:
        return float(layout["mean_bytes"])

    def write_shard(
        self, directory: str, path: str, batches: Iterator[pa.RecordBatch], *, layout: Layout
    ) -> WrittenShard:
        record_layout = read_layout(layout)
        with ShardFile(directory, path) as file:
            rows, lengths = _write_records(file, batches, record_layout)
        if record_layout.fixed or record_layout.compression is not None:
            return WrittenShard(file.written_file, rows)
        with ShardFile(directory, path + INDEX_SUFFIX) as index:
            index.write(index_bytes(lengths))
        return WrittenShard(file.written_file, rows, (index.written_file,))

    def record_plan(self, layout: Layout) -> RecordPlan | None:
        return record_plan(read_layout(layout))

    def finish(self, directory: str, contents: DatasetContents) -> Sequence[WrittenFile]:
        with ShardFile(directory, SCHEMA_FILE) as file:
            file.write(schema_text(contents).encode())
        return [file.written_file]

    def open_shard(self, path: str, *, layout: Layout) -> ShardReader:
        refusal = self.refuse_reading(layout)
        if refusal is not None:
            raise InvalidArgument(
                refusal, hint="tf.data.TFRecordDataset(path, compression_type='GZIP')"
            )
        record_layout = read_layout(layout)
        if record_layout.fixed:
            return FixedShard(path, record_layout)
        return VariableShard(path, record_layout)

    def reads_in_order(self, layout: Layout) -> bool:
        return True

    def read_in_order(
        self, path: str, *, layout: Layout, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        return read_compressed(path, read_layout(layout), columns)

    def record_access(self, layout: Layout) -> RecordAccess | None:
        record_layout = read_layout(layout)
        if not record_layout.fixed or record_layout.compression is not None:
            return None
        return FixedAccess(record_layout)

    def verify_shard(self, path: str, *, layout: Layout, rows: int) -> Sequence[ShardProblem]:
        return verify_shard(path, read_layout(layout), rows=rows)

    def feature_spec(self, contents: DatasetContents) -> dict[str, Any]:
        return feature_spec(contents)

    def refuse_reading(self, layout: Layout) -> str | None:
        if layout["compression"] is None:
            return None
        return (
            f"The shards are compressed with {layout['compression']}, which prevents random access "
            "to rows. Read them with "
            "tf.data.TFRecordDataset(paths, compression_type='GZIP') and tf_feature_spec(), "
            "or create the dataset again with compression=None."
        )


def _write_records(
    file: ShardFile, batches: Iterator[pa.RecordBatch], layout: RecordLayout
) -> tuple[int, list[npt.NDArray[np.int64]]]:
    """Write the records of all batches; return the record count and the record lengths."""
    encoder: Encoder | VariableEncoder
    if layout.fixed:
        encoder = Encoder(layout.template)
    else:
        encoder = VariableEncoder(layout)
    compressor = None
    if layout.compression == "GZIP":
        # wbits=31 writes a gzip header without a timestamp, so that equal rows produce identical
        # files.
        compressor = zlib.compressobj(GZIP_LEVEL, wbits=31)
    rows, lengths = 0, []
    # Small batches are joined, since the encoder has a fixed overhead per block.
    for batch in coalesce_batches(batches, rows=encoder.block_rows):
        rows += batch.num_rows
        for data, record_lengths in encoder.framed(batch):
            if compressor is None:
                file.write(data)
            else:
                file.write(compressor.compress(data.data))
            lengths.append(record_lengths)
    if compressor is not None:
        file.write(compressor.flush())
    return rows, lengths


def record_plan(layout: RecordLayout) -> RecordPlan | None:
    """Return the record plan of a layout, or None for compressed layouts, lists and decimals."""
    if layout.compression is not None:
        return None
    for field in layout.fields:
        if field.column.shape != () or pat.is_decimal(field.column.leaf):
            return None
    return RecordPlan(
        layout.template.data,
        layout.fixed,
        tuple(map(_record_slot, layout.template.slots)),
        tuple(
            RecordTail(
                tail.field.column.name,
                tail.entry.head,
                _null_mark(tail.null_byte),
                _lengths(tail.entry, start=0),
            )
            for tail in layout.tails
        ),
        "" if layout.fixed else INDEX_SUFFIX,
    )


def _record_slot(slot: Slot) -> RecordSlot:
    """Return the slot of a column for record plans."""
    lengths = None
    if slot.entry is not None:
        lengths = _lengths(slot.entry, start=slot.entry_offset)
    return RecordSlot(
        slot.field.column.name,
        slot.offset,
        slot.field.width,
        _null_mark(slot.null_byte),
        lengths,
        wire.SKIPPED,
        slot.filler_width,
    )


def _null_mark(null_byte: NullByte | None) -> NullMark | None:
    if null_byte is None:
        return None
    return NullMark(null_byte.offset, null_byte.null)


def _lengths(entry: OpenEntry, *, start: int) -> ValueLengths:
    lengths = tuple((start + offset, extra) for offset, extra in entry.lengths)
    return ValueLengths(lengths, entry.length_width)


def feature_spec(contents: DatasetContents) -> dict[str, Any]:
    """Return ``{column: tf.io feature}`` for ``tf.io.parse_example``.

    Columns without nulls are dense (FixedLenFeature), and variable-length lists are ragged
    (RaggedFeature). Columns with nulls are sparse (VarLenFeature), so that a missing value is not
    mistaken for a number. To fill missing values, replace the entry of a column by a
    FixedLenFeature with ``default_value=``.
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        raise missing_extra("tensorflow", "tensorflow") from error
    types = {"int64": tf.int64, "float32": tf.float32, "bytes": tf.string}
    nullable = columns_with_nulls(contents)
    spec: dict[str, Any] = {}
    for column in contents.columns:
        if column.shape is None:
            spec[column.name] = tf.io.RaggedFeature(types[column.tf_type])
        elif column.name in nullable:
            spec[column.name] = tf.io.VarLenFeature(types[column.tf_type])
        else:
            spec[column.name] = tf.io.FixedLenFeature(column.shape, types[column.tf_type])
    return spec


def columns_with_nulls(contents: DatasetContents) -> set[str]:
    """Return the names of columns that have nulls in any split."""
    names: set[str] = set()
    for split in contents.splits:
        names.update(split.nulls)
    return names


def schema_text(contents: DatasetContents) -> str:
    """Return the dataset schema as protobuf text."""
    nullable = columns_with_nulls(contents)
    return "".join(
        _feature_text(column, nullable=column.name in nullable) for column in contents.columns
    )


def _feature_text(column: ManifestColumn, *, nullable: bool) -> str:
    """Return the schema of a column as protobuf text."""
    # The fields are those of tensorflow_metadata.v0.Schema, which is not a dependency.
    lines = [
        "feature {\n",
        f"  name: {json.dumps(column.name)}\n",
        f"  type: {_TYPES[column.tf_type]}\n",
        "  presence {\n",
    ]
    if not nullable:
        lines.append("    min_fraction: 1.0\n")
    lines.append("    min_count: 1\n  }\n")
    if column.shape is None:
        lines.append("  value_count {\n    min: 0\n  }\n")
    else:
        lines.append("  shape {\n")
        lines += [f"    dim {{\n      size: {size}\n    }}\n" for size in column.shape]
        lines.append("  }\n")
    return "".join([*lines, "}\n"])
