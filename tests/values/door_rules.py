"""The doors where values enter, and in plain Python how a door differs from the rule of columns."""

from __future__ import annotations

import base64
import datetime as dt
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from tests.values.cases import REFUSED, TYPES, fitted

SCALARS = tuple(name for name, kind in TYPES.items() if not pa.types.is_nested(kind))
# Floating-point columns cannot be keys.
KEYS = tuple(name for name in SCALARS if not pa.types.is_floating(TYPES[name]))
# JSON has no bytes.
EXPECTED = tuple(name for name in SCALARS if name != "binary")
SIGNED = tuple(name for name in SCALARS if not name.startswith("uint"))
TIMES = ("date", "timestamp")
EPOCH = dt.date(1970, 1, 1)


@dataclass(frozen=True)
class Door:
    """A place where values enter.

    ``types`` are the column types that it supports. ``difference`` is the documented difference
    from the rule of columns, a sentence, or empty.
    """

    types: tuple[str, ...]
    difference: str = ""


_UNCHANGED = "A value that {} changes or refuses does not reach the store."
_EQUAL = (
    "A comparison: a constant without an equal value matches no row, or is refused; numbers "
    "are equal if their values are, `0.1` is the decimal number or the nearest float, and a date "
    "is its midnight."
)
_JSON = (
    " Expectations are JSON: times, dates and decimals are texts there, infinity has none, and true "
    "and false equal 1 and 0, as in Python."
)
_TEXT = (
    "Text: ISO 8601 times and dates, numbers in decimal notation, `true` and `false` or `1` and `0`, base64. A "
    "number with a fraction becomes the nearest float."
)
DOORS: dict[str, Door] = {
    "rows of a write": Door(tuple(TYPES)),
    "pandas frames of a write": Door(tuple(TYPES), "NaN is null. " + _UNCHANGED.format("pandas")),
    "polars frames of a write": Door(tuple(TYPES), _UNCHANGED.format("polars")),
    "pyarrow tables of a write": Door(tuple(TYPES), _UNCHANGED.format("pyarrow")),
    "labels of a join": Door(
        KEYS,
        "A key without an equal value in the group matches no row, or is refused; a column of "
        "floats cannot be a key.",
    ),
    "entities": Door(KEYS, "An integer or decimal that no key can have matches no row."),
    "request values": Door(
        SIGNED,
        "NaN is null where the column has no NaN. An on-demand feature of a decimal is a `double`.",
    ),
    "logged vectors": Door(SIGNED, "As they were served."),
    "REST bodies": Door(
        KEYS,
        "JSON: times, dates, decimals and bytes are texts, and a number with a fraction becomes "
        "the nearest float. An integer that no key can have matches no row.",
    ),
    "inputs of models": Door(
        (*[name for name in SCALARS if name != "timestamp"], "float[2]"),
        "Floats are rounded to `float`, as training files are.",
    ),
    "`fill_value=` of windows": Door(tuple(TYPES)),
    "`fill_value=` of views": Door(tuple(TYPES)),
    "`nulls=` of readers": Door(
        (*SCALARS, "float[2]"),
        "Also the form that readers yield: days, microseconds, and bytes for texts and decimals; "
        "one value fills all items of an array.",
    ),
    "`explain(key=)`": Door(KEYS, "Also ISO 8601 texts as times."),
    "`explain_window(key=)`": Door(KEYS, "Also ISO 8601 texts as times."),
    "`filter` and `where`": Door(SCALARS, _EQUAL),
    "value sets of expectations": Door(EXPECTED, _EQUAL + _JSON),
    "limits of expectations": Door(
        tuple([name for name in EXPECTED if name != "string"]), _EQUAL + _JSON
    ),
    "accepted values of dbt": Door(
        SCALARS, "As in dbt, the text of the value is compared: `1` equals `'1'`."
    ),
    "`class_weights=`": Door(
        SCALARS,
        "Also the form that readers yield, such as 0 and 1 for booleans and days for dates.",
    ),
    "columns of sources": Door(
        tuple([name for name in SCALARS if name != "binary"]), "CSV files. " + _TEXT
    ),
    "`--key`": Door(KEYS, _TEXT),
    "times of jobs": Door(("timestamp",), "Also dates, as midnight UTC, and ISO 8601 texts."),
    "boundaries of splits": Door(TIMES, "Also dates, as midnight UTC, and ISO 8601 texts."),
}


def door_table() -> str:
    """Return the Markdown table of the doors, their types and their differences."""
    lines = ["| values of | column types | difference |", "| --- | --- | --- |"]
    for name, door in DOORS.items():
        unsupported = [f"`{column}`" for column in TYPES if column not in door.types]
        types = f"all but {', '.join(unsupported)}" if unsupported else "all"
        if len(unsupported) > len(door.types):
            types = ", ".join(f"`{column}`" for column in door.types)
        lines.append(f"| {name} | {types} | {door.difference} |")
    return "\n".join(lines)


def plain(value: Any) -> Any:
    """Return a value as Python objects: no numpy scalars and arrays, tuples or bytearrays."""
    if isinstance(value, np.ndarray | list | tuple):
        return [plain(element) for element in value]
    if isinstance(value, Mapping):
        return {name: plain(element) for name, element in value.items()}
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, pd.Timestamp):
        return value if value.nanosecond else value.to_pydatetime()
    if isinstance(value, np.datetime64):
        microseconds = value.astype("M8[us]")
        if np.datetime_data(value.dtype)[0] != "D" and value == microseconds:
            return microseconds.item()
        return value.item() if np.datetime_data(value.dtype)[0] == "D" else value
    return value.item() if isinstance(value, np.generic) else value


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number."""
    is_numeric = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    return is_numeric and math.isfinite(value)


def nearest_float32(value: float) -> Any:
    """Return the nearest number of float32, or ``REFUSED`` beyond its range."""
    if not math.isfinite(value):
        return value
    try:
        (rounded,) = struct.unpack("f", struct.pack("f", value))
    except OverflowError:
        return REFUSED
    return rounded if math.isfinite(rounded) else REFUSED


def compared(value: Any, name: str) -> Any:
    """Return the column value that equals a constant; ``REFUSED`` if none does."""
    value, kind = plain(value), TYPES[name]
    is_fraction = isinstance(value, float) and math.isfinite(value)
    if name == "float" and is_fraction:
        return nearest_float32(value)
    if pa.types.is_floating(kind) and isinstance(value, Decimal) and value.is_finite():
        value = float(value)
        return nearest_float32(value) if name == "float" else value
    if pa.types.is_decimal(kind) and is_fraction:
        value = Decimal(repr(value))
    if name == "timestamp" and isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return dt.datetime(value.year, value.month, value.day, tzinfo=dt.UTC)
    if name in TIMES and isinstance(value, str):
        return fitted_text(value, name)
    if name == "date" and isinstance(value, dt.datetime):
        is_midnight = value == value.replace(hour=0, minute=0, second=0, microsecond=0)
        return value.date() if is_midnight else REFUSED
    return fitted(value, kind)


def expected_of_json(value: Any, name: str) -> Any:
    """Return the column value that equals a constant of an expectation."""
    document = plain(value)
    if isinstance(document, pd.Timestamp):
        return REFUSED  # finer than a microsecond
    if name == "string" and isinstance(value, dt.date):
        document = document.isoformat()
    if isinstance(document, float) and not math.isfinite(document):
        return REFUSED
    is_numeric = pa.types.is_floating(TYPES[name]) or pa.types.is_integer(TYPES[name])
    is_numeric = is_numeric or pa.types.is_decimal(TYPES[name])
    if isinstance(document, bool) and is_numeric:
        document = int(document)
    if name == "bool" and is_number(document) and document in (0, 1):
        return bool(document)
    if isinstance(document, str) and pa.types.is_decimal(TYPES[name]):
        return fitted_text(document, name)
    return compared(document, name)


def fitted_key(value: Any, name: str) -> Any:
    """Return the key that equals a value of ``key=``; ISO 8601 texts are times, too."""
    if name == "timestamp" and isinstance(value, str):
        return _parsed_time(value)
    return fitted(value, TYPES[name])


def fitted_label(value: Any, name: str) -> Any:
    """Return the key that equals a label, whose column has the type of the value."""
    return REFUSED if isinstance(value, float | np.floating) else fitted(value, TYPES[name])


def fitted_request(value: Any, name: str) -> Any:
    """Return the feature of a request value; NaN is null in columns that have no NaN."""
    is_nan = isinstance(value, float) and value != value
    has_nan = pa.types.is_floating(TYPES[name])
    if is_nan and not has_nan:
        return None
    number = fitted(value, TYPES[name])
    return float(number) if isinstance(number, Decimal) else number


def fitted_boundary(value: Any, name: str) -> Any:
    """Return the instant of a boundary of a split on a column of dates or timestamps."""
    if isinstance(value, str):
        return _parsed_time(value)
    value = plain(value)
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return dt.datetime(value.year, value.month, value.day, tzinfo=dt.UTC)
    return fitted(value, TYPES["timestamp"])


def fitted_input(value: Any, name: str) -> Any:
    """Return the value of a model input: floats are rounded as in files of float32."""
    if name == "float" and isinstance(value, float):
        return nearest_float32(float(value))
    if name == "float[2]" and isinstance(plain(value), list) and len(value) == 2:
        items = plain(value)
        if None in items:
            return REFUSED
        if any(isinstance(item, float) for item in items):
            return [nearest_float32(item) for item in items]
    return fitted(value, TYPES[name])


def fitted_fill(value: Any, name: str) -> Any:
    """Return the value that ``nulls=`` fills with: of the column, or in the form of readers."""
    kind = TYPES[name]
    if isinstance(value, bytearray):
        return fitted(value, kind)
    value = plain(value)
    if name == "float[2]":
        items = value if isinstance(value, list) else [value] * 2
        filled = [fitted_fill(item, "float") for item in items]
        return REFUSED if len(items) != 2 or REFUSED in filled or None in filled else filled
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if name == "date" and is_integer:
        return _moved_date(value)
    if name == "timestamp" and is_integer:
        return _moved_time(value)
    if isinstance(value, bytes) and (name == "string" or pa.types.is_decimal(kind)):
        text = value.decode(errors="replace")
        return REFUSED if text.encode() != value else fitted_text(text, name)
    return fitted(value, kind)


def fitted_class(value: Any, name: str) -> Any:
    """Return the label of a class: of the column, or in the form of readers."""
    value, kind = plain(value), TYPES[name]
    if name == "bool" and is_number(value) and value in (0, 1):
        return bool(value)
    if name == "float" and isinstance(value, float):
        return nearest_float32(value)
    if isinstance(value, str) and pa.types.is_decimal(kind):
        return fitted_text(value, name)
    if isinstance(value, str) and name == "binary":
        return value.encode()
    return fitted_fill(value, name)


def yielded(value: Any, name: str) -> Any:
    """Return the form in which readers yield a column value."""
    if value is REFUSED or value is None:
        return value
    if name == "date":
        return (value - EPOCH).days
    if name == "timestamp":
        return (value - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
    if name == "string":
        return value.encode()
    return str(value).encode() if isinstance(value, Decimal) else value


def json_form(value: Any, name: str) -> Any:
    """Return the JSON form of a value for a column; ``REFUSED`` if JSON has none."""
    value = plain(value)
    if isinstance(value, float) and not math.isfinite(value):
        return REFUSED
    if isinstance(value, list):
        items = [json_form(item, name) for item in value]
        return REFUSED if REFUSED in items else items
    if isinstance(value, Mapping):
        return dict(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return text_form(value, name)


def fitted_json(document: Any, name: str) -> Any:
    """Return the value of a JSON document in a column."""
    kind = TYPES[name]
    has_text_form = name in ("binary", *TIMES) or pa.types.is_decimal(kind)
    if isinstance(document, str) and has_text_form:
        return fitted_text(document, name)
    return fitted(document, kind)


def text_form(value: Any, name: str) -> Any:
    """Return the text of a value on a command line; ``REFUSED`` if it has none."""
    value = plain(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.date):
        return value.isoformat()
    is_text = isinstance(value, int | float | Decimal | str) and not isinstance(value, complex)
    return str(value) if is_text else REFUSED


def fitted_text(text: str, name: str) -> Any:
    """Return the value of a text in a column."""
    kind = TYPES[name]
    if name == "string":
        return text
    if name == "bool":
        truth = {"true": True, "1": True, "false": False, "0": False}
        return truth.get(text.lower(), REFUSED)
    if name == "binary":
        try:
            return base64.b64decode(text, validate=True)
        except ValueError:
            return REFUSED
    if name == "date":
        is_date = re.fullmatch(r"\d{4}-\d\d-\d\d", text)
        return dt.date.fromisoformat(text) if is_date else REFUSED
    if name == "timestamp":
        return _parsed_time(text)
    if pa.types.is_integer(kind):
        return fitted(int(text), kind) if re.fullmatch(r"[+-]?\d+", text) else REFUSED
    try:
        number = Decimal(text)
    except InvalidOperation:
        return REFUSED
    if pa.types.is_decimal(kind):
        return fitted(number or Decimal(0), kind)
    return nearest_float32(float(text)) if name == "float" else float(text)


def fitted_dbt(value: Any, name: str) -> Any:
    """Return the value of a column that equals the text of a value of YAML, as in SQL of dbt."""
    text = str(value)
    if name == "string":
        return text
    if name == "bool":
        truth = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
        return truth.get(text.lower(), REFUSED)
    if pa.types.is_integer(TYPES[name]):
        try:
            return fitted(Decimal(text), TYPES[name])
        except InvalidOperation:
            return REFUSED
    is_infinite = pa.types.is_floating(TYPES[name]) and text.lstrip("-") == "inf"
    return REFUSED if is_infinite else fitted_text(text, name)


def literal_form(value: Any) -> Any:
    """Return the literal of a value in a condition; ``REFUSED`` if conditions have none."""
    value = plain(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float | Decimal):
        return str(value) if math.isfinite(value) else REFUSED
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, dt.datetime):
        return f"timestamptz '{value.replace(tzinfo=value.tzinfo or dt.UTC).isoformat()}'"
    return f"date '{value.isoformat()}'" if isinstance(value, dt.date) else REFUSED


def exact(value: Any) -> Any:
    """Return a number as a fraction, and another value as it is."""
    return Fraction(value) if is_number(value) else value


def _parsed_time(text: str) -> Any:
    if re.search(r"\.\d{6}\d*[1-9]", text):
        return REFUSED  # finer than a microsecond
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        return REFUSED
    return time.replace(tzinfo=dt.UTC) if time.tzinfo is None else time.astimezone(dt.UTC)


def _moved_date(days: int) -> Any:
    try:
        return EPOCH + dt.timedelta(days)
    except OverflowError:
        return REFUSED


def _moved_time(microseconds: int) -> Any:
    try:
        return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=microseconds)
    except OverflowError:
        return REFUSED
