"""Comparisons of numeric columns with constants have the result of exact arithmetic."""

from __future__ import annotations

import math
import operator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from featurestore.usersql import predicate

VALUES: list[tuple[pa.DataType, list[str]]] = [
    (pa.int8(), ["-128", "-1", "0", "2", "127"]),
    (pa.int64(), [str(-(2**63)), "0", "2", str(2**53), str(2**53 + 1), str(2**63 - 1)]),
    (pa.uint64(), ["0", str(2**63), str(2**64 - 1)]),
    (pa.decimal128(5, 2), ["0.10", "3.30", "999.99", "-999.99", "2.00"]),
    (pa.decimal128(38, 0), ["9" * 38, "-" + "9" * 38, "2"]),
    (pa.decimal128(38, 30), ["0.1", "1e-30", "99999999.1"]),
    (pa.float32(), ["0.1", "2", "16777216", "inf", "3.4028234663852886e38"]),
    (pa.float64(), ["0.1", "3.3", str(2**53), str(2**63), "-inf", "1e300"]),
]
CONSTANTS = [
    "0", "0.10", "3.3", "2.5", "2", "-1", "-0.1", "128", "-129", "16777217", str(2**53 + 1),
    str(2**63), str(2**64 - 1), "999.991", "1000", "1e38", "1e300", "1e-30", "99999999.1",
]  # fmt: skip
SIGNS = {
    "=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def exact_constant(text: str, dtype: pa.DataType) -> Any:
    """Return a constant by value; one with a point or an exponent is the nearest float."""
    is_integer = text.lstrip("-").isdigit()
    if pa.types.is_float64(dtype) and not is_integer:
        return Fraction(float(text))
    if pa.types.is_float32(dtype) and not is_integer and "e" not in text:
        return Fraction(float(np.float32(text)))
    return Fraction(text)


def exact_value(value: Any) -> Any:
    is_infinite = isinstance(value, float) and math.isinf(value)
    return value if is_infinite else Fraction(value)


def test_constants_are_compared_by_value(subtests: pytest.Subtests) -> None:
    with duckdb.connect() as connection:
        for dtype, texts in VALUES:
            if pa.types.is_floating(dtype):
                column = pa.array([*map(float, texts), None], dtype)
            else:
                column = pa.array([*(f"{Decimal(text):f}" for text in texts), None]).cast(dtype)
            table = pa.table({"row": range(len(column)), "c": column})
            connection.register("checked", table)
            values = [exact_value(each) for each in column.to_pylist()[:-1]]
            for text in CONSTANTS:
                constant = exact_constant(text, dtype)
                is_member = [value == constant for value in values]
                conditions = {
                    f"c in ({text}, {text})": is_member,
                    f"c between {text} and {text}": is_member,
                }
                for sign, compare in SIGNS.items():
                    conditions[f"c {sign} {text}"] = [compare(v, constant) for v in values]
                    conditions[f"{text} {sign} c"] = [compare(constant, v) for v in values]
                for condition, expected in conditions.items():
                    with subtests.test(condition, dtype=str(dtype)):
                        sql = predicate(condition, schema=table.schema, dialect="duckdb")
                        query = f"select {sql} from checked order by row"
                        rows = [row for (row,) in connection.execute(query).fetchall()]
                        assert rows == [*expected, None]
