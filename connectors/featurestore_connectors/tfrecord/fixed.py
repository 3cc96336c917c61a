"""Vectorized encoding and decoding of fixed-width records.

The encoder reuses a block of records that were initially copied from the template. Each batch
overwrites only the bytes of values and nulls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featurestore.arrow.types import numpy_type
from featurestore_connectors.tfrecord import items, planes, wire, wire_columns
from featurestore_connectors.tfrecord.template import Checksums, Slot, Template
from featurestore_connectors.tfrecord.wire_columns import BYTES, FLOAT, INT64

Records = npt.NDArray[np.uint8]
# Measured: smaller blocks have more overhead from numpy calls, and larger blocks exceed the CPU
# caches.
BLOCK_BYTES = 1 << 23
CHUNK_BYTES = 1 << 22
_NO_LENGTHS = np.zeros(0, np.int64)


class Encoder:
    """Encodes record batches to fixed-width records."""

    def __init__(self, template: Template) -> None:
        width = max(len(template.data), 1)
        self._template, self._slots = template, template.slots
        self.block_rows = max(16, min(8192, BLOCK_BYTES // width))
        # The constant bytes are written once. Each batch overwrites only values and null bytes.
        template_bytes = np.frombuffer(template.data, np.uint8)
        self._records = np.tile(template_bytes, (self.block_rows, 1))

    def blocks(self, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, Records]]:
        """Yield slices of a batch with their records, which the next iteration overwrites."""
        column_indexes = [
            batch.schema.get_field_index(slot.field.column.name) for slot in self._slots
        ]
        for start in range(0, batch.num_rows, self.block_rows):
            chunk = batch.slice(start, self.block_rows)
            records = self._records[: chunk.num_rows]
            for slot, column_index in zip(self._slots, column_indexes, strict=True):
                _fill_column(records, chunk.column(column_index), slot)
            yield chunk, records

    @cached_property
    def _checksums(self) -> Checksums:
        return Checksums(self._template)

    def framed(self, batch: pa.RecordBatch) -> Iterator[tuple[Records, npt.NDArray[np.int64]]]:
        """Yield framed records with checksums; record lengths are empty, since all are equal."""
        for _, records in self.blocks(batch):
            crcs = self._checksums.masked_checksums(records)
            records[:, -wire.FOOTER :].view("<u4")[:, 0] = crcs
            yield records, _NO_LENGTHS


def _fill_column(records: Records, array: pa.Array, slot: Slot) -> None:
    """Write the values and nulls of a column to records."""
    column, valid = slot.field.column, wire_columns.presence_mask(array)
    if slot.is_list:
        write_nulls(records, slot, valid)
        items.fill_lists(records, array, slot)
        return
    values = wire_columns.flat_values(array, column)
    write_nulls(records, slot, valid)
    start, size = slot.offset, slot.field.width * column.items
    if slot.field.is_narrow:
        _fill_narrow(records, wire_columns.to_int8(values), slot)
    elif column.wire == INT64:
        words = wire_columns.to_words(values).reshape(len(records), column.items)
        if valid is not None and column.shape:
            # Null lists may contain any items. With zeros, equal rows have equal bytes.
            words[~valid] = 0
        target = records[:, start : start + size].reshape(
            len(records), column.items, slot.field.width
        )
        if not wire.write_varints(target, words, width=slot.field.width):
            raise items.profile_mismatch(column, "a number larger than the maximum")
    elif column.wire == FLOAT:
        numbers = wire_columns.to_float32(values).reshape(len(records), column.items)
        if valid is not None and column.shape:
            numbers = np.where(valid[:, None], numbers, np.float32(0))
        # Items of type V are copied at once per record, and not byte by byte.
        records[:, start : start + size].view(f"V{size}")[:, 0] = np.ascontiguousarray(
            numbers
        ).view(f"V{size}")[:, 0]
    elif slot.field.constant:
        _fill_constant_bytes(
            records, wire_columns.binary_parts(wire_columns.to_bytes(values)), slot, valid
        )
    else:
        _fill_bytes(records, wire_columns.binary_parts(wire_columns.to_bytes(values)), slot)


def _fill_narrow(records: Records, numbers: npt.NDArray[np.int8], slot: Slot) -> None:
    if slot.field.is_signed:
        wire.write_int8(records, slot.offset, numbers)
        return
    if numbers.min(initial=0) < 0:
        raise items.profile_mismatch(
            slot.field.column, "a negative number, but the profile has none"
        )
    records[:, slot.offset] = numbers.view(np.uint8)


def write_nulls(records: Records, slot: Slot, valid: npt.NDArray[np.bool_] | None) -> None:
    """Write the null markers of a column."""
    null_byte = slot.null_byte
    if null_byte is None:
        if valid is not None:
            raise items.profile_mismatch(slot.field.column, "nulls, but the profile has none")
        return
    if valid is None:
        records[:, null_byte.offset] = null_byte.present
    else:
        values = np.where(valid, np.uint8(null_byte.present), np.uint8(null_byte.null))
        records[:, null_byte.offset] = values


BinaryParts = tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]


def _fill_constant_bytes(
    records: Records, strings: BinaryParts, slot: Slot, valid: npt.NDArray[np.bool_] | None
) -> None:
    """Write strings of equal length; the bytes of nulls are zeros."""
    offsets, data = strings
    width = slot.field.width
    lengths = np.diff(offsets)
    if valid is not None:
        lengths = lengths[valid]
    # The data has no bytes of null values, whose lengths are removed above.
    if len(data) != width * len(lengths) or lengths.max(initial=0) > width:
        raise items.profile_mismatch(slot.field.column, f"strings that do not have {width} bytes")
    if width == 0:
        return
    target = records[:, slot.offset : slot.offset + width].view(f"V{width}")[:, 0]
    if valid is None:
        target[...] = data.view(f"V{width}")
    else:
        target[...] = np.zeros(1, f"V{width}")
        target[valid] = data.view(f"V{width}")


def _fill_bytes(records: Records, strings: BinaryParts, slot: Slot) -> None:
    """Write strings of different lengths with their fillers."""
    offsets, data = strings
    lengths = np.diff(offsets)
    if lengths.max(initial=0) > slot.field.width:
        raise items.profile_mismatch(
            slot.field.column, f"a string longer than the maximum of {slot.field.width} bytes"
        )
    items.fill_region(records, lengths, data, slot)


def read_numbers(records: Records, slots: Sequence[Slot]) -> list[npt.NDArray[Any]]:
    """Return integers and floats in the numpy types of the features.

    The shape is (n,) for scalars and (n, items) for lists.
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
    """Return a fixed-size list of numbers per record."""
    column, width = slot.field.column, slot.field.width
    region = records[:, slot.offset : slot.offset + width * column.items]
    if column.wire == INT64:
        words = wire.read_varints(region.reshape(len(records), column.items, width), width=width)
        return wire_columns.from_integers(words, column.leaf)
    numbers = (
        region.view(f"V{4 * column.items}")[:, 0]
        .copy()
        .view("<f4")
        .reshape(len(records), *column.shape or ())
    )
    return numbers.astype(numpy_type(column.leaf), copy=False)


def read_bytes(records: Records, slot: Slot) -> pa.Array:
    """Return strings or binaries as a binary array; null values are empty."""
    width, rows = slot.field.width, len(records)
    if slot.entry is None:
        data, valid = _padded_bytes(records, slot), items.read_present(records, slot)
        if valid is None:
            return items.to_binary_array(np.full(rows, width), data)
        return items.to_binary_array(valid * width, data[valid])
    lengths = items.read_lengths(records, slot)
    # The mask below has one byte per byte of the region, so rows are decoded in chunks.
    step = max(1, CHUNK_BYTES // max(width, 1))
    chunks = [np.zeros(0, np.uint8)]
    for first in range(0, rows, step):
        chunk_lengths = lengths[first : first + step]
        region = records[first : first + step, slot.offset : slot.offset + width]
        chunks.append(region[np.arange(width) < chunk_lengths[:, None]])
    return items.to_binary_array(lengths, np.concatenate(chunks))


def read_padded(records: Records, slot: Slot) -> npt.NDArray[np.bytes_] | None:
    """Return strings or binaries as fixed-width numpy bytes; null values are empty.

    Return None if a value ends with a zero byte, which numpy would strip as padding.
    """
    width = slot.field.width
    if width == 0:
        return None
    data = _padded_bytes(records, slot)
    if slot.entry is None:
        valid = items.read_present(records, slot)
        is_truncated = data[:, -1] == 0
        if valid is not None:
            is_truncated &= valid
    else:
        lengths = items.read_lengths(records, slot)
        data[np.arange(width) >= lengths[:, None]] = 0
        # An empty value has the index -1, and the second condition ignores it.
        is_truncated = (data[np.arange(len(data)), lengths - 1] == 0) & (lengths > 0)
    if is_truncated.any():
        return None
    return data.view(f"S{width}")[:, 0]


def view_bytes(records: Records, slot: Slot) -> Records | None:
    """Return binaries of equal length as a view; the bytes of null values are undefined.

    Return None if the lengths vary.
    """
    if slot.field.column.wire != BYTES or slot.entry is not None or slot.field.width == 0:
        return None
    return records[:, slot.offset : slot.offset + slot.field.width]


def _padded_bytes(records: Records, slot: Slot) -> Records:
    """Return the bytes of strings, including padding."""
    width = slot.field.width
    data = np.empty((len(records), width), np.uint8)
    if width:
        data.view(f"V{width}")[...] = records[:, slot.offset : slot.offset + width].view(
            f"V{width}"
        )
    return data


def read_column(records: Records, slot: Slot) -> pa.Array:
    """Return a column of records as an Arrow array of its feature type."""
    return read_arrays(records, [slot])[0]


def read_arrays(records: Records, slots: Sequence[Slot]) -> list[pa.Array]:
    """Return columns of records as Arrow arrays of their feature types."""
    numbers = iter(read_numbers(records, _numeric_slots(slots)))
    result = []
    for slot in slots:
        column = slot.field.column
        if slot.is_list:
            result.append(items.read_lists(records, slot))
            continue
        if column.wire == BYTES:
            values = wire_columns.bytes_to_arrow(read_bytes(records, slot), column.leaf)
        else:
            values = wire_columns.to_arrow(next(numbers).reshape(-1), column.leaf)
        result.append(wire_columns.assemble(values, column, items.read_present(records, slot)))
    return result


def _numeric_slots(slots: Sequence[Slot]) -> list[Slot]:
    """Return the slots of columns with a fixed count of numbers per row."""
    return [slot for slot in slots if slot.field.column.wire != BYTES and not slot.is_list]


Decoded = tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]


def decode(records: Records, template: Template, columns: Sequence[str]) -> dict[str, Decoded]:
    """Return ``{column: (values, present)}`` for ``RecordAccess.decode``."""
    slots = [template.slot(name) for name in columns]
    numbers = iter(read_numbers(records, _numeric_slots(slots)))
    result: dict[str, Decoded] = {}
    for name, slot in zip(columns, slots, strict=True):
        values: npt.NDArray[Any]
        if slot.is_list:
            values = items.read_item_rows(records, slot)
        elif slot.field.column.wire == BYTES:
            values = read_bytes(records, slot).to_numpy(zero_copy_only=False)
        else:
            values = next(numbers).reshape(len(records), *slot.field.column.shape or ())
        result[name] = values, items.read_present(records, slot)
    return result
