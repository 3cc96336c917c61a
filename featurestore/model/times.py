"""Instants: aware UTC datetimes of the years 1 to 9999, from datetimes or ISO texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from featurestore.errors import InvalidArgument, OutOfRange
from featurestore.model.callers import warn_caller

if TYPE_CHECKING:
    import pyarrow as pa

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST = datetime.min.replace(tzinfo=UTC)
LAST = datetime.max.replace(tzinfo=UTC)
# A year of five digits or more, year 0, or one with a sign, as ISO 8601 writes them.
_FAR_YEAR = re.compile(r"\s*([+-]?\d{5,}|-\d{4,}|0000)-\d")


class NaiveTimeWarning(UserWarning):
    """A time without a zone was taken as UTC."""


class SuspiciousTimeWarning(UserWarning):
    """Times are so early that they were probably numbers read in a wrong unit."""


def parse_moment(
    value: datetime | date | str, *, argument: str = "time", warn: bool = True
) -> datetime:
    """Return an aware UTC datetime; naive input is interpreted as UTC, with an optional warning.

    >>> parse_moment("2013-01-01T05:00:00-05:00")
    datetime.datetime(2013, 1, 1, 10, 0, tzinfo=datetime.timezone.utc)
    """
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError as error:
            if _FAR_YEAR.match(str(value)):
                raise OutOfRange(
                    f"{argument}={value!r:.80} lies outside of the years 1 to 9999.",
                    hint="use ISO 8601, for example '2013-01-31T12:00:00Z'",
                ) from error
            raise InvalidArgument(
                f"{argument}={value!r} is not a time.",
                hint="use ISO 8601, for example '2013-01-31T12:00:00Z'",
            ) from error
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime):
        raise InvalidArgument(
            f"{argument}={value!r} is not a time.",
            hint="give an aware datetime or an ISO 8601 text",
        )
    if value.tzinfo is None:
        if warn:
            warn_caller(
                f"{argument}={value} has no time zone and is taken as UTC", NaiveTimeWarning
            )
        return value.replace(tzinfo=UTC)
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise OutOfRange(
            f"{argument}={value} lies outside of the years 1 to 9999 in UTC.",
            hint="None stands for no time",
        ) from error


def to_micros(moment: datetime) -> int:
    """Return microseconds since 1970-01-01 UTC, exactly.

    >>> to_micros(datetime(1970, 1, 2, tzinfo=UTC))
    86400000000
    """
    return (moment - _EPOCH) // timedelta(microseconds=1)


def from_micros(micros: int) -> datetime:
    """Return the aware UTC datetime of microseconds since 1970-01-01.

    >>> from_micros(1)
    datetime.datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=datetime.timezone.utc)
    """
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError as error:
        raise OutOfRange(
            f"{micros} microseconds since 1970 lie outside of the years 1 to 9999."
        ) from error


def shifted(moment: datetime, by: timedelta) -> datetime:
    """Return an instant a duration later; at most the last of year 9999, at least the first of 1.

    >>> shifted(datetime(1970, 1, 2, tzinfo=UTC), -timedelta(days=1))
    datetime.datetime(1970, 1, 1, 0, 0, tzinfo=datetime.timezone.utc)
    """
    try:
        return moment + by
    except OverflowError:
        return FIRST if by < timedelta(0) else LAST


# The clock of the library. Tests replace it here, which also affects importers of ``utc_now``.
clock: Callable[[], datetime] = partial(datetime.now, UTC)


def utc_now() -> datetime:
    """Return the present time."""
    return clock()


def has_passed(since: datetime, wait: timedelta, *, now: datetime) -> bool:
    """Return whether a wait that began at a recorded time is over.

    A recorded time ahead of the clock is one of before the clock was set back: the wait is over.

    >>> noon = datetime(2024, 3, 1, 12, tzinfo=UTC)
    >>> minute = timedelta(minutes=1)
    >>> [has_passed(noon, minute, now=noon + minute * after) for after in (-1440, 0, 1, 1440)]
    [True, False, True, True]
    """
    return since > now or now >= since + wait


def python_rows(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows as dicts; times that Python does not have are texts: those after the year 9999."""
    values = [_python_values(column) for column in rows.columns]
    return [dict(zip(rows.schema.names, row, strict=True)) for row in zip(*values, strict=True)]


def _python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except OverflowError:
        numbers = column.cast("int64").to_pylist()
        return [None if each is None else f"{each:,} {column.type}" for each in numbers]
    return values
