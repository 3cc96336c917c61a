"""The lease of the process that publishes a view.

One process at a time publishes a version of a view: the owner of the lease in the state record,
which extends it with heartbeats. Another process takes the lease over after it expires, or at once
if the owner was a process of this machine that has ended. The former owner may still write values,
but none that a reader prefers: values of a group are ordered by their Delta version, each full
publication has its own generation, and the state record changes only for the owner of the current
lease. Owners and generations are random: a server that was emptied, or has an older record, does not
repeat them.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self

from featurestore.errors import OnlineWritesLost, PublicationSuperseded, PublishedStateDamaged
from featurestore.model.threads import translate_thread_errors
from featurestore.plugins.online import OnlineStore
from featurestore.serving.state import Lease, Origin, PublishedView, ViewState
from featurestore.serving.stores import StoreClock, server_identity
from featurestore.storage.locks import process_namespace

_DURATION = timedelta(seconds=30)
_POLL_SECONDS = 0.2
# JSON numbers of the state record have 63 bits.
_MAX_TOKEN = 2**62
# The owners of this process. The lease of another one has ended, also if the server was not available
# at its end, or has an older record since.
_active_owners: set[str] = set()


class PublisherLease:
    """The lease of this process, as a context manager that waits for the current owner.

    ``state`` is the state record after the last update, ``server`` the identity of the server when
    the lease began. ``origin`` is this feature store; ``check`` raises for a state that it must not
    change. A damaged record is replaced if ``replaces_damaged``. Methods may be called from one
    thread.
    """

    state: ViewState
    server: str | None

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
        self._owner = f"{process_namespace()}/{os.getpid()}/{uuid.uuid4().hex}"
        self._token = 1 + secrets.randbelow(_MAX_TOKEN)
        self._renewal, self._is_removed = 0, False
        # The heartbeat and the owner's updates must not replace each other's record.
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._heartbeat = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Self:
        _active_owners.add(self._owner)
        try:
            while not self._try_acquire():
                time.sleep(_POLL_SECONDS)
            with translate_thread_errors():
                self._heartbeat.start()
        except BaseException:
            _active_owners.discard(self._owner)
            raise
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._heartbeat.join()
        try:
            # After an error, the next publication removes the generation that was not completed.
            if not self._is_removed:
                self.update(lambda state: replace(self._retire_unfinished(state), lease=None))
        except Exception:
            # For other processes, the lease expires.
            if error is None:
                raise
        finally:
            _active_owners.discard(self._owner)

    @property
    def token(self) -> int:
        """The number of the lease, which is also that of the generation that its owner writes."""
        return self._token

    def update(self, change: Callable[[ViewState], ViewState]) -> ViewState:
        """Replace the state record by the result of a function, and extend the lease.

        Raises:
            PublicationSuperseded: Another process has taken over the lease.
            OnlineWritesLost: The server has an older record than this process wrote.
        """
        with self._lock:
            while True:
                content, state, lease = self._read_own(self._store)
                renewal = lease.renewal + 1
                lease = replace(lease, expires=self._clock.now() + _DURATION, renewal=renewal)
                changed = change(replace(state, lease=lease))
                if self._write(content, changed):
                    self._renewal = renewal
                    return changed

    def check_record(self, store: OnlineStore) -> None:
        """Check that a server has the last record that this process wrote, or a later one.

        Raises:
            PublicationSuperseded: Another process has taken over the lease.
            OnlineWritesLost: The server has an older record, or is another server.
        """
        self._read_own(store)
        if server_identity(store) != self.server:
            raise self.lost_writes_error()

    def retire(self, generation: int) -> bool:
        """Record that no reader needs a generation, also after the lease has ended.

        The next publication then removes its values. The published generation remains.

        Returns:
            False if the state record is missing, so that no publication would remove the values.
        """
        while True:
            (content,) = self._store.read([self._view.key])
            if content is None:
                return False
            state = ViewState.parse(content, self._view)
            retired = state.with_retired(generation, self._clock.now())
            key = self._view.key
            if self._store.compare_and_set(key, content, retired.to_bytes(key)):
                return True

    def remove_record(self) -> None:
        """Remove the state record; the lease then ends without another update."""
        self._is_removed = True
        self._stopped.set()
        self._heartbeat.join()
        self._store.delete([self._view.key])

    def lost_writes_error(self) -> OnlineWritesLost:
        """Return the error for a server that lost writes of this process."""
        return OnlineWritesLost(
            f"The online store {self._view.online!r} lost writes during the publication of "
            f"{self._view}: its server was restarted, emptied or replaced.",
            hint=f"{self._view.publish_line()}; the settings that can lose writes: "
            f"featurestore online check {self._view.online}",
        )

    def _read_own(self, store: OnlineStore) -> tuple[bytes | None, ViewState, Lease]:
        """Return the state record of a server, its content, and the lease of this process in it."""
        (content,) = store.read([self._view.key])
        state = ViewState.parse(content, self._view)
        lease = state.lease
        if lease is not None and lease.owner == self._owner:
            if lease.renewal < self._renewal:
                raise self.lost_writes_error()
            return content, state, lease
        # A server that was emptied or replaced has no record, or one of an earlier lease.
        if content is None or server_identity(store) != self.server:
            raise self.lost_writes_error()
        raise PublicationSuperseded(
            f"Another process has taken over the publication of {self._view}.",
            hint="publish again if its publication fails",
        )

    def _try_acquire(self) -> bool:
        # Before the record is read: a server that replaces this one afterwards is noticed.
        self.server = server_identity(self._store)
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
        lease = Lease(self._owner, self._token, now + _DURATION)
        acquired = replace(self._retire_unfinished(state), lease=lease, origin=self._origin)
        return self._write(content, acquired)

    def _retire_unfinished(self, state: ViewState) -> ViewState:
        """Return the state with the generation of the current lease retired if it is unfinished."""
        generation = None if state.lease is None else state.lease.generation
        return state.with_retired(generation or 0, self._clock.now())

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
            except (PublicationSuperseded, OnlineWritesLost):
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


def _has_ended(lease: Lease) -> bool:
    """Return whether the owner was a process of this machine, or a call of this one, that has ended."""
    host, pid, _ = lease.owner.split("/")
    if host != process_namespace():
        return False
    if int(pid) == os.getpid():
        return lease.owner not in _active_owners
    # On Windows, ``os.kill`` would end the process, so only the expiry of the lease counts.
    if not hasattr(os, "killpg"):
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
