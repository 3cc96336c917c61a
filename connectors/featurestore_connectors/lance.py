"""Training datasets as Lance datasets, one for each split.

A shard is a data file of Lance. The manifest of a split, which Lance calls its first version, lists the
shards; times and identifiers are removed from it, so that equal rows have equal bytes.

https://lance.org/format/table/
"""

from __future__ import annotations

import os
import posixpath
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.casts import cast_array
from featurestore.arrow.schemas import schema_from_json, schema_to_json
from featurestore.arrow.types import is_list_type
from featurestore.errors import (
    UnsupportedType,
    missing_extra,
)
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
from featurestore.storage import storage_for
from featurestore.storage.shards import ShardFile
from featurestore.storage.temporary import remove_temporary, temporary_directory

if TYPE_CHECKING:
    from featurestore.model.manifest import ManifestSplit

# Later versions of the file format cannot be read by older releases of Lance.
_FILE_VERSION = "2.1"
_BLOCKS_PER_BATCH = 8
# The end of a manifest: the position of its message, the version of the file format, and its name.
_END = struct.Struct("<QHH4s")
# Fields of the message that differ for equal rows: the time, and the name and position of the
# transaction (https://github.com/lance-format/lance/blob/main/protos/table.proto).
_REMOVED_FIELDS = (7, 12, 23)


class LanceFormat(PlainFormat):
    """Dataset format for Lance, which is written and read by the library ``pylance``."""

    name = "lance"
    null = "definition level"
    shard_folder = "data"

    def check(self, schema: pa.Schema, *, compression: str | None) -> None:
        self.refuse_compression(compression, ", which chooses an encoding for each page")
        refused = [
            f"{field.name}: {field.type}" for field in schema if not _is_supported(field.type)
        ]
        if refused:
            raise UnsupportedType(
                f"Lance does not support these columns: {'; '.join(refused)}.",
                hint="use lists of any size, or data_format='parquet'",
            )
        _lance()

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
            "file_version": _FILE_VERSION,
            "batch_rows": _BLOCKS_PER_BATCH * block_rows,
            "mean_bytes": plain.plain_bytes_per_row(schema, profiles),
        }

    def write_shard(
        self, directory: str, path: str, batches: Iterator[pa.RecordBatch], *, layout: Layout
    ) -> WrittenShard:
        from lance.file import LanceFileWriter

        schema = schema_from_json(layout["schema"])
        rows = 0
        folder = temporary_directory()
        try:
            # The library writes to a path, and the file is hashed while it is copied.
            local = os.path.join(folder, "shard.lance")
            with LanceFileWriter(local, schema=schema, version=layout["file_version"]) as writer:
                for batch in plain.stored_batches(batches, schema, rows=layout["batch_rows"]):
                    writer.write_batch(batch)
                    rows += batch.num_rows
            with ShardFile(directory, path) as file:
                for chunk in storage_for(local).read_chunks(local):
                    file.write(chunk)
        finally:
            remove_temporary(folder)
        return WrittenShard(file.written_file, rows)

    def finish(self, directory: str, contents: DatasetContents) -> Sequence[WrittenFile]:
        written_files = []
        for split in contents.splits:
            name, content = _split_manifest(contents.layout, split)
            with ShardFile(directory, f"{split.name}/_versions/{name}") as file:
                file.write(content)
            written_files.append(file.written_file)
        return written_files

    def open_shard(self, path: str, *, layout: Layout) -> ShardReader:
        return LanceShard(path, schema_from_json(layout["schema"]))


def _lance() -> Any:
    """Return the library.

    Raises:
        MissingExtra: It is not installed.
    """
    try:
        import lance
    except ImportError as error:
        raise missing_extra("pylance", "lance") from error
    return lance


def _is_supported(dtype: pa.DataType) -> bool:
    if pat.is_struct(dtype):
        return bool(dtype.num_fields) and all(_is_supported(field.type) for field in dtype)
    if not is_list_type(dtype):
        return True
    # The encoder fails for fixed-size lists of texts, and does not store nulls in nested ones.
    item = dtype.value_type
    if pat.is_fixed_size_list(dtype) and (pat.is_string(item) or pat.is_binary(item)):
        return False
    return _is_supported(item)


def _split_manifest(layout: Layout, split: ManifestSplit) -> tuple[str, bytes]:
    """Return the name and the content of the manifest of a split, which lists its shards."""
    lance = _lance()
    from lance.fragment import DataFile, FragmentMetadata

    schema = schema_from_json(layout["schema"])
    folder = temporary_directory()
    storage = storage_for(folder)
    try:
        # A dataset of one row shows how the columns of the schema are numbered.
        row = pa.table([pa.nulls(1, dtype) for dtype in schema.types], schema=schema)
        example = lance.write_dataset(
            row, os.path.join(folder, "example"), data_storage_version=layout["file_version"]
        )
        (columns,) = example.get_fragments()[0].data_files()
        fragments: list[Any] = []
        for shard in split.shards:
            if not shard.rows:
                continue
            file = DataFile(
                posixpath.basename(shard.path),
                columns.fields,
                columns.column_indices,
                columns.file_major_version,
                columns.file_minor_version,
                shard.bytes,
            )
            fragments.append(FragmentMetadata(len(fragments), [file], shard.rows))
        path = os.path.join(folder, "split")
        lance.LanceDataset.commit(path, lance.LanceOperation.Overwrite(schema, fragments))
        (name,) = (
            name
            for name in storage.list_directory(os.path.join(path, "_versions"))
            if name.endswith(".manifest")
        )
        return name, _without_times(storage.read_bytes(os.path.join(path, "_versions", name)))
    finally:
        remove_temporary(folder)


def _without_times(manifest: bytes) -> bytes:
    """Return a manifest of Lance without the fields that differ for equal rows."""
    position, major, minor, magic = _END.unpack(manifest[-_END.size :])
    (size,) = struct.unpack_from("<I", manifest, position)
    start = position + 4
    message = b"".join(
        content
        for number, content in _message_fields(manifest[start : start + size])
        if number not in _REMOVED_FIELDS
    )
    return struct.pack("<I", len(message)) + message + _END.pack(0, major, minor, magic)


def _message_fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of each field of a Protobuf message."""
    position = 0
    while position < len(message):
        start = position
        tag, position = _read_varint(message, position)
        wire_type = tag & 7
        if wire_type == 0:
            _, position = _read_varint(message, position)
        elif wire_type == 2:
            length, position = _read_varint(message, position)
            position += length
        else:
            position += {1: 8, 5: 4}[wire_type]
        yield tag >> 3, message[start:position]


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return an integer of variable length, and the position after it."""
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position


class LanceShard:
    """An open data file of Lance."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self._path, self._schema = path, schema
        # A reader of the library has a fixed selection of columns.
        self._readers: dict[tuple[str, ...], Any] = {}
        self._rows = 0
        with self._damage("It"):
            metadata = self._reader(tuple(schema.names)).metadata()
            self._rows = metadata.num_rows
            if metadata.schema.names != schema.names:
                raise ValueError(f"it has the columns {metadata.schema.names}")

    @property
    def rows(self) -> int:
        return self._rows

    def read(self, start: int, stop: int, columns: Sequence[str]) -> pa.RecordBatch:
        schema = plain.select_fields(self._schema, columns)
        if stop <= start or not columns:
            return plain.empty_batch(schema)
        with self._damage(f"Rows {start:,} to {stop:,}"):
            reader = self._reader(tuple(sorted(set(columns), key=self._schema.names.index)))
            table = reader.read_range(start, stop - start).to_table()
            table.validate(full=True)
            if table.num_rows != stop - start:
                raise ValueError(f"the file has {table.num_rows:,} of these rows")
            arrays = [
                cast_array(plain.combine_chunks(table[field.name]), field.type) for field in schema
            ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _reader(self, columns: tuple[str, ...]) -> Any:
        from lance.file import LanceFileReader

        if columns not in self._readers:
            self._readers[columns] = LanceFileReader(self._path, columns=list(columns))
        return self._readers[columns]

    @contextmanager
    def _damage(self, section: str) -> Iterator[None]:
        """Raise DatasetDamaged for the errors of the library, which have no class of their own."""
        try:
            yield
        except BaseException as error:
            # A panic of the library is not an Exception.
            is_panic = type(error).__name__ == "PanicException"
            if not is_panic and not isinstance(error, Exception):
                raise
            raise plain.damaged_shard_error(self._path, section, error) from error

    def close(self) -> None:
        self._readers.clear()
