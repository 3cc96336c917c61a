"""Encoding and decoding of records of one width, by numpy over the whole batch.

The encoder keeps a block of records that were copied from the template once; each batch overwrites
the bytes of the values (and those that say which are null) and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featurestore.model.types import numpy_type
from featurestore_connectors.tfrecord import framing, items, narrow, planes, wire
from featurestore_connectors.tfrecord.checksums import Checksums
from featurestore_connectors.tfrecord.items import not_as_counted
from featurestore_connectors.tfrecord.regions import (
    fill_lists,
    fill_region,
    read_lengths,
    read_lists,
    read_present,
    rows_of_items,
)
from featurestore_connectors.tfrecord.template import Slot, Template
from featurestore_connectors.tfrecord.wire_columns import (
    BYTES,
    FLOAT,
    INT64,
    assemble,
    binary_parts,
    bytes_to_arrow,
    floats,
    from_integers,
    integers,
    leaves,
    present,
    texts,
    to_arrow,
)

Records = npt.NDArray[np.uint8]
# Measured: smaller blocks pay numpy's calls for too few rows, larger ones leave the caches.
BLOCK_BYTES = 1 << 23
BYTES_AT_ONCE = 1 << 22
_NO_LENGTHS = np.zeros(0, np.int64)


class Encoder:
    """Fills records from the columns of record batches."""

    def __init__(self, template: Template) -> None:
        width = max(len(template.data), 1)
        self._template, self._slots = template, template.slots
        self.block_rows = max(16, min(8192, BLOCK_BYTES // width))
        one = np.frombuffer(template.data, np.uint8)
        self._records = np.tile(one, (self.block_rows, 1))

    def blocks(self, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, Records]]:
        """Yield the batch in pieces with their records; the next piece overwrites them."""
        places = [batch.schema.get_field_index(slot.field.column.name) for slot in self._slots]
        for start in range(0, batch.num_rows, self.block_rows):
            piece = batch.slice(start, self.block_rows)
            records = self._records[: piece.num_rows]
            for slot, place in zip(self._slots, places, strict=True):
                _fill(records, piece.column(place), slot)
            yield piece, records

    @cached_property
    def _checksums(self) -> Checksums:
        return Checksums(self._template)

    def framed(self, batch: pa.RecordBatch) -> Iterator[tuple[Records, npt.NDArray[np.int64]]]:
        """Yield the records of a batch with their checksums; no lengths, since all have one."""
        for _, records in self.blocks(batch):
            crcs = self._checksums.of(records)
            records[:, -framing.FOOTER :].view("<u4")[:, 0] = crcs
            yield records, _NO_LENGTHS


def _fill(records: Records, array: pa.Array, slot: Slot) -> None:
    column, valid = slot.field.column, present(array)
    if slot.is_list:
        write_nulls(records, slot, valid)
        fill_lists(records, array, slot)
        return
    values = leaves(array, column)
    write_nulls(records, slot, valid)
    start, size = slot.offset, slot.field.width * column.items
    if narrow.is_narrow(slot.field):
        _fill_narrow(records, narrow.numbers_of(values), slot)
    elif column.wire == INT64:
        words = integers(values).reshape(len(records), column.items)
        if valid is not None and column.shape:
            words[~valid] = 0
        target = records[:, start : start + size].reshape(
            len(records), column.items, slot.field.width
        )
        if not wire.write_varints(target, words, width=slot.field.width):
            raise not_as_counted(column, "a number is larger than all that were counted")
    elif column.wire == FLOAT:
        numbers = floats(values).reshape(len(records), column.items)
        if valid is not None and column.shape:
            numbers = np.where(valid[:, None], numbers, np.float32(0))
        records[:, start : start + size].view(f"V{size}")[:, 0] = np.ascontiguousarray(
            numbers
        ).view(f"V{size}")[:, 0]
    elif slot.field.constant:
        _fill_constant_bytes(records, binary_parts(texts(values)), slot, valid)
    else:
        _fill_bytes(records, binary_parts(texts(values)), slot)


def _fill_narrow(records: Records, numbers: npt.NDArray[np.int8], slot: Slot) -> None:
    if narrow.is_signed(slot.field):
        narrow.fill(records, slot.offset, numbers)
        return
    if numbers.min(initial=0) < 0:
        raise not_as_counted(slot.field.column, "a number is negative where none was counted")
    records[:, slot.offset] = numbers.view(np.uint8)


def write_nulls(records: Records, slot: Slot, valid: npt.NDArray[np.bool_] | None) -> None:
    """Write the bytes by which rows have a value or none."""
    null_byte = slot.null_byte
    if null_byte is None:
        if valid is not None:
            raise not_as_counted(slot.field.column, "there are nulls where none were counted")
        return
    if valid is None:
        records[:, null_byte.offset] = null_byte.present
    else:
        values = np.where(valid, np.uint8(null_byte.present), np.uint8(null_byte.null))
        records[:, null_byte.offset] = values


Parts = tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]


def _fill_constant_bytes(
    records: Records, parts: Parts, slot: Slot, valid: npt.NDArray[np.bool_] | None
) -> None:
    offsets, data = parts
    width = slot.field.width
    lengths = np.diff(offsets)
    if valid is not None:
        lengths = lengths[valid]
    if len(data) != width * len(lengths) or lengths.max(initial=0) > width:
        raise not_as_counted(slot.field.column, f"texts differ from the {width} bytes that all had")
    if width == 0:
        return
    target = records[:, slot.offset : slot.offset + width].view(f"V{width}")[:, 0]
    if valid is None:
        target[...] = data.view(f"V{width}")
    else:
        target[...] = np.zeros(1, f"V{width}")
        target[valid] = data.view(f"V{width}")


def _fill_bytes(records: Records, parts: Parts, slot: Slot) -> None:
    offsets, data = parts
    lengths = np.diff(offsets)
    if lengths.max(initial=0) > slot.field.width:
        raise not_as_counted(
            slot.field.column, f"a text is longer than the {slot.field.width} bytes of the longest"
        )
    fill_region(records, lengths, data, slot)


# -- decoding -----------------------------------------------------------------


def read_numbers(records: Records, slots: Sequence[Slot]) -> list[npt.NDArray[Any]]:
    """Return integers and floats in the features' numpy types.

    The shape is (n,) for scalars, (n, items) for lists.
    """
    scalars = [slot for slot in slots if planes.is_number(slot)]
    numbers = iter(planes.read_numbers(records, scalars))
    columns = []
    for slot in slots:
        if planes.is_number(slot):
            columns.append(next(numbers))
        else:
            columns.append(_read_list(records, slot))
    return columns


def _read_list(records: Records, slot: Slot) -> npt.NDArray[Any]:
    column, width = slot.field.column, slot.field.width
    part = records[:, slot.offset : slot.offset + width * column.items]
    if column.wire == INT64:
        several = wire.read_varints(part.reshape(len(records), column.items, width), width=width)
        return from_integers(several, column.leaf)
    numbers = (
        part.view(f"V{4 * column.items}")[:, 0]
        .copy()
        .view("<f4")
        .reshape(len(records), *column.shape or ())
    )
    return numbers.astype(numpy_type(column.leaf), copy=False)


def read_bytes(records: Records, slot: Slot) -> pa.Array:
    """Return strings or binaries as a binary array, empty where null."""
    width, rows = slot.field.width, len(records)
    if slot.entry is None:
        data, valid = _constant_bytes(records, slot), read_present(records, slot)
        if valid is None:
            return items.binary(np.full(rows, width), data)
        return items.binary(np.where(valid, width, 0), data[valid])
    lengths = read_lengths(records, slot)
    step = max(1, BYTES_AT_ONCE // max(width, 1))
    pieces = [np.zeros(0, np.uint8)]
    for first in range(0, rows, step):
        part = lengths[first : first + step]
        region = records[first : first + step, slot.offset : slot.offset + width]
        pieces.append(region[np.arange(width) < part[:, None]])
    return items.binary(lengths, np.concatenate(pieces))


def read_padded(records: Records, slot: Slot) -> npt.NDArray[np.bytes_] | None:
    """Return strings or binaries as numpy's bytes of one width, empty where null.

    None where they hold too little.

    numpy takes zeros at the end for padding, so that it cannot hold values that end with one.
    """
    width = slot.field.width
    if width == 0:
        return None
    data = _constant_bytes(records, slot)
    if slot.entry is None:
        valid = read_present(records, slot)
        lost = data[:, -1] == 0
        if valid is not None:
            lost &= valid
    else:
        lengths = read_lengths(records, slot)
        data[np.arange(width) >= lengths[:, None]] = 0
        lost = (data[np.arange(len(data)), lengths - 1] == 0) & (lengths > 0)
    if lost.any():
        return None
    return data.view(f"S{width}")[:, 0]


def view_bytes(records: Records, slot: Slot) -> Records | None:
    """Return strings or binaries of one length as a view, of null rows what stands there.

    None where lengths differ.
    """
    if slot.field.column.wire != BYTES or slot.entry is not None or slot.field.width == 0:
        return None
    return records[:, slot.offset : slot.offset + slot.field.width]


def _constant_bytes(records: Records, slot: Slot) -> Records:
    """Return the bytes where a string stands, and what fills it up."""
    width = slot.field.width
    data = np.empty((len(records), width), np.uint8)
    if width:
        data.view(f"V{width}")[...] = records[:, slot.offset : slot.offset + width].view(
            f"V{width}"
        )
    return data


def read_column(records: Records, slot: Slot) -> pa.Array:
    """Return a column of records as its feature type."""
    return read_arrays(records, [slot])[0]


def read_arrays(records: Records, slots: Sequence[Slot]) -> list[pa.Array]:
    """Return columns of records as their feature types."""
    numbers = iter(read_numbers(records, _numeric(slots)))
    result = []
    for slot in slots:
        column = slot.field.column
        if slot.is_list:
            result.append(read_lists(records, slot))
            continue
        if column.wire == BYTES:
            values = bytes_to_arrow(read_bytes(records, slot), column.leaf)
        else:
            values = to_arrow(next(numbers).reshape(-1), column.leaf)
        result.append(assemble(values, column, read_present(records, slot)))
    return result


def _numeric(slots: Sequence[Slot]) -> list[Slot]:
    """Return the places of columns with as many numbers in each row."""
    return [slot for slot in slots if slot.field.column.wire != BYTES and not slot.is_list]


Decoded = tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]


def decode(records: Records, template: Template, columns: Sequence[str]) -> dict[str, Decoded]:
    """Return ``{column: (values, present)}`` as ``RecordAccess.decode`` promises."""
    slots = [template.slot(name) for name in columns]
    numbers = iter(read_numbers(records, _numeric(slots)))
    result: dict[str, Decoded] = {}
    for name, slot in zip(columns, slots, strict=True):
        values: npt.NDArray[Any]
        if slot.is_list:
            values = rows_of_items(records, slot)
        elif slot.field.column.wire == BYTES:
            values = read_bytes(records, slot).to_numpy(zero_copy_only=False)
        else:
            values = next(numbers).reshape(len(records), *slot.field.column.shape or ())
        result[name] = values, read_present(records, slot)
    return result
