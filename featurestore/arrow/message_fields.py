"""Fields of the metadata of Arrow IPC messages, which pyarrow does not expose.

The metadata of a message is a FlatBuffers table (https://flatbuffers.dev/internals) whose fields are
numbered in the order of ``Message.fbs`` in the Arrow format.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pyarrow as pa


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
