"""Positions of the record batches in an Arrow IPC stream, and the fields of its messages.

A stream has no index, so the headers of its messages are read one after the other. Every length is
checked before it is used, and a stream without its end mark is damaged: Arrow reads a stream that was
truncated between two messages as a shorter one. The metadata of a message, which pyarrow does not
expose, is a FlatBuffers table (https://flatbuffers.dev/internals) whose fields are numbered in the
order of ``Message.fbs`` in the Arrow format.

https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

ReadBytes = Callable[[int, int], bytes]
# A message begins with a continuation mark and the length of its metadata; 0 ends the stream.
_PREFIX = struct.Struct("<Ii")
_CONTINUATION = 0xFFFFFFFF
_MAX_METADATA = 64 << 20
_SCHEMA, _DICTIONARY, _RECORD_BATCH = 1, 2, 3


@dataclass(frozen=True)
class StreamBatch:
    """A record batch of a stream: the position and size of its message, and its rows."""

    offset: int
    size: int
    rows: int
    is_compressed: bool

    @property
    def end(self) -> int:
        """The position after the message."""
        return self.offset + self.size


def stream_batches(read: ReadBytes, *, size: int) -> Iterator[StreamBatch]:
    """Yield the record batches of a stream of ``size`` bytes; only headers of messages are read.

    ``read(start, size)`` returns the bytes at a position.

    Raises:
        ValueError: The file is not an Arrow stream, is truncated, or has bytes after its end.

    >>> sink = pa.BufferOutputStream()
    >>> batch = pa.record_batch({"n": [1, 2]})
    >>> with pa.ipc.new_stream(sink, batch.schema) as writer:
    ...     writer.write(batch)
    >>> stream = sink.getvalue().to_pybytes()
    >>> batches = stream_batches(lambda start, size: stream[start : start + size], size=len(stream))
    >>> [batch.rows for batch in batches]
    [2]
    """
    for number, (offset, length, message) in enumerate(_messages(read, size)):
        try:
            message_type, header = message.byte(1), message.table(2)
            if header is None or (number == 0) != (message_type == _SCHEMA):
                raise ValueError("it does not begin with one schema")
            if message_type == _RECORD_BATCH:
                yield _record_batch(offset, length, header)
            elif message_type == _DICTIONARY:
                values = header.table(1)
                # Compressed values may be much larger than the file.
                if values is None or values.table(3) is not None:
                    raise ValueError(f"the dictionary at byte {offset} is compressed")
        except struct.error as error:
            raise ValueError(f"the message at byte {offset} is damaged: {error}") from error


def _record_batch(offset: int, length: int, header: FlatTable) -> StreamBatch:
    rows = header.integer(0)
    if rows < 0:
        raise ValueError(f"the record batch at byte {offset} has {rows} rows")
    return StreamBatch(offset, length, rows, header.table(3) is not None)


def _messages(read: ReadBytes, size: int) -> Iterator[tuple[int, int, FlatTable]]:
    """Yield position, complete size and metadata of each message."""
    offset = 0
    while True:
        start = offset + _PREFIX.size
        if start > size:
            raise ValueError(f"it ends at byte {size} without the mark of its end")
        try:
            mark, metadata_size = _PREFIX.unpack(read(offset, _PREFIX.size))
            if mark != _CONTINUATION or not 0 <= metadata_size <= _MAX_METADATA:
                raise ValueError(f"no message begins at byte {offset}")
            if metadata_size == 0:
                break
            body = start + metadata_size
            if body > size:
                raise ValueError(f"the message at byte {offset} is longer than the file")
            message = FlatTable.root(pa.py_buffer(read(start, metadata_size)))
            end = body + message.integer(3)
            if not body <= end <= size:
                raise ValueError(f"the message at byte {offset} is longer than the file")
            yield offset, end - offset, message
        except struct.error as error:
            raise ValueError(f"the message at byte {offset} is damaged: {error}") from error
        offset = end
    if start != size:
        raise ValueError(f"bytes follow its end at byte {start}")


def is_compressed(message: pa.Message) -> bool:
    """Return whether the body of a record batch is compressed.

    Raises:
        ValueError: The message has no record batch, or its metadata is damaged.

    >>> batch = pa.record_batch({"n": [1, 2]})
    >>> is_compressed(pa.ipc.read_message(batch.serialize()))
    False
    """
    try:
        # The header of a Message is 2; the compression of a RecordBatch is 3.
        batch = FlatTable.root(message.metadata).table(2)
        if batch is None or message.type != "record batch":
            raise ValueError("an Arrow message has no record batch")
        return batch.table(3) is not None
    except struct.error as error:
        raise ValueError(f"the metadata of a record batch is damaged: {error}") from error


@dataclass(frozen=True)
class FlatTable:
    """A FlatBuffers table (https://flatbuffers.dev/internals) with access by field number."""

    data: bytes
    start: int

    @staticmethod
    def root(data: pa.Buffer) -> FlatTable:
        content = data.to_pybytes()
        return FlatTable(content, struct.unpack_from("<I", content)[0])

    def integer(self, field: int) -> int:
        """Return a 64-bit integer field, 0 if it is absent."""
        position = self._position(field)
        return 0 if position is None else int(struct.unpack_from("<q", self.data, position)[0])

    def byte(self, field: int) -> int:
        """Return a field of one byte, 0 if it is absent."""
        position = self._position(field)
        return 0 if position is None else int(struct.unpack_from("<B", self.data, position)[0])

    def table(self, field: int) -> FlatTable | None:
        position = self._position(field)
        return None if position is None else FlatTable(self.data, self._follow_offset(position))

    def pairs(self, field: int) -> list[tuple[int, int]]:
        """Return a vector field whose elements are structs of two 64-bit integers."""
        position = self._position(field)
        if position is None:
            return []
        start = self._follow_offset(position)
        (count,) = struct.unpack_from("<I", self.data, start)
        end = start + 4 + 16 * count
        # Python would truncate a slice beyond the end without an error.
        if end > len(self.data):
            raise struct.error("a vector is longer than the metadata")
        pairs = struct.iter_unpack("<qq", self.data[start + 4 : end])
        return [(int(first), int(second)) for first, second in pairs]

    def _position(self, field: int) -> int | None:
        """Look up the position of a field in the vtable; None if the field is absent."""
        (back,) = struct.unpack_from("<i", self.data, self.start)
        vtable = self.start - back
        (size,) = struct.unpack_from("<H", self.data, vtable)
        entry = 4 + 2 * field
        if entry + 2 > size:
            return None
        (offset,) = struct.unpack_from("<H", self.data, vtable + entry)
        return self.start + offset if offset else None

    def _follow_offset(self, position: int) -> int:
        return position + int(struct.unpack_from("<I", self.data, position)[0])
