"""Pairs of edge values of every type, in one table."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from featurestore.arrow.types import TIMESTAMP

_TIMES = [
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(1582, 10, 9, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(1600, 2, 29, tzinfo=UTC),
    datetime(1883, 11, 18, 12, 3, 58, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=UTC),
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(2008, 12, 29, 0, 0, 0, 1, tzinfo=UTC),
    datetime(2010, 1, 3, 10, 59, 59, tzinfo=UTC),
    datetime(2020, 2, 29, 12, 30, 30, 500_000, tzinfo=UTC),
    datetime(2021, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(2024, 3, 31, 2, 30, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
]
_SPACES = "\u1680\u2000\u2001\u2002\u2004\u2005\u2006\u2007\u2008\u2009\u200aa\u202f\u205f\u3000"
_TEXTS = [
    *("", " ", " a ", "a", "A", "ab", "aé", "é", "e\u0301", "𝄞b", "\t a\n", "a\x00b", "%_", "\\"),
    *("ß", "İ", "'", "\u00a0a\u2003", _SPACES, "\u200ba\u2028", "\u0085a\ufeff"),
]
_WIDE = [0, 1, -1, 2, 3, 7, -7, 10, 100, 2**31, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63)]
_SPECIAL = [0.0, -0.0, 0.1, 0.5, -1.5, 2.5, 1.0, math.nan, math.inf, -math.inf]
_CENTS = ("0.00", "0.10", "-0.10", "1.00", "2.50", "99999999.99")
EDGES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "boolean": (pa.bool_(), [True, False]),
    "integer": (pa.int64(), _WIDE),
    "small": (pa.int8(), [0, 1, -1, 127, -128]),
    "byte": (pa.uint8(), [0, 1, 255]),
    "whole": (pa.uint64(), [0, 1, 2**63 - 1, 2**63, 2**64 - 1]),
    "float": (pa.float32(), [*_SPECIAL, 1.401298464324817e-45, 3.4e38]),
    "number": (pa.float64(), [*_SPECIAL, 5e-324, 1.7e308, 2.0**53, 2.0**63]),
    "decimal": (pa.decimal128(10, 2), [Decimal(cents) for cents in _CENTS]),
    "string": (pa.string(), _TEXTS),
    "binary": (pa.binary(), [b"", b"\x00", b"a", b"\xff", b"a\x00"]),
    "date": (pa.date32(), [time.date() for time in _TIMES]),
    "timestamp": (TIMESTAMP, _TIMES),
    "list": (pa.list_(pa.int64()), [[], [1], [1, None], [2, 1]]),
}


def _table() -> pa.Table:
    """Return every pair of edge values of every type: ``a_integer``, ``b_integer``, and a third."""
    size = max(len(values) for _, values in EDGES.values()) + 1
    rows = [(first, second) for first in range(size) for second in range(size)]
    columns: dict[str, pa.Array] = {"id": pa.array(range(size * size), pa.int64())}
    for name, (dtype, values) in EDGES.items():
        padded = [*values, None, *values * size][:size]
        columns[f"a_{name}"] = pa.array([padded[first] for first, _ in rows], dtype)
        columns[f"b_{name}"] = pa.array([padded[second] for _, second in rows], dtype)
        columns[f"c_{name}"] = pa.array(
            [padded[(first + second) % size] for first, second in rows], dtype
        )
    return pa.table(columns)


def plain_values(values: pa.ChunkedArray) -> list[Any]:
    """Return values that compare equal if they are equal: one NaN, times in microseconds."""
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    if pa.types.is_date(values.type):  # years beyond 9999 are results of additions
        values = values.cast(pa.int32())
    result = []
    for value in values.to_pylist():
        if isinstance(value, float):
            value = "NaN" if math.isnan(value) else value
        if isinstance(value, Decimal) and value == int(value):
            value = int(value)
        result.append(value)
    return result


TABLE = _table()
