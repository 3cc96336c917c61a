"""Ctrl-C during a query of DuckDB, wherever the query is.

Python runs its handlers of signals between two steps of the main thread, which is inside DuckDB
then, and DuckDB does not look for signals while it waits for one long task, or for the rows of
another connection. The system's own handler writes a byte to a socket at once, though
(``signal.set_wakeup_fd``): a thread waits for it and ends the queries, and Python raises
``KeyboardInterrupt`` as soon as DuckDB returns. A signal ends the queries during which it came and
none after them, however late the thread is: what it has not read when the last of them is over is
thrown away.
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
        self._told, self._tells = socket.socketpair()
        self._told.setblocking(False)
        self._tells.setblocking(False)
        self._lock = threading.Lock()  # held while signals are read and acted upon
        self._running: list[duckdb.DuckDBPyConnection] = []
        self._sources: list[duckdb.DuckDBPyConnection] = []
        self._before = -1
        threading.Thread(target=self._wait, name="interrupts", daemon=True).start()

    def begin(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Watch over a query of the main thread from now on."""
        self._running.append(connection)
        if len(self._running) == 1:
            self._before = signal.set_wakeup_fd(self._tells.fileno(), warn_on_full_buffer=False)

    def end(self) -> None:
        """Stop watching over the query that began last."""
        with self._lock:
            self._running.pop()
            if not self._running:
                self._sources.clear()
                signal.set_wakeup_fd(self._before, warn_on_full_buffer=False)
                self._received()

    def reading(self, source: duckdb.DuckDBPyConnection) -> None:
        """Watch over a connection that the query reads from, too."""
        self._sources.append(source)

    def _wait(self) -> None:
        waiting = select.poll()
        waiting.register(self._told, select.POLLIN)
        while True:
            waiting.poll()
            with self._lock:
                if signal.SIGINT in self._received():
                    for connection in [*self._running, *self._sources]:
                        with contextlib.suppress(duckdb.Error):
                            connection.interrupt()

    def _received(self) -> bytes:
        """Return the numbers of the signals that came since the last call."""
        numbers = b""
        with contextlib.suppress(BlockingIOError):
            numbers = self._told.recv(_BYTES)
        if (
            numbers and self._before >= 0
        ):  # whoever waited for signals before goes on to hear of them
            with contextlib.suppress(OSError):
                os.write(self._before, numbers)
        return numbers


_WATCHES: dict[int, _Watch] = {}
# What threads other than the main one compute, for those who end it.
_COMPUTING: dict[int, list[duckdb.DuckDBPyConnection]] = {}


@contextlib.contextmanager
def interruptible(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Let Ctrl-C end the query that the block runs, if it comes.

    Threads other than the main one are not interrupted by Python, and where somebody else handles
    the signal it means something else.
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
    mine = _COMPUTING.setdefault(threading.get_ident(), [])
    mine.append(connection)
    try:
        yield
    finally:
        mine.remove(connection)
        if not mine:
            _COMPUTING.pop(threading.get_ident(), None)


def interrupt(thread: int) -> None:
    """End the queries that a thread waits for."""
    for connection in list(_COMPUTING.get(thread, ())):
        with contextlib.suppress(duckdb.Error):
            connection.interrupt()


def reads_from(source: object) -> None:
    """Let Ctrl-C end what runs on another connection, too, from which a query of ours reads."""
    watch = _WATCHES.get(os.getpid())
    if watch is not None and isinstance(source, duckdb.DuckDBPyConnection):
        watch.reading(source)
