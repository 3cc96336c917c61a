"""Choice of the record layout of a dataset, which is a JSON object in its manifest.

``fixed``: all records have the same width, so row i of a shard starts at ``i * record_bytes``.
``variable``: records have different lengths, and each shard has an index file of offsets. This
layout is chosen for ragged lists and lists of strings without a declared length, and if the padding
of strings would increase the size by more than a quarter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.schemas import schema_from_json, schema_to_json
from featurestore.arrow.text_values import decimal_text_length
from featurestore.arrow.values import rounds_to_infinity
from featurestore.errors import FormatTooNew, InvalidArgument, UnsupportedType, listing
from featurestore.plugins.format import ColumnProfile, Layout
from featurestore_connectors.tfrecord import wire
from featurestore_connectors.tfrecord.template import (
    Field,
    NullByte,
    OpenEntry,
    Slot,
    Template,
    bare_template,
    framed_template,
    null_byte_for,
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
# Fixed-width records that reserve bytes for lists.
VERSION_OF_LISTS = 2
# Nulls are fields that parsers skip. In older layout versions, they were features with masked keys.
VERSION_OF_NULLS = 3
MOST_PADDING = 0.25
MOST_BYTES = 2**31 - 1  # limit of protobuf messages
INDEX_ENTRY = 8
_FLOAT_BYTES = 4
STRING_GUESS = 16
COMPRESSIONS = (None, "GZIP")


@dataclass(frozen=True)
class Tail:
    """A column after the constant part of a variable-length record.

    ``entry`` contains the bytes before the values, which include ``null_byte``.
    """

    field: Field
    entry: OpenEntry
    null_byte: NullByte | None


@dataclass(frozen=True)
class RecordLayout:
    """A parsed record layout.

    ``template`` is the complete record (fixed) or its beginning (variable).
    """

    schema: pa.Schema
    fields: tuple[Field, ...]
    template: Template
    tails: tuple[Tail, ...]
    fixed: bool
    compression: str | None

    @property
    def record_bytes(self) -> int:
        """The size of every record in the fixed layout."""
        return len(self.template.data)


def check_compression(compression: str | None) -> None:
    """Raise InvalidArgument for an unknown compression."""
    if compression not in COMPRESSIONS:
        raise InvalidArgument(
            f"Unknown compression={compression!r} for tfrecord. Available: "
            f"{listing(COMPRESSIONS)}.",
            hint="compression=None allows random access",
        )


def choose_layout(
    schema: pa.Schema, profiles: Sequence[ColumnProfile], *, compression: str | None
) -> dict[str, Any]:
    """Choose the record layout of a dataset.

    Raises:
        UnsupportedType: Values are not supported. The message includes their columns.
    """
    profile_by_name = {profile.name: profile for profile in profiles}
    pairs = [(column, profile_by_name[column.name]) for column in wire_columns(schema)]
    _check_values(pairs)
    fields, fixed_fields = [], []
    for column, profile in pairs:
        fields.append(_column_field(column, profile))
        fixed_fields.append(_reserve_bytes(fields[-1], profile))
    reason = _variable_reason(fixed_fields, profile_by_name)
    layout_kind = "variable"
    version = VERSION
    if reason is None:
        layout_kind, fields = "fixed", fixed_fields
    # The version is as low as possible, so that older releases can read the dataset.
    if any(field.room is not None for field in fields):
        version = VERSION_OF_LISTS
    if any(field.nullable for field in fields):
        version = VERSION_OF_NULLS
    layout: dict[str, Any] = {
        "version": version,
        "kind": layout_kind,
        "reason": reason,
        "compression": compression,
        "schema": schema_to_json(schema),
        "fields": list(map(_field_json, fields)),
    }
    record_layout = read_layout(layout)
    layout["mean_bytes"] = _mean_bytes(record_layout, profile_by_name)
    if record_layout.fixed:
        layout["record_bytes"] = record_layout.record_bytes
        for field_json in layout["fields"]:
            # With the offsets, a column can be read without a protobuf parser.
            field_json.update(_offsets_json(record_layout.template.slot(field_json["name"])))
    return layout


def _check_values(pairs: Sequence[tuple[WireColumn, ColumnProfile]]) -> None:
    """Refuse values that TFRecord cannot store."""
    refused = []
    out_of_range = []
    for column, profile in pairs:
        if column.wire == INT64 and profile.maximum is not None and profile.maximum > LARGEST:
            remedy = "store it as a string or a float64"
            refused.append(f"{column.name}: {profile.maximum} is above 2**63-1 ({remedy})")
        largest = profile.largest
        if column.loss is not None and largest is not None and rounds_to_infinity(largest):
            out_of_range.append(column.name)
            refused.append(f"{column.name}: {largest!r} is infinity in float32")
        if profile.inner_nulls:
            refused.append(f"{column.name}: {profile.inner_nulls:,} nulls inside lists (fill them)")
    if refused:
        hint = "change these values, or use data_format='parquet'"
        if len(out_of_range) == len(refused):
            hint = (
                f"data_format='parquet' stores float64, or omit or scale {listing(out_of_range)} "
                "before the export"
            )
        raise UnsupportedType(
            f"TFRecord does not support values of these columns: {'; '.join(refused)}.",
            hint=hint,
        )


def _column_field(column: WireColumn, profile: ColumnProfile) -> Field:
    """Return the field of a column without reserved bytes."""
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
    # The total is the maximum times the count only if all strings have the same length.
    constant = profile.total_length == profile.longest * values
    return Field(column, profile.longest, nullable, constant)


def _varint_width(column: WireColumn, profile: ColumnProfile) -> int:
    """Return the varint width for all values of a column."""
    if profile.minimum is not None and profile.maximum is not None:
        return wire.varint_width(min(profile.minimum, 0), profile.maximum)
    if profile.rows == profile.nulls or pat.is_boolean(column.leaf):
        return 1
    if pat.is_unsigned_integer(column.leaf):
        return wire.varint_width(0, min(2**column.leaf.bit_width - 1, LARGEST))
    return wire.MAX_VARINT


def _reserve_bytes(field: Field, profile: ColumnProfile) -> Field:
    """Return a field that reserves bytes for the longest list, if its length was declared."""
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


def _variable_reason(fields: Sequence[Field], profiles: Mapping[str, ColumnProfile]) -> str | None:
    """Return the reason for the variable layout, or None for the fixed layout."""
    _, varying = _split_by_width(fields)
    unbounded_lists, padding = [], {}
    for field in varying:
        name = field.column.name
        if field.column.shape != () and field.room is None:
            unbounded_lists.append(name)
        # Declared lengths are a request for fixed-width records and do not count as padding.
        elif not profiles[name].declared:
            padding[name] = field.width - _mean_length(field, profiles)
    if unbounded_lists:
        return f"lists of different lengths or of strings: {listing(unbounded_lists)}"
    record = len(framed_template(fields).data)
    total = sum(padding.values())
    cost = total / max(record - total, 1)
    if cost <= MOST_PADDING:
        return None
    names = sorted(padding, key=lambda name: -padding[name])
    worst = listing(names, limit=3)
    return f"one width for all records would add {cost:.0%} of padding, mostly for {worst}"


def _mean_length(field: Field, profiles: Mapping[str, ColumnProfile]) -> float:
    profile = profiles[field.column.name]
    if pat.is_decimal(field.column.leaf):
        return field.width
    return profile.total_length / max(profile.rows, 1)


def _mean_bytes(record_layout: RecordLayout, profiles: Mapping[str, ColumnProfile]) -> float:
    """Return the expected size of a record, including its entry in the index."""
    if record_layout.fixed:
        return float(record_layout.record_bytes)
    size = float(len(record_layout.template.data) + wire.FRAMING + INDEX_ENTRY)
    for tail in record_layout.tails:
        profile = profiles[tail.field.column.name]
        items = 1.0
        item_bytes = _mean_length(tail.field, profiles)
        if tail.field.column.shape != ():
            items = profile.total_length / max(profile.rows, 1)
            item_bytes = tail.field.width
        if tail.field.item_head:
            # Profiles do not count the bytes of strings in lists. The estimate only affects the
            # shard count.
            item_bytes += STRING_GUESS
        size += len(tail.entry.head) + items * item_bytes
    return size


def _field_json(field: Field) -> dict[str, Any]:
    """Return a field as JSON for the manifest."""
    field_json = {
        "name": field.column.name,
        "list": field.column.wire,
        "width": field.width,
        "items": None if field.column.shape is None else field.column.items,
        "nullable": field.nullable,
        "constant": field.constant,
        "longest": field.longest,
    }
    if field.room is not None:
        field_json["room"] = field.room
    return field_json


def _offsets_json(slot: Slot) -> dict[str, int]:
    """Return the offsets of values, key, null byte and length in a record as JSON."""
    offsets = {"offset": slot.offset, "key_offset": slot.key_offset}
    if slot.null_byte is not None:
        offsets["null_offset"] = slot.null_byte.offset
    if slot.entry is not None:
        offsets["length_offset"] = slot.entry_offset + slot.entry.lengths[-1][0]
        offsets["length_width"] = slot.entry.length_width
    return offsets


def read_layout(layout: Layout) -> RecordLayout:
    """Parse the record layout in a manifest."""
    for cached_layout, record_layout in _CACHED_LAYOUTS:
        if cached_layout is layout:
            return record_layout
    if layout["version"] not in (VERSION, VERSION_OF_LISTS, VERSION_OF_NULLS):
        raise FormatTooNew(
            f"The shards have TFRecord layout version {layout['version']}; "
            f"this release reads up to {VERSION_OF_NULLS}.",
            hint="pip install --upgrade featurestore",
        )
    record_layout = _parse_layout(layout)
    _CACHED_LAYOUTS.append((layout, record_layout))
    # The cache is bounded, since its entries keep the layouts of closed datasets.
    del _CACHED_LAYOUTS[:-8]
    return record_layout


def _parse_layout(layout: Layout) -> RecordLayout:
    """Rebuild a record layout from its JSON."""
    schema, fixed = schema_from_json(layout["schema"]), layout["kind"] == "fixed"
    fields = []
    for column, field_json in zip(wire_columns(schema), layout["fields"], strict=True):
        options = (
            field_json["width"],
            field_json["nullable"],
            field_json["constant"],
            field_json["longest"],
        )
        fields.append(Field(column, *options, room=field_json.get("room")))
    tails: list[Tail] = []
    masked_keys = layout["version"] < VERSION_OF_NULLS
    if fixed:
        template = framed_template(fields, masked_keys=masked_keys)
    else:
        constant, varying = _split_by_width(fields)
        template = bare_template(constant, masked_keys=masked_keys)
        for field in varying:
            entry = _tail_entry(field)
            null_byte = null_byte_for(
                field, region=0, key=entry.key_offset, masked_keys=masked_keys
            )
            tails.append(Tail(field, entry, null_byte))
    return RecordLayout(schema, tuple(fields), template, tuple(tails), fixed, layout["compression"])


def _split_by_width(fields: Sequence[Field]) -> tuple[list[Field], list[Field]]:
    """Split fields into fields of constant width and other fields."""
    constant = [field for field in fields if field.constant]
    varying = [field for field in fields if not field.constant]
    return constant, varying


def _tail_entry(field: Field) -> OpenEntry:
    """Return the bytes before the values of a column in variable-length records."""
    column = field.column
    if column.shape == ():
        return open_entry(column, longest=field.width, items=True)
    if column.wire == BYTES:
        # The length of a list is unbounded, but five bytes suffice for the length of any record.
        return open_entry(column, longest=MOST_BYTES, items=False)
    return open_entry(column, longest=field.longest * field.width, items=True)


# Cache of parsed layouts by identity: all shards of a dataset use the same object.
_CACHED_LAYOUTS: list[tuple[Layout, RecordLayout]] = []
