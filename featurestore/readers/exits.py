"""Calls from threads that are not Python's own end before the interpreter does.

A thread of TensorFlow that asks for the interpreter's lock while the interpreter ends never comes
back, and what waits for its call, an iterator left in the middle of an epoch, then waits for ever.
So at the exit new calls are turned away, and the exit waits until the last one is over.
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

# A call that is over for us is on its way back to its thread for a little while, and the next one
# on its way here.
_QUIET_SECONDS = 0.1
_PATIENCE_SECONDS = 60


class _Calls:
    """How many calls are running, and when one last came or went."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running = 0
        self._moved = -math.inf
        self._is_ending = False

    def begin(self) -> None:
        with self._lock:
            self._moved = time.monotonic()
            if self._is_ending:
                raise RuntimeError("The interpreter is ending; nothing is read any more.")
            self._running += 1

    def end(self) -> None:
        with self._lock:
            self._moved = time.monotonic()
            self._running -= 1

    def finish(self) -> None:
        """Turn new calls away and wait until those that run are over."""
        with self._lock:
            self._is_ending = True
        give_up = time.monotonic() + _PATIENCE_SECONDS
        while not self._is_quiet() and time.monotonic() < give_up:
            time.sleep(_QUIET_SECONDS / 10)

    def _is_quiet(self) -> bool:
        with self._lock:
            return self._running == 0 and time.monotonic() - self._moved > _QUIET_SECONDS


_calls = _Calls()
atexit.register(_calls.finish)


def awaited_at_exit(function: Callable[P, Result]) -> Callable[P, Result]:
    """Return a function that other threads may call at any time.

    The interpreter ends after its last call.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Result:
        _calls.begin()
        try:
            return function(*args, **kwargs)
        finally:
            _calls.end()

    return call
