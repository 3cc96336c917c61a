"""Positions of the record batches in an Arrow IPC stream.

A stream has no index, so the headers of its messages are read one after the other. Every length is
checked before it is used, and a stream without its end mark is damaged: Arrow reads a stream that was
truncated between two messages as a shorter one.

https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from featurestore.arrow.message_fields import FlatTable

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
