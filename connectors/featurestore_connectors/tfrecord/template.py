"""Templates of fixed-width records: constant bytes, column slots, and checksums.

A record is ``frame header | features of the columns of constant width | one region for each other
column | CRC``. A region is a separate ``features`` field (protobuf merges such fields). Columns
with nulls have a region, since parsers skip it if its tag is changed. Variable-length columns also
have a region; its length varints have constant width, and a filler extends it to the width of the
longest string or list. The offset of every column is therefore constant.

CRC is linear: the checksum of a payload is the checksum of the template, XORed with one word for
each byte that differs. With a lookup table for each varying byte, numpy finds these words for all
records of a block, without a call per record and without the GIL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, islice

import numpy as np
import numpy.typing as npt
import pyarrow.types as pat
from crc32c import crc32c

from featurestore_connectors.tfrecord import wire
from featurestore_connectors.tfrecord.wire_columns import BYTES, FLOAT, INT64, WireColumn

# Measured costs of a lookup table per record, of a call per record, and of a call per byte. A table
# also requires two numpy calls per block, so calls are faster for small blocks. Calls also keep
# other threads from running Python code.
_TABLE_NANOS = 2.0
_CALL_NANOS = 350
_BYTE_NANOS = 0.085
_MIN_TABLE_ROWS = 1024
Words = npt.NDArray[np.uint32]
# Offset of a varying byte, and the range of bytes that depend on its lowest bit.
VaryingByte = tuple[int, int, int]
_LISTS = {INT64: wire.INT64_LIST, FLOAT: wire.FLOAT_LIST, BYTES: wire.BYTES_LIST}


@dataclass(frozen=True)
class Field:
    """The layout of a column in a record.

    ``width`` is the number of bytes of one value: of a varint, of a float (4), of a string (of all
    strings if ``constant``, otherwise of the longest string), or of the length before each string
    in a list. ``nullable`` columns may have nulls. ``longest`` is the maximum number of values per
    row in a ragged list. ``room`` is the number of bytes that fixed-width records reserve for a
    list; None if lists have variable length.
    """

    column: WireColumn
    width: int
    nullable: bool
    constant: bool
    longest: int = 0
    room: int | None = None

    @property
    def item_head(self) -> int:
        """Number of bytes before each string of a list (tag and length); 0 for other columns."""
        if self.column.wire == BYTES and self.column.shape != ():
            return 1 + self.width
        return 0

    @property
    def is_narrow(self) -> bool:
        """Whether the column has booleans or signed 8-bit integers, for which varints are fast."""
        leaf = self.column.leaf
        return self.column.shape == () and bool(pat.is_boolean(leaf) or pat.is_int8(leaf))

    @property
    def is_signed(self) -> bool:
        """Whether the column is narrow with negative numbers, which are ten-byte varints."""
        return self.is_narrow and self.width == wire.MAX_VARINT

    @property
    def max_bytes(self) -> int:
        """Maximum bytes of a row's values in fixed-width records."""
        if self.room is not None:
            return self.room
        return self.width * self.column.items


@dataclass(frozen=True)
class NullByte:
    """The byte of a record that marks nulls in a column, and its two values.

    Up to layout version 2, this is the first byte of the key, which is masked for nulls, so that
    parsers see a feature with another name. Since version 3, it is the tag of the region.
    """

    offset: int
    present: int
    null: int


@dataclass(frozen=True)
class OpenEntry:
    """The bytes before variable-length values: the start of a column's ``features`` field.

    ``lengths`` contains the offset of each length varint in ``head``, and the number of bytes that
    it counts in addition to the values. The last varint is the length of the values.
    """

    head: bytes
    key_offset: int
    lengths: tuple[tuple[int, int], ...]
    length_width: int


@dataclass(frozen=True)
class Slot:
    """The offsets of a column in a record: values, key and null byte.

    ``null_byte`` is None for columns without nulls, and ``entry`` for values of constant length.
    """

    field: Field
    offset: int
    key_offset: int
    null_byte: NullByte | None
    entry: OpenEntry | None = None
    filler_width: int = 0

    @property
    def values_bytes(self) -> int:
        """The size of the values, including the filler."""
        size = self.field.max_bytes
        if self.entry is None:
            return size
        return size + 1 + self.filler_width

    @property
    def is_list(self) -> bool:
        """Whether the values are a variable-length list or a list of strings."""
        return self.field.room is not None

    @property
    def entry_offset(self) -> int:
        """The offset of a variable-length column's ``features`` field."""
        if self.entry is None:
            return self.offset
        return self.offset - len(self.entry.head)


@dataclass(frozen=True)
class Template:
    """A record with zeros for values, and the slots of its columns."""

    data: bytes
    slots: tuple[Slot, ...]

    def slot(self, name: str) -> Slot:
        """Return the slot of a column."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Slot]:
        return {slot.field.column.name: slot for slot in self.slots}


def framed_template(fields: Sequence[Field], *, masked_keys: bool = False) -> Template:
    """Return the template of complete records, including framing.

    ``masked_keys``: mark nulls as in layout versions before 3.
    """
    constant = [field for field in fields if field.constant]
    body, slots = _constant_part(constant, start=wire.HEADER, masked_keys=masked_keys)
    for field in fields:
        if field.constant:
            continue
        entry = open_entry(field.column, longest=field.max_bytes, items=not field.item_head)
        filler_width = wire.varint_width(0, field.max_bytes)
        start = wire.HEADER + len(body)
        key = start + entry.key_offset
        null_byte = null_byte_for(field, region=start, key=key, masked_keys=masked_keys)
        slots.append(Slot(field, start + len(entry.head), key, null_byte, entry, filler_width))
        body += entry.head + bytes(slots[-1].values_bytes)
    data = wire.header(len(body)) + body + bytes(wire.FOOTER)
    return Template(data, tuple(slots))


def bare_template(fields: Sequence[Field], *, masked_keys: bool = False) -> Template:
    """Return the template of the columns of constant width, without framing."""
    body, slots = _constant_part(fields, start=0, masked_keys=masked_keys)
    return Template(body, tuple(slots))


def null_byte_for(field: Field, *, region: int, key: int, masked_keys: bool) -> NullByte | None:
    """Return the null byte of a column with the offsets of its region and key, or None."""
    if not field.nullable:
        return None
    if masked_keys:
        return NullByte(key, field.column.key[0], wire.MASKED_KEY)
    return NullByte(region, wire.FEATURES, wire.SKIPPED)


def _constant_part(
    fields: Sequence[Field], *, start: int, masked_keys: bool
) -> tuple[bytes, list[Slot]]:
    """Return ``features`` fields with an entry for each column, and the column slots.

    Columns without nulls share one field.
    """
    shared, separate = [], []
    for field in fields:
        # A column with nulls has its own field, whose tag can be changed without other columns.
        if field.nullable and not masked_keys:
            separate.append([field])
        else:
            shared.append(field)
    body, slots = bytearray(), []
    for group in filter(None, [shared, *separate]):
        region = start + len(body)
        entries = [_entry(field) for field in group]
        size = sum(len(entry) for entry, _, _ in entries)
        body += bytes([wire.FEATURES]) + wire.varint(size)
        for field, (entry, values, key) in zip(group, entries, strict=True):
            entry_start = start + len(body)
            null_byte = null_byte_for(
                field, region=region, key=entry_start + key, masked_keys=masked_keys
            )
            slots.append(Slot(field, entry_start + values, entry_start + key, null_byte))
            body += entry
    return bytes(body), slots


def _entry(field: Field) -> tuple[bytes, int, int]:
    """Return a map entry of constant length, with the offsets of its values and its key."""
    column = field.column
    size = field.width * column.items
    values = wire.delimited(
        wire.FEATURES, bytes(size)
    )  # packed numbers and BytesList.value are both field 1
    feature = wire.delimited(_LISTS[column.wire], values)
    body = wire.delimited(wire.FEATURES, column.key) + wire.delimited(wire.VALUE, feature)
    entry = wire.delimited(wire.FEATURES, body)
    head = len(entry) - len(body)
    return entry, len(entry) - size, head + 1 + len(wire.varint(len(column.key)))


def open_entry(column: WireColumn, *, longest: int, items: bool) -> OpenEntry:
    """Return the head of a column whose values have up to ``longest`` bytes.

    ``items`` is False if the values contain their own tags and lengths (lists of strings).
    """
    key = wire.delimited(wire.FEATURES, column.key)
    width = 1
    # Each length also counts bytes of the head, whose size depends on the width of the lengths.
    while wire.varint_width(0, longest + len(key) + 5 * (1 + width)) > width:
        width += 1
    length = bytes(width)
    tags = [
        bytes([wire.FEATURES]),
        bytes([wire.FEATURES]),
        key + bytes([wire.VALUE]),
        bytes([_LISTS[column.wire]]),
    ]
    if items:
        tags.append(bytes([wire.FEATURES]))
    head, offsets = b"", []
    for tag in tags:
        head += tag + length
        offsets.append(len(head) - width)
    # A length counts the values, and the bytes of the head after its varint.
    lengths = tuple((offset, len(head) - offset - width) for offset in offsets)
    return OpenEntry(
        head, offsets[1] + width + 1 + len(wire.varint(len(column.key))), lengths, width
    )


class Checksums:
    """Masked checksums for blocks of records with one template."""

    def __init__(self, template: Template) -> None:
        call_cost = _CALL_NANOS + _BYTE_NANOS * len(template.data)
        table_limit = int(call_cost / _TABLE_NANOS)
        varying_bytes = tuple(
            islice(chain.from_iterable(map(_bytes_of_slot, template.slots)), table_limit + 1)
        )
        self._varying_bytes: Sequence[VaryingByte] = ()
        # With more varying bytes, one call per record is faster than the lookups.
        if len(varying_bytes) <= table_limit:
            self._varying_bytes = varying_bytes
            self._base, self._tables = _lookup_tables(template.data, varying_bytes)

    def masked_checksums(self, records: npt.NDArray[np.uint8]) -> Words:
        """Return the masked checksum of each record's payload."""
        count = len(records)
        if not self._varying_bytes or count < _MIN_TABLE_ROWS:
            return wire.payload_checksums(records)
        checksums, words = np.full(count, self._base, np.uint32), np.empty(count, np.uint32)
        for table, (offset, _, _) in zip(self._tables, self._varying_bytes, strict=True):
            # No byte is out of range. "raise" would make a copy first, and "clip" is slower.
            table.take(records[:, offset], out=words, mode="wrap")
            checksums ^= words
        return wire.masks(checksums)


def _bytes_of_slot(slot: Slot) -> Iterator[VaryingByte]:
    """Yield the varying bytes of a column slot."""
    field, first = slot.field, slot.offset
    if slot.null_byte is not None:
        yield slot.null_byte.offset, 0, 0
    if field.is_signed:
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
    """Return the checksum with all varying bytes zero, and a lookup table for each varying byte."""
    zeroed = bytearray(data)
    # The middle bytes of a signed number follow from its last byte and are part of its table.
    for offset, start, end in varying_bytes:
        zeroed[offset] = 0
        zeroed[start:end] = bytes([wire.POSITIVE]) * (end - start)
    base_checksum = _crc(zeroed)
    tables = np.zeros((len(varying_bytes), 256), np.uint32)
    for number, (offset, start, end) in enumerate(varying_bytes):
        for bit in range(8):
            changed = bytearray(zeroed)
            changed[offset] ^= 1 << bit
            if bit == 0:
                changed[start:end] = bytes([wire.NEGATIVE]) * (end - start)
            tables[number, 1 << bit] = _crc(changed) ^ base_checksum
    # The word of a byte is the XOR of the words of its bits.
    for bit in range(1, 8):
        size = 1 << bit
        tables[:, size + 1 : 2 * size] = tables[:, size : size + 1] ^ tables[:, 1:size]
    return base_checksum, tables


def _crc(data: bytearray) -> int:
    return int(crc32c(bytes(data[wire.HEADER : -wire.FOOTER])))
