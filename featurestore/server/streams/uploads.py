"""Uploads: a line of JSON followed by rows as an Arrow stream, which is stored on disk."""

from __future__ import annotations

import asyncio
import mmap
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import IO, TypeVar

import pyarrow as pa
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from featurestore.errors import InvalidArgument, LimitExceeded, OutOfRange
from featurestore.server.streams.arrow_bounds import check_messages
from featurestore.server.streams.unpacking import shares_values, write_plain

_MAX_LINE_BYTES = 4 << 20
RequestModel = TypeVar("RequestModel", bound=BaseModel)
_IDLE_SECONDS = 60.0
# Error types of pydantic for numbers and lengths out of range.
_RANGE_ERRORS = {"greater_than_equal", "less_than_equal", "int_parsing_size"}
_LENGTH_ERRORS = {"string_too_long", "too_long"}


@dataclass
class Upload:
    """The JSON line and the temporary file of the rows; None if the client sent no rows.

    The file has no name, so the operating system removes it with the process.
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
        try:
            return model.model_validate_json(self.line)
        except ValidationError as error:
            first_error = min(error.errors(), key=lambda entry: entry["type"] not in _LENGTH_ERRORS)
            field_path = ".".join(map(str, first_error["loc"]))
            raise _error_class(error)(
                f"Invalid first line: {field_path}: {first_error['msg']}."
            ) from None

    def table(self) -> pa.Table | None:
        """Return the rows, memory-mapped from the file.

        Rows with compression, dictionaries or many small batches are first written to a second
        file as plain values.

        Raises:
            InvalidArgument: The rows are not an Arrow stream.
            LimitExceeded: The unpacked rows exceed a limit.
        """
        if self.file is None:
            return None
        data = _map_file(self.file)
        try:
            shape = check_messages(data, max_bytes=self.max_bytes)
            reader = pa.ipc.open_stream(data)
            if shares_values(reader.schema) or not shape.is_mapped:
                unpacked = tempfile.TemporaryFile()  # noqa: SIM115 - closed by remove()
                compressed, self.file = self.file, unpacked
                compressed.close()
                write_plain(reader, unpacked, max_bytes=self.max_bytes)
                unpacked.flush()
                reader = pa.ipc.open_stream(_map_file(unpacked))
            batches = []
            for batch in reader:
                # Offsets and lengths are untrusted: they must not point outside of the buffers.
                batch.validate(full=True)
                batches.append(batch)
            return pa.Table.from_batches(batches, reader.schema)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"The rows are not an Arrow stream: {error}.") from error

    def remove(self) -> None:
        """Remove the file."""
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
            raise InvalidArgument("The first line of a request must be a JSON object.")
    upload = Upload(bytes(line), max_bytes)
    try:
        await _write(upload, remainder, chunks, max_bytes)
    except BaseException:
        upload.remove()
        raise
    return upload


async def _with_timeout(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
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
    byte_count = 0
    chunk: bytes | None = first
    while chunk is not None:
        byte_count += len(chunk)
        if byte_count > max_bytes:
            raise HTTPException(413, "Rows too long")
        if chunk and upload.file is None:
            upload.file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by remove()
        if chunk and upload.file is not None:
            await run_in_threadpool(upload.file.write, chunk)
        chunk = await anext(chunks, None)
    if upload.file is not None:
        await run_in_threadpool(upload.file.flush)
