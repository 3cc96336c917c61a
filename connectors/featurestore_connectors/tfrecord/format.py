"""The TFRecord format: layouts, shards, and the schema file of a dataset."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from featurestore.arrow.arrow_rows import coalesce_batches
from featurestore.errors import InvalidArgument
from featurestore.plugins.format import (
    ColumnEncoding,
    ColumnProfile,
    DatasetFormat,
    Layout,
    RecordAccess,
    ShardProblem,
    ShardReader,
    WrittenFile,
    WrittenShard,
)
from featurestore.plugins.records import DescribesRecords, RecordPlan
from featurestore.storage.shardfile import ShardFile
from featurestore_connectors.tfrecord import spec
from featurestore_connectors.tfrecord.fixed import Encoder
from featurestore_connectors.tfrecord.layout import (
    RecordLayout,
    check_compression,
    choose_layout,
    read_layout,
)
from featurestore_connectors.tfrecord.plans import record_plan
from featurestore_connectors.tfrecord.reader import FixedAccess, FixedShard, VariableShard
from featurestore_connectors.tfrecord.variable import INDEX_SUFFIX, VariableEncoder, index_bytes
from featurestore_connectors.tfrecord.verify import verify_shard
from featurestore_connectors.tfrecord.wire_columns import wire_columns

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from featurestore.model.manifest import Manifest

GZIP_LEVEL = 6


class TFRecordFormat:
    """The format of ``tf.train.Example`` records (``formats.DatasetFormat``)."""

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
            return WrittenShard(file.written, rows)
        with ShardFile(directory, path + INDEX_SUFFIX) as index:
            index.write(index_bytes(lengths))
        return WrittenShard(file.written, rows, (index.written,))

    def record_plan(self, layout: Layout) -> RecordPlan | None:
        return record_plan(read_layout(layout))

    def finish(self, directory: str, manifest: Manifest) -> Sequence[WrittenFile]:
        with ShardFile(directory, spec.SCHEMA_FILE) as file:
            file.write(spec.schema_text(manifest).encode())
        return [file.written]

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

    def record_access(self, layout: Layout) -> RecordAccess | None:
        record_layout = read_layout(layout)
        if not record_layout.fixed or record_layout.compression is not None:
            return None
        return FixedAccess(record_layout)

    def verify_shard(self, path: str, *, layout: Layout, rows: int) -> Sequence[ShardProblem]:
        return verify_shard(path, read_layout(layout), rows=rows)

    def feature_spec(self, manifest: Manifest) -> dict[str, Any]:
        return spec.feature_spec(manifest)

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
    """Write the records of all batches; return their number and their lengths."""
    encoder: Encoder | VariableEncoder
    if layout.fixed:
        encoder = Encoder(layout.template)
    else:
        encoder = VariableEncoder(layout)
    compressor = None
    if layout.compression == "GZIP":
        # wbits=31 writes a gzip header without a timestamp, so that equal rows give equal files.
        compressor = zlib.compressobj(GZIP_LEVEL, wbits=31)
    rows, lengths = 0, []
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


if TYPE_CHECKING:
    _contract: DatasetFormat = TFRecordFormat()
    _describes_records: DescribesRecords = TFRecordFormat()
