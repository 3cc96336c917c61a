"""Variable-length values in fixed-width records: each column has its own region.

A filler follows the value, so that the offset of each region is constant.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.batches import item_rows
from featurestore.arrow.casts import cast_bytes
from featurestore.arrow.types import numpy_type
from featurestore.errors import DatasetDamaged
from featurestore_connectors.tfrecord import items, wire
from featurestore_connectors.tfrecord.items import profile_mismatch
from featurestore_connectors.tfrecord.template import Slot
from featurestore_connectors.tfrecord.wire_columns import INT64, from_integers

Records = npt.NDArray[np.uint8]
_HINT = "featurestore td verify names what is wrong"


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
    region[...] = 0
    region[np.arange(slot.values_bytes) < lengths[:, None]] = data
    fillers = np.zeros((len(records), slot.filler_width), np.uint8)
    wire.write_varints(fillers, (max_bytes - lengths).astype(np.uint64), width=slot.filler_width)
    rows = np.arange(len(records))
    region[rows, lengths] = wire.SKIPPED
    for position in range(slot.filler_width):
        region[rows, lengths + 1 + position] = fillers[:, position]


def fill_lists(records: Records, array: pa.Array, slot: Slot) -> None:
    """Write the lists of a column into its region."""
    lengths, data = items.encode(array, slot.field)
    if lengths.max(initial=0) > slot.field.max_bytes:
        raise profile_mismatch(slot.field.column, "a list is longer than all that were counted")
    fill_region(records, lengths, data, slot)


def read_present(records: Records, slot: Slot) -> npt.NDArray[np.bool_] | None:
    """Return the mask of rows with a value, None for columns without nulls."""
    if slot.null_byte is None:
        return None
    return records[:, slot.null_byte.offset] != slot.null_byte.null


def read_lengths(records: Records, slot: Slot) -> npt.NDArray[np.int64]:
    """Return the lengths in bytes of variable-length values."""
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
            f"records have room for {max_bytes:,}.",
            hint=_HINT,
        )
    region = np.ascontiguousarray(records[:, slot.offset : slot.offset + max_bytes])
    return lengths, np.where(np.arange(max_bytes) < lengths[:, None], region, np.uint8(0))


def read_lists(records: Records, slot: Slot) -> pa.Array:
    """Return lists as an Arrow array of the column's type."""
    lengths, region = _read_region(records, slot)
    begins = np.arange(len(records)) * slot.field.max_bytes
    try:
        counts, values = items.decode(region.reshape(-1), begins, lengths, slot.field)
        return items.lists(counts, values, slot.field.column, read_present(records, slot))
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
        numbers = from_integers(wire.read_varints(words, width=field.width), column.leaf)
    else:
        numbers = region.view("<f4").astype(numpy_type(column.leaf), copy=False)
    rows = item_rows(len(records), field.longest, numbers.dtype)
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
    rows = item_rows(count, slot.field.longest, np.dtype(object))
    rows["items"][np.arange(slot.field.longest) < lengths[:, None]] = strings
    rows["length"] = lengths
    return rows
