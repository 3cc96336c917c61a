"""Row hash, tie hash and canonical bytes of Arrow rows, equal on every engine and machine.

``docs/row-hash.md`` defines them with test vectors. The hash of an existing value must never
change between releases.

Canonical bytes are a prefix-free encoding, in which equal bytes imply equal rows. A value is encoded as
its kind (one byte), followed by its words in big-endian order, its length in 8 bytes and its bytes, its
number of elements in 8 bytes and the elements, or its fields. Null is encoded as nine zero bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.errors import InvalidArgument, listing
from featurestore.hashing.hashes import hash_array, row_hash_start, tie_hash_salt, value_kind
from featurestore.hashing.mixing import Int64s, Words, fold, mix, mix_all, tag
from featurestore.hashing.values import (
    LIST,
    ROW,
    STRUCT,
    ByteValues,
    ListValues,
    Mask,
    StructValues,
    canonical_values,
    check_types,
    ranges,
    valid_mask,
)

__all__ = [
    "canonical_bytes",
    "row_hash",
    "row_hash_start",
    "tie_hash",
    "tie_hash_salt",
    "value_kind",
]


def row_hash(
    batch: pa.RecordBatch | pa.Table, *, columns: Sequence[str] | None = None, seed: int = 0
) -> npt.NDArray[np.uint64]:
    """Return the 64-bit hash of selected columns of each row, dependent on column order and seed.

    Only values are hashed, not column names. Equal integers of different widths have the same hash,
    and so have equal strings in different encodings. 0.0 and -0.0 are equal, and all NaN are equal.

    Args:
        batch: The rows.
        columns: The columns to hash, in order; None for all.
        seed: Any integer; taken modulo 2**64.

    Raises:
        InvalidArgument: A column does not exist, or the selection is empty.
        UnsupportedType: Lists the columns whose types have no canonical form.

    >>> [hex(value) for value in row_hash(pa.table({"id": [1, 2]}))]
    ['0xea5243d49eccd4ed', '0x5d8f5d02fc6eea21']
    """
    names = _select_names(batch, columns)
    hashes = []
    for rows in _to_batches(batch, names):
        # The same start as ``row_hash_start``, which engines use.
        state = np.full(rows.num_rows, mix(seed ^ tag(ROW)), dtype=np.uint64)
        for array in rows.columns:
            fold(state, hash_array(array, exact=False))
        hashes.append(state)
    return _concatenate(hashes)


def tie_hash(
    batch: pa.RecordBatch | pa.Table, *, columns: Sequence[str] | None = None
) -> npt.NDArray[np.uint64]:
    """Return the 64-bit hash of the non-null columns of each row, including their names.

    The hash is independent of column order and of columns that are null in the row, so adding a
    nullable column does not change the hashes of existing rows. Floats are hashed by their bits.

    >>> both = pa.table({"a": [1, 1], "b": pa.array([None, 2])})
    >>> bool(tie_hash(both)[0] == tie_hash(both.select(["a"]))[0])
    True
    """
    names = _select_names(batch, columns)
    salts = list(map(tie_hash_salt, names))
    hashes = []
    for rows in _to_batches(batch, names):
        total = np.zeros(rows.num_rows, dtype=np.uint64)
        for array, salt in zip(rows.columns, salts, strict=True):
            words = fold(hash_array(array, exact=True), salt)
            valid = _find_valid(array)
            if valid is not None:
                # A null adds nothing, like a column that does not exist.
                words = np.where(valid, words, np.uint64(0))
            # A sum modulo 2**64, which does not depend on the order of the columns.
            total += words
        hashes.append(mix_all(total))
    return _concatenate(hashes)


def canonical_bytes(
    batch: pa.RecordBatch | pa.Table, *, columns: Sequence[str] | None = None
) -> pa.LargeBinaryArray:
    """Return a byte string per row; the strings are equal if and only if the rows are equal.

    They break ties between equal hashes. Floats are encoded by their bits: 0.0 and -0.0 differ, and
    so do NaN with different payloads.

    Args:
        batch: The rows.
        columns: The columns to encode, in order; None for all.

    Raises:
        InvalidArgument: A column does not exist, or the selection is empty.
        UnsupportedType: Lists the columns whose types have no canonical form.

    >>> canonical_bytes(pa.table({"id": [1]}))[0].as_py().hex()
    '020000000000000001'
    """
    names = _select_names(batch, columns)
    encoded = [
        canonical_array(rows.columns, rows=rows.num_rows) for rows in _to_batches(batch, names)
    ]
    if len(encoded) == 1:
        return encoded[0]
    if not encoded:
        return pa.array([], pa.large_binary())
    return pa.concat_arrays(encoded)


def _select_names(batch: pa.RecordBatch | pa.Table, columns: Sequence[str] | None) -> list[str]:
    """Return the columns to hash, after checking that they exist and can be hashed."""
    names = list(batch.schema.names if columns is None else columns)
    missing = [name for name in names if batch.schema.get_field_index(name) < 0]
    reason = "no columns are selected"
    if missing:
        reason = f"unknown columns {listing(missing)}"
    if missing or not names:
        raise InvalidArgument(
            f"columns={names} cannot be hashed: {reason}. Available: {listing(batch.schema.names)}.",
            hint="column names are case-sensitive",
        )
    check_types(batch.schema, names)
    return names


def _to_batches(batch: pa.RecordBatch | pa.Table, names: Sequence[str]) -> list[pa.RecordBatch]:
    selected = batch.select(list(names))
    if isinstance(selected, pa.Table):
        return list(selected.to_batches())
    return [selected]


def _find_valid(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Return a mask of non-null rows, also for dictionaries and extension types."""
    if isinstance(array.type, pa.ExtensionType):
        return _find_valid(array.storage)
    # A valid index may refer to a null in the dictionary.
    if pat.is_dictionary(array.type) and array.dictionary.null_count:
        return _find_valid(array.dictionary_decode())
    if pat.is_null(array.type):
        return np.zeros(len(array), dtype=np.bool_)
    return valid_mask(array)


def _concatenate(arrays: Sequence[Words]) -> Words:
    if len(arrays) == 1:
        return arrays[0]
    if not arrays:
        return np.empty(0, dtype=np.uint64)
    return np.concatenate(arrays)


# -- canonical bytes ------------------------------------------------------------------------


def canonical_array(arrays: Sequence[pa.Array], *, rows: int) -> pa.LargeBinaryArray:
    """Return the canonical bytes of each row, computed from the columns."""
    encoded_columns = [_encode(array) for array in arrays]
    return _join(encoded_columns) if rows else pa.array([], pa.large_binary())


def _encode(array: pa.Array) -> pa.LargeBinaryArray:
    """Return the canonical bytes of each value of one column."""
    values = canonical_values(array)
    rows = len(array)
    if isinstance(values, ByteValues):
        header = _encode_words(
            values.value_kind, (values.lengths.view(np.uint64),), valid=values.valid
        )
        starts, lengths = values.starts, values.lengths
        data, offsets = values.data, np.concatenate([[0], np.cumsum(lengths)])
        # Adjacent values are used without a copy.
        if len(starts) and (starts[1:] == (starts + lengths)[:-1]).all():
            offsets = np.append(starts, starts[-1] + lengths[-1])
        else:
            data = data[ranges(starts, lengths)]
        return _join([header, _binary_array(pa.py_buffer(data), offsets)])
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


def _mask_nulls(array: pa.Array, valid: Mask | None) -> pa.Array:
    """Set a struct field to null in the rows where the struct is null.

    The field values of a null struct are arbitrary.
    """
    if valid is None:
        return array
    index = pa.array(np.arange(len(array)), mask=~valid)
    return array.take(index)


def _binary_array(data: pa.Buffer, offsets: Int64s) -> pa.LargeBinaryArray:
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
