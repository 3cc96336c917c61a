"""What a client sends: a line of JSON, and rows as an Arrow stream, which lie on disk."""

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
from featurestore.server.streams.unpacking import has_repeats, write_plain

_LONGEST_LINE = 4 << 20
Asked = TypeVar("Asked", bound=BaseModel)
_SECONDS = 60.0
# What pydantic calls numbers and lengths that lie outside of their bounds.
_RANGE_ERRORS = {"greater_than_equal", "less_than_equal", "int_parsing_size"}
_LENGTH_ERRORS = {"string_too_long", "too_long"}


@dataclass
class Upload:
    """The line, and the file that the rest was written to; None where nothing came after it.

    The file has no name: it goes with the process, however that ends.
    """

    line: bytes
    most: int
    file: IO[bytes] | None = None

    def asked(self, kind: type[Asked]) -> Asked:
        """Return what the line asks for.

        Raises:
            InvalidArgument: It asks for something else.
            OutOfRange: A number is too large.
            LimitExceeded: A text or a list is longer than it may be.
        """
        try:
            return kind.model_validate_json(self.line)
        except ValidationError as error:
            wrong = min(error.errors(), key=lambda each: each["type"] not in _LENGTH_ERRORS)
            where = ".".join(map(str, wrong["loc"]))
            raise _refusal(error)(f"The first line is wrong: {where}: {wrong['msg']}.") from None

    def table(self) -> pa.Table | None:
        """Return the rows, mapped from a file: pages come and go as they are needed.

        Rows that are compressed, have dictionaries or come in many small batches are written into
        a second file before, as plain values.

        Raises:
            InvalidArgument: They are not an Arrow stream.
            LimitExceeded: They exceed a bound once unpacked.
        """
        if self.file is None:
            return None
        data = _mapped(self.file)
        try:
            shape = check_messages(data, most=self.most)
            reader = pa.ipc.open_stream(data)
            if has_repeats(reader.schema) or not shape.is_mapped:
                unpacked = tempfile.TemporaryFile()  # noqa: SIM115 - closed by remove()
                compressed, self.file = self.file, unpacked
                compressed.close()
                write_plain(reader, unpacked, most=self.most)
                unpacked.flush()
                reader = pa.ipc.open_stream(_mapped(unpacked))
            batches = []
            for batch in reader:
                # Offsets and lengths come from elsewhere: none may point outside of the buffers.
                batch.validate(full=True)
                batches.append(batch)
            return pa.Table.from_batches(batches, reader.schema)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"The rows are no Arrow stream: {error}.") from error

    def remove(self) -> None:
        """Remove the file."""
        if self.file is not None:
            self.file.close()
            self.file = None


def _refusal(error: ValidationError) -> type[InvalidArgument]:
    """Return the error for a line that pydantic refuses."""
    kinds = {each["type"] for each in error.errors()}
    if kinds & _LENGTH_ERRORS:
        return LimitExceeded
    return OutOfRange if kinds & _RANGE_ERRORS else InvalidArgument


def _mapped(file: IO[bytes]) -> pa.Buffer:
    return pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


async def receive(parts: AsyncIterator[bytes], *, most: int) -> Upload:
    """Return what a client sends, written down as it comes.

    Raises:
        InvalidArgument: Its first line does not end.
        HTTPException: 413, more came than may; 408, nothing came for a minute.
    """
    line = bytearray()
    rest = b""
    parts = _in_time(parts)
    async for part in parts:
        before, ended, rest = part.partition(b"\n")
        line += before
        if ended:
            break
        if len(line) > _LONGEST_LINE:
            raise InvalidArgument("The first line of a retrieval is its JSON object.")
    upload = Upload(bytes(line), most)
    try:
        await _write(upload, rest, parts, most)
    except BaseException:
        upload.remove()
        raise
    return upload


async def _in_time(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    while True:
        try:
            part = await asyncio.wait_for(anext(parts, None), _SECONDS)
        except TimeoutError:
            raise HTTPException(408, "Nothing came any more") from None
        if part is None:
            return
        yield part


async def _write(upload: Upload, first: bytes, parts: AsyncIterator[bytes], most: int) -> None:
    written = 0
    part: bytes | None = first
    while part is not None:
        written += len(part)
        if written > most:
            raise HTTPException(413, "Rows too long")
        if part and upload.file is None:
            upload.file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by remove()
        if part and upload.file is not None:
            await run_in_threadpool(upload.file.write, part)
        part = await anext(parts, None)
    if upload.file is not None:
        await run_in_threadpool(upload.file.flush)
