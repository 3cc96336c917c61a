"""Exceptions of Python code that a native library calls, and reports only by their messages.

DuckDB reads Arrow streams and files of object stores through Python code. The exception object is
stored under a number, with which the message begins.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager

# Process-wide, since a query may run in a thread of the library.
_RAISED_ERRORS: dict[int, BaseException] = {}
_NUMBERS = itertools.count(1)
_MARK = re.compile(r"\[raised in Python #(\d+)\]")


@contextmanager
def capture_errors() -> Iterator[None]:
    """Store an exception of the block for ``recall_error``, and add its number to the message."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        # KeyboardInterrupt is not an Exception, but a library would also reduce it to a message.
        number = next(_NUMBERS)
        _RAISED_ERRORS[number] = error
        # DuckDB truncates a message at a null byte, so the number comes first.
        raise RuntimeError(f"[raised in Python #{number}] {error}") from error


def recall_error(message: str) -> BaseException | None:
    """Return the captured exception that a message of the library refers to, at the first call."""
    mark = _MARK.search(message)
    return None if mark is None else _RAISED_ERRORS.pop(int(mark[1]), None)
