"""Ctrl-C during DuckDB queries.

Python runs signal handlers between bytecodes of the main thread, which is inside DuckDB during a
query, and DuckDB does not check for signals while it waits for one long task or for the rows of
another connection. However, the C-level handler writes a byte to a socket immediately
(``signal.set_wakeup_fd``): a thread waits for it and interrupts the queries, and Python raises
``KeyboardInterrupt`` when DuckDB returns. A signal interrupts only the queries that run when it
arrives: unread bytes are discarded when the last query ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
from collections.abc import Iterator

import duckdb

_BYTES = 64


class _Watch:
    """A thread of this process that waits for signals while the main thread is inside DuckDB."""

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._lock = threading.Lock()  # protects reading and handling of signals
        self._running: list[duckdb.DuckDBPyConnection] = []
        self._sources: list[duckdb.DuckDBPyConnection] = []
        self._previous_fd = -1
        threading.Thread(target=self._wait, name="interrupts", daemon=True).start()

    def begin(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Start watching a query of the main thread."""
        self._running.append(connection)
        if len(self._running) == 1:
            self._previous_fd = signal.set_wakeup_fd(
                self._sender.fileno(), warn_on_full_buffer=False
            )

    def end(self) -> None:
        """Stop watching the query that started last."""
        with self._lock:
            self._running.pop()
            if not self._running:
                self._sources.clear()
                signal.set_wakeup_fd(self._previous_fd, warn_on_full_buffer=False)
                self._read_signals()

    def reading(self, source: duckdb.DuckDBPyConnection) -> None:
        """Also interrupt a connection that the query reads from."""
        self._sources.append(source)

    def _wait(self) -> None:
        poller = select.poll()
        poller.register(self._receiver, select.POLLIN)
        while True:
            poller.poll()
            with self._lock:
                if signal.SIGINT in self._read_signals():
                    for connection in [*self._running, *self._sources]:
                        with contextlib.suppress(duckdb.Error):
                            connection.interrupt()

    def _read_signals(self) -> bytes:
        """Return the numbers of the signals received since the last call."""
        numbers = b""
        with contextlib.suppress(BlockingIOError):
            numbers = self._receiver.recv(_BYTES)
        if (
            numbers and self._previous_fd >= 0
        ):  # forward the signals to the previous wakeup descriptor
            with contextlib.suppress(OSError):
                os.write(self._previous_fd, numbers)
        return numbers


_WATCHES: dict[int, _Watch] = {}
# The running queries of threads other than the main one, for ``interrupt``.
_COMPUTING: dict[int, list[duckdb.DuckDBPyConnection]] = {}


@contextlib.contextmanager
def interruptible(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Let Ctrl-C interrupt the query that the block runs.

    Python interrupts only the main thread. If the application has its own SIGINT handler, nothing
    is interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        with _computing(connection):
            yield
        return
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    watch = _WATCHES.get(os.getpid())  # a child made by fork has no thread yet
    if watch is None:
        watch = _WATCHES[os.getpid()] = _Watch()
    watch.begin(connection)
    try:
        yield
    finally:
        watch.end()


@contextlib.contextmanager
def _computing(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    own_connections = _COMPUTING.setdefault(threading.get_ident(), [])
    own_connections.append(connection)
    try:
        yield
    finally:
        own_connections.remove(connection)
        if not own_connections:
            _COMPUTING.pop(threading.get_ident(), None)


def interrupt(thread: int) -> None:
    """Interrupt the running queries of a thread."""
    for connection in list(_COMPUTING.get(thread, ())):
        with contextlib.suppress(duckdb.Error):
            connection.interrupt()


def watch_source(source: object) -> None:
    """Let Ctrl-C also interrupt another connection, from which the running query reads."""
    watch = _WATCHES.get(os.getpid())
    if watch is not None and isinstance(source, duckdb.DuckDBPyConnection):
        watch.reading(source)
