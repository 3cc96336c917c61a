"""Uploads: a JSON line, then rows as an Arrow stream, which are decompressed to a file on disk."""

from __future__ import annotations

import asyncio
import mmap
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import IO, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from featurestore.errors import InvalidArgument, LimitExceeded, OutOfRange, StorageError
from featurestore.model.runtime import check_time
from featurestore.server.bounds import MESSAGE_BYTES, check_json, check_messages

# Small batches are combined up to these limits, since each batch of a stream needs memory for its
# objects when it is mapped.
_WRITE_BYTES = 8 << 20
_WRITE_BATCHES = 256
# The time limit is checked once per slice.
_SLICE_ROWS = 65_536
# View types by name, since older pyarrow releases do not have them: each value is a reference to
# bytes.
_VIEWS = {"string_view": pa.large_string(), "binary_view": pa.large_binary()}
_LIST_VIEW = "list_view<"
# Limits the number of uploads that are decompressed concurrently.
_TURNS = threading.BoundedSemaphore(4)
_MAX_LINE_BYTES = 4 << 20
RequestModel = TypeVar("RequestModel", bound=BaseModel)
_IDLE_SECONDS = 60.0
# pydantic error types for numbers and lengths out of range.
_RANGE_ERRORS = {"greater_than_equal", "less_than_equal", "int_parsing_size"}
_LENGTH_ERRORS = {"string_too_long", "too_long"}


def write_decoded(reader: pa.RecordBatchReader, file: IO[bytes], *, max_bytes: int) -> None:
    """Write the rows of a stream to a file without compression, dictionaries and small batches.

    Args:
        reader: A stream that was checked with ``check_messages``.
        file: The file to which the Arrow stream is written.
        max_bytes: The maximum size of the rows in bytes.

    Raises:
        LimitExceeded: The rows or a single row exceed a limit.
    """
    schema = pa.schema([_plain_field(field) for field in reader.schema])
    with _TURNS, pa.ipc.new_stream(file, schema.with_metadata(reader.schema.metadata)) as writer:
        pending: list[pa.RecordBatch] = []
        pending_bytes = total = 0
        for batch in _plain_batches(reader, schema, max_bytes):
            pending.append(batch)
            pending_bytes += batch.nbytes
            total += batch.nbytes
            if total > max_bytes:
                raise LimitExceeded(f"The rows have more than {max_bytes:,} bytes uncompressed.")
            if pending_bytes >= _WRITE_BYTES or len(pending) >= _WRITE_BATCHES:
                writer.write_table(pa.Table.from_batches(pending).combine_chunks())
                pending, pending_bytes = [], 0
        if pending:
            writer.write_table(pa.Table.from_batches(pending).combine_chunks())


def can_share_values(schema: pa.Schema) -> bool:
    """Return True if values in a column can share bytes through dictionaries or views."""
    type_pairs = [(field.type, _plain_field(field).type) for field in schema]
    return any(
        data_type != plain_type or _LIST_VIEW in str(data_type)
        for data_type, plain_type in type_pairs
    )


def _plain_type(data_type: pa.DataType) -> pa.DataType:
    """Return a type with dictionaries and string views replaced by plain types."""
    if str(data_type) in _VIEWS:
        return _VIEWS[str(data_type)]
    if isinstance(data_type, pa.BaseExtensionType):
        storage = _plain_type(data_type.storage_type)
        return data_type if storage == data_type.storage_type else storage
    if pat.is_dictionary(data_type):
        return _plain_type(data_type.value_type)
    if pat.is_struct(data_type):
        return pa.struct(
            [_plain_field(data_type.field(number)) for number in range(data_type.num_fields)]
        )
    if pat.is_fixed_size_list(data_type):
        return pa.list_(_plain_field(data_type.value_field), data_type.list_size)
    if pat.is_list(data_type):
        return pa.list_(_plain_field(data_type.value_field))
    if pat.is_large_list(data_type):
        return pa.large_list(_plain_field(data_type.value_field))
    return data_type


def _plain_field(field: pa.Field) -> pa.Field:
    # field.name raises UnicodeDecodeError if it is not UTF-8.
    return pa.field(field.name, _plain_type(field.type), field.nullable, field.metadata)


def _plain_batches(
    reader: pa.RecordBatchReader, schema: pa.Schema, max_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Validate the batches of a stream, and yield them decoded in slices."""
    for batch in reader:
        # Offsets and lengths are untrusted and must not point outside the buffers.
        batch.validate()
        for column in batch.columns:
            _check_views(column, max_bytes)
        batch.validate(full=True)
        for start in range(0, batch.num_rows, _SLICE_ROWS):
            check_time()
            yield from _decode(batch.slice(start, _SLICE_ROWS), schema)


def _decode(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows without dictionaries, split so that no batch exceeds MESSAGE_BYTES."""
    # The bound is computed before the cast, which would allocate this memory.
    size = sum(_max_decoded_bytes(column) for column in batch.columns)
    if size > MESSAGE_BYTES and batch.num_rows == 1:
        raise LimitExceeded(
            f"A row has up to {size:,} bytes; the limit is {MESSAGE_BYTES:,}.",
            hint="store such values in files, and their paths in the rows",
        )
    if size > MESSAGE_BYTES:
        # The bound assumes the longest dictionary value in every row, so each half has a lower
        # bound.
        half = batch.num_rows // 2
        yield from _decode(batch.slice(0, half), schema)
        yield from _decode(batch.slice(half), schema)
        return
    columns = []
    for column, field in zip(batch.columns, schema, strict=True):
        try:
            # Lossless: the type is that of the column without dictionaries and views.
            columns.append(column if column.type == field.type else column.cast(field.type))
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            raise InvalidArgument(
                f"Column {field.name!r} of type {column.type} cannot be decoded: {error}.",
                hint="send plain values, without dictionaries",
            ) from error
    yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _check_views(array: pa.Array, max_bytes: int) -> None:
    """Reject views that share memory so that their values exceed ``max_bytes`` bytes.

    This runs before full validation, since validating a million views of one string takes as long
    as validating a million strings.
    """
    if isinstance(array, pa.ExtensionArray):
        _check_views(array.storage, max_bytes)
    elif pat.is_struct(array.type):
        for number in range(array.type.num_fields):
            _check_views(array.field(number), max_bytes)
    elif _is_list(array.type):
        _check_views(array.values, max_bytes)
    elif str(array.type) in _VIEWS and _max_decoded_bytes(array) > max_bytes:
        raise LimitExceeded(f"The rows have more than {max_bytes:,} bytes uncompressed.")
    elif _LIST_VIEW in str(array.type):
        value_count = pc.sum(pc.list_value_length(array)).as_py() or 0
        if value_count > len(array.values):
            raise LimitExceeded(
                f"List views refer to {value_count:,} values, but only {len(array.values):,} "
                "values were sent.",
                hint="send lists instead of list views",
            )


def _is_list(data_type: pa.DataType) -> bool:
    return bool(
        pat.is_list(data_type) or pat.is_large_list(data_type) or pat.is_fixed_size_list(data_type)
    )


def _max_decoded_bytes(array: pa.Array) -> int:
    """Return an upper bound for the size of an array without dictionaries and views."""
    if len(array) == 0:
        return 0
    if str(array.type) in _VIEWS:
        # A view has 16 bytes, of which the first four contain the length of its value.
        views = np.frombuffer(array.buffers()[1], np.int32).reshape(-1, 4)
        lengths = views[array.offset : array.offset + len(array), 0]
        return 8 * len(array) + int(lengths.sum(dtype=np.int64))
    if isinstance(array, pa.ExtensionArray):
        return _max_decoded_bytes(array.storage)
    if pat.is_dictionary(array.type):
        return len(array) * _max_value_bytes(array.dictionary)
    if pat.is_struct(array.type):
        return int(sum(_max_decoded_bytes(child) for child in array.flatten()))
    if _is_list(array.type):
        return 8 * len(array) + _max_decoded_bytes(array.flatten())
    return int(array.nbytes)


def _max_value_bytes(values: pa.Array) -> int:
    """Return the size of the longest value in a dictionary in bytes."""
    if len(values) == 0:
        return 0
    data_type = values.type
    if (
        pat.is_binary(data_type)
        or pat.is_string(data_type)
        or pat.is_large_binary(data_type)
        or pat.is_large_string(data_type)
    ):
        # Each value also needs an offset of up to eight bytes.
        longest = pc.max(pc.binary_length(values)).as_py()
        return 8 + int(longest or 0)
    if pat.is_primitive(data_type) or pat.is_fixed_size_binary(data_type):
        return max(1, int(data_type.bit_width) // 8)
    return _max_decoded_bytes(values)


@dataclass
class Upload:
    """The JSON line and the temporary file with the rows; None if the client sent no rows.

    The file has no name, so the operating system removes it when the process ends.
    """

    line: bytes
    max_bytes: int
    file: IO[bytes] | None = None

    def parse_line(self, model: type[RequestModel]) -> RequestModel:
        """Parse the JSON line.

        Raises:
            InvalidArgument: The line does not match the model.
            OutOfRange: A number is out of range.
            LimitExceeded: A string or a list is too long.
        """
        check_json(self.line)
        try:
            return model.model_validate_json(self.line)
        except ValidationError as error:
            # An exceeded length determines the error class, so it is reported first.
            first_error = min(error.errors(), key=lambda entry: entry["type"] not in _LENGTH_ERRORS)
            field_path = ".".join(map(str, first_error["loc"]))
            raise _error_class(error)(
                f"Invalid first line: {field_path}: {first_error['msg']}."
            ) from None

    def table(self) -> pa.Table | None:
        """Return the rows, memory-mapped from the file.

        Rows with compression, dictionaries or many small batches are first rewritten to a second
        file as plain values.

        Raises:
            InvalidArgument: The rows are not an Arrow stream.
            LimitExceeded: The decompressed rows exceed a limit.
        """
        if self.file is None:
            return None
        data = _map_file(self.file)
        try:
            shape = check_messages(data, max_bytes=self.max_bytes)
            reader = pa.ipc.open_stream(data)
            if can_share_values(reader.schema) or not shape.is_mapped:
                unpacked = tempfile.TemporaryFile()  # noqa: SIM115 - closed by remove()
                # The new file is assigned first, so that remove() closes it if decoding fails. The
                # memory map keeps the content of the closed file readable.
                compressed, self.file = self.file, unpacked
                compressed.close()
                write_decoded(reader, unpacked, max_bytes=self.max_bytes)
                unpacked.flush()
                reader = pa.ipc.open_stream(_map_file(unpacked))
            batches = []
            for batch in reader:
                # Offsets and lengths are untrusted and must not point outside the buffers.
                batch.validate(full=True)
                batches.append(batch)
            return pa.Table.from_batches(batches, reader.schema)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"The rows are not an Arrow stream: {error}.") from error

    def remove(self) -> None:
        """Remove the temporary file."""
        if self.file is not None:
            self.file.close()
            self.file = None


def _error_class(error: ValidationError) -> type[InvalidArgument]:
    """Return the error class for a validation error."""
    error_types = {entry["type"] for entry in error.errors()}
    if error_types & _LENGTH_ERRORS:
        return LimitExceeded
    return OutOfRange if error_types & _RANGE_ERRORS else InvalidArgument


def _map_file(file: IO[bytes]) -> pa.Buffer:
    return pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


async def receive_upload(chunks: AsyncIterator[bytes], *, max_bytes: int) -> Upload:
    """Receive an upload and write its rows to disk.

    Raises:
        InvalidArgument: The first line is too long.
        HTTPException: 413: the rows are too long; 408: no data arrived for a minute.
        StorageError: The disk is full.
    """
    line = bytearray()
    remainder = b""
    chunks = _with_timeout(chunks)
    async for chunk in chunks:
        line_part, newline, remainder = chunk.partition(b"\n")
        line += line_part
        if newline:
            break
        if len(line) > _MAX_LINE_BYTES:
            raise InvalidArgument(
                f"The first line of the request has more than {_MAX_LINE_BYTES:,} bytes; it must "
                "be a JSON object that ends with a newline."
            )
    upload = Upload(bytes(line), max_bytes)
    try:
        await _write(upload, remainder, chunks, max_bytes)
    # BaseException includes the cancellation of the request.
    except BaseException:
        upload.remove()
        raise
    return upload


async def _with_timeout(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield chunks; raise an error if the client sends none for a minute."""
    while True:
        try:
            chunk = await asyncio.wait_for(anext(chunks, None), _IDLE_SECONDS)
        except TimeoutError:
            raise HTTPException(408, "The upload stalled") from None
        if chunk is None:
            return
        yield chunk


async def _write(
    upload: Upload, first: bytes, chunks: AsyncIterator[bytes], max_bytes: int
) -> None:
    """Write the rows of an upload to its temporary file."""
    byte_count = 0
    chunk: bytes | None = first
    while chunk is not None:
        byte_count += len(chunk)
        if byte_count > max_bytes:
            raise HTTPException(413, "Rows too long")
        # Requests without rows need no file.
        if chunk and upload.file is None:
            upload.file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by remove()
        if chunk and upload.file is not None:
            # A disk write would block the event loop.
            await run_in_threadpool(_write_chunk, upload.file, chunk)
        chunk = await anext(chunks, None)
    if upload.file is not None:
        await run_in_threadpool(_write_chunk, upload.file, b"")


def _write_chunk(file: IO[bytes], chunk: bytes) -> None:
    """Write bytes to disk, so that a full disk is found while the rows arrive."""
    try:
        file.write(chunk)
        file.flush()
    except OSError as error:
        raise StorageError(
            f"The server cannot store the rows in its temporary folder: {error.strerror}.",
            hint="free disk space, or start the server with TMPDIR on another disk",
        ) from error
