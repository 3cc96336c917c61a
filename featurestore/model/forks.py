"""Connections to SQLite files across forks: a child opens its own, and inherits none that is open.

SQLite counts the locks on a file per process. The connections that are open during a fork would
count in the child, too, although the system gives the locks to the parent alone: the child could
then change the file while another process does, or write to a log that another one has removed. So
a fork waits until no thread uses a connection, and closes the idle ones.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from weakref import WeakSet

from featurestore.model.runtime import call_around_fork, forked_process_error, reset_in_children

# The longest delay of a fork.
_SECONDS = 2.0


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
    end = time.monotonic() + _SECONDS
    for guard in list(_guards):
        guard.prepare_fork(end)


def _resume_after_fork() -> None:
    for guard in list(_guards):
        guard.resume_after_fork()


_guards: WeakSet[ForkGuard] = WeakSet()
call_around_fork(_prepare_fork, _resume_after_fork)
