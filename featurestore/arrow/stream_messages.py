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


@dataclass(frozen=True)
class StreamLayout:
    """The record batches of a stream in order; ``has_dictionaries`` if columns have dictionaries."""

    batches: tuple[StreamBatch, ...]
    has_dictionaries: bool

    @property
    def rows(self) -> int:
        """The number of rows of all batches."""
        return sum(batch.rows for batch in self.batches)


def read_layout(read: Callable[[int, int], bytes], *, size: int) -> StreamLayout:
    """Read the headers of all messages of a stream of ``size`` bytes, without the bodies.

    ``read`` returns the bytes at a position, all of which are below ``size``.

    Raises:
        ValueError: The file is no Arrow stream, is truncated, or has bytes after its end.

    >>> sink = pa.BufferOutputStream()
    >>> batch = pa.record_batch({"n": [1, 2]})
    >>> with pa.ipc.new_stream(sink, batch.schema) as writer:
    ...     writer.write(batch)
    >>> stream = sink.getvalue()
    >>> read_layout(lambda start, size: stream[start : start + size].to_pybytes(), size=stream.size).rows
    2
    """
    batches, types = [], []
    for offset, length, message in _messages(read, size):
        message_type = message.byte(1)
        types.append(message_type)
        header = message.table(2)
        if message_type == _RECORD_BATCH and header is not None:
            rows = header.integer(0)
            if rows < 0:
                raise ValueError(f"the record batch at byte {offset} has {rows} rows")
            batches.append(StreamBatch(offset, length, rows, header.table(3) is not None))
        elif message_type == _DICTIONARY and header is not None:
            # A compressed dictionary is as large as its unpacked values.
            values = header.table(1)
            if values is None or values.table(3) is not None:
                raise ValueError(f"the dictionary at byte {offset} is compressed or damaged")
    if types[:1] != [_SCHEMA]:
        raise ValueError("its first message is not a schema")
    return StreamLayout(tuple(batches), _DICTIONARY in types)


def _messages(read: Callable[[int, int], bytes], size: int) -> Iterator[tuple[int, int, FlatTable]]:
    """Yield position, complete size and metadata of each message."""
    offset = 0
    while True:
        if offset + _PREFIX.size > size:
            raise ValueError(f"it ends at byte {size} without the mark that ends a stream")
        mark, metadata_size = _PREFIX.unpack(read(offset, _PREFIX.size))
        if mark != _CONTINUATION or not 0 <= metadata_size <= _MAX_METADATA:
            raise ValueError(f"no Arrow message begins at byte {offset}")
        if metadata_size == 0:
            if offset + _PREFIX.size != size:
                raise ValueError(f"bytes follow the end of the stream at byte {offset}")
            return
        body = offset + _PREFIX.size + metadata_size
        if body > size:
            raise ValueError(f"the message at byte {offset} is longer than the file")
        try:
            metadata = read(offset + _PREFIX.size, metadata_size)
            message = FlatTable.root(pa.py_buffer(metadata))
            end = body + message.integer(3)
            if not body <= end <= size:
                raise ValueError(f"the message at byte {offset} is longer than the file")
            yield offset, end - offset, message
        except struct.error as error:
            raise ValueError(f"the message at byte {offset} is damaged: {error}") from error
        offset = end
