"""Durations as people type them: ``"15min"``, ``"1h"``, ``"7d"`` or a timedelta."""

from __future__ import annotations

import re
from datetime import timedelta

from featurestore.errors import InvalidArgument

_UNITS = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_UNITS["w"] = 7 * _UNITS["d"]
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s|min|h|d|w)\s*")


def parse_duration(value: timedelta | str, *, argument: str = "duration") -> timedelta:
    """Return a duration that is zero or longer.

    >>> parse_duration("15min")
    datetime.timedelta(seconds=900)
    """
    if isinstance(value, timedelta):
        result = value
    elif isinstance(value, str) and (match := _TEXT.fullmatch(value)):
        result = timedelta(microseconds=round(float(match[1]) * _UNITS[match[2]]))
    else:
        raise InvalidArgument(
            f"{argument}={value!r} is not a duration.",
            hint="give a timedelta or a text such as '30s', '15min', '1h', '7d', '2w'",
        )
    if result < timedelta(0):
        raise InvalidArgument(
            f"{argument}={value!r} is negative.", hint="durations are zero or longer"
        )
    return result


def format_duration(value: timedelta) -> str:
    """Return the shortest text that ``parse_duration`` reads back.

    >>> format_duration(timedelta(hours=36))
    '36h'
    """
    micros = round(value / timedelta(microseconds=1))
    for unit in ("d", "h", "min", "s", "ms"):
        if micros and micros % _UNITS[unit] == 0:
            return f"{micros // _UNITS[unit]}{unit}"
    return f"{micros}us"
