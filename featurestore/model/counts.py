"""Counts: versions, limits, offsets and numbers of rows, judged in one place."""

from __future__ import annotations

import operator
from collections.abc import Mapping

from featurestore.errors import InvalidArgument, OutOfRange

# The greatest whole number of SQLite, PostgreSQL, Delta and Arrow.
MAX_INT64 = 2**63 - 1
MAX_VERSION = 10**9 - 1

# Arguments of public calls that are counts, with the least and the greatest that a call may take.
# A call may narrow them.
COUNTS: Mapping[str, tuple[int, int]] = {
    "version": (1, MAX_VERSION),
    "limit": (0, MAX_INT64),
    "offset": (0, MAX_INT64),
    "n": (0, MAX_INT64),
}


def check_count(value: object, *, argument: str, minimum: int = 0, maximum: int = MAX_INT64) -> int:
    """Return a whole number of a range, of Python or NumPy, as an int.

    >>> check_count(3, argument="limit")
    3

    Raises:
        InvalidArgument: It is not a whole number.
        OutOfRange: It is outside the range.
    """
    try:
        # Python and NumPy take booleans for whole numbers.
        if type(value).__name__ in ("bool", "bool_"):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise InvalidArgument(
            f"{argument}={_short_repr(value)} is not a whole number.",
            hint=f"{argument}={max(minimum, 1)}",
        ) from error
    if not minimum <= number <= maximum:
        raise OutOfRange(
            f"{argument}={_short_repr(number)} is not between {minimum} and {maximum}.",
            hint=f"{argument}={minimum if number < minimum else maximum}",
        )
    return number


def check_counts(arguments: Mapping[str, object]) -> None:
    """Check the count arguments of a call; None is skipped."""
    for name in COUNTS.keys() & arguments.keys():
        value = arguments[name]
        if value is not None:
            minimum, maximum = COUNTS[name]
            check_count(value, argument=name, minimum=minimum, maximum=maximum)


def check_version(version: object, *, argument: str = "version") -> int:
    """Return a version of a group, dataset, view or model: 1, 2, ...

    >>> check_version(3)
    3
    """
    return check_count(version, argument=argument, minimum=1, maximum=MAX_VERSION)


def parse_version(text: str) -> int:
    """Return the version in the digits of a reference.

    >>> parse_version("12")
    12
    """
    digits = text.lstrip("0")
    # Python refuses to read numbers of more than 4,300 digits.
    if len(digits) > len(str(MAX_VERSION)):
        raise OutOfRange(
            f"Version {digits:.20}... is not between 1 and {MAX_VERSION}.", hint="version=1"
        )
    return check_version(int(digits or "0"))


def _short_repr(value: object) -> str:
    # Python refuses to write numbers of more than 4,300 digits.
    if isinstance(value, int) and abs(value) > 10**40:
        return f"<a whole number of {value.bit_length()} bits>"
    return f"{value!r:.80}"
