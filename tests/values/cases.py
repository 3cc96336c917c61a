"""Column types, values, and whether a value has an equal in a column: rules in plain Python.

The tables of docs/reference/types.md are made of these cases and of the doors where values enter:
``python -m tests.values.cases``.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "types.md"
BEGIN = "<!-- values: python -m tests.values.cases -->"
END = "<!-- end of values -->"
BEGIN_DOORS = "<!-- doors: python -m tests.values.cases -->"
END_DOORS = "<!-- end of doors -->"
TIMESTAMP = pa.timestamp("us", "UTC")
BERLIN = dt.timezone(dt.timedelta(hours=2))
REFUSED = object()

TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint64": pa.uint64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal128(5, 2)": pa.decimal128(5, 2),
    "decimal128(20, 0)": pa.decimal128(20, 0),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "int64[]": pa.list_(pa.int64()),
    "float[2]": pa.list_(pa.float32(), 2),
    "struct<a: int32, b: string>": pa.struct([("a", pa.int32()), ("b", pa.string())]),
}

# The code of each value, with the names of ``NAMES``.
VALUES = (
    *("True", "np.bool_(False)", "0", "1", "-1", "127", "128", "255", "256", "2**24", "2**24 + 1"),
    *("2**31", "2**53", "2**53 + 1", "2**63", "-(2**63)", "2**64 - 1", "2**64", "10**20"),
    *("1.0", "-0.0", "1.5", "1.7", "0.1", "300.0", "1e300", "math.inf", "math.nan"),
    *("np.int8(1)", "np.uint64(2**63)", "np.float32(0.1)", "np.float32(1)", "np.float16(0.5)"),
    *("np.float64(1.7)", "Decimal('1')", "Decimal('1.50')", "Decimal('1.555')", "Decimal('1000')"),
    *("Decimal('1e20')", "Decimal('NaN')", "'1'", "'a'", "''", "'2024-01-31'", "b'a'"),
    *("'2024-01-31T12:00Z'", "'2024-01-31T12:00:00.000000001'"),
    *("bytearray(b'a')", "np.str_('a')", "np.bytes_(b'a')", "dt.date(2024, 1, 31)"),
    *("dt.datetime(2024, 1, 31)", "dt.datetime(2024, 1, 31, 12, tzinfo=dt.UTC)"),
    *("dt.datetime(2024, 1, 31, 12, tzinfo=BERLIN)", "np.datetime64('2024-01-31')"),
    *("np.datetime64('2024-01-31T12:00')", "np.datetime64('2024-01-31T12:00:00.123456789')"),
    *("pd.Timestamp('2024-01-31T12:00Z')", "pd.Timestamp('2024-01-31T12:00:00.000000001')"),
    *("dt.time(12)", "dt.timedelta(1)", "1j", "[]", "[1]", "[1, 2]", "[1.0, 2.0]", "[0.1, 0.2]"),
    *("[1, None]", "(1, 2)", "['a']", "np.array([1, 2])", "np.array([0.5, 0.25])"),
    *("{'a': 1, 'b': 'x'}", "{'b': 'x', 'a': 1}", "{'a': 1}", "{'a': 1.0, 'b': None}"),
    *("{'a': 1.5, 'b': 'x'}", "{'a': 2**31, 'b': 'x'}", "{'a': 1, 'b': 'x', 'c': 2}", "{'a': 'x'}"),
)
NAMES = {
    "np": np, "pd": pd, "dt": dt, "math": math, "Decimal": Decimal, "BERLIN": BERLIN,
}  # fmt: skip


def value_of(code: str) -> Any:
    """Return the value of an entry of ``VALUES``."""
    return eval(code, dict(NAMES))


def fitted(value: Any, column_type: pa.DataType) -> Any:
    """Return the value that a column returns for a value, or ``REFUSED``."""
    name = str(column_type)
    if isinstance(value, pd.Timestamp) and value.nanosecond:
        return REFUSED
    if name == "bool":
        return bool(value) if isinstance(value, bool | np.bool_) else REFUSED
    if pa.types.is_integer(column_type):
        return _fitted_integer(value, column_type)
    if pa.types.is_floating(column_type):
        return _fitted_float(value, 24 if name == "float" else 53)
    if pa.types.is_decimal(column_type):
        return _fitted_decimal(value, column_type.precision, column_type.scale)
    if name == "string":
        return str(value) if isinstance(value, str) else REFUSED
    if name == "binary":
        return bytes(value) if isinstance(value, bytes | bytearray) else REFUSED
    if name.startswith("date32"):
        return _fitted_date(value)
    if name.startswith("timestamp"):
        return _fitted_time(value)
    if name.startswith("struct"):
        return _fitted_struct(value, {field.name: field.type for field in column_type})
    size = column_type.list_size if pa.types.is_fixed_size_list(column_type) else None
    return _fitted_list(value, column_type.value_type, size)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64)


def _is_float(value: Any) -> bool:
    return isinstance(value, float | np.floating)


def _fitted_integer(value: Any, column_type: pa.DataType) -> Any:
    is_number = _is_integer(value) or _is_float(value) or isinstance(value, Decimal)
    if not is_number or not math.isfinite(value) or value != int(value):
        return REFUSED
    signed = not str(column_type).startswith("u")
    bits = column_type.bit_width
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return int(value) if low <= int(value) <= high else REFUSED


def _fitted_float(value: Any, digits: int) -> Any:
    if _is_integer(value):
        return float(value) if abs(int(value)) <= 2**digits else REFUSED
    if not _is_float(value):
        return REFUSED
    number = float(value)
    if digits == 24 and math.isfinite(number):
        try:
            (rounded,) = struct.unpack("f", struct.pack("f", number))
        except OverflowError:
            return REFUSED
        return number if rounded == number else REFUSED
    return number


def _fitted_decimal(value: Any, precision: int, scale: int) -> Any:
    if not _is_integer(value) and not isinstance(value, Decimal):
        return REFUSED
    # Python integers beyond 64 bits have no type that a column is inferred with.
    if not isinstance(value, Decimal) and not -(2**63) <= int(value) < 2**64:
        return REFUSED
    number = value if isinstance(value, Decimal) else Decimal(int(value))
    if not number.is_finite():
        return REFUSED
    unscaled = number.scaleb(scale)
    if unscaled != unscaled.to_integral_value() or abs(unscaled) >= 10**precision:
        return REFUSED
    return number.quantize(Decimal(1).scaleb(-scale))


def _fitted_date(value: Any) -> Any:
    if isinstance(value, np.datetime64):
        return value.item() if np.datetime_data(value.dtype)[0] == "D" else REFUSED
    is_date = isinstance(value, dt.date) and not isinstance(value, dt.datetime)
    return value if is_date else REFUSED


def _fitted_time(value: Any) -> Any:
    if isinstance(value, np.datetime64):
        unit = np.datetime_data(value.dtype)[0]
        if unit == "D" or value != value.astype("M8[us]"):
            return REFUSED
        value = value.astype("M8[us]").item()
    if not isinstance(value, dt.datetime):
        return REFUSED
    if isinstance(value, pd.Timestamp):
        value = value.to_pydatetime()
    return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)


def _fitted_list(value: Any, item_type: pa.DataType, size: int | None) -> Any:
    if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str | bytes | bytearray):
        return REFUSED
    if size is not None and len(value) != size:
        return REFUSED
    items = [None if item is None else fitted(item, item_type) for item in value]
    # Numbers of a list have one type: a float among integers makes them floats.
    return REFUSED if any(item is REFUSED for item in items) else items


def _fitted_struct(value: Any, types: Mapping[str, pa.DataType]) -> Any:
    if not isinstance(value, Mapping) or not set(value) <= set(types):
        return REFUSED
    fields = {}
    for name, field_type in types.items():
        field = value.get(name)
        fields[name] = None if field is None else fitted(field, field_type)
    return REFUSED if any(field is REFUSED for field in fields.values()) else fields


def are_equal(value: Any, expected: Any) -> bool:
    """Return whether two Python values are equal, with NaN equal to NaN and -0.0 not to 0.0."""
    return repr(value) == repr(expected) or (value == expected and expected != 0)


def table() -> str:
    """Return the Markdown table: the values that have an equal in a column of each type."""
    lines = ["| column | values that fit |", "| --- | --- |"]
    for name, column_type in TYPES.items():
        fitting = [
            f"`{code}`" for code in VALUES if fitted(value_of(code), column_type) is not REFUSED
        ]
        lines.append(f"| `{name}` | {', '.join(fitting)} |")
    return "\n".join(lines)


def main() -> None:
    """Write the tables into the docs."""
    from tests.values.door_rules import door_table

    text = DOCS.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    text = f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"
    before, after = text.split(BEGIN_DOORS)[0], text.split(END_DOORS)[1]
    DOCS.write_text(f"{before}{BEGIN_DOORS}\n\n{door_table()}\n\n{END_DOORS}{after}")


if __name__ == "__main__":
    main()
