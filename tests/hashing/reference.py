"""The definition of docs/row-hash.md, value by value in plain Python.

Slow, and written without the library.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import struct
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

M = 2**64
GOLDEN = 0x9E3779B97F4A7C15
(
    BOOL,
    INTEGER,
    LARGE_INTEGER,
    FLOAT,
    TEXT,
    BYTES,
    DATE,
    TIME,
    FINE_TIME,
    DECIMAL,
    LIST,
    STRUCT,
    ROW,
) = range(1, 14)


def mix(x: int) -> int:
    x %= M
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % M
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % M
    return x ^ (x >> 31)


def tag(type_code: int) -> int:
    return mix(type_code * GOLDEN)


NULL_HASH = tag(255)


def sequence(type_code: int, length: int, words: list[int]) -> int:
    total = sum(mix(word + (j + 1) * GOLDEN) for j, word in enumerate(words))
    return mix(total + mix(length ^ tag(type_code)))


def fold(state: int, words: list[int]) -> int:
    for word in words:
        state = mix(state + word)
    return state


def value_hash(value: Any, dtype: pa.DataType, *, exact: bool = False) -> int:
    if value is None:
        return NULL_HASH
    if pat.is_dictionary(dtype):
        return value_hash(value, dtype.value_type, exact=exact)
    if isinstance(value, list):
        return sequence(
            LIST, len(value), [value_hash(item, dtype.value_type, exact=exact) for item in value]
        )
    if isinstance(value, dict):
        fields = [dtype.field(index) for index in range(dtype.num_fields)]
        return fold(tag(STRUCT), [value_hash(value[f.name], f.type, exact=exact) for f in fields])
    if isinstance(value, str | bytes):
        data = value.encode() if isinstance(value, str) else value
        words = [
            int.from_bytes(data[start : start + 8], "little") for start in range(0, len(data), 8)
        ]
        return sequence(TEXT if isinstance(value, str) else BYTES, len(data), words)
    if isinstance(value, decimal.Decimal):
        return fold(tag(DECIMAL), decimal_words(value))
    code, word = code_and_word(value, exact=exact)
    return mix(word ^ tag(code))


def code_and_word(value: Any, *, exact: bool) -> tuple[int, int]:
    if isinstance(value, bool):
        return BOOL, int(value)
    if isinstance(value, int):
        return (LARGE_INTEGER if value >= 2**63 else INTEGER), value % M
    if isinstance(value, dt.datetime):
        value = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
        return TIME, (value - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(
            microseconds=1
        ) % M
    if isinstance(value, dt.date):
        return DATE, (value - dt.date(1970, 1, 1)).days % M
    number = float(value)
    if not exact:
        number = 0.0 if number == 0 else float("nan") if math.isnan(number) else number
    return FLOAT, struct.unpack("<Q", struct.pack("<d", number))[0]


def decimal_words(value: decimal.Decimal) -> list[int]:
    sign, digits, exponent = value.as_tuple()
    magnitude, scale = int("".join(map(str, digits))), -int(exponent)
    while scale > 0 and magnitude % 10 == 0:
        magnitude, scale = magnitude // 10, scale - 1
    if magnitude == 0:
        sign = 0
    return [magnitude % M, magnitude // M, scale | (sign << 8)]


def row_hashes(table: pa.Table, *, seed: int = 0) -> list[int]:
    columns = [(column.to_pylist(), column.type) for column in table.columns]
    return [
        fold(
            mix(seed % M ^ tag(ROW)), [value_hash(values[row], dtype) for values, dtype in columns]
        )
        for row in range(table.num_rows)
    ]


def tie_hashes(table: pa.Table) -> list[int]:
    columns = [(name, table[name].to_pylist(), table[name].type) for name in table.column_names]
    return [
        mix(
            sum(
                mix(value_hash(values[row], dtype, exact=True) + mix(value_hash(name, pa.string())))
                for name, values, dtype in columns
                if values[row] is not None
            )
        )
        for row in range(table.num_rows)
    ]
