"""UTC timestamps in years 1 to 9999, durations such as ``"15min"``, and windows."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

from featurestore.errors import InvalidArgument, OutOfRange
from featurestore.model.arguments import check_count, warn_caller

if TYPE_CHECKING:
    import pyarrow as pa

_UNITS = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_UNITS["w"] = 7 * _UNITS["d"]
# Durations are stored as 64-bit microseconds.
MAX_DURATION = timedelta(days=106_751_991)
# The ttl of a group whose values are only valid at their exact event time.
EXACT = "exact"
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s|min|h|d|w)\s*")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST = datetime.min.replace(tzinfo=UTC)
LAST = datetime.max.replace(tzinfo=UTC)
# ISO 8601 years with five or more digits or a sign, and year 0.
_FAR_YEAR = re.compile(r"\s*([+-]?\d{5,}|-\d{4,}|0000)-\d")

# The digits of nanoseconds in ISO 8601, which ``fromisoformat`` ignores.
_NANOSECONDS = re.compile(r"([.,]\d{6})(?=\d*[1-9])\d+")

# The library's clock. Tests replace it here, which also affects importers of ``utc_now``.
clock: Callable[[], datetime] = partial(datetime.now, UTC)


class NaiveTimeWarning(UserWarning):
    """A time without a time zone was interpreted as UTC."""


class SuspiciousTimeWarning(UserWarning):
    """Times are so early that they were probably numbers read in the wrong unit."""


def is_finer_than_microseconds(text: str) -> bool:
    """Return whether a time in ISO 8601 has digits after the microseconds.

    >>> is_finer_than_microseconds("2024-01-31T12:00:00.000000001")
    True
    """
    return _NANOSECONDS.search(text) is not None


def parse_moment(value: object, *, argument: str = "time", warn: bool = True) -> datetime:
    """Parse a time to an aware UTC datetime; naive times are UTC, with an optional warning.

    A time is a value of a timestamp column (also of numpy, pandas and pyarrow), a date, which is
    its midnight in UTC, or ISO 8601 text.

    >>> parse_moment("2013-01-01T05:00:00-05:00")
    datetime.datetime(2013, 1, 1, 10, 0, tzinfo=datetime.timezone.utc)

    Raises:
        InvalidArgument: The value is not a time, or is finer than a microsecond.
        OutOfRange: The time is outside of the years 1 to 9999.
    """
    if isinstance(value, str):
        if is_finer_than_microseconds(value):
            microseconds = _NANOSECONDS.sub(r"\1", value)
            raise InvalidArgument(
                f"{argument}={value!r:.80} is finer than a microsecond.",
                hint=f"{argument}={microseconds!r:.80}",
            )
        try:
            value = datetime.fromisoformat(value)
        except ValueError as error:
            if _FAR_YEAR.match(str(value)):
                raise OutOfRange(
                    f"{argument}={value!r:.80} is outside of the years 1 to 9999.",
                    hint="use ISO 8601, for example '2013-01-31T12:00:00Z'",
                ) from error
            raise InvalidArgument(
                f"{argument}={value!r} is not a time.",
                hint="use ISO 8601, for example '2013-01-31T12:00:00Z'",
            ) from error
    elif type(value) is not datetime:
        value = _to_datetime(value, argument)
    if value.tzinfo is None:
        if warn:
            warn_caller(
                f"{argument}={value} has no time zone and is interpreted as UTC",
                NaiveTimeWarning,
                once=True,
            )
        return value.replace(tzinfo=UTC)
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise OutOfRange(
            f"{argument}={value} is outside of the years 1 to 9999 in UTC.",
            hint="use None for a missing time",
        ) from error


def _to_datetime(value: object, argument: str) -> datetime:
    """Convert a foreign time or a date to an equal datetime, naive if the value has no zone."""
    # Arrow is imported only for values that need it.
    import pyarrow as pa

    from featurestore.arrow.values import ConversionError, to_value

    if isinstance(value, pa.Scalar):
        value = value.as_py()
    has_zone = getattr(value, "tzinfo", None) is not None
    for dtype in (pa.timestamp("us", "UTC"), pa.date32()):
        try:
            converted = to_value(value, dtype)
        except ConversionError:
            continue
        # NaT and None are missing times.
        if isinstance(converted, datetime):
            return converted if has_zone else converted.replace(tzinfo=None)
        if converted is not None:
            return datetime(converted.year, converted.month, converted.day)
    raise InvalidArgument(
        f"{argument}={value!r:.80} is not a time of microseconds.",
        hint="use an aware datetime or an ISO 8601 string",
    )


def parse_version_or_moment(value: object, *, argument: str) -> int | datetime:
    """Parse a Delta version, which is an integer, or a time.

    >>> parse_version_or_moment(3, argument="as_of")
    3

    Raises:
        InvalidArgument: The value is neither.
        OutOfRange: The version is negative, or the time outside of the years 1 to 9999.
    """
    try:
        return check_count(value, argument=argument)
    except OutOfRange:
        raise
    except InvalidArgument:
        pass
    try:
        return parse_moment(value, argument=argument)
    except OutOfRange:
        raise
    except InvalidArgument as error:
        if isinstance(value, str | datetime):
            raise
        raise InvalidArgument(
            f"{argument}={value!r:.80} is neither a time nor a Delta version.",
            hint=f"{argument}=3, or {argument}='2024-01-31T00:00:00Z'",
        ) from error


def to_micros(timestamp: datetime) -> int:
    """Convert a datetime to microseconds since 1970-01-01 UTC, exactly.

    >>> to_micros(datetime(1970, 1, 2, tzinfo=UTC))
    86400000000
    """
    # Integers: ``timestamp()`` is a float, which does not represent every microsecond.
    return (timestamp - _EPOCH) // timedelta(microseconds=1)


def from_micros(micros: int) -> datetime:
    """Convert microseconds since 1970-01-01 UTC to an aware datetime.

    >>> from_micros(1)
    datetime.datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=datetime.timezone.utc)
    """
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError as error:
        raise OutOfRange(
            f"{micros} microseconds since 1970 are outside of the years 1 to 9999."
        ) from error


def shift_time(timestamp: datetime, duration: timedelta) -> datetime:
    """Shift a timestamp by a duration, limited to the years 1 to 9999.

    >>> shift_time(datetime(1970, 1, 2, tzinfo=UTC), -timedelta(days=1))
    datetime.datetime(1970, 1, 1, 0, 0, tzinfo=datetime.timezone.utc)
    """
    try:
        return timestamp + duration
    # Durations beyond ``timedelta`` are refused below, like all above ``MAX_DURATION``.
    except OverflowError:
        return FIRST if duration < timedelta(0) else LAST


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return clock()


def has_passed(since: datetime, wait: timedelta, *, now: datetime) -> bool:
    """Return whether the duration since a recorded time has passed.

    A recorded time in the future means that the clock was set back; the duration counts as passed.

    >>> noon = datetime(2024, 3, 1, 12, tzinfo=UTC)
    >>> minute = timedelta(minutes=1)
    >>> [has_passed(noon, minute, now=noon + minute * after) for after in (-1440, 0, 1, 1440)]
    [True, False, True, True]
    """
    return since > now or now >= since + wait


def to_python_rows(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Convert rows to dicts; times after the year 9999, which Python lacks, become strings."""
    values = [to_python_values(column) for column in rows.columns]
    return [dict(zip(rows.schema.names, row, strict=True)) for row in zip(*values, strict=True)]


def to_python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Convert a column to Python values, with strings for times beyond the year 9999."""
    try:
        values: list[Any] = column.to_pylist()
    except OverflowError:
        numbers = column.cast("int64").to_pylist()
        return [None if number is None else f"{number:,} {column.type}" for number in numbers]
    return values


def parse_duration(value: timedelta | str, *, argument: str = "duration") -> timedelta:
    """Parse a non-negative duration.

    >>> parse_duration("15min")
    datetime.timedelta(seconds=900)
    """
    if isinstance(value, timedelta) and not getattr(value, "nanoseconds", 0):
        duration = timedelta(value.days, value.seconds, value.microseconds)
    elif isinstance(value, str) and (match := _TEXT.fullmatch(value)):
        # Python refuses to parse integers of more than 4,300 digits, but parses such decimals.
        count = Fraction(Decimal(match[1])) * _UNITS[match[2]]
        is_representable = count < MAX_DURATION // timedelta(microseconds=1) + 1
        if is_representable and count.denominator != 1:
            raise InvalidArgument(
                f"{argument}={value!r:.80} is not a whole number of microseconds.",
                hint=f"{argument}='{max(round(count), 1)}us'",
            )
        duration = timedelta(microseconds=int(count)) if is_representable else timedelta.max
    else:
        raise InvalidArgument(
            f"{argument}={value!r} is not a duration.",
            hint="use a timedelta or a string such as '30s', '15min', '1h', '7d', '2w'",
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


def format_duration(value: timedelta) -> str:
    """Format a duration as the shortest string that ``parse_duration`` can parse.

    >>> format_duration(timedelta(hours=36))
    '36h'
    """
    micros = value // timedelta(microseconds=1)
    for unit in ("d", "h", "min", "s", "ms"):
        if micros and micros % _UNITS[unit] == 0:
            return f"{micros // _UNITS[unit]}{unit}"
    return f"{micros}us"


def parse_ttl(value: timedelta | str | None) -> timedelta | None:
    """Parse the validity of a value: None is unlimited, zero is the exact event time only.

    The duration 0 is refused, since it means "unlimited" in other products.

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
            f"ttl={value!r} would make a value valid only at its exact event time.",
            hint="ttl=None for no limit, ttl='exact' for exact times",
        )
    return ttl


def format_ttl(ttl: timedelta | None) -> str | None:
    """Format a ttl as ``parse_ttl`` can parse it.

    >>> format_ttl(timedelta(0)), format_ttl(timedelta(days=1))
    ('exact', '1d')
    """
    if ttl is None:
        return None
    if not ttl:
        return EXACT
    return format_duration(ttl)


def duration_to_json(value: timedelta | None) -> str | None:
    """Convert a duration to its stored representation."""
    return None if value is None else format_duration(value)


def duration_from_json(value: str | None) -> timedelta | None:
    """Convert the output of ``duration_to_json`` to a duration."""
    return None if value is None else parse_duration(value)


@dataclass(frozen=True, order=True)
class Window:
    """A time range ``[start, end)`` in UTC that one run computes."""

    start: datetime
    end: datetime

    def overlaps(self, window: Window) -> bool:
        """Return whether the ranges have a common instant; adjacent ranges have none."""
        return self.start < window.end and window.start < self.end
