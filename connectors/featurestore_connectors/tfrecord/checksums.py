"""Checksums of records of one width: by tables where few of their bytes vary, else by calls.

CRC is linear: a payload's checksum is that of the template, XORed with a word for each byte that
differs. With one table for each byte that varies numpy looks these words up for all records of a
block, without a call for each record and without Python's lock.
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

# Measured: what a table costs a record, and what a call costs that and every byte. Tables cost
# three calls of numpy each, whatever the number of records.
_NANOS_OF_TABLE = 2.3
_NANOS_OF_CALL = 60
_NANOS_OF_BYTE = 0.27
_WORTH_TABLES = 1024

Words = npt.NDArray[np.uint32]
# A byte that varies, and the first and last byte of those that follow from its lowest bit.
Place = tuple[int, int, int]


class Checksums:
    """Returns the masked checksums of blocks of records that a template was filled for."""

    def __init__(self, template: Template) -> None:
        by_call = _NANOS_OF_CALL + _NANOS_OF_BYTE * len(template.data)
        most = int(by_call / _NANOS_OF_TABLE)
        places = tuple(islice(chain.from_iterable(map(_places, template.slots)), most + 1))
        self._places: Sequence[Place] = ()
        if len(places) <= most:
            self._places = places
            self._base, self._tables = _tables(template.data, places)

    def of(self, records: npt.NDArray[np.uint8]) -> Words:
        """Return the masked checksum of each record's payload."""
        count = len(records)
        if not self._places or count < _WORTH_TABLES:
            return framing.payload_checksums(records)
        # All bytes of a record at once, since a block of records is larger than the caches.
        varying = np.take(records, [place for place, _, _ in self._places], axis=1)
        found = np.full(count, self._base, np.uint32)
        words, values = np.empty(count, np.uint32), np.empty(count, np.intp)
        for table, column in zip(self._tables, np.ascontiguousarray(varying.T), strict=True):
            values[...] = column
            np.take(table, values, out=words, mode="clip")  # "raise" would make a copy first
            found ^= words
        return framing.masks(found)


def _places(slot: Slot) -> Iterator[Place]:
    """Yield the bytes of a column that vary."""
    field, first = slot.field, slot.offset
    if slot.null_byte is not None:
        yield slot.null_byte.offset, 0, 0
    if narrow.is_signed(field):
        yield first, 0, 0
        yield first + field.width - 1, first + 1, first + field.width - 1
        return
    if slot.entry is not None:
        for place, _ in slot.entry.lengths:
            start = slot.entry_offset + place
            for each in range(start, start + slot.entry.length_width):
                yield each, 0, 0
    for each in range(first, first + slot.values_bytes):
        yield each, 0, 0


@lru_cache(maxsize=8)
def _tables(data: bytes, places: tuple[Place, ...]) -> tuple[int, Words]:
    """Return the checksum with zeros for the bytes that vary, and the words of their values."""
    plain = bytearray(data)
    for place, start, end in places:
        plain[place] = 0
        plain[start:end] = bytes([narrow.POSITIVE]) * (end - start)
    base = _crc(plain)
    tables = np.zeros((len(places), 256), np.uint32)
    for number, (place, start, end) in enumerate(places):
        for bit in range(8):
            changed = bytearray(plain)
            changed[place] ^= 1 << bit
            if bit == 0:
                changed[start:end] = bytes([narrow.NEGATIVE]) * (end - start)
            tables[number, 1 << bit] = _crc(changed) ^ base
    for bit in range(1, 8):
        size = 1 << bit
        tables[:, size + 1 : 2 * size] = tables[:, size : size + 1] ^ tables[:, 1:size]
    return base, tables


def _crc(data: bytearray) -> int:
    return int(crc32c(bytes(data[framing.HEADER : -framing.FOOTER])))
