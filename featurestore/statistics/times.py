"""Times in statistics: days or microseconds since 1970 while counting, ISO 8601 in results.

Times outside the years 1 to 9999, the range of Python's datetime, are formatted by numpy: their
years have more digits, or a minus sign.
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.model.times import from_micros, to_micros

_MICROS_PER_DAY = 86_400_000_000
_FIRST_DAY = (date.min - date(1970, 1, 1)).days
_LAST_DAY = (date.max - date(1970, 1, 1)).days
_FIRST_MICROS = to_micros(datetime.min.replace(tzinfo=UTC))
_LAST_MICROS = to_micros(datetime.max.replace(tzinfo=UTC))
_INT64 = np.iinfo(np.int64)


def time_text(value: float, kind: pa.DataType) -> str:
    """Format days (for dates) or microseconds (for timestamps) since 1970.

    >>> time_text(19723, pa.date32()), time_text(19723.5, pa.date32())
    ('2024-01-01', '2024-01-01T12:00:00+00:00')
    >>> time_text(253402300800000000, pa.timestamp("us", tz="UTC"))
    '10000-01-01T00:00:00.000000+00:00'
    """
    if not pat.is_date(kind):
        return _instant_text(round(value))
    days = math.floor(value)
    if days == value or not _FIRST_DAY <= days <= _LAST_DAY:
        return str(np.datetime64(days, "D"))
    return _instant_text(days * _MICROS_PER_DAY + round((value - days) * _MICROS_PER_DAY))


def within_calendar(value: float, kind: pa.DataType, *, low: float, high: float) -> float:
    """Clip a computed value to Python's calendar if all values of the column are within it.

    Means, quantiles and edges are computed as float64, whose resolution is 32 microseconds in the
    year 9999.
    """
    is_date = pat.is_date(kind)
    first = _FIRST_DAY if is_date else _FIRST_MICROS
    last = _LAST_DAY if is_date else _LAST_MICROS
    return max(min(value, max(last, high)), min(first, low))


def parse_seconds(text: str) -> float:
    """Parse a text of ``time_text`` into seconds since 1970.

    >>> parse_seconds("1970-01-02"), parse_seconds("10000-01-01T00:00:00.000000+00:00")
    (86400.0, 253402300800.0)
    """
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:  # outside Python's calendar
        return float(np.datetime64(text.removesuffix("+00:00"), "s").astype(np.int64))
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return instant.timestamp()


def _instant_text(micros: int) -> str:
    if _FIRST_MICROS <= micros <= _LAST_MICROS:
        return from_micros(micros).isoformat()
    micros = min(max(micros, int(_INT64.min) + 1), int(_INT64.max))
    return f"{np.datetime64(micros, 'us')}+00:00"
