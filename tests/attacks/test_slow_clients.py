"""Clients that send incomplete requests, send byte by byte, or do not read the response."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import featurestore
from featurestore.server import ServerSettings, create_app
from featurestore.server.listening import timed_protocol

SECONDS = 0.5
PATIENCE = 20.0
PARTIAL_REQUESTS = {
    "nothing": b"",
    "half a line": b"GET /gro",
    "half a header": b"GET /groups HTTP/1.1\r\nHost: localhost\r\nX-A: b",
    "half a second request": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /gr",
    "half a body": b"POST /api/v1/rows HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
    "half an upload": b"POST /api/v1/rows HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/vnd.featurestore.retrieval\r\nContent-Length: 1000000\r\n\r\n{",
}  # fmt: skip


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    import uvicorn

    with featurestore.connect(tmp_path_factory.mktemp("store")) as store:
        store.create_featuregroup([{"k": 1, "text": "x" * 30_000_000}], "wide", primary_key="k")
        app = create_app(store, ServerSettings(query_seconds=SECONDS))
        protocol = timed_protocol(read_seconds=SECONDS, header_seconds=SECONDS)
        config = uvicorn.Config(app, port=0, log_level="critical", http=protocol, ws="none")
        config.timeout_keep_alive = 1
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()
        server.should_exit = True
        thread.join()


def connected(address: tuple[str, int]) -> socket.socket:
    connection = socket.create_connection(address)
    connection.settimeout(PATIENCE)
    return connection


def read_to_the_end(connection: socket.socket) -> bytes:
    """Return the bytes received until the server closes the connection."""
    chunks = []
    try:
        while chunk := connection.recv(1 << 16):
            chunks.append(chunk)
    except ConnectionResetError:
        pass
    return b"".join(chunks)


@pytest.mark.parametrize("request_name", PARTIAL_REQUESTS)
def test_half_open_connections_are_closed(address: tuple[str, int], request_name: str) -> None:
    start = time.monotonic()
    with connected(address) as connection:
        connection.sendall(PARTIAL_REQUESTS[request_name])
        response = read_to_the_end(connection)
    assert time.monotonic() - start < PATIENCE
    if request_name in ("half a body", "half an upload"):
        assert response.startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("request_name", ["half a header", "half a body"])
def test_byte_wise_request_times_out(address: tuple[str, int], request_name: str) -> None:
    start = time.monotonic()
    with connected(address) as connection:
        connection.sendall(PARTIAL_REQUESTS[request_name])
        with pytest.raises((ConnectionError, socket.timeout)):
            drip(connection)
    assert time.monotonic() - start < PATIENCE


def drip(connection: socket.socket) -> None:
    for _ in range(200):
        connection.sendall(b"a")
        time.sleep(0.05)


def test_unread_response_is_aborted(address: tuple[str, int]) -> None:
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(PATIENCE)
        connection.connect(address)
        request = b"GET /api/v1/featuregroups/wide/1/rows HTTP/1.1\r\nHost: localhost\r\n\r\n"
        connection.sendall(request)
        time.sleep(4 * SECONDS)
        assert len(read_to_the_end(connection)) < 20_000_000


def test_slow_clients_do_not_block_others(address: tuple[str, int]) -> None:
    slow = [connected(address) for _ in range(100)]
    for number, connection in enumerate(slow):
        connection.sendall(list(PARTIAL_REQUESTS.values())[number % len(PARTIAL_REQUESTS)])
    start = time.monotonic()
    with connected(address) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert read_to_the_end(connection).endswith(b"ok\n")
    assert time.monotonic() - start < PATIENCE
    for connection in slow:
        connection.close()


def test_active_client_keeps_connection(address: tuple[str, int]) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connected(address) as connection:
        for _ in range(3):
            connection.sendall(request)
            assert b"ok\n" in receive(connection, 3)
            time.sleep(0.6 * SECONDS)


def receive(connection: socket.socket, least: int) -> Any:
    received = b""
    while len(received) < least or not received.endswith(b"ok\n"):
        chunk = connection.recv(1 << 16)
        assert chunk
        received += chunk
    return received
