"""This process: the time limit of the current call, the usable cores, the user, and forks.

Python loops check the time limit: in parsing, planning, unpacking and rendering.

A fork closes the idle connections to SQLite files (``ForkGuard``), so that a child opens its own, and
inherits none that is open. SQLite counts the locks on a file per process. The connections that are
open during a fork would count in the child, too, although the system gives the locks to the parent
alone: the child could then change the file while another process does, or write to a log that another
one has removed. So a fork waits until no thread uses a connection, and closes the idle ones.
"""

from __future__ import annotations

import getpass
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol, TypeVar
from weakref import WeakSet

from featurestore.errors import ForkedProcess, QueryEnded

T = TypeVar("T")
# In seconds.
_LONGEST_FORK_DELAY = 2.0


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


def call_around_fork(before: Callable[[], None], after: Callable[[], None]) -> None:
    """Call functions before each ``fork`` of this process, and after it in this process."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=after)


class ResetsAfterFork(Protocol):
    """An object with threads, connections or locks, which a forked child cannot use."""

    def reset_after_fork(self) -> None:
        """Replace them; called in the child, which has no other thread yet."""
        ...


def reset_in_children(owner: ResetsAfterFork) -> None:
    """Call ``reset_after_fork`` of an object in every forked child, as long as the object exists."""
    _owners.add(owner)


def was_forked() -> bool:
    """Return whether a process that had imported the feature store has forked this process."""
    return _is_forked


def _reset_owners() -> None:
    global _is_forked
    _is_forked = True
    for owner in list(_owners):
        owner.reset_after_fork()


_is_forked = False
_owners: WeakSet[ResetsAfterFork] = WeakSet()
call_after_fork(_reset_owners)


class ForkSafeLock:
    """A reentrant lock, as a context manager, that is free in a forked child.

    A lock that another thread holds during a fork is never released in the child.

    >>> lock = ForkSafeLock()
    >>> with lock, lock:
    ...     pass
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        reset_in_children(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def reset_after_fork(self) -> None:
        """Replace the lock."""
        self._lock = threading.RLock()


def forked_process_error(subject: str) -> ForkedProcess:
    """Return the error of a forked child that cannot use an object of its parent.

    >>> print(forked_process_error("The Spark session"))
    The Spark session belongs to the process from which this process was forked.
    Hint: multiprocessing.set_start_method("spawn") before the first worker starts, or create it in this process
    """
    return ForkedProcess(
        f"{subject} belongs to the process from which this process was forked.",
        hint='multiprocessing.set_start_method("spawn") before the first worker starts, or create '
        "it in this process",
    )


class ForkGuard:
    """A context manager for uses of connections, which closes the idle ones before a fork.

    A fork waits until no thread is in such a block, at most two seconds; then ``close_idle`` closes
    the connections. ``discard`` forgets them in the child without closing. ``subject`` names the
    connections in errors, such as "The registry". A fork does not wait for the connections of a
    database server (``is_file=False``), which are only discarded.
    """

    def __init__(
        self,
        subject: str,
        *,
        close_idle: Callable[[], None],
        discard: Callable[[], None],
        is_file: bool = True,
    ) -> None:
        self._subject = subject
        self._close_idle, self._discard = close_idle, discard
        self._is_file = is_file
        self._changed = threading.Condition()
        # The number of nested uses of each thread.
        self._uses: dict[int, int] = {}
        self._is_forking = self._is_unusable = False
        reset_in_children(self)
        if is_file:
            _guards.add(self)

    def __enter__(self) -> None:
        """Delay forks during the block, which may be nested.

        Raises:
            ForkedProcess: A thread of the parent used the file during the fork of this process.
        """
        if self._is_unusable:
            raise forked_process_error(
                f"{self._subject}, which another thread used during the fork,"
            )
        thread = threading.get_ident()
        with self._changed:
            while self._is_forking and thread not in self._uses:
                self._changed.wait()
            self._uses[thread] = self._uses.get(thread, 0) + 1

    def __exit__(self, *_: object) -> None:
        thread = threading.get_ident()
        with self._changed:
            # The block may have forked this process.
            uses = self._uses.pop(thread, 1) - 1
            if uses:
                self._uses[thread] = uses
            elif self._is_forking:
                self._changed.notify_all()

    def prepare_fork(self, end: float) -> None:
        """Refuse new uses, wait until the others end or a time of the monotonic clock, and close."""
        own_uses = {threading.get_ident()}
        with self._changed:
            self._is_forking = True
            self._changed.wait_for(
                lambda: not self._uses.keys() - own_uses, max(0.0, end - time.monotonic())
            )
            if not self._uses:
                self._close_idle()

    def resume_after_fork(self) -> None:
        """Allow new uses in the parent."""
        with self._changed:
            self._is_forking = False
            self._changed.notify_all()

    def reset_after_fork(self) -> None:
        """Use new connections in the child."""
        self._is_unusable = self._is_unusable or (self._is_file and bool(self._uses))
        self._changed = threading.Condition()
        self._uses.clear()
        self._is_forking = False
        self._discard()


def _prepare_fork() -> None:
    end = time.monotonic() + _LONGEST_FORK_DELAY
    for guard in list(_guards):
        guard.prepare_fork(end)


def _resume_after_fork() -> None:
    for guard in list(_guards):
        guard.resume_after_fork()


_guards: WeakSet[ForkGuard] = WeakSet()
call_around_fork(_prepare_fork, _resume_after_fork)


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
