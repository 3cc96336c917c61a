"""Constants with which an engine computes row hashes: start words, name salts, value kinds."""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa
import pyarrow.types as pat

from featurestore.hashing.hashes import hash_array
from featurestore.hashing.mixing import mix, tag
from featurestore.hashing.values import BOOL, BYTES, DATE, FLOAT, INTEGER, ROW, TEXT, TIME


def row_hash_start(seed: int) -> int:
    """Return the initial state of a row hash, into which the columns are folded.

    >>> hex(row_hash_start(0))
    '0x35104951996a6762'
    """
    return mix(seed ^ tag(ROW))


@lru_cache(maxsize=4096)
def tie_hash_salt(name: str) -> int:
    """Return the word that represents a column name in tie hashes.

    >>> hex(tie_hash_salt("id"))
    '0xce317fa8ae131d51'
    """
    (hashed,) = hash_array(pa.array([name]), exact=True)
    return mix(int(hashed))


def value_kind(kind: pa.DataType) -> int | None:
    """Return the kind of a type whose values are one word or bytes.

    None for other types, and for uint64 and nanoseconds, whose values have two kinds.

    >>> value_kind(pa.int16()), value_kind(pa.string()), value_kind(pa.list_(pa.int16()))
    (2, 5, None)
    """
    if pat.is_uint64(kind) or (pat.is_timestamp(kind) and kind.unit == "ns"):
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
        if check(kind):
            return number
    return None
