"""The DuckDB database of an engine: settings, connection, cursors, their errors, and Ctrl-C.

Relations are bound to the engine's connection, which therefore never has an open result. Every
execution uses its own cursor, so that streams, writes and counts can run concurrently.

Python runs signal handlers between bytecodes of the main thread, which is inside DuckDB during a
query, and DuckDB does not check for signals while it waits for a long task or for rows of another
connection. However, the C-level handler immediately writes a byte to a socket
(``signal.set_wakeup_fd``). A thread waits for this byte and interrupts the queries, and Python
raises ``KeyboardInterrupt`` when DuckDB returns. A signal interrupts only the queries that are
running when it arrives: unread bytes are discarded when the last query ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import selectors
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import duckdb

from featurestore.errors import ConfigurationError, InvalidSql, QueryEnded, ThreadsUnavailable
from featurestore.model.runtime import (
    ForkSafeLock,
    call_after_fork,
    check_time,
    reset_in_children,
    usable_cores,
)
from featurestore.model.threads import capture_errors, recall_error, start_thread
from featurestore.storage.connections import open_connections
from featurestore.storage.filesystem import file_systems
from featurestore.storage.protection import user_temporary_folder
from featurestore_connectors.duckdb_delta.messages import translate_error
from featurestore_connectors.duckdb_delta.time_limits import interrupted_on_request

_RELATION_LOCK = ForkSafeLock()
_SETTINGS = {
    "memory_limit": "FEATURESTORE_DUCKDB_MEMORY_LIMIT",
    "threads": "FEATURESTORE_DUCKDB_THREADS",
    "temp_directory": "FEATURESTORE_DUCKDB_TEMP_DIRECTORY",
}
_ALL_ROWS = "SELECT * FROM frame"
_WAKEUP_BYTES = 64
# Messages of a Ctrl-C that is detected by DuckDB or raised in Python code inside a query.
_INTERRUPTED = re.compile(r"Query interrupted|INTERRUPT Error|(?:^|\n|failed: )KeyboardInterrupt\b")
_BYTES = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


class Database:
    """An in-memory DuckDB database in time zone UTC, which spills to ``temp_directory``."""

    def __init__(
        self,
        *,
        memory_limit: str | None = None,
        threads: int | None = None,
        temp_directory: str | None = None,
        durable: bool = True,
    ) -> None:
        self.durable = durable
        arguments = {
            "memory_limit": memory_limit,
            "threads": threads,
            "temp_directory": temp_directory,
        }
        config: dict[str, Any] = {}
        for setting, variable in _SETTINGS.items():
            value = arguments[setting] or os.environ.get(variable)
            if value:
                config[setting] = value
        has_settings = bool(config)
        # DuckDB's default includes CPU cores that the process may not use.
        config.setdefault("threads", usable_cores())
        # The directory for the engine's own temporary files.
        self.scratch: str = config.get("temp_directory", tempfile.gettempdir())
        self._chosen_config = config
        self.limit_is_chosen = "memory_limit" in config
        self._reads_uris = False
        self._limit_count = 0
        # Read from DuckDB when it is first needed, and after each change.
        self._memory_limit: int | None = None
        self._limit_lock = ForkSafeLock()
        self._opening = ForkSafeLock()
        self._open_connection: duckdb.DuckDBPyConnection | None = None
        self._closed = False
        reset_in_children(self)
        if has_settings:
            _ = self.connection  # report invalid settings early

    @property
    def config(self) -> dict[str, Any]:
        """The settings of DuckDB. The call creates the parent of the default spill directory."""
        if "temp_directory" in self._chosen_config:
            return self._chosen_config
        # DuckDB's default is a folder in the working directory.
        spill = os.path.join(user_temporary_folder(), f"duckdb-{os.getpid()}")
        return {**self._chosen_config, "temp_directory": spill}

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The connection, opened on first use, since many processes only read metadata.

        Raises:
            ConfigurationError: DuckDB rejects a setting.
        """
        with self._opening:
            if self._open_connection is None:
                if self._closed:
                    raise duckdb.ConnectionException("Connection already closed!")
                self._open_connection = _connect(self.config)
            return self._open_connection

    @property
    def memory_limit(self) -> int:
        """The current memory limit of DuckDB, in bytes."""
        with self._limit_lock:
            if self._memory_limit is None:
                ((text,),) = self.rows("SELECT current_setting('memory_limit')")
                number, unit = text.split()
                self._memory_limit = int(float(number) * _BYTES[unit])
            return self._memory_limit

    def close(self) -> None:
        """Close the database; its relations become invalid."""
        with self._opening:
            self._closed = True
            if self._open_connection is not None:
                self._open_connection.close()

    def reset_after_fork(self) -> None:
        """Open a new database on next use: a child has no threads of its parent's database."""
        abandon(self._open_connection)
        self._open_connection, self._memory_limit = None, None
        self._reads_uris, self._limit_count = False, 0

    @contextlib.contextmanager
    def limit_memory(self, limit: int) -> Iterator[None]:
        """Limit DuckDB's memory to ``limit`` bytes within the block, so that it spills sooner.

        A limit set by the user is not changed.
        """
        if self.limit_is_chosen:
            yield
            return
        with self._limit_lock:
            # Concurrent exports share one limit, and the last one resets it.
            self._limit_count += 1
            if self._limit_count == 1:
                self._set_limit(f"SET GLOBAL memory_limit = '{limit // 2**20}MiB'")
        try:
            yield
        finally:
            with self._limit_lock:
                self._limit_count -= 1
                if self._limit_count == 0:
                    self._set_limit("RESET GLOBAL memory_limit")

    def _set_limit(self, statement: str) -> None:
        cursor = self.connection.cursor()
        try:
            # If more memory is already in use, the limit remains unchanged.
            with contextlib.suppress(duckdb.OutOfMemoryException):
                cursor.execute(statement)
        finally:
            self._memory_limit = None
            cursor.close()

    def _register_file_systems(self) -> None:
        """Register file systems for URIs once the process has opened a remote storage."""
        # Only processes that use URIs need fsspec, which is optional.
        if not self._reads_uris and open_connections:
            with _RELATION_LOCK:
                if not self._reads_uris:
                    for system in file_systems(capture_errors):
                        self.connection.register_filesystem(system)
                    self._reads_uris = True

    def bind(
        self,
        query: str,
        tables: Mapping[str, duckdb.DuckDBPyRelation] | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
    ) -> duckdb.DuckDBPyRelation:
        """Return a lazy relation for a query over named relations, with bound parameters."""
        self._register_file_systems()
        with relation_lock():
            # Other statements could change the database or its settings.
            statements = self.connection.extract_statements(query)
            if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
                raise InvalidSql(
                    "The query is not a single SELECT statement.",
                    hint="write one SELECT; queries cannot change tables",
                )
            bound = _bind_tables(self.connection, query, tables or {}, dict(parameters or {}))
            if not parameters:
                return bound
            # A relation over the result has the parameter values in its SQL, so any cursor can run
            # it.
            return self.connect_relation(bound)

    def connect_relation(self, frame: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
        """Return a relation of this connection over ``frame``.

        Raises:
            duckdb.InvalidInputException: ``frame`` belongs to another database.
        """
        with _RELATION_LOCK:
            return _bind_tables(self.connection, _ALL_ROWS, {"frame": frame}, {})

    def copy_relation(self, frame: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
        """Return a relation over ``frame`` with a connection of its own.

        A connection rejects concurrent calls, and calls of users do not wait for the lock.
        """
        with relation_lock():
            return _bind_tables(self.connection.cursor(), _ALL_ROWS, {"frame": frame}, {})

    @contextlib.contextmanager
    def cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Yield a cursor for one execution, and translate DuckDB errors."""
        with translate_errors():
            self._register_file_systems()
            # A cursor per execution: results of one connection replace each other.
            cursor = self.connection.cursor()
            try:
                yield cursor
            finally:
                cursor.close()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Run a statement and return all result rows."""
        with self.cursor() as cursor, interrupt_on_signal(cursor):
            return list(cursor.execute(query).fetchall())


def _bind_tables(
    connection: duckdb.DuckDBPyConnection,
    query: str,
    tables: Mapping[str, Any],
    parameters: dict[str, Any],
) -> duckdb.DuckDBPyRelation:
    # DuckDB resolves unknown table names from local variables of the calling frame, so eval
    # provides a frame that contains the tables.
    scope = {"_connection": connection, "_query": query, "_parameters": parameters or None}
    bound: duckdb.DuckDBPyRelation = eval(
        "_connection.sql(_query, params=_parameters)", scope, dict(tables)
    )
    return bound


def _connect(config: Mapping[str, Any]) -> duckdb.DuckDBPyConnection:
    """Open an in-memory database with settings, in time zone UTC."""
    try:
        connection = duckdb.connect(":memory:", config=dict(config))
    except duckdb.Error as error:
        variables = ", ".join(_SETTINGS.values())
        raise ConfigurationError(
            f"DuckDB rejects {config}: {error}.", hint=f"check {variables}"
        ) from error
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    # With few left rows, DuckDB rewrites ASOF joins to an aggregate over sort keys, where -0.0
    # becomes 0.0.
    connection.execute("SET GLOBAL asof_loop_join_threshold = 0")
    return connection


def abandon(inherited: object) -> None:
    """Never release an object with a connection of the process from which this one was forked.

    The release would wait for threads that only the parent has, or end the process.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))


def query_of(native: duckdb.DuckDBPyRelation) -> str:
    """Return the SQL text of a relation, which any cursor can run."""
    with relation_lock():
        return str(native.sql_query())


@contextlib.contextmanager
def relation_lock() -> Iterator[None]:
    """Serialize the construction of relations, since the connection rejects concurrent calls.

    Queries must not be run inside the block.
    """
    with _RELATION_LOCK, translate_errors():
        yield


@contextlib.contextmanager
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


@contextlib.contextmanager
def interrupt_on_signal(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Let Ctrl-C interrupt the query that runs in the block.

    Only the main thread is interrupted, as in Python. Nothing is interrupted if the application has
    its own SIGINT handler. In other threads, the time limit of the call interrupts the query.
    """
    # Python delivers signals to the main thread only; queries of other threads are registered for
    # ``interrupt``.
    if threading.current_thread() is not threading.main_thread():
        with interrupted_on_request(connection):
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


def watch_source(source: object) -> None:
    """Let Ctrl-C also interrupt the connection from which the running query reads."""
    watch = _WATCHES.get(os.getpid())
    if watch is not None and isinstance(source, duckdb.DuckDBPyConnection):
        watch.add_source(source)


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


call_after_fork(_stop_watching)
