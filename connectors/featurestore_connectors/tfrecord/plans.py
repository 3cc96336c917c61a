"""Record plans for engines that write records themselves: scalar columns in a template."""

from __future__ import annotations

import pyarrow.types as pat

from featurestore.plugins.records import NullMark, RecordPlan, RecordSlot, RecordTail, ValueLengths
from featurestore_connectors.tfrecord import wire
from featurestore_connectors.tfrecord.layout import RecordLayout, Tail
from featurestore_connectors.tfrecord.template import NullByte, OpenEntry, Slot
from featurestore_connectors.tfrecord.variable import INDEX_SUFFIX


def record_plan(layout: RecordLayout) -> RecordPlan | None:
    """Return the record plan of a layout, None for compressed layouts, lists and decimals."""
    if layout.compression is not None:
        return None
    for field in layout.fields:
        if field.column.shape != () or pat.is_decimal(field.column.leaf):
            return None
    return RecordPlan(
        layout.template.data,
        layout.fixed,
        tuple(map(_record_place, layout.template.slots)),
        tuple(map(_tail, layout.tails)),
        "" if layout.fixed else INDEX_SUFFIX,
    )


def _record_place(slot: Slot) -> RecordSlot:
    lengths = None
    if slot.entry is not None:
        lengths = _lengths(slot.entry, start=slot.entry_offset)
    return RecordSlot(
        slot.field.column.name,
        slot.offset,
        slot.field.width,
        _null_mark(slot.null_byte),
        lengths,
        wire.SKIPPED,
        slot.filler_width,
    )


def _tail(tail: Tail) -> RecordTail:
    entry = tail.entry
    return RecordTail(
        tail.field.column.name,
        entry.head,
        _null_mark(tail.null_byte),
        _lengths(entry, start=0),
    )


def _null_mark(null_byte: NullByte | None) -> NullMark | None:
    if null_byte is None:
        return None
    return NullMark(null_byte.offset, null_byte.null)


def _lengths(entry: OpenEntry, *, start: int) -> ValueLengths:
    lengths = tuple((start + offset, extra) for offset, extra in entry.lengths)
    return ValueLengths(lengths, entry.length_width)
