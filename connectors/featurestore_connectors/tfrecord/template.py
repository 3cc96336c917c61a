"""Records of one width: the constant bytes, and the places of the bytes that vary.

A record is ``frame header | features of the columns of constant width | one region for each other
column | CRC``. A region is a ``features`` field of its own (protobuf merges them). Columns with
nulls have one, because another tag makes a field that parsers skip of it; and columns of varying
length: the lengths there are varints of constant width, and a filler makes the region as wide as
the longest string or list needs. So every column has one place.
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
    """What a layout decides about a column.

    ``width`` is the bytes of one value: of a varint, of a float (4), of a string (of all when
    ``constant``, else of the longest), of the length before each string of a list. ``nullable``
    says that rows may have no value. ``longest`` is the most values of a row of a ragged list.
    ``room`` is the bytes that records of one width keep for the values of a list; None: lists are
    as long as they are.
    """

    column: WireColumn
    width: int
    nullable: bool
    constant: bool
    longest: int = 0
    room: int | None = None

    @property
    def item_head(self) -> int:
        """Bytes before each text of a list: a tag and the text's length; 0 for other columns."""
        if self.column.wire == BYTES and self.column.shape != ():
            return 1 + self.width
        return 0

    @property
    def most_bytes(self) -> int:
        """Bytes that the values of a row take at most, where records have one width."""
        if self.room is not None:
            return self.room
        return self.width * self.column.items


@dataclass(frozen=True)
class NullByte:
    """The byte of a record by which a column has a value there or none, and its two values.

    Up to layout version 2 it is the first byte of the key, masked where the row has no value;
    parsers then list a feature of another name. Since version 3 it is the tag of the region.
    """

    offset: int
    present: int
    null: int


@dataclass(frozen=True)
class OpenEntry:
    """The bytes before values of varying length: a ``features`` field that holds one column.

    ``lengths`` are the places of length varints in ``head`` and what each counts beyond the values'
    own bytes; the last is the values' length itself.
    """

    head: bytes
    key_offset: int
    lengths: tuple[tuple[int, int], ...]
    length_width: int


@dataclass(frozen=True)
class Slot:
    """The place of a column in a record: of its values, its key and what says that it is null.

    ``null_byte`` is None for columns without nulls, ``entry`` where the length is constant.
    """

    field: Field
    offset: int
    key_offset: int
    null_byte: NullByte | None
    entry: OpenEntry | None = None
    filler_width: int = 0

    @property
    def values_bytes(self) -> int:
        """Bytes from ``offset`` on that belong to the values, filler included."""
        size = self.field.most_bytes
        if self.entry is None:
            return size
        return size + 1 + self.filler_width

    @property
    def is_list(self) -> bool:
        """Whether the values are a list of varying length, or a list of texts."""
        return self.field.room is not None

    @property
    def entry_offset(self) -> int:
        """Where the column's ``features`` field begins (columns whose length varies)."""
        if self.entry is None:
            return self.offset
        return self.offset - len(self.entry.head)


@dataclass(frozen=True)
class Template:
    """One record with zeros for values, and the slots of its columns."""

    data: bytes
    slots: tuple[Slot, ...]

    def slot(self, name: str) -> Slot:
        """Return the place of a column."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Slot]:
        return {slot.field.column.name: slot for slot in self.slots}


def framed_template(fields: Sequence[Field], *, masked_keys: bool = False) -> Template:
    """Return the template of whole records, framing included.

    ``masked_keys``: nulls are marked as before layout version 3.
    """
    constant = [field for field in fields if field.constant]
    body, slots = _constant_part(constant, start=framing.HEADER, masked_keys=masked_keys)
    for field in fields:
        if field.constant:
            continue
        entry = open_entry(field.column, longest=field.most_bytes, items=not field.item_head)
        filler_width = wire.varint_width(0, field.most_bytes)
        start = framing.HEADER + len(body)
        key = start + entry.key_offset
        null_byte = null_byte_of(field, region=start, key=key, masked_keys=masked_keys)
        slots.append(Slot(field, start + len(entry.head), key, null_byte, entry, filler_width))
        body += entry.head + bytes(slots[-1].values_bytes)
    data = framing.header(len(body)) + body + bytes(framing.FOOTER)
    return Template(data, tuple(slots))


def bare_template(fields: Sequence[Field], *, masked_keys: bool = False) -> Template:
    """Return the template of the columns of constant width alone, without framing."""
    body, slots = _constant_part(fields, start=0, masked_keys=masked_keys)
    return Template(body, tuple(slots))


def null_byte_of(field: Field, *, region: int, key: int, masked_keys: bool) -> NullByte | None:
    """Return what says that a column is null, of one whose region and key begin there."""
    if not field.nullable:
        return None
    if masked_keys:
        return NullByte(key, field.column.key[0], wire.MASKED_KEY)
    return NullByte(region, wire.FEATURES, wire.SKIPPED)


def _constant_part(
    fields: Sequence[Field], *, start: int, masked_keys: bool
) -> tuple[bytes, list[Slot]]:
    """Return ``features`` fields with an entry for each column, and where the values lie.

    Columns without nulls share a field.
    """
    shared, alone = [], []
    for field in fields:
        if field.nullable and not masked_keys:
            alone.append([field])
        else:
            shared.append(field)
    body, slots = bytearray(), []
    for group in filter(None, [shared, *alone]):
        region = start + len(body)
        entries = [_entry(field) for field in group]
        size = sum(len(entry) for entry, _, _ in entries)
        body += bytes([wire.FEATURES]) + wire.varint(size)
        for field, (entry, values, key) in zip(group, entries, strict=True):
            place = start + len(body)
            null_byte = null_byte_of(field, region=region, key=place + key, masked_keys=masked_keys)
            slots.append(Slot(field, place + values, place + key, null_byte))
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

    ``items`` is False where the values bring their own tags and lengths (lists of strings).
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
    head, places = b"", []
    for tag in tags:
        head += tag + length
        places.append(len(head) - width)
    # A length counts the values and all of the head behind its own varint.
    lengths = tuple((place, len(head) - place - width) for place in places)
    return OpenEntry(
        head, places[1] + width + 1 + len(wire.varint(len(column.key))), lengths, width
    )
