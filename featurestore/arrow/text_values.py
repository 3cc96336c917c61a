"""Conversion of strings to typed values: the grammar of numbers, booleans, dates and timestamps.

There are two uses. ``all_match`` decides whether all strings of a column have a type, by a grammar under
which conversion loses nothing: ``007`` and ``+49`` are not integers. ``parse_texts`` converts
strings to a type; if the user declared the type (``declared``), it also accepts ``007``.

Arrow's own casts accept more (``0x1F`` as an integer), and a failed cast costs many times as much
as a successful one, so a regular expression is checked first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.json_text import short_repr
from featurestore.arrow.types import TIMESTAMP

_INTEGER = r"-?(?:0|[1-9][0-9]*)"
_FRACTION = r"(?:\.[0-9]*)?|\.[0-9]+"
_EXPONENT = r"(?:[eE][+-]?[0-9]+)?"
_WORD = r"[+-]?(?:[nN][aA][nN]|[iI][nN][fF](?:[iI][nN][iI][tT][yY])?)"
_FLOAT = rf"(?:{_INTEGER}(?:\.[0-9]*)?|-?\.[0-9]+){_EXPONENT}"
_TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?"
_ZONE = r"(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)"
_DECLARED_INTEGER = r"[+-]?[0-9]+"
_DECLARED_FLOAT = rf"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+){_EXPONENT}"
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TRUE, _FALSE = r"(?i:true)", r"(?i:false)"
_FINER = r"\.[0-9]{6}[0-9]+"
_LOW = int(datetime(1, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
_HIGH = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()) * 1_000_000 + 999_999
# float64 represents every integer up to this limit.
_EXACT_DIGITS = 15

# The types that are inferred from strings, the narrowest first; other columns are strings.
INFERRED = ("boolean", "int64", "double", "date", "timestamp", "timestamp with zone")
_ARROW = {
    "boolean": pa.bool_(),
    "int64": pa.int64(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp with zone": TIMESTAMP,
}

Cast = Callable[[pa.Array], pa.Array]


@dataclass(frozen=True)
class TextRules:
    """String formats that differ from the default grammar.

    ``precision`` "us" rounds timestamps to microseconds; None refuses finer timestamps.
    ``declared`` is True if the user declared the type. ``zone`` is True if timestamps require a
    time zone, False if they must not have one, and None if both are accepted.
    """

    decimal: str = "."
    thousands: str = ""
    date_format: str | None = None
    timestamp_format: str | None = None
    precision: str | None = None
    declared: bool = False
    zone: bool | None = None


def arrow_type(type_name: str) -> pa.DataType:
    """Return the Arrow type of a type name that ``all_match`` accepts.

    >>> arrow_type("date")
    DataType(date32[day])
    """
    return _ARROW.get(type_name, pa.string())


def all_match(strings: pa.Array, type_name: str, rules: TextRules) -> bool:
    """Return whether every non-null string has a type, one of ``INFERRED``.

    >>> all_match(pa.array(["1", "-20", None]), "int64", TextRules())
    True
    >>> all_match(pa.array(["007"]), "int64", TextRules())
    False
    """
    strings = _copy_sliced(strings.drop_null())
    if type_name in ("int64", "double"):
        strings = _normalize_numbers(strings, rules)
    pattern = _find_pattern(type_name, rules)
    if pattern is not None and not _all_true(pc.match_substring_regex(strings, f"^(?:{pattern})$")):
        return False
    # All matching strings are numbers, but float64 rounds some integers and has a limited range.
    if type_name == "double":
        return _are_integers_exact(strings)
    if type_name == "boolean":
        return True
    return not _parse(strings, arrow_type(type_name), _inference_rules(type_name, rules))[1]


def is_typed_value(string: str, *type_names: str) -> bool:
    """Return whether a string has one of the types, by default any type that is not a string.

    >>> is_typed_value("2.5"), is_typed_value("2024-01-31"), is_typed_value("total")
    (True, True, False)
    """
    names = type_names or INFERRED
    return bool(string) and any(all_match(pa.array([string]), name, TextRules()) for name in names)


def has_finite_number(strings: pa.Array) -> bool:
    """Return whether strings that fit "double" include a number other than ``nan`` and ``inf``."""
    return bool(pc.any(pc.match_substring_regex(strings, "[0-9]")).as_py())


def parse_texts(
    strings: pa.Array, dtype: pa.DataType, rules: TextRules
) -> tuple[pa.Array, dict[int, str]]:
    """Parse strings of a type; return the values, and the error of each invalid row, which is null.

    >>> parse_texts(pa.array(["1", "x"]), pa.int64(), TextRules())[1]
    {1: "'x' is not int64"}
    """
    if pat.is_string(dtype):
        return strings, {}
    if pat.is_list(dtype) or pat.is_struct(dtype) or pat.is_binary(dtype):
        return pa.nulls(len(strings), dtype), {0: f"strings cannot be parsed as {dtype}"}
    strings = clean = _copy_sliced(strings)
    if pat.is_integer(dtype) or pat.is_floating(dtype) or pat.is_decimal(dtype):
        clean = _normalize_numbers(strings, rules)
    values, bad = _parse(clean, dtype, rules)
    reasons = {}
    for row, reason in bad.items():
        reasons[row] = f"{short_repr(strings[row].as_py())} is not {dtype}{reason}"
    return values, reasons


def check_format(pattern: str) -> str:
    """Return a ``strptime`` pattern if it has a year, a month and a day.

    Raises:
        ValueError: The pattern is invalid or lacks the year, the month or the day.

    >>> check_format("%d.%m.%Y")
    '%d.%m.%Y'
    """
    names_day = re.search(r"%[Yy].*", pattern) and re.search(r"%[mbB].*%d|%d.*%[mbB]|%j", pattern)
    epoch = re.search("%[cxG]", pattern)
    if not names_day and not epoch:
        raise ValueError(f"{pattern!r} does not contain a year, a month and a day")
    if re.search(r"%[^aAwdbBmyYHIMSpfzZjUWcxXGuV%]", pattern):
        raise ValueError(f"{pattern!r} has a directive that strptime does not support")
    # Raises ValueError for patterns that the platform does not support.
    date(2020, 1, 1).strftime(pattern)
    return pattern


def format_decimals(values: pa.Array) -> pa.Array:
    """Format decimals as plain digits with all decimal places, never in scientific notation.

    >>> from decimal import Decimal
    >>> format_decimals(pa.array([Decimal("-0.00000001")], pa.decimal128(20, 8))).to_pylist()
    ['-0.00000001']
    """
    dtype = values.type
    unscaled = pa.Array.from_buffers(
        pa.decimal128(dtype.precision, 0),
        len(values),
        values.buffers(),
        values.null_count,
        offset=values.offset,
    ).cast(pa.string())
    if dtype.scale == 0:
        return unscaled
    # At least one digit before the point.
    digits = pc.utf8_lpad(
        pc.utf8_ltrim(unscaled, characters="-"), width=dtype.scale + 1, padding="0"
    )
    sign = pc.if_else(pc.starts_with(unscaled, "-"), "-", "")
    integer_part = pc.utf8_slice_codeunits(digits, 0, -dtype.scale)
    fraction = pc.utf8_slice_codeunits(digits, -dtype.scale, None)
    return pc.binary_join_element_wise(sign, integer_part, ".", fraction, "")


def decimal_text_length(dtype: pa.DataType) -> int:
    """Return the maximum length of a decimal type's strings, in bytes.

    >>> decimal_text_length(pa.decimal128(2, 2))
    5
    """
    digits = max(dtype.precision, dtype.scale + 1)
    if dtype.scale:
        return len("-.") + digits
    return len("-") + digits


def _copy_sliced(strings: pa.Array) -> pa.Array:
    """Copy sliced strings: ``if_else`` of Arrow 14 creates invalid arrays from slices."""
    return strings if strings.offset == 0 else pa.concat_arrays([strings, strings.slice(0, 0)])


def _normalize_numbers(strings: pa.Array, rules: TextRules) -> pa.Array:
    """Normalize numbers: a decimal point, and no thousands separators.

    Separators are removed only between groups of three digits. If a point is not the decimal sign,
    the string is not a number.
    """
    if rules.thousands:
        mark, point = re.escape(rules.thousands), re.escape(rules.decimal)
        grouped = pc.match_substring_regex(
            strings, rf"^[+-]?[0-9]{{1,3}}(?:{mark}[0-9]{{3}})+(?:{point}[0-9]*)?$"
        )
        strings = pc.if_else(grouped, pc.replace_substring(strings, rules.thousands, ""), strings)
    if rules.decimal != ".":
        strings = pc.replace_substring(strings, ".", "no number")
        strings = pc.replace_substring(strings, rules.decimal, ".")
    return strings


def _find_pattern(type_name: str, rules: TextRules) -> str | None:
    """Return the grammar of a type, or None if a ``strptime`` format replaces it."""
    if type_name == "date" and rules.date_format is not None:
        return None
    if type_name == "timestamp" and rules.timestamp_format is not None:
        return None
    return {
        "boolean": f"{_TRUE}|{_FALSE}",
        "int64": _INTEGER,
        "double": f"{_FLOAT}|{_WORD}",
        "date": _DATE,
        "timestamp": _TIME,
        "timestamp with zone": _TIME + _ZONE,
    }[type_name]


def _all_true(mask: pa.Array) -> bool:
    return pc.all(mask, min_count=0).as_py() is True


def _are_integers_exact(strings: pa.Array) -> bool:
    """Return whether float64 represents every integer among strings that look like floats."""
    long = pc.match_substring_regex(strings, rf"^-?[0-9]{{{_EXACT_DIGITS + 1},}}$")
    if _any_true(long):
        for text in strings.filter(long).to_pylist():
            # ``int`` refuses numbers of more than 4,300 digits; floats have at most 309 before the
            # point.
            if len(text) > 400 or int(float(text)) != int(text):
                return False
    values = strings.cast(pa.float64())
    infinite = pc.is_inf(values)
    return not _any_true(infinite) or _all_true(
        pc.match_substring_regex(strings.filter(infinite), f"^(?:{_WORD})$")
    )


def _any_true(mask: pa.Array) -> bool:
    return pc.any(mask, min_count=0).as_py() is True


def _parse(
    strings: pa.Array, dtype: pa.DataType, rules: TextRules
) -> tuple[pa.Array, dict[int, str]]:
    """Return the values, and details on each invalid row."""
    if pat.is_timestamp(dtype):
        return _parse_timestamps(strings, rules)
    if pat.is_date(dtype) and rules.date_format is not None:
        return _parse_with_format(strings, dtype, rules.date_format)
    pattern, cast = _grammar_and_cast(dtype, declared=rules.declared)
    bad = dict.fromkeys(_find_false_rows(pc.match_substring_regex(strings, f"^(?:{pattern})$")), "")
    return _cast(strings, dtype, cast, bad)


def _parse_timestamps(strings: pa.Array, rules: TextRules) -> tuple[pa.Array, dict[int, str]]:
    """Parse timestamps; UTC is the default time zone, and a date is its first microsecond."""
    if rules.timestamp_format is not None:
        return _parse_with_format(strings, TIMESTAMP, rules.timestamp_format)
    pattern = {None: f"{_TIME}{_ZONE}?", True: f"{_TIME}{_ZONE}", False: _TIME}[rules.zone]
    if rules.declared:
        pattern = f"{pattern}|{_DATE}"
    bad = dict.fromkeys(_find_false_rows(pc.match_substring_regex(strings, f"^(?:{pattern})$")), "")
    finer = pc.match_substring_regex(strings, _FINER)
    up: pa.Array | None = None
    if _any_true(finer):
        digits = pc.struct_field(
            pc.extract_regex(strings, r"\.[0-9]{6}(?P<more>[0-9]{1,3})"), "more"
        )
        # Zeros after the microseconds lose nothing.
        if rules.precision is None:
            has_nanoseconds = pc.fill_null(pc.match_substring_regex(digits, "[1-9]"), False)
            for row in pc.indices_nonzero(has_nanoseconds).to_pylist():
                bad[row] = ": it has nanoseconds"
        # Rounding half up, decided by the first digit after the microseconds.
        up = pc.greater_equal(pc.fill_null(digits, "0"), "5")
        strings = pc.replace_substring_regex(strings, r"(\.[0-9]{6})[0-9]+", r"\1")
    values, bad = _cast(strings, TIMESTAMP, _cast_timestamps, bad)
    if up is not None and rules.precision is not None:
        micros = pc.add(values.cast(pa.int64()), up.cast(pa.int64()))
        values = micros.cast(TIMESTAMP)
    return values, bad


def _parse_with_format(
    strings: pa.Array, dtype: pa.DataType, pattern: str
) -> tuple[pa.Array, dict[int, str]]:
    """Parse dates or timestamps with a ``strptime`` pattern."""
    values: list[Any] = []
    bad = {}
    for row, text in enumerate(strings.to_pylist()):
        value = None if text is None else _strptime(text, pattern)
        if value is None and text is not None:
            bad[row] = f" in the format {pattern!r}"
        values.append(value.date() if value is not None and pat.is_date(dtype) else value)
    return pa.array(values, dtype), bad


@lru_cache(maxsize=65_536)
def _strptime(text: str, pattern: str) -> datetime | None:
    try:
        value = datetime.strptime(text, pattern)
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _find_false_rows(mask: pa.Array) -> list[int]:
    if _all_true(mask):
        return []
    rows: list[int] = pc.indices_nonzero(pc.fill_null(pc.invert(mask), False)).to_pylist()
    return rows


def _cast(
    strings: pa.Array, dtype: pa.DataType, cast: Cast, bad: dict[int, str]
) -> tuple[pa.Array, dict[int, str]]:
    """Cast strings, except the rows in ``bad``; return the rows where the cast fails, too."""
    if bad:
        strings = _mask_rows(strings, bad)
    try:
        return cast(strings), bad
    except pa.ArrowInvalid:
        for row in _find_failing_rows(strings, cast):
            bad[row] = ""
    return cast(_mask_rows(strings, bad)), bad


def _mask_rows(strings: pa.Array, rows: Mapping[int, str]) -> pa.Array:
    mask = pa.array([False] * len(strings)).to_numpy(zero_copy_only=False).copy()
    mask[list(rows)] = True
    return pc.if_else(pa.array(mask), pa.scalar(None, strings.type), strings)


def _find_failing_rows(strings: pa.Array, cast: Cast, start: int = 0) -> list[int]:
    """Return the rows at which a cast fails, by bisection."""
    try:
        cast(strings)
    except pa.ArrowInvalid:
        if len(strings) == 1:
            return [start]
        half = len(strings) // 2
        return [
            *_find_failing_rows(strings.slice(0, half), cast, start),
            *_find_failing_rows(strings.slice(half), cast, start + half),
        ]
    return []


def _cast_timestamps(strings: pa.Array) -> pa.Array:
    """Cast ISO 8601 strings, with or without a time zone."""
    zoned = pc.match_substring_regex(strings, f"[0-9]{_ZONE}$")
    is_day = pc.equal(pc.binary_length(strings), 10)
    # The day of a date, such as "-31", also matches the pattern of a zone.
    zoned = pc.and_(zoned, pc.invert(is_day))
    if _all_true(zoned):
        values = strings.cast(TIMESTAMP)
    elif not _any_true(zoned):
        values = strings.cast(pa.timestamp("us")).cast(TIMESTAMP)
    else:
        null = pa.scalar(None, strings.type)
        # One cast accepts either strings with a zone or strings without one.
        with_zone = pc.if_else(zoned, strings, null).cast(TIMESTAMP)
        without = pc.if_else(zoned, null, strings).cast(pa.timestamp("us")).cast(TIMESTAMP)
        values = pc.coalesce(with_zone, without)
    bounds = pc.min_max(values.cast(pa.int64())).as_py()
    if bounds["min"] is not None and not _LOW <= bounds["min"] <= bounds["max"] <= _HIGH:
        raise pa.ArrowInvalid("a timestamp is outside of the years 1 to 9999")
    return values


def _grammar_and_cast(dtype: pa.DataType, *, declared: bool) -> tuple[str, Cast]:
    """Return the grammar of a type, and the cast for strings that match it."""
    if pat.is_boolean(dtype):
        pattern = f"{_TRUE}|{_FALSE}"
        if declared:
            pattern += "|0|1"
        return pattern, lambda strings: pc.utf8_lower(strings).cast(dtype)
    if pat.is_integer(dtype):
        return (_DECLARED_INTEGER if declared else _INTEGER), lambda strings: pc.utf8_ltrim(
            strings, "+"
        ).cast(dtype)
    if pat.is_decimal(dtype):
        return _DECLARED_FLOAT, lambda strings: strings.cast(dtype)
    if pat.is_date(dtype):
        return _DATE, _cast_dates
    pattern = _DECLARED_FLOAT if declared else _FLOAT
    return f"{pattern}|{_WORD}", lambda strings: _cast_floats(strings, dtype)


def _cast_dates(strings: pa.Array) -> pa.Array:
    # Arrow has a year 0, and Python does not.
    if _any_true(pc.starts_with(strings, "0000")):
        raise pa.ArrowInvalid("year 0")
    return strings.cast(pa.date32())


def _cast_floats(strings: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Cast strings to floats; refuse numbers that become infinite."""
    values = pc.utf8_ltrim(strings, "+").cast(dtype)
    infinite = pc.is_inf(values)
    if _any_true(infinite) and not _all_true(
        pc.match_substring_regex(strings.filter(infinite), f"^{_WORD}$")
    ):
        raise pa.ArrowInvalid("a number is outside the range of the type")
    return values


def _inference_rules(type_name: str, rules: TextRules) -> TextRules:
    """Return rules that accept timestamps finer than a microsecond, which parsing refuses later."""
    if type_name.startswith("timestamp"):
        return TextRules(timestamp_format=rules.timestamp_format, precision="us")
    return TextRules(date_format=rules.date_format)
