"""Calls from foreign threads finish before the interpreter exits.

A thread of TensorFlow that requests the GIL during interpreter shutdown never returns, and an
iterator that waits for its call, such as one left in the middle of an epoch, waits forever. So new
calls are refused at exit, and the exit waits for the running ones.
"""

from __future__ import annotations

import atexit
import math
import time
from collections.abc import Callable
from functools import wraps
from threading import Lock
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
Result = TypeVar("Result")

# After its Python code a call still needs some time to return to its thread, and the next call
# some time to get here.
_QUIET_SECONDS = 0.1
_TIMEOUT_SECONDS = 60


class _Calls:
    """Counter of running calls, with the time of its last change."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running = 0
        self._changed_at = -math.inf
        self._is_closed = False

    def begin(self) -> None:
        with self._lock:
            self._changed_at = time.monotonic()
            if self._is_closed:
                raise RuntimeError("The interpreter is shutting down; reading has stopped.")
            self._running += 1

    def end(self) -> None:
        with self._lock:
            self._changed_at = time.monotonic()
            self._running -= 1

    def finish(self) -> None:
        """Refuse new calls and wait for the running ones."""
        with self._lock:
            self._is_closed = True
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not self._is_quiet() and time.monotonic() < deadline:
            time.sleep(_QUIET_SECONDS / 10)

    def _is_quiet(self) -> bool:
        with self._lock:
            return self._running == 0 and time.monotonic() - self._changed_at > _QUIET_SECONDS


_calls = _Calls()
atexit.register(_calls.finish)


def awaited_at_exit(function: Callable[P, Result]) -> Callable[P, Result]:
    """Return a function that foreign threads may call until the interpreter exits.

    The exit waits for its running calls.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Result:
        _calls.begin()
        try:
            return function(*args, **kwargs)
        finally:
            _calls.end()

    return call
