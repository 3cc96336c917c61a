"""One DuckDB database an engine: its settings, connection and cursors.

Relations are bound on the engine's connection, which therefore never holds an open result; every
execution has a cursor of its own, so that streams, writes and counts may run beside each other.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import duckdb

from featurestore.errors import ConfigurationError, InvalidSql
from featurestore.model.cores import usable_cores
from featurestore.storage.connections import has_connections
from featurestore.storage.filesystem import file_systems
from featurestore_connectors.duckdb_delta.failures import kept, translated
from featurestore_connectors.duckdb_delta.interrupts import interruptible

_BUILDING = threading.RLock()
_SETTINGS = {
    "memory_limit": "FEATURESTORE_DUCKDB_MEMORY_LIMIT",
    "threads": "FEATURESTORE_DUCKDB_THREADS",
    "temp_directory": "FEATURESTORE_DUCKDB_TEMP_DIRECTORY",
}
_BYTES = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


class Database:
    """A DuckDB database in memory, in UTC, that spills to ``temp_directory``."""

    def __init__(
        self,
        *,
        memory_limit: str | None = None,
        threads: int | None = None,
        temp_directory: str | None = None,
        durable: bool = True,
    ) -> None:
        self.durable = durable
        given = {"memory_limit": memory_limit, "threads": threads, "temp_directory": temp_directory}
        config: dict[str, Any] = {}
        for setting, variable in _SETTINGS.items():
            value = given[setting] or os.environ.get(variable)
            if value:
                config[setting] = value
        chosen = bool(config)
        # Left alone, DuckDB takes as many as the machine has.
        config.setdefault("threads", usable_cores())
        # For files of our own beside those that DuckDB makes.
        self.scratch: str = config.get("temp_directory", tempfile.gettempdir())
        config.setdefault(
            "temp_directory",
            os.path.join(tempfile.gettempdir(), f"featurestore-duckdb-{os.getuid()}-{os.getpid()}"),
        )
        self.config = config
        self.limit_is_chosen = "memory_limit" in config
        self._reads_uris = False
        self._sparing = 0
        self._sparing_lock = threading.Lock()
        self._opening = threading.Lock()
        self._opened: duckdb.DuckDBPyConnection | None = None
        self._closed = False
        if chosen:
            _ = self.connection  # what DuckDB refuses is said before anything is done

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The connection, opened when it is first asked for: many a process only lists names.

        Raises:
            ConfigurationError: DuckDB refuses a setting.
        """
        with self._opening:
            if self._opened is None:
                if self._closed:
                    raise duckdb.ConnectionException("Connection already closed!")
                self._opened = _connect(self.config)
            return self._opened

    @property
    def memory_limit(self) -> int:
        """The bytes that DuckDB may take now."""
        ((text,),) = self.rows("SELECT current_setting('memory_limit')")
        number, unit = text.split()
        return int(float(number) * _BYTES[unit])

    def close(self) -> None:
        """Close the database; relations over it end."""
        with self._opening:
            self._closed = True
            if self._opened is not None:
                self._opened.close()

    @contextlib.contextmanager
    def sparing(self, limit: int) -> Iterator[None]:
        """Keep DuckDB below so many bytes while the block runs, so that it spills sooner.

        A limit that the user chose stays.
        """
        if self.limit_is_chosen:
            yield
            return
        with self._sparing_lock:
            self._sparing += 1
            if self._sparing == 1:
                self._set_limit(f"SET GLOBAL memory_limit = '{limit // 2**20}MiB'")
        try:
            yield
        finally:
            with self._sparing_lock:
                self._sparing -= 1
                if self._sparing == 0:
                    self._set_limit("RESET GLOBAL memory_limit")

    def _set_limit(self, statement: str) -> None:
        cursor = self.connection.cursor()
        try:
            # What is in use may be more already: then the limit stays as it was.
            with contextlib.suppress(duckdb.OutOfMemoryException):
                cursor.execute(statement)
        finally:
            cursor.close()

    def _read_uris(self) -> None:
        """Let DuckDB read files below URIs as soon as the process has opened a storage there."""
        if not self._reads_uris and has_connections():
            with _BUILDING:
                if not self._reads_uris:
                    for system in file_systems(kept):
                        self.connection.register_filesystem(system)
                    self._reads_uris = True

    def bind(
        self,
        query: str,
        tables: Mapping[str, duckdb.DuckDBPyRelation] | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
    ) -> duckdb.DuckDBPyRelation:
        """Return a relation for a query over named relations, with its parameters bound.

        Nothing runs.
        """
        self._read_uris()
        with building():
            statements = self.connection.extract_statements(query)
            if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
                raise InvalidSql(
                    "The query is not one SELECT.", hint="a query reads tables and changes nothing"
                )
            bound = self._lookup(query, tables or {}, dict(parameters or {}))
            if not parameters:
                return bound
            # A relation over it carries the values in its text, so that any cursor can run it.
            return self.connect_relation(bound)

    def connect_relation(self, frame: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
        """Return a relation of this connection.

        InvalidInputException when its database is another one.
        """
        with _BUILDING:
            return self._lookup("SELECT * FROM frame", {"frame": frame}, {})

    def _lookup(
        self, query: str, tables: Mapping[str, Any], parameters: dict[str, Any]
    ) -> duckdb.DuckDBPyRelation:
        # DuckDB looks up names that are no tables among the variables of the calling frame: so this
        # call gets one.
        scope = {"_connection": self.connection, "_query": query, "_parameters": parameters or None}
        bound: duckdb.DuckDBPyRelation = eval(
            "_connection.sql(_query, params=_parameters)", scope, dict(tables)
        )
        return bound

    @contextlib.contextmanager
    def cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Give a cursor for one execution; DuckDB's errors leave as the store's."""
        with translated():
            self._read_uris()
            cursor = self.connection.cursor()
            try:
                yield cursor
            finally:
                cursor.close()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Run a statement and return all its rows; for small results."""
        with self.cursor() as cursor, interruptible(cursor):
            return list(cursor.execute(query).fetchall())


def _connect(config: Mapping[str, Any]) -> duckdb.DuckDBPyConnection:
    try:
        connection = duckdb.connect(":memory:", config=dict(config))
    except duckdb.Error as error:
        variables = ", ".join(_SETTINGS.values())
        raise ConfigurationError(
            f"DuckDB refuses {config}: {error}.", hint=f"look at {variables}"
        ) from error
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    # For few left rows DuckDB turns ASOF into an aggregate over sort keys, in which -0.0 becomes
    # 0.0.
    connection.execute("SET GLOBAL asof_loop_join_threshold = 0")
    return connection


def query_of(native: duckdb.DuckDBPyRelation) -> str:
    """Return the text of a relation, for a cursor to run."""
    with building():
        return str(native.sql_query())


@contextlib.contextmanager
def building() -> Iterator[None]:
    """Let one thread at a time make relations: the connection refuses a second call.

    Nothing may run inside.
    """
    with _BUILDING, translated():
        yield
