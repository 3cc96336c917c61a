"""Canonical bytes of rows: a prefix-free encoding, in which equal bytes imply equal rows.

A value is encoded as its kind (one byte), followed by its words in big-endian order, its length in
8 bytes and its bytes, its number of elements in 8 bytes and the elements, or its fields. Null is
encoded as nine zero bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from featurestore.hashing.mixing import Int64s, Words
from featurestore.hashing.values import (
    LIST,
    STRUCT,
    ByteValues,
    ListValues,
    Mask,
    StructValues,
    canonical_values,
    ranges,
)


def canonical_array(arrays: Sequence[Any], *, rows: int) -> pa.LargeBinaryArray:
    """Return the canonical bytes of each row, computed from the columns."""
    encoded_columns = [_encode(array) for array in arrays]
    return _join(encoded_columns) if rows else pa.array([], pa.large_binary())


def _encode(array: Any) -> pa.LargeBinaryArray:
    """Return the canonical bytes of each value of one column."""
    values = canonical_values(array)
    rows = len(array)
    if isinstance(values, ByteValues):
        header = _encode_words(values.kind, (values.lengths.view(np.uint64),), valid=values.valid)
        return _join([header, _encode_bytes(values.data, values.starts, values.lengths)])
    if isinstance(values, ListValues):
        header = _encode_words(LIST, (values.lengths.view(np.uint64),), valid=values.valid)
        elements = _encode(values.elements)
        # The elements of a list are adjacent, and so are their bytes.
        ends = _large_offsets(elements)
        positions = np.concatenate([[0], np.cumsum(values.lengths)])
        return _join([header, _binary_array(elements.buffers()[2], ends[positions])])
    if isinstance(values, StructValues):
        header = _encode_words(STRUCT, (np.zeros(rows, dtype=np.uint64),), valid=values.valid)
        fields = [_encode(_mask_nulls(field, values.valid)) for field in values.fields]
        return _join([header, *fields])
    return _encode_words(values.kinds, values.words, valid=values.valid)


def _encode_words(
    kinds: int | npt.NDArray[np.uint8], words: Sequence[Words], *, valid: Mask | None
) -> pa.LargeBinaryArray:
    """Encode the kind and the words of each row."""
    rows, width = len(words[0]), 1 + 8 * len(words)
    table = np.zeros((rows, width), dtype=np.uint8)
    table[:, 0] = kinds
    for index, column in enumerate(words):
        table[:, 1 + 8 * index : 9 + 8 * index] = column.astype(">u8").view(np.uint8).reshape(-1, 8)
    if valid is not None:
        # Values of null rows are arbitrary, but all nulls have the same bytes.
        table[~valid] = 0
    return _binary_array(pa.py_buffer(table), np.arange(rows + 1, dtype=np.int64) * width)


def _encode_bytes(
    data: npt.NDArray[np.uint8], starts: Int64s, lengths: Int64s
) -> pa.LargeBinaryArray:
    # Adjacent values are used without a copy.
    if len(starts) and (starts[1:] == (starts + lengths)[:-1]).all():
        return _binary_array(pa.py_buffer(data), np.append(starts, starts[-1] + lengths[-1]))
    ends = np.cumsum(lengths)
    return _binary_array(pa.py_buffer(data[ranges(starts, lengths)]), np.concatenate([[0], ends]))


def _mask_nulls(array: Any, valid: Mask | None) -> Any:
    """Set a struct field to null in the rows where the struct is null.

    The field values of a null struct are arbitrary.
    """
    if valid is None:
        return array
    index = pa.array(np.arange(len(array)), mask=~valid)
    return array.take(index)


def _binary_array(data: Any, offsets: Int64s) -> pa.LargeBinaryArray:
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets, dtype=np.int64)), data]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _large_offsets(array: pa.LargeBinaryArray) -> Int64s:
    if len(array) == 0:
        return np.zeros(1, dtype=np.int64)
    return np.frombuffer(
        array.buffers()[1], dtype=np.int64, count=len(array) + 1, offset=8 * array.offset
    )


def _join(arrays: Sequence[pa.LargeBinaryArray]) -> pa.LargeBinaryArray:
    if len(arrays) == 1:
        return arrays[0]
    separator = pa.scalar(b"", pa.large_binary())
    return pc.binary_join_element_wise(*arrays, separator)
