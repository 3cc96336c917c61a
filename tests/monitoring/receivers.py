"""Alert receivers for tests: web servers and mail servers, working and failing."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller

from tests.http_server import serve


@dataclass
class Received:
    """Received messages, and the behavior of the receiver: "well", "fails", "hangs" or "slow"."""

    port: int = 0
    behavior: str = "well"
    messages: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def uri(self) -> str:
        return f"webhook+http://127.0.0.1:{self.port}/hook"

    def keys(self) -> list[str]:
        """Return the idempotency keys of the requests."""
        return [headers["Idempotency-Key"] for headers in self.headers]


@contextmanager
def web_server() -> Iterator[Received]:
    """Run an HTTP server that stores posted messages."""
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.headers.append(dict(self.headers.items()))
            received.messages.append(json.loads(body))
            if received.behavior == "hangs":
                received.stop.wait(60)
                return
            if received.behavior == "slow":
                time.sleep(0.5)
            self.send_response({"fails": 500, "elsewhere": 302}.get(received.behavior, 204))
            if received.behavior == "elsewhere":
                self.send_header("Location", f"http://127.0.0.1:{received.port}/other")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with serve(Handler) as received.port:
        try:
            yield received
        finally:
            received.stop.set()


@dataclass
class Mails:
    """Received mails; ``refuse`` makes the server reject mails."""

    envelopes: list[Any] = field(default_factory=list)
    encrypted: list[bool] = field(default_factory=list)
    refuse: bool = False

    async def handle_DATA(self, _server: Any, session: Any, envelope: Any) -> str:
        if self.refuse:
            return "451 not now"
        self.envelopes.append(envelope)
        self.encrypted.append(session.ssl is not None)
        return "250 taken"


@contextmanager
def mail_server(folder: Path) -> Iterator[tuple[Mails, int, Path]]:
    """Run a mail server that requires STARTTLS; yield the mails, the port and its certificate."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    subprocess.run([*command, *subject, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    mails = Mails()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    controller = Controller(
        mails, hostname="127.0.0.1", port=port, tls_context=context, require_starttls=True
    )
    controller.start()
    try:
        yield mails, port, certificate
    finally:
        controller.stop()


# Answers a connection until the event is set.
Response = Callable[[socket.socket, threading.Event], object]


@contextmanager
def tcp_server(respond: Response) -> Iterator[int]:
    """Run a server that answers each connection by a function; yield its port."""
    stop, connections = threading.Event(), list[socket.socket]()

    def run(connection: socket.socket) -> None:
        with connection, suppress(OSError):  # the client has closed the connection
            respond(connection, stop)

    def accept() -> None:
        with suppress(OSError):  # the server was closed
            while True:
                connection, _ = listener.accept()
                connections.append(connection)
                threading.Thread(target=run, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield listener.getsockname()[1]
        finally:
            stop.set()
            listener.shutdown(socket.SHUT_RDWR)
            for connection in connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


def drip(start: bytes, repeated: bytes = b"x") -> Response:
    """Return a response whose end consists of few bytes at a time, without an end."""

    def respond(connection: socket.socket, stop: threading.Event) -> None:
        connection.sendall(start)
        while not stop.wait(0.05):
            connection.sendall(repeated)

    return respond


def flood(start: bytes, repeated: bytes) -> Response:
    """Return a response without an end, as fast as the client reads it."""

    def respond(connection: socket.socket, stop: threading.Event) -> None:
        connection.sendall(start)
        while not stop.is_set():
            connection.sendall(repeated)

    return respond


def _reset(connection: socket.socket, _: threading.Event) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _flood_after_greeting(connection: socket.socket, stop: threading.Event) -> None:
    connection.sendall(b"220 ready\r\n")
    connection.recv(100)
    flood(b"", b"250-option\r\n" * 1000)(connection, stop)


_BROKEN: dict[str, Response] = {
    "silent": lambda _, stop: stop.wait(60),
    "resets": _reset,
    "closes": lambda *_: None,
    "garbage": flood(b"", b"\x00\xff\n" * 10_000),
}
_BODY = b"y" * 65_536
_LENGTH = b"Content-Length: 9999999999\r\n\r\n"
WEB_RESPONSES = _BROKEN | {
    "slow status": drip(b"HTTP/1.1 2"),
    "slow header": drip(b"HTTP/1.1 204 OK\r\nX: "),
    "slow headers": drip(b"HTTP/1.1 204 OK\r\n", b"X: y\r\n"),
    "slow continues": drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "endless continues": flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    "endless headers": flood(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 1000),
    "endless header": flood(b"HTTP/1.1 200 OK\r\nX: ", _BODY),
    "endless error": flood(b"HTTP/1.1 500 no\r\n" + _LENGTH, _BODY),
    "endless redirect": flood(b"HTTP/1.1 307 no\r\nLocation: /\r\n" + _LENGTH, _BODY),
    "redirect to a file": drip(b"HTTP/1.1 302 no\r\nLocation: file:///etc/passwd\r\n\r\n"),
}
# The body of a successful response is not read.
ENDLESS_BODIES = {
    "endless body": flood(b"HTTP/1.1 200 OK\r\n" + _LENGTH, _BODY),
    "endless chunks": flood(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + _BODY + b"\r\n"
    ),
}
TLS_RESPONSES: dict[str, Response] = {
    "silent": _BROKEN["silent"],
    "slow handshake": drip(b"\x16\x03\x03\x40\x00\x02"),
}
MAIL_RESPONSES = _BROKEN | {
    "slow greeting": drip(b"220 "),
    "slow lines": drip(b"", b"220-hello\r\n"),
    "endless lines": flood(b"", b"220-hello\r\n" * 1000),
    "endless line": flood(b"220 ", _BODY),
    "endless options": _flood_after_greeting,
}
PROGRAMS = {
    "endless output": "cat > /dev/null; yes",
    "endless errors": "yes >&2",
    "reads nothing": "sleep 60",
    "ignores SIGTERM": "trap '' TERM; sleep 60",
    "fails": "exit 1",
}
