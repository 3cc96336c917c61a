"""Training datasets as shards of WebDataset: tar archives with a few files for each row.

The file ``<key>.json`` of a row has all its columns, except for binary columns, which are files
``<key>.<column>``, and arrays of numbers of one shape, which are files ``<key>.<column>.npy``. A null of
such a column has no file. A sidecar ``.idx`` has the position of each row, for random access.

https://huggingface.co/docs/hub/datasets-webdataset
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.arrays import flatten_items, from_numpy
from featurestore.arrow.json_rows import rows_from_json, rows_to_json
from featurestore.arrow.schemas import schema_from_json, schema_to_json
from featurestore.arrow.types import array_item_type, array_shape
from featurestore.errors import DatasetDamaged, UnsupportedType
from featurestore.plugins import plain
from featurestore.plugins.format import (
    ColumnProfile,
    Layout,
    ShardReader,
    WrittenShard,
)
from featurestore.plugins.plain import PlainFormat
from featurestore.storage.ranges import RangeFile
from featurestore.storage.shards import ShardFile
from featurestore.storage.tar_files import BLOCK, MAX_NAME_BYTES, TarReader, write_header

INDEX_SUFFIX = ".idx"
# Loaders of WebDataset unpickle files with these extensions.
PICKLES = ("pickle", "pkl", "pt", "pth", "pyd")
_END = bytes(2 * BLOCK)
_BATCH_ROWS = 1024
_BUFFER_BYTES = 1 << 20
_JSON, _ARRAY, _BYTES = "json", "npy", "bytes"
_SHARD = re.compile(r"-(\d+)-of-\d+")
# The key of a row, and an extension of an array, take 19 bytes of a name.
_MAX_COLUMN = MAX_NAME_BYTES - 19
_FILE_BYTES = 1.5 * BLOCK  # of the header, and of the end of the last block


class WebDatasetFormat(PlainFormat):
    """Dataset format for WebDataset, written and read without other packages."""

    name = "webdataset"
    null = "null in JSON, or no file"

    @property
    def extension(self) -> str:
        return "tar"

    def check(self, schema: pa.Schema, *, compression: str | None) -> None:
        self.refuse_compression(compression, ": it prevents random access")
        refused = []
        for field in schema:
            is_member = _storage(field.type, has_nulls=False) != _JSON
            if is_member and field.name.lower() == _JSON:
                refused.append(f"{field.name}: {field.type} (the file of all other columns)")
            elif pat.is_binary(field.type) and field.name.lower() in PICKLES:
                refused.append(f"{field.name}: {field.type} (loaders would unpickle its files)")
            elif is_member and len(field.name) > _MAX_COLUMN:
                refused.append(f"{field.name}: {field.type} (more than {_MAX_COLUMN} letters)")
        if refused:
            raise UnsupportedType(
                f"WebDataset does not support these columns as files: {'; '.join(refused)}.",
                hint="rename or leave out these columns, or use data_format='parquet'",
            )

    def columns_to_profile(self, schema: pa.Schema) -> Sequence[str]:
        """Return the columns whose lengths or inner nulls determine the files of a row."""
        varying = plain.variable_length_columns(schema)
        return [
            field.name
            for field in schema
            if field.name in varying or pat.is_fixed_size_list(field.type)
        ]

    def layout(
        self,
        schema: pa.Schema,
        profiles: Sequence[ColumnProfile],
        *,
        compression: str | None,
        block_rows: int,
    ) -> Layout:
        self.check(schema, compression=compression)
        storage = {
            profile.name: _storage(
                schema.field(profile.name).type, has_nulls=profile.inner_nulls > 0
            )
            for profile in profiles
        }
        files = 1 + sum(form != _JSON for form in storage.values())
        return {
            "version": 1,
            "schema": schema_to_json(schema),
            "storage": storage,
            "mean_bytes": plain.plain_bytes_per_row(schema, profiles) + files * _FILE_BYTES,
        }

    def write_shard(
        self, directory: str, path: str, batches: Iterator[pa.RecordBatch], *, layout: Layout
    ) -> WrittenShard:
        match = _SHARD.search(path)
        prefix = match[1] if match else "00000"
        sizes: list[int] = []
        with (
            ShardFile(directory, path) as file,
            # A write of each row would take most of the time of small rows.
            pa.BufferedOutputStream(pa.PythonFile(file, "w"), _BUFFER_BYTES) as sink,
        ):
            for batch in plain.rebatch(batches, rows=_BATCH_ROWS):
                for members in _rows_of_members(batch, layout):
                    row = _encode_row(f"{prefix}-{len(sizes):08d}", members)
                    sink.write(row)
                    sizes.append(len(row))
            sink.write(_END)
        offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype("<u8")
        with ShardFile(directory, path + INDEX_SUFFIX) as index:
            index.write(offsets.tobytes())
        return WrittenShard(file.written_file, len(sizes), (index.written_file,))

    def open_shard(self, path: str, *, layout: Layout) -> ShardReader:
        return TarShard(path, layout)


def _storage(dtype: pa.DataType, *, has_nulls: bool) -> str:
    """Return how values of a type are stored: in the JSON file, or as a file of an array or bytes."""
    if pat.is_binary(dtype):
        return _BYTES
    item = array_item_type(dtype)
    is_number = pat.is_boolean(item) or pat.is_integer(item) or pat.is_floating(item)
    # An array in a .npy file has no nulls.
    if array_shape(dtype) and is_number and not has_nulls:
        return _ARRAY
    return _JSON


def _rows_of_members(batch: pa.RecordBatch, layout: Layout) -> Iterator[dict[str, bytes]]:
    """Yield the files of each row by extension, the JSON file first."""
    storage = layout["storage"]
    names = [field["name"] for field in layout["schema"]]
    texts = rows_to_json(batch.select([name for name in names if storage[name] == _JSON]))
    columns: dict[str, list[bytes | None]] = {}
    for name in names:
        if storage[name] == _BYTES:
            columns[name] = batch.column(name).to_pylist()
        elif storage[name] == _ARRAY:
            columns[f"{name}.npy"] = _encode_arrays(batch.column(name))
    for row, text in enumerate(texts):
        members = {_JSON: text}
        for extension, values in columns.items():
            value = values[row]
            if value is not None:
                members[extension] = value
        yield members


def _encode_row(key: str, members: dict[str, bytes]) -> bytes:
    chunks = []
    for extension, content in members.items():
        header = write_header(f"{key}.{extension}", len(content))
        chunks += [header, content, bytes(-len(content) % BLOCK)]
    return b"".join(chunks)


def _encode_arrays(array: pa.Array) -> list[bytes | None]:
    """Return the .npy file of each row, None for nulls."""
    values = _numpy_values(array)
    header = _npy_header(array.type)
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    return [
        header + row.tobytes() if is_valid else None
        for row, is_valid in zip(values, valid, strict=True)
    ]


def _numpy_values(array: pa.Array) -> npt.NDArray[Any]:
    """Return arrays of one shape as an array of shape (rows, ...)."""
    # The items of null rows may be null.
    is_boolean = pat.is_boolean(array_item_type(array.type))
    items = pc.fill_null(flatten_items(array), False if is_boolean else 0)
    numbers = items.to_numpy(zero_copy_only=False)
    return numbers.reshape(len(array), *array_shape(array.type))


def _npy_header(dtype: pa.DataType) -> bytes:
    """Return the bytes of a .npy file before its values."""
    item = array_item_type(dtype)
    descriptor = np.dtype(item.to_pandas_dtype()).newbyteorder("<").str
    header = {"descr": descriptor, "fortran_order": False, "shape": array_shape(dtype)}
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


class TarShard:
    """An open shard with its index of rows."""

    def __init__(self, path: str, layout: Layout) -> None:
        self._path, self._storage = path, layout["storage"]
        self._schema = schema_from_json(layout["schema"])
        try:
            self._offsets = np.fromfile(path + INDEX_SUFFIX, "<u8").astype(np.int64)
            self._file = RangeFile(path)
        except OSError as error:
            raise DatasetDamaged(
                f"The shard {path!r} cannot be read: {error.strerror or error}."
            ) from error
        offsets = self._offsets
        if (
            not len(offsets)
            or offsets[0] != 0
            or (np.diff(offsets) < BLOCK).any()
            or offsets[-1] + len(_END) != self._file.size
        ):
            raise DatasetDamaged(
                f"The index {path + INDEX_SUFFIX!r} does not match its shard of "
                f"{self._file.size:,} bytes."
            )

    @property
    def rows(self) -> int:
        return len(self._offsets) - 1

    def read(self, start: int, stop: int, columns: Sequence[str]) -> pa.RecordBatch:
        schema = plain.select_fields(self._schema, columns)
        if stop <= start or not columns:
            return plain.empty_batch(schema)
        try:
            rows = self._read_members(start, stop, schema)
            arrays = self._decode(rows, schema)
        except (OSError, ValueError, RecursionError, pa.ArrowException) as error:
            raise plain.damaged_shard_error(
                self._path, f"Rows {start:,} to {stop:,}", error
            ) from error
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _read_members(self, start: int, stop: int, schema: pa.Schema) -> list[dict[str, bytes]]:
        """Return the files of each row that the columns of a schema need, by extension."""
        needed = {self._extension(name) for name in schema.names}
        first, end = int(self._offsets[start]), int(self._offsets[stop])
        reader = TarReader(io.BytesIO(self._file.read(first, end - first)), size=end - first)
        # A row begins with its JSON file.
        starts: dict[int, dict[str, bytes]] = {
            int(offset) - first: {} for offset in self._offsets[start:stop]
        }
        rows = list(starts.values())
        members: dict[str, bytes] = {}
        for member in reader:
            members = starts.get(member.header, members)
            extension = member.name.partition(".")[2]
            if extension in needed:
                members[extension] = reader.read()
        return rows

    def _extension(self, name: str) -> str:
        return {_JSON: _JSON, _ARRAY: f"{name}.npy", _BYTES: name}[self._storage[name]]

    def _decode(self, rows: list[dict[str, bytes]], schema: pa.Schema) -> list[pa.Array]:
        columns: dict[str, pa.Array] = {}
        in_json = pa.schema([field for field in schema if self._storage[field.name] == _JSON])
        if len(in_json):
            texts = [row.get(_JSON, b"{}") for row in rows]
            columns |= dict(zip(in_json.names, rows_from_json(texts, in_json), strict=True))
        for field in schema:
            values = [row.get(self._extension(field.name)) for row in rows]
            if self._storage[field.name] == _BYTES:
                columns[field.name] = pa.array(values, pa.binary())
            elif self._storage[field.name] == _ARRAY:
                columns[field.name] = _decode_arrays(values, field.type)
        return [columns[field.name] for field in schema]

    def close(self) -> None:
        self._file.close()


def _decode_arrays(values: Sequence[bytes | None], dtype: pa.DataType) -> pa.Array:
    """Return the arrays of .npy files that ``_encode_arrays`` wrote."""
    header = _npy_header(dtype)
    item = np.dtype(array_item_type(dtype).to_pandas_dtype()).newbyteorder("<")
    size = item.itemsize * int(np.prod(array_shape(dtype)))
    chunks = []
    for value in values:
        if value is None:
            chunks.append(bytes(size))
        elif value.startswith(header) and len(value) == len(header) + size:
            chunks.append(value[len(header) :])
        else:
            raise ValueError("an array has another type or shape")
    numbers = np.frombuffer(b"".join(chunks), item).reshape(len(values), *array_shape(dtype))
    valid = np.array([value is not None for value in values], np.bool_)
    return from_numpy(numbers, valid=valid)
