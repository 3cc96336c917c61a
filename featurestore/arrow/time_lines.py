"""Code snippets that convert numbers and strings that write dates to times, by the form of the values.

``detect_number_form`` recognizes days as numbers, years and serial numbers of Excel by their ranges, which do
not overlap with each other or with plausible epoch numbers (``cast_lines.infer_epoch_unit``).
``detect_text_formats`` returns the formats that parse all strings, such as day and month in both
orders.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime
from typing import Literal

from featurestore.arrow.column_lines import cell_line, quoted

NumberForm = Literal["YYYYMMDD", "year", "Excel"]
FORM_TITLES = {
    "YYYYMMDD": "days as YYYYMMDD",
    "year": "years, as their January 1",
    "Excel": "serial numbers of Excel, days since 1899-12-30",
}
_FIRST_YEAR, _LAST_YEAR = 1900, 2100
# The serial numbers of Excel from 1980 to 2100.
_FIRST_SERIAL, _LAST_SERIAL = 29_221, 73_415

_SPARK_MIDNIGHT = "df = df.withColumn({c!r}, F.expr({sql!r}))"
_DUCKDB = "rows = rows.select({sql!r})"
_POLARS_MIDNIGHT = ".cast(pl.Datetime('us')).dt.replace_time_zone('UTC')"
_WHOLE_TEXT = "df[{c!r}].astype('Int64').astype('string')"
_PANDAS = {
    "YYYYMMDD": f"df[{{c!r}}] = pd.to_datetime({_WHOLE_TEXT}, format='%Y%m%d', utc=True)",
    "year": f"df[{{c!r}}] = pd.to_datetime({_WHOLE_TEXT}, format='%Y', utc=True)",
    "Excel": "df[{c!r}] = pd.to_datetime(df[{c!r}], unit='D', origin='1899-12-30', utc=True)"
    ".dt.round('us')",
}
_POLARS = {
    "YYYYMMDD": "df = df.with_columns(pl.col({c!r}).cast(pl.Int64).cast(pl.String)"
    f".str.to_date('%Y%m%d'){_POLARS_MIDNIGHT})",
    "year": "df = df.with_columns(pl.date(pl.col({c!r}).cast(pl.Int32), 1, 1)"
    f"{_POLARS_MIDNIGHT}.alias({{c!r}}))",
    "Excel": "df = df.with_columns(((pl.col({c!r}) - 25569) * 86400000000).round().cast(pl.Int64)"
    ".cast(pl.Datetime('us')).dt.replace_time_zone('UTC'))",
}
# SQL expressions of microseconds since 1970.
_DUCKDB_MICROS = {
    "YYYYMMDD": "epoch_us(strptime({q}::BIGINT::VARCHAR, '%Y%m%d'))",
    "year": "epoch_us(make_timestamp({q}::BIGINT, 1, 1, 0, 0, 0))",
    "Excel": "round(({q} - 25569) * 86400000000)::BIGINT",
}
_SPARK_MICROS = {
    "YYYYMMDD": "unix_date(to_date(cast(cast({b} as bigint) as string), 'yyyyMMdd')) * 86400000000",
    "year": "unix_date(make_date(cast({b} as int), 1, 1)) * 86400000000",
    "Excel": "cast(round(({b} - 25569) * 86400000000) as bigint)",
}
_CELLS = {
    "YYYYMMDD": "datetime.datetime.strptime(str(int({v})), '%Y%m%d').replace(tzinfo=datetime.UTC)",
    "year": "datetime.datetime(int({v}), 1, 1, tzinfo=datetime.UTC)",
    "Excel": "datetime.datetime(1899, 12, 30, tzinfo=datetime.UTC) + datetime.timedelta({v})",
}
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
_SPARK_FIELDS = {
    "%Y%m%d": "yyyyMMdd",
    "%d": "d", "%m": "M", "%Y": "yyyy", "%y": "yy", "%H": "H", "%M": "mm", "%S": "ss", "T": "'T'",
}  # fmt: skip


def detect_number_form(values: Iterable[float | None]) -> NumberForm | None:
    """Return the form of numbers that write dates, or None for other numbers.

    >>> detect_number_form([19970101, 20240229]), detect_number_form([2023, 2024])
    ('YYYYMMDD', 'year')
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
        return "year"
    return "YYYYMMDD" if all(_is_day(int(number)) for number in numbers) else None


def number_line(library: str, column: str, form: NumberForm) -> str:
    """Return the code snippet that converts numbers of a form to times.

    >>> number_line("pandas", "day", "Excel")
    "df['day'] = pd.to_datetime(df['day'], unit='D', origin='1899-12-30', utc=True).dt.round('us')"
    """
    if library == "pandas":
        return _PANDAS[form].format(c=column)
    if library == "polars":
        return _POLARS[form].format(c=column)
    if library == "duckdb":
        name = quoted(column)
        micros = _DUCKDB_MICROS[form].format(q=name)
        return _DUCKDB.format(sql=f"* REPLACE (make_timestamptz({micros}) AS {name})")
    if library == "pyspark":
        micros = _SPARK_MICROS[form].format(b=f"`{column}`")
        return _SPARK_MIDNIGHT.format(c=column, sql=f"timestamp_micros({micros})")
    return cell_line(library, column, _CELLS[form]) or ""


def detect_text_formats(values: Iterable[str | None]) -> list[str]:
    """Return the formats that parse all strings; [] for ISO 8601 and for other strings.

    >>> detect_text_formats(["13/02/2024"]), detect_text_formats(["01/02/2024"])
    (['%d/%m/%Y'], ['%d/%m/%Y', '%m/%d/%Y'])
    """
    texts = {value for value in values if value is not None}
    if not texts:
        return []
    return [pattern for pattern in _TEXT_FORMATS if all(_matches(text, pattern) for text in texts)]


def text_line(library: str, column: str, patterns: Sequence[str]) -> str:
    """Return the code snippet that parses strings of a format; a comment has the other formats.

    >>> text_line("pandas", "day", ["%d/%m/%Y"])
    "df['day'] = pd.to_datetime(df['day'], format='%d/%m/%Y', utc=True)"
    """
    line = _parsing_line(library, column, patterns[0])
    if len(patterns) == 1:
        return line
    other_lines = [_parsing_line(library, column, pattern) for pattern in patterns[1:]]
    alternatives = f"{' or '.join(patterns[1:])} also fits: {' or '.join(other_lines)}"
    return f"{line}  # {patterns[0]}; {alternatives}"


def _parsing_line(library: str, column: str, pattern: str) -> str:
    if library == "pandas":
        return f"df[{column!r}] = pd.to_datetime(df[{column!r}], format={pattern!r}, utc=True)"
    if library == "polars":
        parse = f".str.to_datetime({pattern!r}, time_zone='UTC')"
        if "%H" not in pattern:
            parse = f".str.to_date({pattern!r}){_POLARS_MIDNIGHT}"
        return f"df = df.with_columns(pl.col({column!r}){parse})"
    if library == "duckdb":
        name = quoted(column)
        parsed = f"make_timestamptz(epoch_us(strptime({name}, '{pattern}')))"
        return _DUCKDB.format(sql=f"* REPLACE ({parsed} AS {name})")
    if library == "pyspark":
        for field, letters in _SPARK_FIELDS.items():
            pattern = pattern.replace(field, letters)
        return f"df = df.withColumn({column!r}, F.to_timestamp({column!r}, {pattern!r}))"
    expression = f"datetime.datetime.strptime({{v}}, {pattern!r}).replace(tzinfo=datetime.UTC)"
    return cell_line(library, column, expression) or ""


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
