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

from featurestore.errors import InvalidArgument

_LONGEST_LINE = 4 << 20
Asked = TypeVar("Asked", bound=BaseModel)
_SECONDS = 60.0


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
        """
        try:
            return kind.model_validate_json(self.line)
        except ValidationError as error:
            wrong = error.errors()[0]
            where = ".".join(map(str, wrong["loc"]))
            raise InvalidArgument(f"The first line is wrong: {where}: {wrong['msg']}.") from None

    def table(self) -> pa.Table | None:
        """Return the rows, mapped from the file: pages come and go as they are needed.

        Raises:
            InvalidArgument: They are no Arrow stream, or more than may come once unpacked.
        """
        if self.file is None:
            return None
        mapped = mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            return self._read(pa.BufferReader(pa.py_buffer(mapped)))
        except (pa.ArrowException, OSError) as error:
            raise InvalidArgument(f"The rows are no Arrow stream: {error}.") from error

    def _read(self, file: pa.NativeFile) -> pa.Table:
        reader = pa.ipc.open_stream(file)
        batches = []
        size = 0
        for batch in reader:
            # Offsets and lengths come from elsewhere: nothing may follow them out of the buffers.
            batch.validate(full=True)
            size += batch.nbytes
            if size > self.most:
                raise InvalidArgument(f"The rows have more than {self.most:,} bytes, unpacked.")
            batches.append(batch)
        return pa.Table.from_batches(batches, reader.schema)

    def remove(self) -> None:
        """Remove the file."""
        if self.file is not None:
            self.file.close()
            self.file = None


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
