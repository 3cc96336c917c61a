"""Servers of Flight SQL on the loopback interface.

``DuckDBServer`` serves a DuckDB database by the Flight server of pyarrow. It implements the part of
the protocol that a reading driver uses (https://arrow.apache.org/docs/format/FlightSql.html):
prepared statements with bound parameters, lists of catalogs, schemas and tables, and users with
passwords. ``sqlite_server`` builds the SQLite server of Arrow's own tests from Go.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from pyarrow import flight

from tests.maven import NotFetched, cache_folder
from tests.object_server import free_port, wait_for

GO_PACKAGE = "github.com/apache/arrow-go/v18/arrow/flight/flightsql/example/cmd"
GO_VERSION = "v18.8.0"
PROTOCOL = "arrow.flight.protocol.sql."
USER, PASSWORD = "reader", "tr0ub4dor&3"

CATALOGS = "select distinct database_name as catalog_name from duckdb_tables() order by all"
SCHEMAS = (
    "select distinct database_name as catalog_name, schema_name as db_schema_name "
    "from duckdb_tables() order by all"
)
TABLES = (
    "select database_name as catalog_name, schema_name as db_schema_name, table_name, "
    "'TABLE' as table_type from duckdb_tables() order by all"
)
# The columns that the protocol requires to be present are not nullable.
REQUIRED = {
    "CommandGetCatalogs": {"catalog_name"},
    "CommandGetDbSchemas": {"db_schema_name"},
    "CommandGetTables": {"table_name", "table_type"},
}
LISTS = {
    "CommandGetCatalogs": CATALOGS,
    "CommandGetDbSchemas": SCHEMAS,
    "CommandGetTables": TABLES,
}


class _Passwords(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Accept the user with the password, or the token that a handshake returned."""

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> Any:
        basic = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        authorization = headers.get("authorization", [])
        if not {f"Basic {basic}", "Bearer token-of-reader"} & set(authorization):
            raise flight.FlightUnauthenticatedError(f"no such user or password: {authorization}")
        return _Token()


class _Token(flight.ServerMiddleware):  # type: ignore[misc]
    def sending_headers(self) -> dict[str, str]:
        return {"authorization": "Bearer token-of-reader"}


class _Handshake(flight.ServerAuthHandler):  # type: ignore[misc]
    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        """Accept: the middleware has checked the user."""

    def is_valid(self, token: bytes) -> bytes:
        return b""


class DuckDBServer(flight.FlightServerBase):  # type: ignore[misc]
    """A server of a DuckDB database; ``statements`` are those that clients prepared."""

    def __init__(self, *, with_password: bool) -> None:
        options: dict[str, Any] = {}
        if with_password:
            options = {"middleware": {"password": _Passwords()}, "auth_handler": _Handshake()}
        super().__init__("grpc://127.0.0.1:0", **options)
        self.database = duckdb.connect()
        self.database.execute("set global timezone = 'UTC'")
        self.statements: list[str] = []
        self.parameters: dict[bytes, list[Any]] = {}
        self.lock = threading.Lock()

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        _, fields = _unpack(action.body.to_pybytes())
        if action.type == "CreatePreparedStatement":
            handle = fields[1]
            text = handle.decode()
            try:
                cursor = self.database.cursor()
                rows = cursor.sql(text, params=[None] * text.count("?"))
                schema = rows.to_arrow_reader().schema
            except duckdb.Error as error:
                raise flight.FlightServerError(str(error)) from None
            with self.lock:
                self.statements.append(text)
            result = _field(1, handle) + _field(2, schema.serialize().to_pybytes())
            yield flight.Result(_pack("ActionCreatePreparedStatementResult", result))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        _, fields = _unpack(descriptor.command)
        (row,) = reader.read_all().to_pylist()
        self.parameters[fields[1]] = list(row.values())

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        schema = self._read(descriptor.command).schema
        endpoint = flight.FlightEndpoint(descriptor.command, [])
        return flight.FlightInfo(schema, descriptor, [endpoint], -1, -1)

    def do_get(self, context: Any, ticket: Any) -> Any:
        return flight.RecordBatchStream(self._read(ticket.ticket))

    def _read(self, command: bytes) -> Any:
        name, fields = _unpack(command)
        cursor = self.database.cursor()
        if name in LISTS:
            table = cursor.sql(LISTS[name]).to_arrow_table()
            schema = [
                field.with_nullable(field.name not in REQUIRED[name]) for field in table.schema
            ]
            return table.cast(pa.schema(schema))
        if name != "CommandPreparedStatementQuery":
            raise NotImplementedError(name)
        try:
            parameters = self.parameters.get(fields[1])
            return cursor.sql(fields[1].decode(), params=parameters).to_arrow_reader(1000)
        except duckdb.Error as error:
            raise flight.FlightServerError(str(error)) from None


def _unpack(message: bytes) -> tuple[str, dict[int, bytes]]:
    """Return the name and the fields of a message in a ``google.protobuf.Any``."""
    outer = _fields(message)
    return outer[1].decode().rpartition(".")[2], _fields(outer.get(2, b""))


def _fields(message: bytes) -> dict[int, bytes]:
    """Return the fields with a length by their number; fields of one byte are skipped."""
    fields, position = {}, 0
    while position < len(message):
        tag = message[position]
        length, position = _varint(message, position + 1)
        if tag & 7 == 2:
            fields[tag >> 3] = message[position : position + length]
            position += length
    return fields


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = message[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position


def _field(number: int, value: bytes) -> bytes:
    length, digits = len(value), b""
    while length > 127:
        digits += bytes([length & 127 | 128])
        length >>= 7
    return bytes([number << 3 | 2]) + digits + bytes([length]) + value


def _pack(name: str, message: bytes) -> bytes:
    uri = f"type.googleapis.com/{PROTOCOL}{name}".encode()
    return _field(1, uri) + _field(2, message)


@contextlib.contextmanager
def serving(*, with_password: bool = False) -> Iterator[DuckDBServer]:
    """Serve an empty DuckDB database while the block runs."""
    with DuckDBServer(with_password=with_password) as server:
        yield server


def sqlite_server() -> Path:
    """Return the path of the SQLite server of Arrow's tests, built on first use."""
    folder = cache_folder() / f"flight-sql-{GO_VERSION}"
    program = folder / "sqlite_flightsql_server"
    if not program.exists():
        if shutil.which("go") is None:
            raise NotFetched("Go is not installed")
        folder.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "GOBIN": str(folder), "GOFLAGS": "-modcacherw"}
        command = ["nice", "go", "install", f"{GO_PACKAGE}/{program.name}@{GO_VERSION}"]
        try:
            finished = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=600, check=False
            )
        except subprocess.TimeoutExpired:
            raise NotFetched("Go did not build the Flight SQL server in ten minutes") from None
        if finished.returncode:
            raise NotFetched(f"Go could not build the server: {finished.stderr[-300:]}")
    return program


@contextlib.contextmanager
def serving_sqlite() -> Iterator[int]:
    """Run Arrow's SQLite server, and yield its port."""
    port = free_port()
    process = subprocess.Popen(
        [str(sqlite_server()), "-host", "127.0.0.1", "-port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(port, process)
        yield port
    finally:
        process.terminate()
        process.wait(timeout=20)
