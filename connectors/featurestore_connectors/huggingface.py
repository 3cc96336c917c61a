"""Training datasets as folders that ``datasets.load_from_disk`` reads.

A shard is an Arrow IPC stream whose record batches all have one number of rows, except for the last
batch. Each split has a ``state.json``, which lists its shards, and a ``dataset_info.json`` with the
Hugging Face types. The root has a ``dataset_dict.json`` with the names of the splits.

https://huggingface.co/docs/datasets/about_arrow
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.schemas import schema_from_json, schema_to_json
from featurestore.arrow.stream_messages import StreamBatch, stream_batches
from featurestore.errors import DatasetDamaged, UnsupportedType
from featurestore.plugins import plain
from featurestore.plugins.format import (
    ColumnProfile,
    DatasetContents,
    Layout,
    ShardReader,
    WrittenFile,
    WrittenShard,
)
from featurestore.plugins.plain import PlainFormat
from featurestore.storage.ranges import RangeFile
from featurestore.storage.shards import ShardFile

if TYPE_CHECKING:
    from featurestore.model.manifest import ManifestSplit

_BUFFER_BYTES = 1 << 20
# Arrow has other names for these types than Hugging Face.
_NAMES = {"double": "float64", "float": "float32", "date32[day]": "date32"}


class HuggingFaceFormat(PlainFormat):
    """Dataset format for Hugging Face ``datasets``, written and read with pyarrow alone."""

    name = "huggingface"
    null = "validity bitmap"

    @property
    def extension(self) -> str:
        return "arrow"

    def check(self, schema: pa.Schema, *, compression: str | None) -> None:
        self.refuse_compression(compression, ": `datasets` maps its files into memory")
        refused = [field.name for field in schema if _has_empty_struct(field.type)]
        if refused:
            raise UnsupportedType(
                f"Hugging Face datasets do not support structs without fields: {', '.join(refused)}.",
                hint="leave out these columns",
            )

    def columns_to_profile(self, schema: pa.Schema) -> Sequence[str]:
        """Return the columns whose lengths determine the bytes of a row, as for Parquet."""
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
            "batch_rows": block_rows,
            "mean_bytes": plain.plain_bytes_per_row(schema, profiles),
        }

    def write_shard(
        self, directory: str, path: str, batches: Iterator[pa.RecordBatch], *, layout: Layout
    ) -> WrittenShard:
        schema = schema_from_json(layout["schema"])
        rows = 0
        with (
            ShardFile(directory, path) as file,
            # Arrow writes each buffer of a column separately.
            pa.BufferedOutputStream(pa.PythonFile(file, "w"), _BUFFER_BYTES) as sink,
            pa.ipc.new_stream(sink, schema) as writer,
        ):
            for batch in plain.stored_batches(batches, schema, rows=layout["batch_rows"]):
                writer.write_batch(batch)
                rows += batch.num_rows
        return WrittenShard(file.written_file, rows)

    def finish(self, directory: str, contents: DatasetContents) -> Sequence[WrittenFile]:
        features = features_of(schema_from_json(contents.layout["schema"]))
        splits = [split for split in contents.splits if split.shards]
        written_files = [
            _write_json(
                directory,
                "dataset_dict.json",
                {"splits": [dataset_split.name for dataset_split in splits]},
            )
        ]
        for split in splits:
            info = {"description": contents.description, "features": features}
            json_files = {"dataset_info.json": info, "state.json": _state_of(split)}
            for name, content in json_files.items():
                written_files.append(_write_json(directory, f"{split.name}/{name}", content))
        return written_files

    def open_shard(self, path: str, *, layout: Layout) -> ShardReader:
        return StreamShard(
            path, schema_from_json(layout["schema"]), batch_rows=layout["batch_rows"]
        )


def features_of(schema: pa.Schema) -> dict[str, Any]:
    """Return the Hugging Face types of a schema, as in ``dataset_info.json``.

    >>> features_of(pa.schema([("x", pa.list_(pa.float32(), 3))]))
    {'x': {'feature': {'dtype': 'float32', '_type': 'Value'}, 'length': 3, '_type': 'Sequence'}}
    """
    return {field.name: _feature_of(field.type) for field in schema}


def _feature_of(dtype: pa.DataType) -> Any:
    if pat.is_struct(dtype):
        return features_of(pa.schema(list(dtype)))
    if pat.is_list(dtype) or pat.is_fixed_size_list(dtype):
        items = _feature_of(dtype.value_type)
        length = dtype.list_size if pat.is_fixed_size_list(dtype) else -1
        # `datasets` 4 renamed "Sequence" to "List" and reads both. A sequence of structs is a struct
        # of sequences, so their lists have the notation of JSON, or the new name.
        if not pat.is_struct(dtype.value_type):
            return {"feature": items, "length": length, "_type": "Sequence"}
        return [items] if length < 0 else {"feature": items, "length": length, "_type": "List"}
    return {"dtype": _NAMES.get(str(dtype), str(dtype)), "_type": "Value"}


def _has_empty_struct(dtype: pa.DataType) -> bool:
    if pat.is_struct(dtype):
        return not dtype.num_fields or any(_has_empty_struct(field.type) for field in dtype)
    if pat.is_list(dtype) or pat.is_fixed_size_list(dtype):
        return _has_empty_struct(dtype.value_type)
    return False


def _state_of(split: ManifestSplit) -> dict[str, Any]:
    """Return the state of a split; its fingerprint identifies its bytes in caches of ``datasets``."""
    digest = hashlib.sha256("".join(shard.sha256 for shard in split.shards).encode())
    return {
        "_data_files": [{"filename": posixpath.basename(shard.path)} for shard in split.shards],
        "_fingerprint": digest.hexdigest()[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": split.name,
    }


def _write_json(directory: str, path: str, content: dict[str, Any]) -> WrittenFile:
    with ShardFile(directory, path) as file:
        file.write(json.dumps(content, indent=2, ensure_ascii=False).encode())
    return file.written_file


class StreamShard:
    """An open shard of record batches with ``batch_rows`` rows each."""

    def __init__(self, path: str, schema: pa.Schema, *, batch_rows: int) -> None:
        self._path, self._schema, self._batch_rows = path, schema, batch_rows
        try:
            self._file = RangeFile(path)
            self._batches = tuple(stream_batches(self._file.read, size=self._file.size))
        except (OSError, ValueError) as error:
            raise DatasetDamaged(f"The shard {path!r} cannot be read: {error}.") from error
        if any(batch.rows != batch_rows for batch in self._batches[:-1]):
            raise DatasetDamaged(f"The record batches of {path!r} do not have {batch_rows:,} rows.")

    @property
    def rows(self) -> int:
        return sum(batch.rows for batch in self._batches)

    def read(self, start: int, stop: int, columns: Sequence[str]) -> pa.RecordBatch:
        schema = plain.select_fields(self._schema, columns)
        if stop <= start or not columns:
            return plain.empty_batch(schema)
        first = start // self._batch_rows
        positions = self._batches[first : -(-stop // self._batch_rows)]
        try:
            batches = [self._read_batch(position, columns) for position in positions]
            table = pa.Table.from_batches(batches, schema)
        except (OSError, pa.ArrowException) as error:
            raise plain.damaged_shard_error(
                self._path, f"Rows {start:,} to {stop:,}", error
            ) from error
        rows = table.slice(start - first * self._batch_rows, stop - start)
        arrays = [plain.combine_chunks(column) for column in rows.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _read_batch(self, position: StreamBatch, columns: Sequence[str]) -> pa.RecordBatch:
        message = pa.py_buffer(self._file.read(position.offset, position.size))
        batch = pa.ipc.read_record_batch(message, self._schema).select(list(columns))
        # Arrow checks neither offsets nor UTF-8 while it reads them.
        batch.validate(full=True)
        return batch

    def close(self) -> None:
        self._file.close()
