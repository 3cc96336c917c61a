"""Clean shutdown while TensorFlow threads call Python functions.

A TensorFlow thread that requests the GIL during interpreter shutdown never returns. An iterator
that waits for such a thread, for example one abandoned in the middle of an epoch, would block
forever. Therefore an exit handler rejects new calls and waits for running ones.
"""

from __future__ import annotations

import atexit
import math
import time
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from featurestore.model.runtime import ForkSafeLock, reset_in_children

P = ParamSpec("P")
Result = TypeVar("Result")

# After its Python code ends, a call needs some time to return to its thread, and the next call
# needs some time to arrive here.
_QUIET_SECONDS = 0.1
_TIMEOUT_SECONDS = 60


class _RunningCalls:
    """A counter of running calls that can wait for their end."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._running = 0
        self._changed_at = -math.inf
        self._is_closed = False
        reset_in_children(self)

    def reset_after_fork(self) -> None:
        """Forget the calls of threads that a forked child does not have."""
        self._running = 0

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
        """Reject new calls and wait for running ones."""
        with self._lock:
            self._is_closed = True
        # A call that never returns must not block the exit forever.
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not self._is_quiet() and time.monotonic() < deadline:
            time.sleep(_QUIET_SECONDS / 10)

    def _is_quiet(self) -> bool:
        with self._lock:
            return self._running == 0 and time.monotonic() - self._changed_at > _QUIET_SECONDS


_calls = _RunningCalls()
atexit.register(_calls.finish)


def await_at_exit(function: Callable[P, Result]) -> Callable[P, Result]:
    """Wrap a function so that the interpreter waits for its running calls before it exits.

    Calls that start during the exit raise RuntimeError.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Result:
        _calls.begin()
        try:
            return function(*args, **kwargs)
        finally:
            _calls.end()

    return call
