"""Records as long as their rows need, and the index of offsets beside each shard.

A record is ``frame header | features of the columns of constant width | one features field for each
other column | CRC``; protobuf merges the fields. The index holds ``rows + 1`` little-endian 64-bit
offsets: of each record and of the end of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from featurestore.model.types import numpy_type
from featurestore_connectors.tfrecord import framing, wire
from featurestore_connectors.tfrecord.columns import (
    BYTES,
    INT64,
    assemble,
    binary_parts,
    bytes_to_arrow,
    floats,
    from_integers,
    integers,
    present,
    ragged,
    texts,
    to_arrow,
)
from featurestore_connectors.tfrecord.fixed import Encoder, Records, not_as_counted, read_column
from featurestore_connectors.tfrecord.layout import RecordLayout, Tail

BYTES_AT_ONCE = 1 << 26
INDEX_SUFFIX = ".idx"
Parts = tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]
_NOTHING = pa.scalar(b"", pa.binary())


class VariableEncoder:
    """Turns record batches into framed records of different lengths."""

    def __init__(self, layout: RecordLayout) -> None:
        self._tails = layout.tails
        self._head = Encoder(layout.template)
        self.block_rows = self._head.block_rows

    def framed(
        self, batch: pa.RecordBatch
    ) -> Iterator[tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]]:
        """Yield the bytes of records with their lengths."""
        for piece in _small(batch):
            for part, head in self._head.blocks(piece):
                yield self._frame(part, head)

    def _frame(
        self, batch: pa.RecordBatch, head: Records
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        parts = [_binary_rows(head)]
        for tail in self._tails:
            parts += _encode(
                batch.column(batch.schema.get_field_index(tail.field.column.name)), tail
            )
        payload = pc.binary_join_element_wise(*parts, _NOTHING)
        offsets, data = binary_parts(payload)
        lengths = np.diff(offsets)
        bounds = list(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True))
        footers = framing.checksums(data, bounds).astype("<u4")[:, None].view(np.uint8)
        framed = pc.binary_join_element_wise(
            _headers(lengths), payload, _binary_rows(footers), _NOTHING
        )
        return binary_parts(framed)[1], lengths + framing.FRAMING


def _small(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the batch in pieces that fit memory also when texts are long."""
    if batch.nbytes <= BYTES_AT_ONCE or batch.num_rows < 2:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _small(batch.slice(0, half))
    yield from _small(batch.slice(half))


def _headers(lengths: npt.NDArray[np.int64]) -> pa.Array:
    distinct, place = np.unique(lengths, return_inverse=True)
    headers = b"".join(framing.header(int(length)) for length in distinct)
    return _binary_rows(np.frombuffer(headers, np.uint8).reshape(-1, framing.HEADER)[place])


def _binary_rows(rows: npt.NDArray[np.uint8]) -> pa.Array:
    """Return the rows of a byte matrix as a binary array."""
    count, width = rows.shape
    return _binary(np.full(count, width), np.ascontiguousarray(rows).reshape(-1))


def _binary(lengths: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.Array.from_buffers(
        pa.binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(data)], 0
    )


def _encode(array: pa.Array, tail: Tail) -> list[pa.Array]:
    """Return heads and values of one column, a binary array each."""
    lengths, data = _values(array, tail)
    field, entry = tail.field, tail.entry
    valid = present(array)
    if valid is not None and not field.nullable:
        raise not_as_counted(field.column, "there are nulls where none were counted")
    if lengths.max(initial=0) + entry.lengths[0][1] >= 1 << 7 * entry.length_width:
        raise not_as_counted(field.column, "a value is longer than all that were counted")
    heads = np.tile(np.frombuffer(entry.head, np.uint8), (len(array), 1))
    for place, extra in entry.lengths:
        words = (lengths + extra).astype(np.uint64)
        wire.write_varints(
            heads[:, place : place + entry.length_width], words, width=entry.length_width
        )
    if valid is not None:
        heads[~valid, entry.key_offset] = wire.MASKED
    return [_binary_rows(heads), _binary(lengths, data)]


def _values(array: pa.Array, tail: Tail) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return how many bytes the values of each row have, and the bytes."""
    field, column = tail.field, tail.field.column
    if column.wire == BYTES and column.shape == ():
        offsets, data = binary_parts(texts(array))
        return np.diff(offsets), data
    counts, values = ragged(array, column)
    if column.wire == BYTES:
        return _encode_texts(counts, texts(values), tail)
    if column.wire == INT64:
        data = np.empty((len(values), field.width), np.uint8)
        if not wire.write_varints(data, integers(values), width=field.width):
            raise not_as_counted(column, "a number is larger than all that were counted")
        return counts * field.width, data.reshape(-1)
    return counts * field.width, np.ascontiguousarray(floats(values)).view(np.uint8)


def _encode_texts(
    counts: npt.NDArray[np.int64], values: pa.Array, tail: Tail
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    offsets, _ = binary_parts(values)
    heads = np.full((len(values), tail.item_head), wire.FEATURES, np.uint8)
    wire.write_varints(heads[:, 1:], np.diff(offsets).astype(np.uint64), width=tail.item_head - 1)
    joined, data = binary_parts(pc.binary_join_element_wise(_binary_rows(heads), values, _NOTHING))
    ends = np.concatenate([[0], np.cumsum(counts)])
    return np.diff(joined[ends]), data


# -- decoding -----------------------------------------------------------------


class Span:
    """Records ``[start, stop)`` of a shard as bytes, with where each begins."""

    def __init__(
        self, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], layout: RecordLayout
    ) -> None:
        self._data, self._layout = data, layout
        self._starts = starts + framing.HEADER
        self._heads: Records | None = None
        self._tails: dict[str, tuple[Tail, npt.NDArray[np.int64], npt.NDArray[np.int64]]] = {}
        place = self._starts + len(layout.template.data)
        for tail in layout.tails:
            size, entry = tail.entry.length_width, tail.entry
            lengths = wire.read_varints(
                self._take(place + entry.lengths[-1][0], size), width=size
            ).view(np.int64)
            self._tails[tail.field.column.name] = tail, place, lengths
            place = place + len(entry.head) + lengths
        self.ends = place + framing.FOOTER

    def column(self, name: str) -> pa.Array:
        """Return a column as its feature type."""
        if name not in self._tails:
            if self._heads is None:
                # With the bytes behind, of which there are always so many: varints are read a whole
                # word at a time.
                self._heads = self._take(
                    self._starts, len(self._layout.template.data) + framing.FOOTER
                )
            return read_column(self._heads, self._layout.template.slot(name))
        tail, place, lengths = self._tails[name]
        entry = tail.entry
        valid = self._data[place + entry.key_offset] != wire.MASKED if tail.field.nullable else None
        begins = place + len(entry.head)
        if tail.field.column.shape == ():
            values = bytes_to_arrow(
                _binary(lengths, self._spans(begins, lengths)), tail.field.column.leaf
            )
            return with_nulls(values, valid)
        counts, values = self._items(tail, begins, lengths)
        return _lists(counts, values, tail, valid)

    def _items(
        self, tail: Tail, begins: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], pa.Array]:
        field, leaf = tail.field, tail.field.column.leaf
        if tail.item_head:
            counts, texts_at, sizes = self._texts(tail, begins, lengths)
            return counts, bytes_to_arrow(_binary(sizes, self._spans(texts_at, sizes)), leaf)
        data = self._spans(begins, lengths)
        if field.column.wire == INT64:
            words = wire.read_varints(data.reshape(-1, field.width), width=field.width)
            return lengths // field.width, to_arrow(from_integers(words, leaf), leaf)
        numbers = data.view("<f4").astype(numpy_type(leaf), copy=False)
        return lengths // field.width, to_arrow(numbers, leaf)

    def _texts(
        self, tail: Tail, begins: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
    ) -> Any:
        """Return the texts of each row.

        How many, where they begin and how long they are, row by row.
        """
        counts, place, ends = np.zeros(len(begins), np.int64), begins.copy(), begins + lengths
        rows = np.flatnonzero(place < ends)
        found = []
        while len(rows):
            heads = self._take(place[rows] + 1, tail.item_head - 1)
            sizes = wire.read_varints(heads, width=tail.item_head - 1).view(np.int64)
            found.append((rows, place[rows] + tail.item_head, sizes))
            counts[rows] += 1
            place[rows] += tail.item_head + sizes
            rows = rows[place[rows] < ends[rows]]
        if not found:
            return counts, np.zeros(0, np.int64), np.zeros(0, np.int64)
        owners, starts, sizes = (np.concatenate(each) for each in zip(*found, strict=True))
        order = np.argsort(owners, kind="stable")
        return counts, starts[order], sizes[order]

    def _take(self, places: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.uint8]:
        """Return ``width`` bytes at each place, shape (n, width).

        One copy each, no index of single bytes.
        """
        if len(places) == 0 or width == 0:
            return np.zeros((len(places), width), np.uint8)
        windows = np.lib.stride_tricks.sliding_window_view(self._data, width)
        return np.ascontiguousarray(windows[places])

    def _spans(
        self, begins: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.uint8]:
        """Return the bytes of spans, one after the other."""
        before = np.cumsum(lengths) - lengths
        return self._data[np.repeat(begins - before, lengths) + np.arange(int(lengths.sum()))]


def with_nulls(values: pa.Array, valid: npt.NDArray[np.bool_] | None) -> pa.Array:
    """Return an array with nulls where ``valid`` is False."""
    return (
        values
        if valid is None
        else pc.if_else(pa.array(valid), values, pa.scalar(None, values.type))
    )


def _lists(
    counts: npt.NDArray[np.int64], values: pa.Array, tail: Tail, valid: npt.NDArray[np.bool_] | None
) -> pa.Array:
    column, rows = tail.field.column, len(counts)
    if column.shape is not None:
        if valid is not None:
            # A null has places for its items, too: any value may stand there.
            kept = np.maximum(np.cumsum(valid) - 1, 0) * column.items
            if len(values) == 0:
                values, kept = (
                    bytes_to_arrow(pa.array([b""] * column.items, pa.binary()), column.leaf),
                    kept * 0,
                )
            values = values.take(pa.array((kept[:, None] + np.arange(column.items)).reshape(-1)))
        return assemble(values, column, valid)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    nulls = 0 if valid is None else int((~valid).sum())
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None  # type: ignore[arg-type]
    return pa.Array.from_buffers(
        column.kind, rows, [bitmap, pa.py_buffer(offsets)], nulls, children=[values]
    )


def index_bytes(lengths: list[npt.NDArray[np.int64]]) -> bytes:
    """Return the index of records of these lengths."""
    total = np.concatenate([np.zeros(1, np.int64), *lengths])
    return np.cumsum(total).astype("<u8").tobytes()
