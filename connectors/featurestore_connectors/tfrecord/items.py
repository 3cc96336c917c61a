"""Variable-length values (strings and lists): their encoding, and their regions in records.

All items in a list of numbers have the same width. In a list of strings, each item is preceded by a
tag and a length of constant width, as in ``BytesList``. In fixed-width records, each column has its
own region, in which a filler follows the value, so that the offset of each region is constant.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.batches import create_item_rows
from featurestore.arrow.casts import cast_bytes
from featurestore.arrow.types import numpy_type
from featurestore.errors import DatasetDamaged
from featurestore_connectors.tfrecord import wire, wire_columns
from featurestore_connectors.tfrecord.template import Field, Slot
from featurestore_connectors.tfrecord.wire_columns import BYTES, INT64, WireColumn

Records = npt.NDArray[np.uint8]
_HINT = "featurestore td verify lists the damage"
Bytes = npt.NDArray[np.uint8]
Counts = npt.NDArray[np.int64]
_NOTHING = pa.scalar(b"", pa.binary())


def profile_mismatch(column: WireColumn, difference: str) -> DatasetDamaged:
    """Return the error for values that contradict the profile of their column."""
    return DatasetDamaged(
        f"Column {column.name!r} differs from its profile, computed before writing: {difference}.",
        hint="the source changed while it was read; run the export again",
    )


def encode(array: pa.Array, field: Field) -> tuple[Counts, Bytes]:
    """Encode an array; return the number of bytes per row, and the bytes."""
    column = field.column
    if column.wire == BYTES and column.shape == ():
        offsets, data = wire_columns.binary_parts(wire_columns.to_bytes(array))
        return np.diff(offsets), data
    counts, values = wire_columns.ragged_values(array, column)
    if column.wire == BYTES:
        return _encode_strings(counts, wire_columns.to_bytes(values), field)
    if column.wire == INT64:
        data = np.empty((len(values), field.width), np.uint8)
        if not wire.write_varints(data, wire_columns.to_words(values), width=field.width):
            raise profile_mismatch(column, "a number larger than the maximum")
        return counts * field.width, data.reshape(-1)
    return counts * field.width, np.ascontiguousarray(wire_columns.to_float32(values)).view(
        np.uint8
    )


def _encode_strings(counts: Counts, values: pa.Array, field: Field) -> tuple[Counts, Bytes]:
    """Encode lists of strings; return the number of bytes per row, and the bytes."""
    offsets, _ = wire_columns.binary_parts(values)
    lengths = np.diff(offsets)
    if lengths.max(initial=0) >= 1 << 7 * field.width:
        raise profile_mismatch(field.column, "a string longer than the maximum")
    # Each string is preceded by the tag of BytesList.value and its length.
    heads = np.full((len(values), field.item_head), wire.FEATURES, np.uint8)
    wire.write_varints(heads[:, 1:], lengths.astype(np.uint64), width=field.width)
    joined, data = wire_columns.binary_parts(
        pc.binary_join_element_wise(rows_to_binary_array(heads), values, _NOTHING)
    )
    ends = np.concatenate([[0], np.cumsum(counts)])
    return np.diff(joined[ends]), data


def decode(data: Bytes, begins: Counts, lengths: Counts, field: Field) -> tuple[Counts, pa.Array]:
    """Return the number of items per row, and the items of all rows.

    The encoded items of a row are the ``lengths`` bytes at ``begins`` in ``data``.

    Raises:
        IndexError, ValueError: The bytes are damaged.
    """
    leaf = field.column.leaf
    if field.item_head:
        counts, offsets, sizes = _locate_strings(data, begins, lengths, field)
        return counts, wire_columns.bytes_to_arrow(
            to_binary_array(sizes, concatenate_ranges(data, offsets, sizes)), leaf
        )
    if (lengths % field.width).any():
        raise ValueError("a list ends within an item")
    # All items have the same width, so that one numpy call decodes them all.
    item_bytes = concatenate_ranges(data, begins, lengths)
    if field.column.wire == INT64:
        words = wire.read_varints(item_bytes.reshape(-1, field.width), width=field.width)
        return lengths // field.width, wire_columns.to_arrow(
            wire_columns.from_integers(words, leaf), leaf
        )
    numbers = item_bytes.view("<f4").astype(numpy_type(leaf), copy=False)
    return lengths // field.width, wire_columns.to_arrow(numbers, leaf)


def _locate_strings(
    data: Bytes, begins: Counts, lengths: Counts, field: Field
) -> tuple[Counts, Counts, Counts]:
    """Return the number of strings per row, and the offset and length of each string."""
    counts, cursors, ends = np.zeros(len(begins), np.int64), begins.copy(), begins + lengths
    rows = np.flatnonzero(cursors < ends)
    item_rows, starts, sizes = [np.zeros(0, np.int64)], [begins[:0]], [begins[:0]]
    # Each iteration locates the next string of all rows that have one.
    while len(rows):
        heads = take(data, cursors[rows] + 1, field.width)
        item_lengths = wire.read_varints(heads, width=field.width).view(np.int64)
        item_rows.append(rows)
        starts.append(cursors[rows] + field.item_head)
        sizes.append(item_lengths)
        counts[rows] += 1
        cursors[rows] += field.item_head + item_lengths
        rows = rows[cursors[rows] < ends[rows]]
    if not np.array_equal(cursors, ends):
        raise ValueError("strings do not end at the end of their list")
    # The strings are ordered by position in their list. A stable sort orders them by row.
    order = np.argsort(np.concatenate(item_rows), kind="stable")
    return counts, np.concatenate(starts)[order], np.concatenate(sizes)[order]


def lists(
    counts: Counts, values: pa.Array, column: WireColumn, valid: npt.NDArray[np.bool_] | None
) -> pa.Array:
    """Return the items of all rows as lists of the column type, with nulls."""
    if column.shape is not None:
        return wire_columns.assemble(_insert_null_items(values, column, valid), column, valid)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    nulls, bitmap = 0, None
    if valid is not None:
        nulls = int((~valid).sum())
    if valid is not None and nulls:
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    buffers: list[Any] = [bitmap, pa.py_buffer(offsets)]
    return pa.Array.from_buffers(column.dtype, len(counts), buffers, nulls, children=[values])


def _insert_null_items(
    values: pa.Array, column: WireColumn, valid: npt.NDArray[np.bool_] | None
) -> pa.Array:
    """Insert arbitrary items for null rows."""
    if valid is None:
        return values
    first_items = np.maximum(np.cumsum(valid) - 1, 0) * column.items
    if len(values) == 0:
        # All rows are null, so the inserted items are new.
        empty = pa.array([b""] * column.items, pa.binary())
        values, first_items = wire_columns.bytes_to_arrow(empty, column.leaf), first_items * 0
    return values.take(pa.array((first_items[:, None] + np.arange(column.items)).reshape(-1)))


def fill_region(
    records: Records, lengths: npt.NDArray[np.int64], data: Records, slot: Slot
) -> None:
    """Write variable-length values, their lengths and the fillers."""
    entry, max_bytes = slot.entry, slot.field.max_bytes
    assert entry is not None
    for position, extra in entry.lengths:
        start = slot.entry_offset + position
        words = (lengths + extra).astype(np.uint64)
        wire.write_varints(
            records[:, start : start + entry.length_width], words, width=entry.length_width
        )
    region = records[:, slot.offset : slot.offset + slot.values_bytes]
    # The block is reused, so the region may contain bytes of an earlier record.
    region[...] = 0
    region[np.arange(slot.values_bytes) < lengths[:, None]] = data
    fillers = np.zeros((len(records), slot.filler_width), np.uint8)
    wire.write_varints(fillers, (max_bytes - lengths).astype(np.uint64), width=slot.filler_width)
    rows = np.arange(len(records))
    # The filler is an unknown field, which parsers skip. It makes the region as wide as its
    # maximum.
    region[rows, lengths] = wire.SKIPPED
    for position in range(slot.filler_width):
        region[rows, lengths + 1 + position] = fillers[:, position]


def fill_lists(records: Records, array: pa.Array, slot: Slot) -> None:
    """Write the lists of a column to its region."""
    lengths, data = encode(array, slot.field)
    if lengths.max(initial=0) > slot.field.max_bytes:
        raise profile_mismatch(slot.field.column, "a list longer than the maximum")
    fill_region(records, lengths, data, slot)


def read_present(records: Records, slot: Slot) -> npt.NDArray[np.bool_] | None:
    """Return the mask of rows with a value, or None for columns without nulls."""
    if slot.null_byte is None:
        return None
    return records[:, slot.null_byte.offset] != slot.null_byte.null


def read_lengths(records: Records, slot: Slot) -> npt.NDArray[np.int64]:
    """Return the lengths of variable-length values, in bytes."""
    if slot.entry is None:
        raise TypeError("constant-length strings have no stored lengths")
    start, size = slot.entry_offset + slot.entry.lengths[-1][0], slot.entry.length_width
    return wire.read_varints(records[:, start : start + size], width=size).view(np.int64)


def _read_region(records: Records, slot: Slot) -> tuple[npt.NDArray[np.int64], Records]:
    """Return the lengths of lists in bytes, and the bytes, padded with zeros."""
    lengths, max_bytes = read_lengths(records, slot), slot.field.max_bytes
    if lengths.max(initial=0) > max_bytes:
        raise DatasetDamaged(
            f"A list of column {slot.field.column.name!r} has {lengths.max():,} bytes, but its "
            f"records reserve only {max_bytes:,}.",
            hint=_HINT,
        )
    region = np.ascontiguousarray(records[:, slot.offset : slot.offset + max_bytes])
    return lengths, np.where(np.arange(max_bytes) < lengths[:, None], region, np.uint8(0))


def read_lists(records: Records, slot: Slot) -> pa.Array:
    """Return lists as an Arrow array of the column type."""
    lengths, region = _read_region(records, slot)
    begins = np.arange(len(records)) * slot.field.max_bytes
    try:
        counts, values = decode(region.reshape(-1), begins, lengths, slot.field)
        return lists(counts, values, slot.field.column, read_present(records, slot))
    except (IndexError, ValueError, pa.ArrowInvalid) as error:
        raise DatasetDamaged(
            f"Lists of column {slot.field.column.name!r} cannot be decoded: {error}.",
            hint=_HINT,
        ) from error


def read_item_rows(records: Records, slot: Slot) -> npt.NDArray[Any]:
    """Return lists in the format of ``RecordAccess.decode``: rows of items with their lengths."""
    field, column = slot.field, slot.field.column
    if field.item_head:
        return _string_rows(read_lists(records, slot), slot)
    lengths, region = _read_region(records, slot)
    if column.wire == INT64:
        words = region.reshape(len(records), field.longest, field.width)
        numbers = wire_columns.from_integers(
            wire.read_varints(words, width=field.width), column.leaf
        )
    else:
        numbers = region.view("<f4").astype(numpy_type(column.leaf), copy=False)
    rows = create_item_rows(len(records), field.longest, numbers.dtype)
    rows["items"] = numbers.reshape(rows["items"].shape)
    rows["length"] = lengths // field.width
    return rows


def _string_rows(lists: pa.Array, slot: Slot) -> npt.NDArray[Any]:
    """Return lists of strings as object arrays: of one shape, or rows of items with lengths."""
    shape, count = slot.field.column.shape, len(lists)
    flat = lists
    while pat.is_list(flat.type) or pat.is_fixed_size_list(flat.type):
        flat = flat.flatten()
    strings = cast_bytes(flat, pa.large_binary()).to_numpy(zero_copy_only=False)
    if shape is not None:
        values = np.full((count, slot.field.column.items), b"", dtype=object)
        is_valid = lists.is_valid().to_numpy(zero_copy_only=False)
        values[is_valid] = strings.reshape(-1, slot.field.column.items)
        return values.reshape(count, *shape)
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    rows = create_item_rows(count, slot.field.longest, np.dtype(object))
    rows["items"][np.arange(slot.field.longest) < lengths[:, None]] = strings
    rows["length"] = lengths
    return rows


def rows_to_binary_array(rows: Bytes) -> pa.Array:
    """Return the rows of a byte matrix as a binary array."""
    count, width = rows.shape
    return to_binary_array(np.full(count, width), np.ascontiguousarray(rows).reshape(-1))


def to_binary_array(lengths: Counts, data: Bytes) -> pa.Array:
    """Return a binary array of values that are concatenated in ``data``."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers, 0)


def take(data: Bytes, offsets: Counts, width: int) -> Bytes:
    """Return the ``width`` bytes at each offset, of shape (n, width), copied at once per offset."""
    if len(offsets) == 0 or width == 0:
        return np.zeros((len(offsets), width), np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(data, width)
    return np.ascontiguousarray(windows[offsets])


def concatenate_ranges(data: Bytes, begins: Counts, lengths: Counts) -> Bytes:
    """Return the concatenated bytes of ranges."""
    preceding_bytes = np.cumsum(lengths) - lengths
    return data[np.repeat(begins - preceding_bytes, lengths) + np.arange(int(lengths.sum()))]
