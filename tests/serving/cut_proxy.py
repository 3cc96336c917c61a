"""Faults of servers: a TCP proxy that cuts the network or loses responses, and a crash of Postgres."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_CHUNK = 1 << 16


class CutProxy:
    """Forwards connections to a local port.

    While ``is_cut``, bytes of clients are discarded; their connections stay open. If a request
    contains ``lost_marker``, the server gets it, and the connection ends instead of a response;
    this happens ``losses`` times. ``before_request`` is called before each request, or part of a
    large one, is forwarded. New connections are to the port ``backend``. The first request that
    contains ``late_marker`` is kept until ``deliver_late``, and its connection ends.
    """

    def __init__(self, backend: int) -> None:
        self.is_cut = False
        self.lost_marker = b""
        self.losses = 0
        self.late_marker = b""
        self._late_requests: list[bytes] = []
        self.backend = backend
        self.before_request: Callable[[], None] = lambda: None
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        _close(self._listener)
        self.reset()

    def reset(self) -> None:
        """Close all connections."""
        sockets, self._sockets = self._sockets, []
        _close(*sockets)

    def deliver_late(self) -> bytes:
        """Send the late request to the server, and return the response."""
        (request,) = self._late_requests
        with socket.create_connection(("127.0.0.1", self.backend)) as server:
            server.sendall(request)
            return server.recv(_CHUNK)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.backend))
                except OSError:
                    client.close()
                    continue
                self._sockets += [client, server]
                is_lost = threading.Event()
                for pump in (self._send_requests, self._send_responses):
                    threading.Thread(
                        target=pump, args=(client, server, is_lost), daemon=True
                    ).start()

    def _send_requests(
        self, client: socket.socket, server: socket.socket, is_lost: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(_CHUNK):
                self.before_request()
                if self.late_marker and self.late_marker in data and not self._late_requests:
                    self._late_requests.append(data)
                    break
                if self.lost_marker and self.lost_marker in data and self.losses > 0:
                    self.losses -= 1
                    is_lost.set()
                if not self.is_cut:
                    server.sendall(data)
        _close(client, server)

    def _send_responses(
        self, client: socket.socket, server: socket.socket, is_lost: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while (data := server.recv(_CHUNK)) and not is_lost.is_set():
                if not self.is_cut:
                    client.sendall(data)
        _close(client, server)


def _close(*sockets: socket.socket) -> None:
    for endpoint in sockets:
        # The shutdown wakes the thread that waits for bytes of the socket.
        with contextlib.suppress(OSError):
            endpoint.shutdown(socket.SHUT_RDWR)
        endpoint.close()


@contextmanager
def cutting(backend: int) -> Iterator[CutProxy]:
    """Run a proxy for a local port."""
    proxy = CutProxy(backend)
    try:
        yield proxy
    finally:
        proxy.close()


def crash_postgres(url: str) -> None:
    """Kill a process of the server, which then ends all connections, and recovers from its log."""
    import psycopg

    with psycopg.connect(url) as connection:
        os.kill(connection.info.backend_pid, signal.SIGKILL)
        # The connection ends with the process.
        with contextlib.suppress(psycopg.OperationalError):
            connection.execute("select 1")
