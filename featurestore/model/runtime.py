"""This process: the time limit of the current call, the usable cores, the user, and forks.

Python loops check the time limit: in parsing, planning, unpacking and rendering.
"""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

from featurestore.errors import QueryEnded

T = TypeVar("T")


@contextmanager
def time_limit(seconds: float | None, *, hint: str = "request fewer rows") -> Iterator[None]:
    """Limit the duration of the block; None removes the limit, including an outer one.

    >>> with time_limit(0):
    ...     check_time()
    Traceback (most recent call last):
        ...
    featurestore.errors.QueryEnded: The call was cancelled after 0 seconds.
    Hint: request fewer rows
    """
    # The monotonic clock, since the system clock may be set while a call runs.
    limit = None if seconds is None else _TimeLimit(time.monotonic() + seconds, seconds, hint)
    token = _limit.set(limit)
    try:
        yield
    finally:
        _limit.reset(token)


def check_time() -> None:
    """Check that the time limit has not passed.

    Raises:
        QueryEnded: The time limit has passed.
    """
    limit = _limit.get()
    if limit is not None and time.monotonic() >= limit.end:
        raise QueryEnded(
            f"The call was cancelled after {limit.seconds:g} seconds.", hint=limit.hint
        )


def seconds_left() -> float | None:
    """Return the seconds until the time limit, at least zero; None without a limit.

    >>> with time_limit(0):
    ...     seconds_left()
    0.0
    """
    limit = _limit.get()
    return None if limit is None else max(0.0, limit.end - time.monotonic())


def iterate_within_limit(items: Iterable[T]) -> Iterator[T]:
    """Yield items until the time limit.

    Raises:
        QueryEnded: The time limit has passed.

    >>> list(iterate_within_limit("ab"))
    ['a', 'b']
    """
    for item in items:
        check_time()
        yield item


def usable_cores() -> int:
    """Return the number of cores that this process may use.

    Containers, batch systems and ``PYTHON_CPU_COUNT`` (where Python supports it) can restrict it to
    a part of the machine.

    >>> usable_cores() >= 1
    True
    """
    # Since Python 3.13.
    if hasattr(os, "process_cpu_count"):
        return os.process_cpu_count() or 1
    # Not available on macOS and Windows.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def call_after_fork(function: Callable[[], None]) -> None:
    """Call a function in every child that this process creates with ``fork``."""
    # Windows has no ``fork``.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


def user_name() -> str:
    """Return the operating system account that runs this process.

    >>> user_name() != ""
    True
    """
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):
        # A container may run with a user id that has no name. Windows has no user ids.
        return str(os.getuid()) if hasattr(os, "getuid") else "unknown"


@dataclass(frozen=True)
class _TimeLimit:
    end: float
    seconds: float
    hint: str


# A context variable, since a server runs calls with different limits concurrently.
_limit: ContextVar[_TimeLimit | None] = ContextVar("time_limit", default=None)
