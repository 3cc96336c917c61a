"""Counts: versions, limits, offsets and numbers of rows, judged in one place."""

from __future__ import annotations

import operator
from collections.abc import Mapping

from featurestore.errors import InvalidArgument, OutOfRange

# The greatest whole number of SQLite, PostgreSQL, Delta and Arrow.
MOST = 2**63 - 1
MOST_VERSION = 10**9 - 1

# Arguments of public calls that are counts, with the least and the greatest that a call may take.
# A call may narrow them.
COUNTS: Mapping[str, tuple[int, int]] = {
    "version": (1, MOST_VERSION),
    "limit": (0, MOST),
    "offset": (0, MOST),
    "n": (0, MOST),
}


def check_count(value: object, *, argument: str, least: int = 0, most: int = MOST) -> int:
    """Return a whole number of a range, of Python or NumPy, as an int.

    >>> check_count(3, argument="limit")
    3

    Raises:
        InvalidArgument: It is not a whole number.
        OutOfRange: It lies outside of the range.
    """
    try:
        # Python and NumPy take booleans for whole numbers.
        if type(value).__name__ in ("bool", "bool_"):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise InvalidArgument(
            f"{argument}={_shown(value)} is not a whole number.",
            hint=f"{argument}={max(least, 1)}",
        ) from error
    if not least <= number <= most:
        raise OutOfRange(
            f"{argument}={_shown(number)} is not between {least} and {most}.",
            hint=f"{argument}={least if number < least else most}",
        )
    return number


def check_counts(arguments: Mapping[str, object]) -> None:
    """Check the arguments of a call that are counts; None stands for no argument."""
    for name in COUNTS.keys() & arguments.keys():
        value = arguments[name]
        if value is not None:
            least, most = COUNTS[name]
            check_count(value, argument=name, least=least, most=most)


def check_version(version: object, *, argument: str = "version") -> int:
    """Return a version of a group, dataset, view or model: 1, 2, ...

    >>> check_version(3)
    3
    """
    return check_count(version, argument=argument, least=1, most=MOST_VERSION)


def parse_version(text: str) -> int:
    """Return the version that the digits of a reference say.

    >>> parse_version("12")
    12
    """
    digits = text.lstrip("0")
    # Python refuses to read numbers of more than 4,300 digits.
    if len(digits) > len(str(MOST_VERSION)):
        raise OutOfRange(
            f"Version {digits:.20}... is not between 1 and {MOST_VERSION}.", hint="version=1"
        )
    return check_version(int(digits or "0"))


def _shown(value: object) -> str:
    # Python refuses to write numbers of more than 4,300 digits.
    if isinstance(value, int) and abs(value) > 10**40:
        return f"<a whole number of {value.bit_length()} bits>"
    return f"{value!r:.80}"
