"""Reads of online stores that do not wait for a store which does not respond.

All servers of a process share one circuit for each address. After a failure, calls fail at once, and
one call per interval is sent as a probe. While calls wait for a response, only a few more are sent;
the others wait for these briefly, and then fail. Thus one online store cannot use all threads of a
process, and no lock is held during a call.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Sequence
from datetime import datetime

from featurestore.errors import OnlineStoreError, OnlineStoreUnavailable
from featurestore.plugins.online import OnlineConfig, OnlineStore

# The calls that may wait for a response: in threads, which the server has few of for each person;
# asynchronous ones; and those of a store that has not responded yet.
_MAX_CALLS, _MAX_ASYNC_CALLS, _MAX_FIRST_CALLS = 6, 32, 1
# The time without any response after which further calls fail.
_PATIENCE_SECONDS, _FIRST_PATIENCE_SECONDS = 1.0, 0.25
_PROBE_SECONDS = 1.0
_POLL_SECONDS = 0.005
_MAX_CIRCUITS = 1000

_circuits: dict[str, Circuit] = {}
# The calls of a parent process do not end in a forked one.
os.register_at_fork(after_in_child=_circuits.clear)


class Circuit:
    """Decides which calls to an address are sent; a context manager around a call, thread-safe.

    Entering raises OnlineStoreUnavailable if the store does not respond to other calls.
    """

    def __init__(self, online: str) -> None:
        self._online = online
        self._changed = threading.Condition()
        self._calls = 0
        # The time since which no call has ended, although one was running.
        self._quiet_since = 0.0
        self._has_responded = False
        self._next_probe: float | None = None

    def __enter__(self) -> None:
        with self._changed:
            while not self._try_begin(_MAX_CALLS):
                self._changed.wait(_POLL_SECONDS)

    def __exit__(self, _: object, error: BaseException | None, traceback: object) -> None:
        with self._changed:
            self._calls -= 1
            self._quiet_since = time.monotonic()
            if isinstance(error, OnlineStoreUnavailable):
                self._has_responded = False
                self._next_probe = self._quiet_since + _PROBE_SECONDS
            elif error is None or isinstance(error, OnlineStoreError):
                self._has_responded, self._next_probe = True, None
            # A canceled call shows neither.
            self._changed.notify_all()

    async def __aenter__(self) -> None:
        while True:
            with self._changed:
                if self._try_begin(_MAX_ASYNC_CALLS):
                    return
            await asyncio.sleep(_POLL_SECONDS)

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.__exit__(kind, error, traceback)

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

    @property
    def config(self) -> OnlineConfig:
        """The arguments of the online store."""
        return self._store.config

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

    def close(self) -> None:
        """Close the connections of the online store."""
        self._store.close()

    def _circuit(self) -> Circuit:
        circuit = _circuits.get(self.config.uri)
        if circuit is None:
            if len(_circuits) >= _MAX_CIRCUITS:
                _circuits.clear()
            circuit = _circuits.setdefault(self.config.uri, Circuit(self.config.name))
        return circuit


def _unavailable(name: str) -> OnlineStoreUnavailable:
    return OnlineStoreUnavailable(
        f"Online store {name!r} does not respond to other calls; it is tried again within seconds.",
        hint=f"check that this works: featurestore online check {name}",
    )
