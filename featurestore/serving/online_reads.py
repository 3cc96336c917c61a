"""Reads of online stores that do not wait for a store which does not respond.

All servers of a process share one circuit for each address. After a failure, calls fail at once, and
one call per interval is sent as a probe. While calls wait for a response, only a few more are sent;
the others wait for these briefly, and then fail. Thus one online store cannot use all threads of a
process, and calls run without a lock.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from types import TracebackType

from featurestore.errors import OnlineStoreError, OnlineStoreUnavailable
from featurestore.model.runtime import reset_in_children
from featurestore.plugins.online import OnlineStore
from featurestore.serving.stores import server_identity

# The calls that may wait for a response: in threads, which the server has few of for each person;
# asynchronous calls; and those of a store that has not responded yet.
_MAX_CALLS, _MAX_ASYNC_CALLS, _MAX_FIRST_CALLS = 6, 32, 1
# The time without any response after which further calls fail.
_PATIENCE_SECONDS, _FIRST_PATIENCE_SECONDS = 1.0, 0.25
_PROBE_SECONDS = 1.0
_POLL_SECONDS = 0.005
_MAX_CIRCUITS = 1000

_circuits: dict[str, Circuit] = {}


class Circuit:
    """Decides which calls to an address are sent: the context manager of a call; thread-safe.

    It adds about a microsecond to a call.
    """

    def __init__(self, online: str) -> None:
        self._online = online
        # The lock protects the fields below, never a call; waiting calls use the condition.
        self.reset_after_fork()
        reset_in_children(self)
        # The time since which no call has ended, although one was running.
        self._quiet_since = 0.0
        self._has_responded = False
        self._next_probe: float | None = None

    def reset_after_fork(self) -> None:
        """Count no calls: those of the parent do not end in a forked child."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._calls = self._waiting = 0

    def __enter__(self) -> None:
        """Wait until a call may be sent; raise OnlineStoreUnavailable if no call gets a response."""
        with self._lock:
            # The fast path; a store that responded has no probe.
            if self._has_responded and self._calls < _MAX_CALLS:
                if not self._calls:
                    self._quiet_since = time.monotonic()
                self._calls += 1
                return
            while not self._try_begin(_MAX_CALLS):
                self._waiting += 1
                self._changed.wait(_POLL_SECONDS)
                self._waiting -= 1

    async def __aenter__(self) -> None:
        """Wait as ``__enter__`` does, without blocking the event loop."""
        while True:
            with self._lock:
                if self._try_begin(_MAX_ASYNC_CALLS):
                    return
            await asyncio.sleep(_POLL_SECONDS)

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Record the end of a call, and the error that it raised."""
        with self._lock:
            self._calls -= 1
            if self._calls:
                self._quiet_since = time.monotonic()
            if isinstance(error, OnlineStoreUnavailable):
                self._has_responded = False
                self._next_probe = time.monotonic() + _PROBE_SECONDS
            # A canceled call does not show whether the store responds.
            elif error is None or isinstance(error, OnlineStoreError):
                self._has_responded, self._next_probe = True, None
            if self._waiting:
                self._changed.notify_all()

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(error_type, error, traceback)

    def _try_begin(self, limit: int) -> bool:
        """Count a call if it may be sent now; False if it has to wait."""
        now, patience = time.monotonic(), _PATIENCE_SECONDS
        if not self._has_responded:
            limit, patience = _MAX_FIRST_CALLS, _FIRST_PATIENCE_SECONDS
        if self._next_probe is not None and (now < self._next_probe or self._calls):
            raise _unavailable(self._online)
        if self._calls >= limit:
            if now - self._quiet_since > patience:
                raise _unavailable(self._online)
            return False
        if not self._calls:
            self._quiet_since = now
        self._calls += 1
        return True


class OnlineReads:
    """The reads of one online store through the circuit of its address; thread-safe.

    The methods have the contracts of ``OnlineStore``.
    """

    def __init__(self, store: OnlineStore) -> None:
        self._store = store
        self._uri = store.config.uri

    def read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, None if it has none."""
        with self._circuit():
            return self._store.read(keys)

    async def read_async(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Read as ``read`` does, without blocking the event loop."""
        async with self._circuit():
            return await self._store.read_async(keys)

    def clock(self) -> datetime:
        """Return the time of the server in UTC."""
        with self._circuit():
            return self._store.clock()

    def server_identity(self) -> str | None:
        """Return a text that differs after a server may have lost writes; None if it is unknown."""
        with self._circuit():
            return server_identity(self._store)

    def close(self) -> None:
        """Close the connections of the online store."""
        self._store.close()

    def _circuit(self) -> Circuit:
        circuit = _circuits.get(self._uri)
        if circuit is None:
            if len(_circuits) >= _MAX_CIRCUITS:
                _circuits.clear()
            circuit = _circuits.setdefault(self._uri, Circuit(self._store.config.name))
        return circuit


def _unavailable(name: str) -> OnlineStoreUnavailable:
    return OnlineStoreUnavailable(
        f"Online store {name!r} does not respond to other calls; it is tried again within seconds.",
        hint=f"check that this works: featurestore online check {name}",
    )
