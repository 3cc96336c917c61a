"""Row hash, tie hash and canonical bytes of Arrow rows.

The same on every engine, machine and release.

``docs/row-hash.md`` defines them with test vectors; nothing here may ever change what an existing
value gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import InvalidArgument, listing
from featurestore.hashing.by_engines import row_hash_start, tie_hash_salt, value_kind
from featurestore.hashing.canonical import canonical_array
from featurestore.hashing.hashes import hash_array
from featurestore.hashing.mixing import Words, fold, mix, mix_all, tag
from featurestore.hashing.values import ROW, check_types, valid_rows

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
    """Return the 64-bit hash of each row's columns, in their order, and the seed.

    Column names do not count, values do: integers of all widths hash alike, so do texts in all
    encodings. 0.0 and -0.0 are alike, and so are all NaN.

    Args:
        batch: The rows.
        columns: The columns that count, in order; None takes all.
        seed: Any integer; taken modulo 2**64.

    Raises:
        InvalidArgument: A column does not exist, or none is given.
        UnsupportedType: Columns of types without canonical form; all are named.

    >>> [hex(each) for each in row_hash(pa.table({"id": [1, 2]}))]
    ['0xea5243d49eccd4ed', '0x5d8f5d02fc6eea21']
    """
    names = _columns(batch, columns)
    parts = []
    for piece in _pieces(batch, names):
        state = np.full(piece.num_rows, mix(seed ^ tag(ROW)), dtype=np.uint64)
        for array in piece.columns:
            fold(state, hash_array(array, exact=False))
        parts.append(state)
    return _joined(parts)


def tie_hash(
    batch: pa.RecordBatch | pa.Table, *, columns: Sequence[str] | None = None
) -> npt.NDArray[np.uint64]:
    """Return the 64-bit hash of each row's columns that are not null, each with its name.

    Neither the order of columns nor columns that are null in a row change its hash, so a nullable
    column that is added later leaves the hashes of earlier rows as they were. Floats count by their
    bits.

    >>> both = pa.table({"a": [1, 1], "b": pa.array([None, 2])})
    >>> bool(tie_hash(both)[0] == tie_hash(both.select(["a"]))[0])
    True
    """
    names = _columns(batch, columns)
    salts = list(map(tie_hash_salt, names))
    parts = []
    for piece in _pieces(batch, names):
        total = np.zeros(piece.num_rows, dtype=np.uint64)
        for array, salt in zip(piece.columns, salts, strict=True):
            words = fold(hash_array(array, exact=True), salt)
            valid = _valid(array)
            if valid is not None:
                words = np.where(valid, words, np.uint64(0))
            total += words
        parts.append(mix_all(total))
    return _joined(parts)


def canonical_bytes(
    batch: pa.RecordBatch | pa.Table, *, columns: Sequence[str] | None = None
) -> pa.LargeBinaryArray:
    """Return bytes for each row that are equal exactly where rows are.

    Their order decides between equal hashes.

    Floats count by their bits: 0.0 and -0.0 differ here, and so do NaN of different payloads.

    Args:
        batch: The rows.
        columns: The columns that count, in order; None takes all.

    Raises:
        InvalidArgument: A column does not exist, or none is given.
        UnsupportedType: Columns of types without canonical form; all are named.

    >>> canonical_bytes(pa.table({"id": [1]}))[0].as_py().hex()
    '020000000000000001'
    """
    names = _columns(batch, columns)
    parts = [canonical_array(piece.columns, rows=piece.num_rows) for piece in _pieces(batch, names)]
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return pa.array([], pa.large_binary())
    return pa.concat_arrays(parts)


def _columns(batch: pa.RecordBatch | pa.Table, columns: Sequence[str] | None) -> list[str]:
    names = list(batch.schema.names if columns is None else columns)
    absent = [name for name in names if batch.schema.get_field_index(name) < 0]
    reason = "none was given"
    if absent:
        reason = f"no column {listing(absent)}"
    if absent or not names:
        raise InvalidArgument(
            f"columns={names} cannot be hashed: {reason}. There are {listing(batch.schema.names)}.",
            hint="column names are case-sensitive",
        )
    check_types(batch.schema, names)
    return names


def _pieces(batch: pa.RecordBatch | pa.Table, names: Sequence[str]) -> list[pa.RecordBatch]:
    chosen = batch.select(list(names))
    if isinstance(chosen, pa.Table):
        return list(chosen.to_batches())
    return [chosen]


def _valid(array: Any) -> npt.NDArray[np.bool_] | None:
    """Return which rows are not null, seen through dictionaries and extension types."""
    if isinstance(array.type, pa.ExtensionType):
        return _valid(array.storage)
    if pat.is_dictionary(array.type) and array.dictionary.null_count:
        return _valid(array.dictionary_decode())
    if pat.is_null(array.type):
        return np.zeros(len(array), dtype=np.bool_)
    return valid_rows(array)


def _joined(parts: Sequence[Words]) -> Words:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return np.empty(0, dtype=np.uint64)
    return np.concatenate(parts)
