"""Online stores of a feature store: registration, the embedded store, the clock, and reads.

Reads do not wait for a store which does not respond. All servers of a process share one circuit for
each address. After a failure, calls fail at once, and one call per interval is sent as a probe.
While calls wait for a response, only a few more are sent; the others wait for these briefly, and
then fail. Thus one online store cannot use all threads of a process, and calls run without a lock.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol

from featurestore.errors import InvalidArgument, OnlineStoreError, OnlineStoreUnavailable
from featurestore.model.names import ENVIRONMENT, check_name, parse_credentials
from featurestore.model.online_store import EMBEDDED, OnlineStoreSpec, normalize_uri, online_kind
from featurestore.model.runtime import reset_in_children
from featurestore.model.times import from_micros, to_micros, utc_now
from featurestore.plugins.online import IdentifiesServer, OnlineConfig, OnlineStore, open_config
from featurestore.recovery import record_files
from featurestore.registry import online_stores
from featurestore.session import Session
from featurestore.storage import storage_for
from featurestore.storage.grants import acting_online_store, authorize, grant, secret_reader

_MEASURE_SECONDS = 60.0
# The calls that may wait for a response: in threads, which the server has few of for each person;
# asynchronous calls; and those of a store that has not responded yet.
_MAX_CALLS, _MAX_ASYNC_CALLS, _MAX_FIRST_CALLS = 6, 32, 1
# The time without any response after which further calls fail.
_PATIENCE_SECONDS, _FIRST_PATIENCE_SECONDS = 1.0, 0.25
_PROBE_SECONDS = 1.0
_POLL_SECONDS = 0.005
_MAX_CIRCUITS = 1000
_circuits: dict[str, Circuit] = {}


def add_online_store(
    session: Session, name: str, uri: str, *, secret: str | None
) -> OnlineStoreSpec:
    """Register an online store without connecting to it, and return the registration.

    Raises:
        OnlineStoreExists: A different online store with this name is registered.
        InvalidArgument: The URI contains a password, or its kind is not installed.
    """
    check_name(name, noun="online store")
    if name == EMBEDDED:
        raise InvalidArgument(
            f"{EMBEDDED!r} is the name of the online store in the location of a store.",
            hint="featurestore.add_online_store('cache', 'redis://localhost:6379/0')",
        )
    if secret is not None:
        parse_credentials(secret)
    uri = normalize_uri(uri, exists=lambda path: storage_for(path).exists(path))
    spec = OnlineStoreSpec(
        name=name, kind=online_kind(uri), uri=uri, secret=secret, created=to_micros(utc_now())
    )
    # This checks the URI without a connection.
    open_config(_config_of(session, spec)).close()
    with session.registry.transaction() as connection:
        # A repeated registration, such as on another machine, only writes the grant.
        is_registered = name in online_stores.names(connection) and spec == replace(
            online_stores.get(connection, name), created=spec.created
        )
        if not is_registered:
            online_stores.add(connection, spec)
            # If the file cannot be written, the registration is rolled back.
            record_files.write_online_store(session.location, spec)
        # In the transaction, so that the last registration also writes the last grant.
        grant(acting_online_store(session.location, spec))
    return spec


def get_online_stores(session: Session) -> list[OnlineStoreSpec]:
    """Return the embedded online store of a local store, and the registered ones by name."""
    with session.registry.reading() as connection:
        registered = online_stores.list_all(connection)
    if not session.storage.is_local:
        return registered
    return [_embedded_store(session), *registered]


def remove_online_store(session: Session, name: str) -> None:
    """Remove the registration of an online store; published values remain."""
    with session.registry.transaction() as connection:
        online_stores.remove(connection, name)
        path = session.paths.online_store(name)
        session.storage.remove(path, below=session.location)


def open_online_store(session: Session, name: str | None = None) -> OnlineStore:
    """Create an online store by its name, without connecting to it; None: the embedded store.

    Raises:
        OnlineStoreNotFound: No online store with this name is registered.
        InvalidArgument: The store has no local location, so that it has no embedded online store.
    """
    return open_config(online_config(session, name))


def online_config(session: Session, name: str | None = None) -> OnlineConfig:
    """Return the picklable arguments of an online store, which ``open_config`` opens.

    Raises:
        ConfigurationError: The online store was not registered on this machine with this address.
    """
    # The embedded store is a file in the location, which the user of this process opened.
    if name in (None, EMBEDDED):
        return _config_of(session, _embedded_store(session))
    with session.registry.reading() as connection:
        spec = online_stores.get(connection, name)
    authorize(acting_online_store(session.location, spec))
    return _config_of(session, spec)


def check_online_store(session: Session, name: str | None = None) -> dict[str, Any]:
    """Check that an online store can be used; return its address, size, clock offset and risks.

    The risks are the settings with which the server can lose writes that it acknowledged.

    Raises:
        OnlineStoreError: The store cannot be used reliably; the hint has the remedy.
    """
    store = open_online_store(session, name)
    try:
        store.check()
        offset = (store.clock() - utc_now()).total_seconds()
        risks = store.durability_risks() if isinstance(store, IdentifiesServer) else []
        return {
            "name": store.config.name,
            "kind": store.name,
            "uri": store.config.uri,
            **store.statistics(),
            "clock_offset_seconds": round(offset, 3),
            "risks": [vars(risk) for risk in risks],
        }
    finally:
        store.close()


def server_identity(store: OnlineStore) -> str | None:
    """Return a text that differs after a server may have lost writes; None if it is unknown."""
    return store.server_identity() if isinstance(store, IdentifiesServer) else None


def _config_of(session: Session, spec: OnlineStoreSpec) -> OnlineConfig:
    secret = secret_reader(acting_online_store(session.location, spec), spec.secret)
    return OnlineConfig(spec.name, spec.uri, secret, uses_environment=spec.secret == ENVIRONMENT)


def _embedded_store(session: Session) -> OnlineStoreSpec:
    if not session.storage.is_local:
        raise InvalidArgument(
            f"The store at {session.location} has no embedded online store, which is a file of "
            "a local store.",
            hint="featurestore.add_online_store('cache', 'redis://localhost:6379/0')",
        )
    uri = f"sqlite:///{session.paths.embedded_online_store}"
    return OnlineStoreSpec(EMBEDDED, online_kind(uri), uri)


class ServerClock(Protocol):
    """An online store, or its reads."""

    def clock(self) -> datetime:
        """Return the time of the server in UTC."""
        ...


class StoreClock:
    """The clock of an online store: the local clock plus an offset, measured every minute.

    Readers and publishers on several machines share it, so that a machine with a wrong clock
    neither serves a row too early nor keeps an expired one.
    """

    def __init__(self, store: ServerClock) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._offset = 0
        self._next_measure = float("-inf")
        reset_in_children(self)

    def now(self) -> datetime:
        """Return the time of the online store in UTC."""
        return from_micros(self.now_micros())

    def now_micros(self) -> int:
        """Return the time of the online store in microseconds since 1970."""
        if time.monotonic() >= self._next_measure:
            self._measure()
        # Faster than a datetime, since a server needs the time for each request.
        return time.time_ns() // 1000 + self._offset

    def reset_after_fork(self) -> None:
        """Replace the lock, which a thread of the parent may have acquired."""
        self._lock = threading.Lock()

    def _measure(self) -> None:
        # Other threads use the previous offset; the first measurement blocks all threads.
        if not self._lock.acquire(blocking=self._next_measure == float("-inf")):
            return
        try:
            if time.monotonic() < self._next_measure:
                return
            before = utc_now()
            server_time = self._store.clock()
            # The server read its clock about in the middle of the round trip.
            middle = before + (utc_now() - before) / 2
            self._offset = to_micros(server_time) - to_micros(middle)
            self._next_measure = time.monotonic() + _MEASURE_SECONDS
        finally:
            self._lock.release()


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
