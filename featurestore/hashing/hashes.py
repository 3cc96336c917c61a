"""The 64-bit hash of Arrow values, and constants for engines that hash rows."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.hashing import mixing
from featurestore.hashing.mixing import Int64s, Words
from featurestore.hashing.values import (
    BOOL,
    BYTES,
    DATE,
    FLOAT,
    INTEGER,
    LIST,
    ROW,
    STRUCT,
    TEXT,
    TIME,
    ByteValues,
    ListValues,
    Mask,
    StructValues,
    WordValues,
    canonical_values,
    valid_mask,
)

_NULL_HASH = mixing.tag(255)
_TAGS = np.array([mixing.tag(domain) for domain in range(STRUCT + 1)], dtype=np.uint64)
_SIGN, _INFINITY, _NAN = np.uint64(1 << 63), np.uint64(0x7FF << 52), np.uint64(0x7FF8 << 48)


def hash_array(array: pa.Array, *, exact: bool) -> Words:
    """Return the hash of each value in a new array.

    Args:
        array: An Arrow array.
        exact: Whether floats are hashed by their bits; otherwise 0.0 equals -0.0, and all NaN are
            equal.
    """
    if isinstance(array.type, pa.ExtensionType):
        return hash_array(array.storage, exact=exact)
    # Each distinct value is hashed once, not once per row.
    if pat.is_dictionary(array.type):
        return _hash_dictionary(array, exact=exact)
    values = canonical_values(array)
    if isinstance(values, ByteValues):
        sums = mixing.byte_sums(values.data, values.starts, values.lengths)
        hashes = _finish(sums, values.lengths, domain=values.value_kind)
    elif isinstance(values, ListValues):
        sums = mixing.sums_by_position(hash_array(values.elements, exact=exact), values.lengths)
        hashes = _finish(sums, values.lengths, domain=LIST)
    elif isinstance(values, StructValues):
        hashes = np.full(len(array), mixing.tag(STRUCT), dtype=np.uint64)
        for field in values.fields:
            mixing.fold(hashes, hash_array(field, exact=exact))
    else:
        hashes = _hash_words(values, exact=exact)
    return _with_nulls(hashes, values.valid)


def _hash_words(values: WordValues, *, exact: bool) -> Words:
    """Hash values of one or more words."""
    tags = _TAGS[values.kinds]
    if len(values.words) > 1:
        state = np.full(len(values.words[0]), tags, dtype=np.uint64)
        for words in values.words:
            mixing.fold(state, words)
        return state
    words = values.words[0]
    if isinstance(values.kinds, int) and values.kinds == FLOAT and not exact:
        # The only word with nothing but the sign bit is -0.0.
        words = np.where(words == _SIGN, np.uint64(0), words)
        # Above infinity, every word is a NaN.
        words = np.where((words & ~_SIGN) > _INFINITY, _NAN, words)
    return mixing.mix_all(words ^ tags)


def _finish(sums: Words, lengths: Int64s, *, domain: int) -> Words:
    """Return ``mix(sum + mix(length ^ tag))``."""
    state = mixing.mix_all(lengths.view(np.uint64) ^ np.uint64(mixing.tag(domain)))
    return mixing.fold(state, sums)


def _hash_dictionary(array: pa.Array, *, exact: bool) -> Words:
    value_hashes = hash_array(array.dictionary, exact=exact)
    # All rows are null: no index can refer to an empty dictionary.
    if len(value_hashes) == 0:
        return np.full(len(array), _NULL_HASH, dtype=np.uint64)
    indices = array.indices
    valid = valid_mask(indices)
    positions = indices.fill_null(0).to_numpy(zero_copy_only=False)
    return _with_nulls(value_hashes[positions], valid)


def _with_nulls(hashes: Words, valid: Mask | None) -> Words:
    if valid is not None:
        hashes[~valid] = np.uint64(_NULL_HASH)
    return hashes


def row_hash_start(seed: int) -> int:
    """Return the initial state of a row hash, before columns are folded in.

    >>> hex(row_hash_start(0))
    '0x35104951996a6762'
    """
    return mixing.mix(seed ^ mixing.tag(ROW))


@lru_cache(maxsize=4096)
def tie_hash_salt(name: str) -> int:
    """Return the word that represents a column name in tie hashes.

    >>> hex(tie_hash_salt("id"))
    '0xce317fa8ae131d51'
    """
    (hashed,) = hash_array(pa.array([name]), exact=True)
    return mixing.mix(int(hashed))


def value_kind(dtype: pa.DataType) -> int | None:
    """Return the kind of a type whose values are one word or a byte string.

    Returns None for other types, and for uint64 and nanosecond types, whose values have two kinds.

    >>> value_kind(pa.int16()), value_kind(pa.string()), value_kind(pa.list_(pa.int16()))
    (2, 5, None)
    """
    if pat.is_uint64(dtype) or (pat.is_timestamp(dtype) and dtype.unit == "ns"):
        return None
    checks = {
        BOOL: pat.is_boolean,
        INTEGER: pat.is_integer,
        FLOAT: pat.is_floating,
        TEXT: pat.is_string,
        BYTES: pat.is_binary,
        DATE: pat.is_date32,
        TIME: pat.is_timestamp,
    }
    for number, check in checks.items():
        if check(dtype):
            return number
    return None
