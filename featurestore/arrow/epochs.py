"""Unit inference for epoch numbers, and hints that convert numbers and strings to times."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow import types
from featurestore.arrow.cast_lines import cast_line
from featurestore.arrow.column_lines import cell_line, quoted

# Times before it are warned about: numbers that were read in a wrong unit end up in 1970.
PLAUSIBLE_START = datetime(1980, 1, 1, tzinfo=UTC)
_PLAUSIBLE_END = datetime(2100, 1, 1, tzinfo=UTC)
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}

_PANDAS = "df[{c!r}] = pd.to_datetime(df[{c!r}], unit={u!r}, utc=True)"
_POLARS = "df = df.with_columns(pl.from_epoch({c!r}, time_unit={u!r}).dt.replace_time_zone('UTC'))"
_ARROW = (
    "table = table.set_column(table.column_names.index({c!r}), {c!r}, "
    "table[{c!r}].cast('int64').cast(pa.timestamp({u!r}, tz='UTC')))"
)
_DUCKDB = "rows = rows.select('* REPLACE (make_timestamptz(({q} {by})::BIGINT) AS {q})')"
_SPARK = "df = df.withColumn({c!r}, {by})"
_NUMBERS = {"pandas": _PANDAS, "polars": _POLARS, "pyarrow": _ARROW}
_NUMBERS |= {"duckdb": _DUCKDB, "pyspark": _SPARK}
# How each library counts microseconds, or its own unit.
_FACTORS = {
    "duckdb": {"s": "* 1000000", "ms": "* 1000", "us": "* 1", "ns": "// 1000"},
    "pyspark": {
        "s": "F.timestamp_seconds({c!r})",
        "ms": "F.timestamp_millis({c!r})",
        "us": "F.timestamp_micros({c!r})",
        "ns": "F.timestamp_micros((F.col({c!r}) / 1000).cast('long'))",
    },
}
# The same over a cell of Python.
_TIMEDELTA_ARGUMENTS = {"s": "seconds={v}", "ms": "milliseconds={v}", "us": "microseconds={v}"}
_TIMEDELTA_ARGUMENTS["ns"] = "microseconds={v} // 1000"
_EPOCH_PLUS = "datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta({n})"


def epoch_unit(values: Iterable[float | None]) -> str | None:
    """Return the unit ("s", "ms", "us", "ns") in which numbers count from 1970, by their size.

    Returns None if no unit places the maximum between 1980 and 2100.

    >>> epoch_unit([1618491906000, 1618491907000])
    'ms'
    >>> epoch_unit([20240131]) is None
    True
    """
    largest = max((abs(value) for value in values if value is not None), default=0)
    for unit, per_second in _PER_SECOND.items():
        seconds = largest / per_second
        if PLAUSIBLE_START.timestamp() <= seconds < _PLAUSIBLE_END.timestamp():
            return unit
    return None


def misread_unit(times: Iterable[datetime]) -> str | None:
    """Return the unit of numbers that were read as nanoseconds and came out as these times.

    >>> misread_unit([datetime(1970, 1, 1, 0, 26, 58, 491906, tzinfo=UTC)])
    'ms'
    """
    nanoseconds = [time.timestamp() * 1e9 for time in times]
    unit = epoch_unit(nanoseconds)
    if unit == "ns":
        return None
    return unit


def is_number(kind: pa.DataType) -> bool:
    """Return whether a column holds numbers, which may count from 1970."""
    return bool(pat.is_integer(kind) or pat.is_floating(kind))


def misread_advice(times: Iterable[datetime]) -> str:
    """Return what to do about times of 1970.

    >>> misread_advice([datetime(1970, 1, 1, 0, 26, 58, tzinfo=UTC)])
    "were numbers of 'ms' read as nanoseconds? pd.to_datetime(numbers, unit='ms', utc=True)"
    """
    unit = misread_unit(times)
    if unit is None:
        return "numbers since 1970 become times with their unit: pd.to_datetime(numbers, unit='s')"
    return (
        f"were numbers of {unit!r} read as nanoseconds? "
        f"pd.to_datetime(numbers, unit={unit!r}, utc=True)"
    )


def conversion_hint(
    column: str, kind: pa.DataType, values: Iterable[float | None] = (), *, library: str = "pandas"
) -> str:
    """Return the line that makes a column of numbers or texts a time.

    ``library`` is the kind of dataframe whose words it uses (``column_lines.language_of``).

    >>> conversion_hint("ts", pa.int64(), [1618491906])
    "df['ts'] = pd.to_datetime(df['ts'], unit='s', utc=True)"
    """
    if not is_number(kind):
        line = cast_line(library, column, pa.string(), types.TIMESTAMP) or ""
        if library == "duckdb":  # where double quotes are SQL's
            return line
        return line.replace(f'"{column}"', repr(column))
    unit = epoch_unit(values)
    if unit is not None:
        return _number_line(library, column, unit)
    line = _number_line(library, column, "s")
    return f"{line}  # where they count seconds since 1970; say it where they count 'ms' or 'us'"


def _number_line(library: str, column: str, unit: str) -> str:
    template = _NUMBERS.get(library)
    if template is None:
        expression = _EPOCH_PLUS.replace("{n}", _TIMEDELTA_ARGUMENTS[unit])
        return cell_line(library, column, expression) or ""
    factor = _FACTORS.get(library, {}).get(unit, "").format(c=column)
    return template.format(c=column, q=quoted(column), u=unit, by=factor)
