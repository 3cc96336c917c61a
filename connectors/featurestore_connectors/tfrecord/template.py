"""Templates of fixed-width records: the constant bytes, and the slots of the columns.

A record is ``frame header | features of the columns of constant width | one region for each other
column | CRC``. A region is a separate ``features`` field (protobuf merges them). Columns with nulls
have a region, because parsers skip it when its tag is changed. Columns of variable length have a
region, whose lengths are varints of constant width and whose filler extends it to the width of the
longest string or list. So the offset of every column is constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from featurestore_connectors.tfrecord import framing, wire
from featurestore_connectors.tfrecord.wire_columns import BYTES, FLOAT, INT64, WireColumn

_LISTS = {INT64: wire.INT64_LIST, FLOAT: wire.FLOAT_LIST, BYTES: wire.BYTES_LIST}


@dataclass(frozen=True)
class Field:
    """The layout of a column.

    ``width`` is the number of bytes of one value: of a varint, of a float (4), of a string (of all
    strings if ``constant``, else of the longest), or of the length before each string of a list.
    ``nullable`` columns may have nulls. ``longest`` is the most values of a row of a ragged list.
    ``room`` is the number of bytes that fixed-width records reserve for a list; None if lists have
    variable length.
    """

    column: WireColumn
    width: int
    nullable: bool
    constant: bool
    longest: int = 0
    room: int | None = None

    @property
    def item_head(self) -> int:
        """Bytes before each string of a list: a tag and a length; 0 for other columns."""
        if self.column.wire == BYTES and self.column.shape != ():
            return 1 + self.width
        return 0

    @property
    def max_bytes(self) -> int:
        """Most bytes of the values of a row in fixed-width records."""
        if self.room is not None:
            return self.room
        return self.width * self.column.items


@dataclass(frozen=True)
class NullByte:
    """The byte of a record that marks a null of a column, and its two values.

    Up to layout version 2 it is the first byte of the key, masked for nulls, so that parsers see a
    feature with another name. Since version 3 it is the tag of the region.
    """

    offset: int
    present: int
    null: int


@dataclass(frozen=True)
class OpenEntry:
    """The bytes before variable-length values: the start of a ``features`` field of one column.

    ``lengths`` are the offsets of the length varints in ``head``, with the number of bytes that each
    counts in addition to the values; the last one is the length of the values.
    """

    head: bytes
    key_offset: int
    lengths: tuple[tuple[int, int], ...]
    length_width: int


@dataclass(frozen=True)
class Slot:
    """The offsets of a column in a record: of its values, its key and its null byte.

    ``null_byte`` is None for columns without nulls, ``entry`` for values of constant length.
    """

    field: Field
    offset: int
    key_offset: int
    null_byte: NullByte | None
    entry: OpenEntry | None = None
    filler_width: int = 0

    @property
    def values_bytes(self) -> int:
        """Bytes of the values, filler included."""
        size = self.field.max_bytes
        if self.entry is None:
            return size
        return size + 1 + self.filler_width

    @property
    def is_list(self) -> bool:
        """Whether the values are a variable-length list, or a list of strings."""
        return self.field.room is not None

    @property
    def entry_offset(self) -> int:
        """Offset of the column's ``features`` field (columns of variable length)."""
        if self.entry is None:
            return self.offset
        return self.offset - len(self.entry.head)


@dataclass(frozen=True)
class Template:
    """One record with zeros for values, and the slots of its columns."""

    data: bytes
    slots: tuple[Slot, ...]

    def slot(self, name: str) -> Slot:
        """Return the slot of a column."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Slot]:
        return {slot.field.column.name: slot for slot in self.slots}


def framed_template(fields: Sequence[Field], *, masked_keys: bool = False) -> Template:
    """Return the template of complete records, framing included.

    ``masked_keys``: mark nulls as before layout version 3.
    """
    constant = [field for field in fields if field.constant]
    body, slots = _constant_part(constant, start=framing.HEADER, masked_keys=masked_keys)
    for field in fields:
        if field.constant:
            continue
        entry = open_entry(field.column, longest=field.max_bytes, items=not field.item_head)
        filler_width = wire.varint_width(0, field.max_bytes)
        start = framing.HEADER + len(body)
        key = start + entry.key_offset
        null_byte = null_byte_for(field, region=start, key=key, masked_keys=masked_keys)
        slots.append(Slot(field, start + len(entry.head), key, null_byte, entry, filler_width))
        body += entry.head + bytes(slots[-1].values_bytes)
    data = framing.header(len(body)) + body + bytes(framing.FOOTER)
    return Template(data, tuple(slots))


def bare_template(fields: Sequence[Field], *, masked_keys: bool = False) -> Template:
    """Return the template of the columns of constant width, without framing."""
    body, slots = _constant_part(fields, start=0, masked_keys=masked_keys)
    return Template(body, tuple(slots))


def null_byte_for(field: Field, *, region: int, key: int, masked_keys: bool) -> NullByte | None:
    """Return the null byte of a column whose region and key start at these offsets."""
    if not field.nullable:
        return None
    if masked_keys:
        return NullByte(key, field.column.key[0], wire.MASKED_KEY)
    return NullByte(region, wire.FEATURES, wire.SKIPPED)


def _constant_part(
    fields: Sequence[Field], *, start: int, masked_keys: bool
) -> tuple[bytes, list[Slot]]:
    """Return ``features`` fields with an entry for each column, and the slots of the columns.

    Columns without nulls share a field.
    """
    shared, separate = [], []
    for field in fields:
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
    """Return a map entry of constant length with the offsets of its values and of its key."""
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
    # A length counts the values and the bytes of the head after its varint.
    lengths = tuple((offset, len(head) - offset - width) for offset in offsets)
    return OpenEntry(
        head, offsets[1] + width + 1 + len(wire.varint(len(column.key))), lengths, width
    )
