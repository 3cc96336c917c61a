"""The lease of the process that publishes a view.

One process at a time publishes a version of a view: the owner of the lease in the state record,
which extends it with heartbeats. Another process takes the lease over after it expires, or at once
if the owner was a process of this machine that has ended. The former owner may still write values,
but none that a reader prefers: values of a group are ordered by their Delta version, each full
publication has its own generation, and the state record changes only for the owner of the current
token.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self

from featurestore.errors import PublicationSuperseded, PublishedStateDamaged
from featurestore.plugins.online import OnlineStore
from featurestore.serving.state import Lease, Origin, PublishedView, RetiredGeneration, ViewState
from featurestore.serving.stores import StoreClock

_DURATION = timedelta(seconds=30)
_POLL_SECONDS = 0.2
# The owners of this process whose lease ended while the server was not available. A later
# publication of the process takes their lease over, instead of waiting until it expires.
_unreleased_owners: set[str] = set()


class PublisherLease:
    """The lease of this process, as a context manager that waits for the current owner.

    ``state`` is the state record after the last update. ``origin`` is this feature store;
    ``check`` raises for a state that it must not change. A damaged record is replaced if
    ``replaces_damaged``. Methods may be called from one thread.
    """

    state: ViewState

    def __init__(
        self,
        store: OnlineStore,
        clock: StoreClock,
        view: PublishedView,
        *,
        origin: Origin,
        check: Callable[[ViewState], None],
        replaces_damaged: bool = False,
    ) -> None:
        self._store, self._clock, self._view = store, clock, view
        self._origin, self._check, self._replaces_damaged = origin, check, replaces_damaged
        self._owner = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
        self._token, self._is_removed = 0, False
        # The heartbeat and the owner's updates must not replace each other's record.
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._heartbeat = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Self:
        while not self._try_acquire():
            time.sleep(_POLL_SECONDS)
        self._heartbeat.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._heartbeat.join()
        if self._is_removed:
            return
        # After an error, the generation that was not completed is removed by the next publication.
        try:
            self.update(lambda state: replace(_retire_unfinished(state, self._clock), lease=None))
        except Exception:
            # For other processes, the lease expires.
            _unreleased_owners.add(self._owner)
            if error is None:
                raise

    @property
    def token(self) -> int:
        """The fencing token, greater than those of all earlier leases of the view."""
        return self._token

    def update(self, change: Callable[[ViewState], ViewState]) -> ViewState:
        """Replace the state record by the result of a function, and extend the lease.

        Raises:
            PublicationSuperseded: Another process has taken over the lease.
        """
        with self._lock:
            while True:
                (content,) = self._store.read([self._view.key])
                state = ViewState.parse(content, self._view)
                if state.lease is None or state.lease.token != self._token:
                    raise PublicationSuperseded(
                        f"Another process has taken over the publication of {self._view}.",
                        hint="publish again if its publication fails",
                    )
                lease = replace(state.lease, expires=self._clock.now() + _DURATION)
                changed = change(replace(state, lease=lease))
                if self._write(content, changed):
                    return changed

    def _try_acquire(self) -> bool:
        (content,) = self._store.read([self._view.key])
        try:
            state = ViewState.parse(content, self._view)
        except PublishedStateDamaged:
            if not self._replaces_damaged:
                raise
            state = ViewState()
        self._check(state)
        now = self._clock.now()
        if is_held(state.lease, now):
            return False
        # Also greater than the tokens of a record that was damaged or removed, whose generations
        # must not be used again.
        self._token = max(state.token + 1, self._clock.now_micros())
        lease = Lease(self._owner, self._token, now + _DURATION)
        acquired = replace(
            _retire_unfinished(state, self._clock),
            token=self._token,
            lease=lease,
            origin=self._origin,
        )
        return self._write(content, acquired)

    def remove_record(self) -> None:
        """Remove the state record; the lease then ends without another update."""
        self._is_removed = True
        self._stopped.set()
        self._heartbeat.join()
        self._store.delete([self._view.key])

    def _write(self, expected: bytes | None, state: ViewState) -> bool:
        key = self._view.key
        if not self._store.compare_and_set(key, expected, state.to_bytes(key)):
            return False
        self.state = state
        return True

    def _beat(self) -> None:
        while not self._stopped.wait(_DURATION.total_seconds() / 3):
            try:
                self.update(lambda state: state)
            except PublicationSuperseded:
                # The next update of the owner raises the error.
                return
            except Exception:
                # A transient error of the server; the lease lasts for two more heartbeats.
                continue


def is_held(lease: Lease | None, now: datetime) -> bool:
    """Return whether a lease has an owner, so that no other process may take it over."""
    # A lease that ends later than any owner sets it was not written by one.
    is_running = lease is not None and now < lease.expires <= now + 2 * _DURATION
    return lease is not None and is_running and not _has_ended(lease)


def _retire_unfinished(state: ViewState, clock: StoreClock) -> ViewState:
    """Return the state with the generation of the current lease retired if it is unfinished."""
    lease = state.lease
    if lease is None or lease.generation in (None, state.generation):
        return state
    retired = RetiredGeneration(lease.generation or 0, clock.now())
    return replace(state, retired=(*state.retired, retired))


def _has_ended(lease: Lease) -> bool:
    """Return whether the owner was a process of this machine that has ended, or failed."""
    if lease.owner in _unreleased_owners:
        return True
    host, pid, _ = lease.owner.split("/")
    # On Windows, ``os.kill`` would end the process, so only the expiry of the lease counts.
    if host != socket.gethostname() or not hasattr(os, "killpg"):
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
