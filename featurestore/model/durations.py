"""Durations as people type them: ``"15min"``, ``"1h"``, ``"7d"`` or a timedelta."""

from __future__ import annotations

import re
from datetime import timedelta

from featurestore.errors import InvalidArgument, OutOfRange

_UNITS = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_UNITS["w"] = 7 * _UNITS["d"]
# Durations are stored as microseconds of 64 bits.
MAX_DURATION = timedelta(days=106_751_991)
# The ttl of a group whose values answer at their exact event time alone.
EXACT = "exact"
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s|min|h|d|w)\s*")


def parse_duration(value: timedelta | str, *, argument: str = "duration") -> timedelta:
    """Return a duration that is zero or longer.

    >>> parse_duration("15min")
    datetime.timedelta(seconds=900)
    """
    if isinstance(value, timedelta):
        duration = value
    elif isinstance(value, str) and (match := _TEXT.fullmatch(value)):
        try:
            duration = timedelta(microseconds=round(float(match[1]) * _UNITS[match[2]]))
        except OverflowError:
            duration = timedelta.max
    else:
        raise InvalidArgument(
            f"{argument}={value!r} is not a duration.",
            hint="give a timedelta or a text such as '30s', '15min', '1h', '7d', '2w'",
        )
    if duration < timedelta(0):
        raise InvalidArgument(
            f"{argument}={value!r} is negative.", hint="durations are zero or longer"
        )
    if duration > MAX_DURATION:
        raise OutOfRange(
            f"{argument}={value!r:.80} is longer than {MAX_DURATION.days:,} days.",
            hint=f"at most {argument}='{MAX_DURATION.days}d'",
        )
    return duration


def parse_ttl(value: timedelta | str | None) -> timedelta | None:
    """Return how long a value may be used: None without limit, zero at its exact time only.

    A zero is refused, since it means "without limit" elsewhere.

    >>> parse_ttl("exact"), parse_ttl(None), parse_ttl("7d")
    (datetime.timedelta(0), None, datetime.timedelta(days=7))
    """
    if value is None:
        return None
    if value == EXACT:
        return timedelta(0)
    ttl = parse_duration(value, argument="ttl")
    if not ttl:
        raise InvalidArgument(
            f"ttl={value!r} would let a value answer at its exact event time alone.",
            hint="ttl=None is without limit; ttl='exact' is for exact times",
        )
    return ttl


def format_ttl(ttl: timedelta | None) -> str | None:
    """Return what ``parse_ttl`` reads back.

    >>> format_ttl(timedelta(0)), format_ttl(timedelta(days=1))
    ('exact', '1d')
    """
    if ttl is None:
        return None
    if not ttl:
        return EXACT
    return format_duration(ttl)


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
