"""Checksums of fixed-width records: by lookup tables if few bytes vary, else by CRC calls.

CRC is linear: the checksum of a payload is that of the template, XORed with a word for each byte
that differs. With one table for each varying byte, numpy looks up these words for all records of a
block, without a call per record and without the GIL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, islice

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from featurestore_connectors.tfrecord import framing, narrow
from featurestore_connectors.tfrecord.template import Slot, Template

# Measured cost of a table per record, of a call per record, and of a call per byte. A table also
# costs three numpy calls per block, so that small blocks are faster with calls.
_TABLE_NANOS = 2.3
_CALL_NANOS = 60
_BYTE_NANOS = 0.27
_MIN_TABLE_ROWS = 1024

Words = npt.NDArray[np.uint32]
# Offset of a varying byte, and the range of the bytes that depend on its lowest bit.
VaryingByte = tuple[int, int, int]


class Checksums:
    """Masked checksums of blocks of records of one template."""

    def __init__(self, template: Template) -> None:
        call_cost = _CALL_NANOS + _BYTE_NANOS * len(template.data)
        table_limit = int(call_cost / _TABLE_NANOS)
        varying_bytes = tuple(
            islice(chain.from_iterable(map(_bytes_of_slot, template.slots)), table_limit + 1)
        )
        self._varying_bytes: Sequence[VaryingByte] = ()
        if len(varying_bytes) <= table_limit:
            self._varying_bytes = varying_bytes
            self._base, self._tables = _lookup_tables(template.data, varying_bytes)

    def masked_checksums(self, records: npt.NDArray[np.uint8]) -> Words:
        """Return the masked checksum of each record's payload."""
        count = len(records)
        if not self._varying_bytes or count < _MIN_TABLE_ROWS:
            return framing.payload_checksums(records)
        # Take all varying bytes in one pass, since a block of records exceeds the caches.
        varying_values = np.take(records, [offset for offset, _, _ in self._varying_bytes], axis=1)
        checksums = np.full(count, self._base, np.uint32)
        words, values = np.empty(count, np.uint32), np.empty(count, np.intp)
        for table, column in zip(self._tables, np.ascontiguousarray(varying_values.T), strict=True):
            values[...] = column
            np.take(table, values, out=words, mode="clip")  # "raise" would make a copy first
            checksums ^= words
        return framing.masks(checksums)


def _bytes_of_slot(slot: Slot) -> Iterator[VaryingByte]:
    """Yield the varying bytes of a column."""
    field, first = slot.field, slot.offset
    if slot.null_byte is not None:
        yield slot.null_byte.offset, 0, 0
    if narrow.is_signed(field):
        yield first, 0, 0
        yield first + field.width - 1, first + 1, first + field.width - 1
        return
    if slot.entry is not None:
        for offset, _ in slot.entry.lengths:
            start = slot.entry_offset + offset
            for position in range(start, start + slot.entry.length_width):
                yield position, 0, 0
    for position in range(first, first + slot.values_bytes):
        yield position, 0, 0


@lru_cache(maxsize=8)
def _lookup_tables(data: bytes, varying_bytes: tuple[VaryingByte, ...]) -> tuple[int, Words]:
    """Return the checksum with zeros for the varying bytes, and one table for each of them."""
    zeroed = bytearray(data)
    for offset, start, end in varying_bytes:
        zeroed[offset] = 0
        zeroed[start:end] = bytes([narrow.POSITIVE]) * (end - start)
    base_checksum = _crc(zeroed)
    tables = np.zeros((len(varying_bytes), 256), np.uint32)
    for number, (offset, start, end) in enumerate(varying_bytes):
        for bit in range(8):
            changed = bytearray(zeroed)
            changed[offset] ^= 1 << bit
            if bit == 0:
                changed[start:end] = bytes([narrow.NEGATIVE]) * (end - start)
            tables[number, 1 << bit] = _crc(changed) ^ base_checksum
    for bit in range(1, 8):
        size = 1 << bit
        tables[:, size + 1 : 2 * size] = tables[:, size : size + 1] ^ tables[:, 1:size]
    return base_checksum, tables


def _crc(data: bytearray) -> int:
    return int(crc32c(bytes(data[framing.HEADER : -framing.FOOTER])))
