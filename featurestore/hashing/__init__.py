"""Row hash, tie hash and canonical bytes of Arrow rows, equal on every engine and machine.

``docs/row-hash.md`` defines them with test vectors. The hash of an existing value must never
change between releases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import InvalidArgument, listing
from featurestore.hashing.canonical import canonical_array
from featurestore.hashing.hashes import hash_array, row_hash_start, tie_hash_salt, value_kind
from featurestore.hashing.mixing import Words, fold, mix, mix_all, tag
from featurestore.hashing.values import ROW, check_types, valid_mask

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

    >>> [hex(each) for each in row_hash(pa.table({"id": [1, 2]}))]
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


def _find_valid(array: Any) -> npt.NDArray[np.bool_] | None:
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
