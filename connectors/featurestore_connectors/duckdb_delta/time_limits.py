"""Interrupts of queries in other threads: by the engine, and at the time limit of a call."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import duckdb

from featurestore.model.runtime import call_after_fork, seconds_left
from featurestore.model.threads import start_thread

_INTERRUPT_SECONDS = 0.1
# The running queries of threads other than the main thread, for ``interrupt``.
_RUNNING_QUERIES: dict[int, list[duckdb.DuckDBPyConnection]] = {}
call_after_fork(_RUNNING_QUERIES.clear)


def interrupt(thread: int) -> None:
    """Interrupt the running queries of a thread."""
    for connection in list(_RUNNING_QUERIES.get(thread, ())):
        with contextlib.suppress(duckdb.Error):
            connection.interrupt()


@contextlib.contextmanager
def interrupted_on_request(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Let ``interrupt`` and the time limit of the call end the query that runs in the block."""
    own_connections = _RUNNING_QUERIES.setdefault(threading.get_ident(), [])
    own_connections.append(connection)
    try:
        with _limited_time(connection):
            yield
    finally:
        own_connections.remove(connection)
        if not own_connections:
            _RUNNING_QUERIES.pop(threading.get_ident(), None)


@contextlib.contextmanager
def _limited_time(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Interrupt the query in the block at the time limit of the call."""
    seconds = seconds_left()
    if seconds is None:
        yield
        return
    watchdog = _WATCHDOGS.get(os.getpid())  # a child made by fork has no thread yet
    if watchdog is None:
        watchdog = _WATCHDOGS.setdefault(os.getpid(), _Watchdog())
    entry = watchdog.add(connection, seconds)
    try:
        yield
    finally:
        watchdog.remove(entry)


@dataclass(eq=False)
class _LimitedQuery:
    """A query that is interrupted at a time of the monotonic clock."""

    connection: duckdb.DuckDBPyConnection
    end: float


class _Watchdog:
    """A thread that interrupts queries at their time limits."""

    def __init__(self) -> None:
        self._queries: set[_LimitedQuery] = set()
        self._changed = threading.Condition()
        start_thread(self._watch, name="featurestore-time-limits")

    def add(self, connection: duckdb.DuckDBPyConnection, seconds: float) -> _LimitedQuery:
        """Interrupt a connection after some seconds, and again until ``remove``."""
        query = _LimitedQuery(connection, time.monotonic() + seconds)
        with self._changed:
            self._queries.add(query)
            self._changed.notify()
        return query

    def remove(self, query: _LimitedQuery) -> None:
        """Forget a query that has ended."""
        # Under the lock, so that no later query of the connection is interrupted.
        with self._changed:
            self._queries.discard(query)

    def _watch(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for query in self._queries:
                    if query.end <= now:
                        # An interrupt before DuckDB begins to work has no effect.
                        query.end = now + _INTERRUPT_SECONDS
                        with contextlib.suppress(duckdb.Error):
                            query.connection.interrupt()
                ends = [query.end for query in self._queries]
                self._changed.wait(max(0.0, min(ends) - time.monotonic()) if ends else None)


_WATCHDOGS: dict[int, _Watchdog] = {}
