"""Values of different lengths as the bytes between their heads, and back: texts and lists.

The items of a list of numbers have one width each. Those of a list of texts have a tag and a length
of constant width before them, as ``BytesList`` wants it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from featurestore.errors import DatasetDamaged
from featurestore.model.types import numpy_type
from featurestore_connectors.tfrecord import wire
from featurestore_connectors.tfrecord.template import Field
from featurestore_connectors.tfrecord.wire_columns import (
    BYTES,
    INT64,
    WireColumn,
    assemble,
    binary_parts,
    bytes_to_arrow,
    floats,
    from_integers,
    integers,
    ragged,
    texts,
    to_arrow,
)

Bytes = npt.NDArray[np.uint8]
Counts = npt.NDArray[np.int64]
_NOTHING = pa.scalar(b"", pa.binary())


def not_as_counted(column: WireColumn, what: str) -> DatasetDamaged:
    """Return the error for values that the profile, counted before, did not have."""
    return DatasetDamaged(
        f"Column {column.name!r} is not as it was counted before writing: {what}.",
        hint="the source changed while it was read; run the export again",
    )


def binary_rows(rows: Bytes) -> pa.Array:
    """Return the rows of a byte matrix as a binary array."""
    count, width = rows.shape
    return binary(np.full(count, width), np.ascontiguousarray(rows).reshape(-1))


def binary(lengths: Counts, data: Bytes) -> pa.Array:
    """Return values of these lengths, one behind the other in ``data``, as a binary array."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers, 0)


# -- encoding -----------------------------------------------------------------


def encode(array: pa.Array, field: Field) -> tuple[Counts, Bytes]:
    """Return how many bytes the values of each row have, and the bytes."""
    column = field.column
    if column.wire == BYTES and column.shape == ():
        offsets, data = binary_parts(texts(array))
        return np.diff(offsets), data
    counts, values = ragged(array, column)
    if column.wire == BYTES:
        return _encode_texts(counts, texts(values), field)
    if column.wire == INT64:
        data = np.empty((len(values), field.width), np.uint8)
        if not wire.write_varints(data, integers(values), width=field.width):
            raise not_as_counted(column, "a number is larger than all that were counted")
        return counts * field.width, data.reshape(-1)
    return counts * field.width, np.ascontiguousarray(floats(values)).view(np.uint8)


def _encode_texts(counts: Counts, values: pa.Array, field: Field) -> tuple[Counts, Bytes]:
    offsets, _ = binary_parts(values)
    lengths = np.diff(offsets)
    if lengths.max(initial=0) >= 1 << 7 * field.width:
        raise not_as_counted(field.column, "a text is longer than all that were counted")
    heads = np.full((len(values), field.item_head), wire.FEATURES, np.uint8)
    wire.write_varints(heads[:, 1:], lengths.astype(np.uint64), width=field.width)
    joined, data = binary_parts(pc.binary_join_element_wise(binary_rows(heads), values, _NOTHING))
    ends = np.concatenate([[0], np.cumsum(counts)])
    return np.diff(joined[ends]), data


# -- decoding -----------------------------------------------------------------


def decode(data: Bytes, begins: Counts, lengths: Counts, field: Field) -> tuple[Counts, pa.Array]:
    """Return how many items each row has, and the items of all rows.

    ``begins`` and ``lengths`` tell where the bytes of a row's items lie in ``data``. IndexError and
    ValueError are raised for bytes that ``encode`` does not write.
    """
    leaf = field.column.leaf
    if field.item_head:
        counts, places, sizes = _texts(data, begins, lengths, field)
        return counts, bytes_to_arrow(binary(sizes, spans(data, places, sizes)), leaf)
    if (lengths % field.width).any():
        raise ValueError("a list ends within an item")
    found = spans(data, begins, lengths)
    if field.column.wire == INT64:
        words = wire.read_varints(found.reshape(-1, field.width), width=field.width)
        return lengths // field.width, to_arrow(from_integers(words, leaf), leaf)
    numbers = found.view("<f4").astype(numpy_type(leaf), copy=False)
    return lengths // field.width, to_arrow(numbers, leaf)


def _texts(
    data: Bytes, begins: Counts, lengths: Counts, field: Field
) -> tuple[Counts, Counts, Counts]:
    """Return the texts of each row: how many, where they begin and how long they are."""
    counts, place, ends = np.zeros(len(begins), np.int64), begins.copy(), begins + lengths
    rows = np.flatnonzero(place < ends)
    owners, starts, sizes = [np.zeros(0, np.int64)], [begins[:0]], [begins[:0]]
    while len(rows):
        heads = take(data, place[rows] + 1, field.width)
        found = wire.read_varints(heads, width=field.width).view(np.int64)
        owners.append(rows)
        starts.append(place[rows] + field.item_head)
        sizes.append(found)
        counts[rows] += 1
        place[rows] += field.item_head + found
        rows = rows[place[rows] < ends[rows]]
    if not np.array_equal(place, ends):
        raise ValueError("texts end elsewhere than their list")
    order = np.argsort(np.concatenate(owners), kind="stable")
    return counts, np.concatenate(starts)[order], np.concatenate(sizes)[order]


def take(data: Bytes, places: Counts, width: int) -> Bytes:
    """Return ``width`` bytes at each place, shape (n, width).

    One copy each, no index of single bytes.
    """
    if len(places) == 0 or width == 0:
        return np.zeros((len(places), width), np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(data, width)
    return np.ascontiguousarray(windows[places])


def spans(data: Bytes, begins: Counts, lengths: Counts) -> Bytes:
    """Return the bytes of spans, one after the other."""
    before = np.cumsum(lengths) - lengths
    return data[np.repeat(begins - before, lengths) + np.arange(int(lengths.sum()))]


def lists(
    counts: Counts, values: pa.Array, column: WireColumn, valid: npt.NDArray[np.bool_] | None
) -> pa.Array:
    """Return the items of all rows as lists of the column's type, with its nulls."""
    if column.shape is not None:
        return assemble(_with_places_of_nulls(values, column, valid), column, valid)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    nulls, bitmap = 0, None
    if valid is not None:
        nulls = int((~valid).sum())
    if valid is not None and nulls:
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    buffers: list[Any] = [bitmap, pa.py_buffer(offsets)]
    return pa.Array.from_buffers(column.kind, len(counts), buffers, nulls, children=[values])


def _with_places_of_nulls(
    values: pa.Array, column: WireColumn, valid: npt.NDArray[np.bool_] | None
) -> pa.Array:
    """Return items with places for those of nulls, too; any value may stand there."""
    if valid is None:
        return values
    kept = np.maximum(np.cumsum(valid) - 1, 0) * column.items
    if len(values) == 0:
        empty = pa.array([b""] * column.items, pa.binary())
        values, kept = bytes_to_arrow(empty, column.leaf), kept * 0
    return values.take(pa.array((kept[:, None] + np.arange(column.items)).reshape(-1)))
