"""DuckDB query failures: translated errors, exceptions of Python code inside queries, and Ctrl-C.

Python runs signal handlers between bytecodes of the main thread, which is inside DuckDB during a
query, and DuckDB does not check for signals while it waits for a long task or for rows of another
connection. However, the C-level handler immediately writes a byte to a socket
(``signal.set_wakeup_fd``). A thread waits for this byte and interrupts the queries, and Python
raises ``KeyboardInterrupt`` when DuckDB returns. A signal interrupts only the queries that are
running when it arrives: unread bytes are discarded when the last query ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from featurestore.errors import (
    FeatureStoreError,
    QueryEnded,
    ThreadsUnavailable,
)
from featurestore.model.runtime import call_after_fork, check_time, seconds_left
from featurestore.model.threads import capture_errors, recall_error, start_thread
from featurestore_connectors.duckdb_delta.messages import translate_error

_WAKEUP_BYTES = 64
_INTERRUPT_SECONDS = 0.1
# Messages of a Ctrl-C that is detected by DuckDB or raised in Python code inside a query.
_INTERRUPTED = re.compile(r"Query interrupted|INTERRUPT Error|(?:^|\n|failed: )KeyboardInterrupt\b")


def capture_stream_errors(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches and capture their exceptions, like ``capture_errors``."""
    with capture_errors():
        yield from batches


def recall_exception(message: str) -> BaseException | None:
    """Return the stored exception or the interrupt that a message refers to."""
    raised = recall_error(message)
    if raised is not None:
        return raised
    if not _INTERRUPTED.search(message):
        return None
    try:
        check_time()
    except QueryEnded as error:
        return error
    return KeyboardInterrupt()


@contextmanager
def translate_errors() -> Iterator[None]:
    """Convert DuckDB errors to feature store errors."""
    try:
        yield
    except (duckdb.Error, RuntimeError) as error:
        # Prefer the original exception of a Python function or stream inside the query.
        raised = recall_exception(str(error))
        if raised is not None:
            # DuckDB's error only repeats the message of the exception.
            raise raised from None
        if isinstance(error, duckdb.Error):
            raise translate_error(error) from error
        raise


def translate_stream_error(message: str) -> FeatureStoreError:
    """Translate the error message of a query that failed while its Arrow stream was read.

    Arrow propagates only DuckDB's message, which starts with the kind of error.
    """
    if message.startswith("Out of Memory Error"):
        return translate_error(duckdb.OutOfMemoryException(message))
    if message.startswith("IO Error"):
        return translate_error(duckdb.IOException(message))
    return translate_error(duckdb.Error(message))


@contextlib.contextmanager
def interrupt_on_signal(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Let Ctrl-C interrupt the query that runs in the block.

    Only the main thread is interrupted, as in Python. Nothing is interrupted if the application has
    its own SIGINT handler. In other threads, the time limit of the call interrupts the query.
    """
    # Python delivers signals to the main thread only; queries of other threads are registered for
    # ``interrupt``.
    if threading.current_thread() is not threading.main_thread():
        with _register_connection(connection), _limited_time(connection):
            yield
        return
    # An application that handles Ctrl-C decides itself what to stop.
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


def interrupt(thread: int) -> None:
    """Interrupt the running queries of a thread."""
    for connection in list(_RUNNING_QUERIES.get(thread, ())):
        with contextlib.suppress(duckdb.Error):
            connection.interrupt()


def watch_source(source: object) -> None:
    """Let Ctrl-C also interrupt the connection from which the running query reads."""
    watch = _WATCHES.get(os.getpid())
    if watch is not None and isinstance(source, duckdb.DuckDBPyConnection):
        watch.add_source(source)


@contextlib.contextmanager
def _register_connection(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Register a running query of this thread for ``interrupt``."""
    own_connections = _RUNNING_QUERIES.setdefault(threading.get_ident(), [])
    own_connections.append(connection)
    try:
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


class _Watch:
    """A thread that waits for signals while the main thread is inside DuckDB."""

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        # ``set_wakeup_fd`` requires it: a signal handler must not block on a full buffer.
        self._sender.setblocking(False)
        self._lock = threading.Lock()  # protects reading and handling of signals
        self._running: list[duckdb.DuckDBPyConnection] = []
        self._sources: list[duckdb.DuckDBPyConnection] = []
        self._previous_fd = -1
        try:
            start_thread(self._wait, name="interrupts")
        except ThreadsUnavailable:
            self._receiver.close()
            self._sender.close()
            raise

    def begin(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Start to watch a query of the main thread."""
        self._running.append(connection)
        if len(self._running) == 1:
            self._previous_fd = signal.set_wakeup_fd(
                self._sender.fileno(), warn_on_full_buffer=False
            )

    def end(self) -> None:
        """Stop watching the most recently started query."""
        with self._lock:
            self._running.pop()
            # Under the lock, so that a signal is either handled for this query or discarded, and
            # never interrupts the next one.
            if not self._running:
                self._sources.clear()
                signal.set_wakeup_fd(self._previous_fd, warn_on_full_buffer=False)
                self._read_signals()

    def abandon(self) -> None:
        """Stop watching in a forked child, without the lock, which another thread may hold."""
        if self._running:
            signal.set_wakeup_fd(self._previous_fd, warn_on_full_buffer=False)
            self._running.clear()

    def add_source(self, source: duckdb.DuckDBPyConnection) -> None:
        """Also interrupt a connection from which the query reads."""
        self._sources.append(source)

    def _wait(self) -> None:
        """Interrupt the running queries at each SIGINT. Runs in a separate thread."""
        selector = selectors.DefaultSelector()
        selector.register(self._receiver, selectors.EVENT_READ)
        while True:
            selector.select()
            with self._lock:
                if signal.SIGINT in self._read_signals():
                    for connection in [*self._running, *self._sources]:
                        with contextlib.suppress(duckdb.Error):
                            connection.interrupt()

    def _read_signals(self) -> bytes:
        """Return the numbers of the signals received since the last call."""
        numbers = b""
        with contextlib.suppress(BlockingIOError):
            numbers = self._receiver.recv(_WAKEUP_BYTES)
        if (
            numbers and self._previous_fd >= 0
        ):  # forward the signals to the previous wakeup descriptor
            with contextlib.suppress(OSError):
                os.write(self._previous_fd, numbers)
        return numbers


_WATCHES: dict[int, _Watch] = {}


def _stop_watching() -> None:
    """Restore the wakeup descriptor in a forked child.

    Otherwise a signal of the child would interrupt the running query of its parent.
    """
    for watch in _WATCHES.values():
        watch.abandon()
    _RUNNING_QUERIES.clear()


call_after_fork(_stop_watching)


# The running queries of threads other than the main thread, for ``interrupt``.
_RUNNING_QUERIES: dict[int, list[duckdb.DuckDBPyConnection]] = {}
