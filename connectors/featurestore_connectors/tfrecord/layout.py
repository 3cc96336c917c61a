"""Which layout fits a dataset, as the JSON object that a manifest keeps.

``fixed``: every record has one width, so row i of a shard begins at ``i * record_bytes``.
``variable``: records are as long as their rows, and an index of offsets lies beside each shard;
chosen for ragged lists and lists of strings, and where filling strings up would cost more than a
quarter; not for columns whose greatest length was declared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import InvalidArgument, UnsupportedType, listing
from featurestore.model.arrow_json import schema_from_json, schema_to_json
from featurestore.model.decimals import decimal_text_length
from featurestore.plugins.format import ColumnProfile, Layout
from featurestore_connectors.tfrecord import framing, wire
from featurestore_connectors.tfrecord.template import (
    Field,
    NullByte,
    OpenEntry,
    Slot,
    Template,
    bare_template,
    framed_template,
    null_byte_of,
    open_entry,
)
from featurestore_connectors.tfrecord.wire_columns import (
    BYTES,
    FLOAT,
    INT64,
    LARGEST,
    WireColumn,
    wire_columns,
)

VERSION = 1
# Records of one width that keep room for lists.
VERSION_OF_LISTS = 2
# Nulls are fields that parsers skip; before they were features with masked keys.
VERSION_OF_NULLS = 3
MOST_PADDING = 0.25
MOST_BYTES = 2**31 - 1  # protobuf holds no longer message
INDEX_ENTRY = 8
_FLOAT_BYTES = 4
STRING_GUESS = 16
COMPRESSIONS = (None, "GZIP")


@dataclass(frozen=True)
class Tail:
    """A column behind the constant part of the variable layout.

    ``entry`` are the bytes before them, and ``null_byte`` is one of these.
    """

    field: Field
    entry: OpenEntry
    null_byte: NullByte | None


@dataclass(frozen=True)
class RecordLayout:
    """A layout ready for use.

    ``template`` is the whole record (fixed) or its beginning (variable).
    """

    schema: pa.Schema
    fields: tuple[Field, ...]
    template: Template
    tails: tuple[Tail, ...]
    fixed: bool
    compression: str | None

    @property
    def record_bytes(self) -> int:
        """Bytes of every record of the fixed layout."""
        return len(self.template.data)


def check_compression(compression: str | None) -> None:
    """Raise InvalidArgument for a compression that is not offered."""
    if compression not in COMPRESSIONS:
        raise InvalidArgument(
            f"compression={compression!r} is not known for tfrecord; "
            f"there are {listing(COMPRESSIONS)}.",
            hint="compression=None keeps random access",
        )


def choose_layout(
    schema: pa.Schema, profiles: Sequence[ColumnProfile], *, compression: str | None
) -> dict[str, Any]:
    """Return the layout of a dataset.

    Raises:
        UnsupportedType: Values do not fit; lists every such column.
    """
    found = {profile.name: profile for profile in profiles}
    pairs = [(column, found[column.name]) for column in wire_columns(schema)]
    _check_values(pairs)
    fields, with_room = [], []
    for column, profile in pairs:
        fields.append(_field(column, profile))
        with_room.append(_with_room(fields[-1], profile))
    reason = _why_variable(with_room, found)
    kind = "variable"
    version = VERSION
    if reason is None:
        kind, fields = "fixed", with_room
    if any(field.room is not None for field in fields):
        version = VERSION_OF_LISTS
    if any(field.nullable for field in fields):
        version = VERSION_OF_NULLS
    layout: dict[str, Any] = {
        "version": version,
        "kind": kind,
        "reason": reason,
        "compression": compression,
        "schema": schema_to_json(schema),
        "fields": list(map(_described, fields)),
    }
    ready = read_layout(layout)
    layout["mean_bytes"] = _mean_bytes(ready, found)
    if ready.fixed:
        layout["record_bytes"] = ready.record_bytes
        for described in layout["fields"]:
            described.update(_places(ready.template.slot(described["name"])))
    return layout


def read_layout(layout: Layout) -> RecordLayout:
    """Return the layout that ``choose_layout`` described."""
    for known, ready in _READY:
        if known is layout:
            return ready
    if layout["version"] not in (VERSION, VERSION_OF_LISTS, VERSION_OF_NULLS):
        raise InvalidArgument(
            f"The shards have TFRecord layout version {layout['version']}; "
            f"this release reads up to {VERSION_OF_NULLS}.",
            hint="upgrade featurestore",
        )
    ready = _read(layout)
    _READY.append((layout, ready))
    del _READY[:-8]
    return ready


# The last layouts by identity: a dataset of thousands of shards hands over the same object for
# each.
_READY: list[tuple[Layout, RecordLayout]] = []


def _read(layout: Layout) -> RecordLayout:
    schema, fixed = schema_from_json(layout["schema"]), layout["kind"] == "fixed"
    fields = []
    for column, given in zip(wire_columns(schema), layout["fields"], strict=True):
        decided = (given["width"], given["nullable"], given["constant"], given["longest"])
        fields.append(Field(column, *decided, room=given.get("room")))
    tails: list[Tail] = []
    masked_keys = layout["version"] < VERSION_OF_NULLS
    if fixed:
        template = framed_template(fields, masked_keys=masked_keys)
    else:
        constant, varying = _by_constancy(fields)
        template = bare_template(constant, masked_keys=masked_keys)
        for field in varying:
            entry = _tail_entry(field)
            null_byte = null_byte_of(field, region=0, key=entry.key_offset, masked_keys=masked_keys)
            tails.append(Tail(field, entry, null_byte))
    return RecordLayout(schema, tuple(fields), template, tuple(tails), fixed, layout["compression"])


def _by_constancy(fields: Sequence[Field]) -> tuple[list[Field], list[Field]]:
    """Return the fields that take as many bytes in every record, and the others."""
    constant, varying = [], []
    for field in fields:
        if field.constant:
            constant.append(field)
        else:
            varying.append(field)
    return constant, varying


def _tail_entry(field: Field) -> OpenEntry:
    column = field.column
    if column.shape == ():
        return open_entry(column, longest=field.width, items=True)
    if column.wire == BYTES:
        # Nothing bounds the bytes of a list beforehand; five bytes hold the length of any record.
        return open_entry(column, longest=MOST_BYTES, items=False)
    return open_entry(column, longest=field.longest * field.width, items=True)


def _field(column: WireColumn, profile: ColumnProfile) -> Field:
    nullable, values = profile.nulls > 0, profile.rows - profile.nulls
    if column.wire != BYTES:
        width = _FLOAT_BYTES
        if column.wire != FLOAT:
            width = _varint_width(column, profile)
        return Field(column, width, nullable, column.shape is not None, profile.longest)
    if column.shape != ():
        return Field(column, wire.varint_width(0, MOST_BYTES), nullable, False, profile.longest)
    if pat.is_decimal(column.leaf):
        return Field(column, decimal_text_length(column.leaf), nullable, False)
    constant = profile.total_length == profile.longest * values
    return Field(column, profile.longest, nullable, constant)


def _with_room(field: Field, profile: ColumnProfile) -> Field:
    """Return a field with room for the longest list, where its length was declared."""
    column = field.column
    if not profile.declared or field.constant or column.shape == ():
        return field
    if pat.is_decimal(column.leaf):
        return field
    if column.wire != BYTES:
        return replace(field, room=field.width * field.longest)
    width = wire.varint_width(0, profile.longest_item)
    items = profile.longest if column.shape is None else column.items
    return replace(field, width=width, room=profile.longest_bytes + items * (1 + width))


def _varint_width(column: WireColumn, profile: ColumnProfile) -> int:
    if profile.minimum is not None and profile.maximum is not None:
        return wire.varint_width(min(profile.minimum, 0), profile.maximum)
    if profile.rows == profile.nulls or pat.is_boolean(column.leaf):
        return 1
    if pat.is_unsigned_integer(column.leaf):
        return wire.varint_width(0, min(2**column.leaf.bit_width - 1, LARGEST))
    return wire.MAX_VARINT


def _why_variable(fields: Sequence[Field], profiles: Mapping[str, ColumnProfile]) -> str | None:
    """Return why records cannot have one width, None when they can."""
    _, varying = _by_constancy(fields)
    lists, padding = [], {}
    for field in varying:
        name = field.column.name
        if field.column.shape != () and field.room is None:
            lists.append(name)
        elif not profiles[name].declared:
            padding[name] = field.width - _mean_length(field, profiles)
    if lists:
        return f"lists of different lengths or of strings: {listing(lists)}"
    record = len(framed_template(fields).data)
    total = sum(padding.values())
    cost = total / max(record - total, 1)
    if cost <= MOST_PADDING:
        return None
    names = sorted(padding, key=lambda name: -padding[name])
    worst = listing(names, limit=3)
    return f"one width for all records would add {cost:.0%} of filling, most for {worst}"


def _mean_length(field: Field, profiles: Mapping[str, ColumnProfile]) -> float:
    profile = profiles[field.column.name]
    if pat.is_decimal(field.column.leaf):
        return field.width
    return profile.total_length / max(profile.rows, 1)


def _mean_bytes(ready: RecordLayout, profiles: Mapping[str, ColumnProfile]) -> float:
    """Return the expected bytes of a record with its place in the index."""
    if ready.fixed:
        return float(ready.record_bytes)
    size = float(len(ready.template.data) + framing.FRAMING + INDEX_ENTRY)
    for tail in ready.tails:
        profile = profiles[tail.field.column.name]
        items = 1.0
        each = _mean_length(tail.field, profiles)
        if tail.field.column.shape != ():
            items = profile.total_length / max(profile.rows, 1)
            each = tail.field.width
        if tail.field.item_head:
            # The bytes of strings in lists are not counted by the profile: a guess, used for the
            # number of shards alone.
            each += STRING_GUESS
        size += len(tail.entry.head) + items * each
    return size


def _check_values(pairs: Sequence[tuple[WireColumn, ColumnProfile]]) -> None:
    refused = []
    for column, profile in pairs:
        if column.wire == INT64 and profile.maximum is not None and profile.maximum > LARGEST:
            way_out = "store it as a text or a float64"
            refused.append(f"{column.name}: {profile.maximum} is above 2**63-1 ({way_out})")
        if profile.inner_nulls:
            refused.append(f"{column.name}: {profile.inner_nulls:,} nulls inside lists (fill them)")
    if refused:
        raise UnsupportedType(
            f"TFRecord cannot hold values of these columns: {'; '.join(refused)}.",
            hint="change these values, or use data_format='parquet'",
        )


def _described(field: Field) -> dict[str, Any]:
    described = {
        "name": field.column.name,
        "list": field.column.wire,
        "width": field.width,
        "items": None if field.column.shape is None else field.column.items,
        "nullable": field.nullable,
        "constant": field.constant,
        "longest": field.longest,
    }
    if field.room is not None:
        described["room"] = field.room
    return described


def _places(slot: Slot) -> dict[str, int]:
    """Return where values, key, null byte and (of strings and lists) the length lie in a record."""
    places = {"offset": slot.offset, "key_offset": slot.key_offset}
    if slot.null_byte is not None:
        places["null_offset"] = slot.null_byte.offset
    if slot.entry is not None:
        places["length_offset"] = slot.entry_offset + slot.entry.lengths[-1][0]
        places["length_width"] = slot.entry.length_width
    return places
