"""Values of different lengths in records of one width: each column has a region of its own.

What stands in a region is filled up behind the value, so that every region begins at one place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.errors import DatasetDamaged
from featurestore.model.fixed_bytes import cast_bytes
from featurestore.model.item_rows import item_rows
from featurestore.model.types import numpy_type
from featurestore_connectors.tfrecord import items, wire
from featurestore_connectors.tfrecord.items import not_as_counted
from featurestore_connectors.tfrecord.template import Slot
from featurestore_connectors.tfrecord.wire_columns import INT64, from_integers

Records = npt.NDArray[np.uint8]
_HINT = "featurestore td verify names what is wrong"


def fill_region(
    records: Records, lengths: npt.NDArray[np.int64], data: Records, slot: Slot
) -> None:
    """Write values of different lengths, their lengths, and what fills up the rest."""
    entry, most = slot.entry, slot.field.most_bytes
    assert entry is not None
    for place, extra in entry.lengths:
        start = slot.entry_offset + place
        words = (lengths + extra).astype(np.uint64)
        wire.write_varints(
            records[:, start : start + entry.length_width], words, width=entry.length_width
        )
    region = records[:, slot.offset : slot.offset + slot.values_bytes]
    region[...] = 0
    region[np.arange(slot.values_bytes) < lengths[:, None]] = data
    rest = np.zeros((len(records), slot.filler_width), np.uint8)
    wire.write_varints(rest, (most - lengths).astype(np.uint64), width=slot.filler_width)
    rows = np.arange(len(records))
    region[rows, lengths] = wire.SKIPPED
    for place in range(slot.filler_width):
        region[rows, lengths + 1 + place] = rest[:, place]


def fill_lists(records: Records, array: pa.Array, slot: Slot) -> None:
    """Write the lists of a column into its region."""
    lengths, data = items.encode(array, slot.field)
    if lengths.max(initial=0) > slot.field.most_bytes:
        raise not_as_counted(slot.field.column, "a list is longer than all that were counted")
    fill_region(records, lengths, data, slot)


def read_present(records: Records, slot: Slot) -> npt.NDArray[np.bool_] | None:
    """Return which rows have a value, None for columns without nulls."""
    if slot.null_byte is None:
        return None
    return records[:, slot.null_byte.offset] != slot.null_byte.null


def read_lengths(records: Records, slot: Slot) -> npt.NDArray[np.int64]:
    """Return the bytes of values of different lengths."""
    if slot.entry is None:
        raise TypeError("strings of one length keep none")
    start, size = slot.entry_offset + slot.entry.lengths[-1][0], slot.entry.length_width
    return wire.read_varints(records[:, start : start + size], width=size).view(np.int64)


def _region(records: Records, slot: Slot) -> tuple[npt.NDArray[np.int64], Records]:
    """Return how many bytes the lists of records have, and where they stand, zeros behind them."""
    lengths, most = read_lengths(records, slot), slot.field.most_bytes
    if lengths.max(initial=0) > most:
        raise DatasetDamaged(
            f"A list of column {slot.field.column.name!r} has {lengths.max():,} bytes, where its "
            f"records have room for {most:,}.",
            hint=_HINT,
        )
    region = np.ascontiguousarray(records[:, slot.offset : slot.offset + most])
    return lengths, np.where(np.arange(most) < lengths[:, None], region, np.uint8(0))


def read_lists(records: Records, slot: Slot) -> pa.Array:
    """Return lists as the column's type."""
    lengths, region = _region(records, slot)
    begins = np.arange(len(records)) * slot.field.most_bytes
    try:
        counts, values = items.decode(region.reshape(-1), begins, lengths, slot.field)
        return items.lists(counts, values, slot.field.column, read_present(records, slot))
    except (IndexError, ValueError, pa.ArrowInvalid) as error:
        raise DatasetDamaged(
            f"Lists of column {slot.field.column.name!r} cannot be decoded: {error}.",
            hint=_HINT,
        ) from error


def rows_of_items(records: Records, slot: Slot) -> npt.NDArray[Any]:
    """Return lists as ``RecordAccess.decode`` promises them: items in rows, and how many."""
    field, column = slot.field, slot.field.column
    if field.item_head:
        return _rows_of_texts(read_lists(records, slot), slot)
    lengths, region = _region(records, slot)
    if column.wire == INT64:
        several = region.reshape(len(records), field.longest, field.width)
        numbers = from_integers(wire.read_varints(several, width=field.width), column.leaf)
    else:
        numbers = region.view("<f4").astype(numpy_type(column.leaf), copy=False)
    rows = item_rows(len(records), field.longest, numbers.dtype)
    rows["items"] = numbers.reshape(rows["items"].shape)
    rows["length"] = lengths // field.width
    return rows


def _rows_of_texts(lists: pa.Array, slot: Slot) -> npt.NDArray[Any]:
    """Return lists of texts as objects: in rows of one shape, or items and how many."""
    shape, count = slot.field.column.shape, len(lists)
    flat = lists
    while pat.is_list(flat.type) or pat.is_fixed_size_list(flat.type):
        flat = flat.flatten()
    texts = cast_bytes(flat, pa.large_binary()).to_numpy(zero_copy_only=False)
    if shape is not None:
        values = np.full((count, slot.field.column.items), b"", dtype=object)
        there = lists.is_valid().to_numpy(zero_copy_only=False)
        values[there] = texts.reshape(-1, slot.field.column.items)
        return values.reshape(count, *shape)
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    rows = item_rows(count, slot.field.longest, np.dtype(object))
    rows["items"][np.arange(slot.field.longest) < lengths[:, None]] = texts
    rows["length"] = lengths
    return rows
