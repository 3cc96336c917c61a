"""Variable-length records, with an index file of offsets for each shard.

A record is ``frame header | features of the columns of constant width | one features field for each
other column | CRC``. Protobuf merges the fields. The index contains ``rows + 1`` little-endian
64-bit offsets: of each record, and of the end of the file.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from featurestore_connectors.tfrecord import items, wire
from featurestore_connectors.tfrecord.fixed import Encoder, Records, read_column
from featurestore_connectors.tfrecord.items import profile_mismatch
from featurestore_connectors.tfrecord.layout import RecordLayout, Tail
from featurestore_connectors.tfrecord.wire_columns import (
    binary_parts,
    bytes_to_arrow,
    presence_mask,
)

CHUNK_BYTES = 1 << 26
INDEX_SUFFIX = ".idx"
_NOTHING = pa.scalar(b"", pa.binary())


class VariableEncoder:
    """Encodes record batches to framed variable-length records."""

    def __init__(self, layout: RecordLayout) -> None:
        self._tails = layout.tails
        self._head = Encoder(layout.template)
        self.block_rows = self._head.block_rows

    def framed(
        self, batch: pa.RecordBatch
    ) -> Iterator[tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]]:
        """Yield the bytes of records, with the length of each record."""
        for chunk in _split_batch(batch):
            for rows, head in self._head.blocks(chunk):
                yield self._frame(rows, head)

    def _frame(
        self, batch: pa.RecordBatch, head: Records
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Return the framed records of a batch, and their lengths."""
        segments = [items.rows_to_binary_array(head)]
        for tail in self._tails:
            segments += _encode(
                batch.column(batch.schema.get_field_index(tail.field.column.name)), tail
            )
        payload = pc.binary_join_element_wise(*segments, _NOTHING)
        offsets, data = binary_parts(payload)
        lengths = np.diff(offsets)
        # Few lengths are distinct, and each header needs a checksum.
        distinct, length_index = np.unique(lengths, return_inverse=True)
        headers = b"".join(wire.header(int(length)) for length in distinct)
        header_rows = np.frombuffer(headers, np.uint8).reshape(-1, wire.HEADER)[length_index]
        # Each record needs one call for its checksum, since records have different lengths.
        bounds = list(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True))
        footers = wire.checksums(data, bounds).astype("<u4")[:, None].view(np.uint8)
        framed = pc.binary_join_element_wise(
            items.rows_to_binary_array(header_rows),
            payload,
            items.rows_to_binary_array(footers),
            _NOTHING,
        )
        return binary_parts(framed)[1], lengths + wire.FRAMING


def _split_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a batch into slices of bounded size, since strings may be long."""
    if batch.nbytes <= CHUNK_BYTES or batch.num_rows < 2:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _split_batch(batch.slice(0, half))
    yield from _split_batch(batch.slice(half))


def _encode(array: pa.Array, tail: Tail) -> list[pa.Array]:
    """Return the heads and the values of a column as two binary arrays."""
    field, entry = tail.field, tail.entry
    lengths, data = items.encode(array, field)
    valid = presence_mask(array)
    if valid is not None and tail.null_byte is None:
        raise profile_mismatch(field.column, "nulls, but the profile has none")
    # The first length counts the most bytes. A larger value does not fit into its varint.
    if lengths.max(initial=0) + entry.lengths[0][1] >= 1 << 7 * entry.length_width:
        raise profile_mismatch(field.column, "a value longer than the maximum")
    heads = np.tile(np.frombuffer(entry.head, np.uint8), (len(array), 1))
    for offset, extra in entry.lengths:
        words = (lengths + extra).astype(np.uint64)
        wire.write_varints(
            heads[:, offset : offset + entry.length_width], words, width=entry.length_width
        )
    if valid is not None and tail.null_byte is not None:
        heads[~valid, tail.null_byte.offset] = tail.null_byte.null
    return [items.rows_to_binary_array(heads), items.to_binary_array(lengths, data)]


class RecordSpan:
    """The bytes of records ``[start, stop)`` in a shard, with the start of each record."""

    def __init__(
        self, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], layout: RecordLayout
    ) -> None:
        self._data, self._layout = data, layout
        self._starts = starts + wire.HEADER
        self._heads: Records | None = None
        self._tails: dict[str, tuple[Tail, npt.NDArray[np.int64], npt.NDArray[np.int64]]] = {}
        offsets = self._starts + len(layout.template.data)
        for tail in layout.tails:
            size, entry = tail.entry.length_width, tail.entry
            lengths = wire.read_varints(
                items.take(data, offsets + entry.lengths[-1][0], size), width=size
            ).view(np.int64)
            self._tails[tail.field.column.name] = tail, offsets, lengths
            # Columns follow each other, so the lengths determine the offsets of the next column.
            offsets = offsets + len(entry.head) + lengths
        self.ends = offsets + wire.FOOTER

    def column(self, name: str) -> pa.Array:
        """Return a column in its feature type."""
        if name not in self._tails:
            if self._heads is None:
                # Also take as many bytes as the footer has, which always exist: varints are read as
                # words, beyond their own bytes.
                self._heads = items.take(
                    self._data, self._starts, len(self._layout.template.data) + wire.FOOTER
                )
            return read_column(self._heads, self._layout.template.slot(name))
        tail, offsets, lengths = self._tails[name]
        entry = tail.entry
        valid = None
        if tail.null_byte is not None:
            valid = self._data[offsets + tail.null_byte.offset] != tail.null_byte.null
        begins = offsets + len(entry.head)
        if tail.field.column.shape == ():
            value_bytes = items.to_binary_array(
                lengths, items.concatenate_ranges(self._data, begins, lengths)
            )
            values = bytes_to_arrow(value_bytes, tail.field.column.leaf)
            return apply_null_mask(values, valid)
        counts, values = items.decode(self._data, begins, lengths, tail.field)
        return items.lists(counts, values, tail.field.column, valid)


def apply_null_mask(values: pa.Array, valid: npt.NDArray[np.bool_] | None) -> pa.Array:
    """Return an array with nulls where ``valid`` is False."""
    return (
        values
        if valid is None
        else pc.if_else(pa.array(valid), values, pa.scalar(None, values.type))
    )


def index_bytes(lengths: list[npt.NDArray[np.int64]]) -> bytes:
    """Return the index bytes for records with these lengths."""
    total = np.concatenate([np.zeros(1, np.int64), *lengths])
    return np.cumsum(total).astype("<u8").tobytes()
