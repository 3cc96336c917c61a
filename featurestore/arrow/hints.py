"""The language of hints about columns: ``df = featurestore.cast(df, {...})``.

A hint is one line, which works for every dataframe that ingestion accepts. Types are written as in
``dtypes=``. Numbers and strings that write times have a form in brackets: ``timestamp[ms]``,
``timestamp[YYYYMMDD]``, ``timestamp[%d/%m/%Y]``. The form is detected by the values:
``detect_number_form`` recognizes days as numbers, years and serial numbers of Excel by their
ranges, which overlap neither with each other nor with plausible epoch numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from typing import Literal

import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import UnsupportedType, listing

MAX_LEVELS = 16
TIMESTAMP = pa.timestamp("us", tz="UTC")
NAMED_TYPES = (
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.uint64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    TIMESTAMP,
)
_TYPES_BY_NAME: dict[str, pa.DataType] = {str(dtype): dtype for dtype in NAMED_TYPES} | {
    "bytes": pa.binary(),
    "date": pa.date32(),
    "date32": pa.date32(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "text": pa.string(),
    "timestamp": TIMESTAMP,
}
# The names in hints, which are those of Arrow's functions.
_SHORT_NAMES = {"float": "float32", "double": "float64", "date32[day]": "date32"}
_DECIMAL = re.compile(r"decimal(?:128)?\((\d{1,2}),\s*(\d{1,2})\)")
_SIZED = re.compile(r"(.+)\[(\d+)\]")
_FIELD_NAME = re.compile(r"[^<>\[\],:]+")

NumberForm = Literal["YYYYMMDD", "YYYY", "Excel"]
FORM_TITLES = {
    "YYYYMMDD": "days as YYYYMMDD",
    "YYYY": "years, as their January 1",
    "Excel": "serial numbers of Excel, days since 1899-12-30",
}
_FIRST_YEAR, _LAST_YEAR = 1900, 2100
# The serial numbers of Excel from 1980 to 2100.
_FIRST_SERIAL, _LAST_SERIAL = 29_221, 73_415
# Earlier times cause a warning: numbers read in a wrong unit result in times in 1970.
PLAUSIBLE_START = datetime(1980, 1, 1, tzinfo=UTC)
_PLAUSIBLE_END = datetime(2100, 1, 1, tzinfo=UTC)
_UNIT_TITLES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DAY_FORMATS = tuple(
    day.replace("/", separator)
    for separator in "/.-"
    for day in ("%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d/%m/%y", "%m/%d/%y")
    # These are ISO 8601, which needs no format.
    if (day, separator) != ("%Y/%m/%d", "-")
)
_TEXT_FORMATS = tuple(
    f"{day}{time}"
    for day in (*_DAY_FORMATS, "%Y%m%d")
    for time in ("", " %H:%M", " %H:%M:%S", "T%H:%M:%S")
)


def cast_hint(columns: Mapping[str, pa.DataType | str], *, inexact: str = "") -> str:
    """Return the line that casts columns of the caller's dataframe.

    >>> cast_hint({"price": pa.int64(), "day": "timestamp[YYYYMMDD]"})
    "df = featurestore.cast(df, {'price': 'int64', 'day': 'timestamp[YYYYMMDD]'})"
    """
    targets = {}
    for name, target in columns.items():
        targets[name] = target if isinstance(target, str) else format_type(target)
    option = f", inexact={inexact!r}" if inexact else ""
    return f"df = featurestore.cast(df, {targets!r}{option})"


def exact_cast_hint(column: str, source: pa.DataType, target: pa.DataType) -> str | None:
    """Return the line that casts a column, or None if values have no equals in the type.

    Writes cast numbers to numbers themselves.

    >>> exact_cast_hint("n", pa.string(), pa.int64())
    "df = featurestore.cast(df, {'n': 'int64'})"
    >>> exact_cast_hint("n", pa.float64(), pa.int64())
    """
    return cast_hint({column: target}) if _can_cast(source, target) else None


def _can_cast(source: pa.DataType, target: pa.DataType) -> bool:
    if source.num_fields or target.num_fields or pat.is_binary(source) or pat.is_binary(target):
        return False
    if pat.is_string(source) or pat.is_string(target):
        return True
    is_time = pat.is_timestamp(target) or pat.is_date(target)
    if is_time or pat.is_timestamp(source) or pat.is_date(source):
        return bool(is_time and (pat.is_timestamp(source) or pat.is_date(source)))
    return bool(pat.is_boolean(source) or pat.is_boolean(target)) and not pat.is_decimal(target)


def format_type(dtype: pa.DataType) -> str:
    """Return the name of a type that ``parse_type`` accepts; "string" for names with delimiters.

    >>> format_type(pa.list_(pa.struct([("a", pa.float64())]), 2))
    'struct<a: float64>[2]'
    """
    if pat.is_null(dtype):
        return "string"
    if pat.is_decimal(dtype):
        return f"decimal({dtype.precision}, {dtype.scale})"
    if pat.is_fixed_size_list(dtype):
        return f"{format_type(dtype.value_type)}[{dtype.list_size}]"
    if pat.is_list(dtype):
        return f"list<{format_type(dtype.value_type)}>"
    if pat.is_struct(dtype):
        fields = list(map(dtype.field, range(dtype.num_fields)))
        if not all(_FIELD_NAME.fullmatch(field.name) for field in fields):
            return "string"
        return (
            f"struct<{', '.join(f'{field.name}: {format_type(field.type)}' for field in fields)}>"
        )
    if dtype == TIMESTAMP:
        return "timestamp"
    return _SHORT_NAMES.get(str(dtype), str(dtype))


def parse_type(type_or_name: object, *, column: str) -> pa.DataType:
    """Parse a type: an Arrow type, or a name such as "timestamp".

    Raises:
        UnsupportedType: The name is unknown, or types are nested deeper than ``MAX_LEVELS``.

    >>> parse_type("list<double>", column="scores"), parse_type("timestamp", column="at")
    (ListType(list<item: double>), TimestampType(timestamp[us, tz=UTC]))
    >>> parse_type("struct<a: int8, b: float32[2]>", column="s")
    StructType(struct<a: int8, b: fixed_size_list<item: float>[2]>)
    """
    if isinstance(type_or_name, pa.DataType):
        return type_or_name
    if isinstance(type_or_name, str):
        if type_or_name.count("<") > MAX_LEVELS:
            raise UnsupportedType(
                f"Column {column!r}: the type is nested deeper than {MAX_LEVELS} levels.",
                hint="the type 'string' is for JSON text",
            )
        dtype = _parse(type_or_name.strip())
        if dtype is not None:
            return dtype
    raise UnsupportedType(
        f"Column {column!r}: unknown type {type_or_name!r}.",
        hint=f"use an Arrow type, or one of {listing(sorted(_TYPES_BY_NAME), limit=50)}, decimal(38, 10), "
        "list<...>",
    )


def _parse(text: str) -> pa.DataType | None:
    """Parse the name of a type; return None for other texts."""
    if text in _TYPES_BY_NAME:
        return _TYPES_BY_NAME[text]
    decimal = _DECIMAL.fullmatch(text)
    if decimal is not None:
        precision, scale = int(decimal[1]), int(decimal[2])
        return (
            pa.decimal128(precision, scale) if 0 < precision <= 38 and scale <= precision else None
        )
    sized = _SIZED.fullmatch(text)
    if sized is not None:
        item, size = _parse(sized[1]), int(sized[2])
    elif text.startswith("list<") and text.endswith(">"):
        item, size = _parse(text[5:-1].strip()), -1  # the size of a variable-size list in pyarrow
    else:
        return _parse_struct(text)
    return None if item is None or size == 0 else pa.list_(pa.field("item", item), size)


def _parse_struct(text: str) -> pa.DataType | None:
    if not (text.startswith("struct<") and text.endswith(">")):
        return None
    fields: list[pa.Field] = []
    for field_text in _split_fields(text[7:-1]):
        name, colon, type_name = field_text.partition(":")
        dtype = _parse(type_name.strip()) if colon else None
        if dtype is None:
            return None
        fields.append(pa.field(name.strip(), dtype))
    return pa.struct(fields) if fields else None


def _split_fields(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    fields, depth = [""], 0
    for character in text:
        depth += (character in "<([") - (character in ">)]")
        if character == "," and depth == 0:
            fields.append("")
        else:
            fields[-1] += character
    return fields


# -- times --------------------------------------------------------------------------------------


def can_be_epoch(dtype: pa.DataType) -> bool:
    """Return whether a column contains numbers, which may be epoch times."""
    return bool(pat.is_integer(dtype) or pat.is_floating(dtype))


def time_hint(column: str, dtype: pa.DataType, values: Iterable[float | str | None] = ()) -> str:
    """Return the line that casts a column of numbers or strings to times.

    A comment states which form or unit of the numbers was assumed. ``values`` are some values of
    the column.

    >>> time_hint("ts", pa.int64(), [1618491906])
    "df = featurestore.cast(df, {'ts': 'timestamp[s]'})  # assumed: seconds since 1970"
    """
    if not can_be_epoch(dtype):
        patterns = detect_text_formats(value for value in values if isinstance(value, str))
        if not patterns:
            return cast_hint({column: TIMESTAMP})
        lines = [cast_hint({column: f"timestamp[{pattern}]"}) for pattern in patterns]
        if len(lines) == 1:
            return lines[0]
        others = f"{' or '.join(patterns[1:])} also fits: {' or '.join(lines[1:])}"
        return f"{lines[0]}  # {patterns[0]}; {others}"
    numbers = [value for value in values if value is not None and not isinstance(value, str)]
    form = detect_number_form(numbers)
    if form is not None:
        return f"{cast_hint({column: f'timestamp[{form}]'})}  # assumed: {FORM_TITLES[form]}"
    unit = infer_epoch_unit(numbers)
    if unit is not None:
        line = cast_hint({column: f"timestamp[{unit}]"})
        return f"{line}  # assumed: {_UNIT_TITLES[unit]} since 1970"
    line = cast_hint({column: "timestamp[s]"})
    return f"{line}  # if the unit is seconds since 1970; otherwise 'ms' or 'us'"


def misread_hint(column: str, times: Iterable[datetime]) -> str:
    """Return the advice for times in 1970; its line casts the numbers from which they were read.

    >>> print(misread_hint("at", [datetime(1970, 1, 1, 0, 26, 58, tzinfo=UTC)]))
    were epoch numbers in 'ms' read as nanoseconds? cast the numbers, not the times: df = ...
    """
    times = list(times)
    # Days and years are tested first: few epoch numbers are such numbers of whole seconds.
    for read_unit, per_second in PER_SECOND.items():
        form = detect_number_form(round(time.timestamp() * per_second, 6) for time in times)
        if form is not None:
            return (
                f"were {FORM_TITLES[form]} read as {_UNIT_TITLES[read_unit]} since 1970? cast the "
                f"numbers, not the times: {cast_hint({column: f'timestamp[{form}]'})}"
            )
    unit = infer_epoch_unit(time.timestamp() * 1e9 for time in times)
    if unit is not None and unit != "ns":
        return (
            f"were epoch numbers in {unit!r} read as nanoseconds? cast the numbers, not the times: "
            f"{cast_hint({column: f'timestamp[{unit}]'})}"
        )
    return (
        f"cast epoch numbers with their unit: {cast_hint({column: 'timestamp[s]'})}, and days such "
        "as 20240131 as 'timestamp[YYYYMMDD]'"
    )


def infer_epoch_unit(values: Iterable[float | None]) -> str | None:
    """Return the unit ("s", "ms", "us", "ns") of epoch numbers, derived from their magnitude.

    Returns None if no unit puts the maximum between 1980 and 2100.

    >>> infer_epoch_unit([1618491906000, 1618491907000])
    'ms'
    >>> infer_epoch_unit([20240131]) is None
    True
    """
    # The maximum decides: times near 1970 are small numbers in every unit.
    largest = max((abs(value) for value in values if value is not None), default=0)
    # The ranges of the units do not overlap, so at most one unit matches.
    for unit, per_second in PER_SECOND.items():
        seconds = largest / per_second
        if PLAUSIBLE_START.timestamp() <= seconds < _PLAUSIBLE_END.timestamp():
            return unit
    return None


def detect_number_form(values: Iterable[float | None]) -> NumberForm | None:
    """Return the form of numbers that write dates, or None for other numbers.

    >>> detect_number_form([19970101, 20240229]), detect_number_form([2023, 2024])
    ('YYYYMMDD', 'YYYY')
    >>> detect_number_form([45292.5]), detect_number_form([20240230]), detect_number_form([1.7e9])
    ('Excel', None, None)
    """
    numbers = [value for value in values if value is not None and value == value]
    if not numbers:
        return None
    if all(_FIRST_SERIAL <= number < _LAST_SERIAL for number in numbers):
        return "Excel"
    if any(number % 1 != 0 for number in numbers):
        return None
    if all(_FIRST_YEAR <= number <= _LAST_YEAR for number in numbers):
        return "YYYY"
    return "YYYYMMDD" if all(_is_day(int(number)) for number in numbers) else None


def detect_text_formats(values: Iterable[str | None]) -> list[str]:
    """Return the formats that parse all strings; [] for ISO 8601 and for other strings.

    >>> detect_text_formats(["13/02/2024"]), detect_text_formats(["01/02/2024"])
    (['%d/%m/%Y'], ['%d/%m/%Y', '%m/%d/%Y'])
    """
    texts = {value for value in values if value is not None}
    if not texts:
        return []
    return [pattern for pattern in _TEXT_FORMATS if all(_matches(text, pattern) for text in texts)]


def _is_day(number: int) -> bool:
    year, month, day = number // 10_000, number // 100 % 100, number % 100
    if not _FIRST_YEAR <= year <= _LAST_YEAR:
        return False
    try:
        date(year, month, day)
    except ValueError:
        return False
    return True


def _matches(text: str, pattern: str) -> bool:
    # strptime accepts years of fewer digits, and fields of YYYYMMDD without a leading zero.
    if "%Y%m%d" in pattern and not text[:8].isdecimal():
        return False
    try:
        datetime.strptime(text, pattern)
    except ValueError:
        return False
    return True
