"""Moments: aware UTC datetimes, from datetimes or ISO texts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import partial

from featurestore.errors import InvalidArgument
from featurestore.model.callers import warn_caller

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class NaiveTimeWarning(UserWarning):
    """A time without a zone was taken as UTC."""


class SuspiciousTimeWarning(UserWarning):
    """Times lie so early that they were numbers, read in a wrong unit."""


def parse_moment(
    value: datetime | date | str, *, argument: str = "time", warn: bool = True
) -> datetime:
    """Return an aware UTC datetime; naive input is taken as UTC, with a warning unless told not to.

    >>> parse_moment("2013-01-01T05:00:00-05:00")
    datetime.datetime(2013, 1, 1, 10, 0, tzinfo=datetime.timezone.utc)
    """
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError as error:
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
    return value.astimezone(UTC)


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
    return _EPOCH + timedelta(microseconds=micros)


# The one clock of the library. Tests replace it here, so that whoever imported ``utc_now`` by name
# follows, whenever that was.
clock: Callable[[], datetime] = partial(datetime.now, UTC)


def utc_now() -> datetime:
    """Return the present time."""
    return clock()
