"""Alert receivers for tests: web servers and mail servers, working and failing."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
