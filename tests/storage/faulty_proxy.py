"""A proxy for an S3 server that injects network and server faults at random."""

from __future__ import annotations

import contextlib
import http.client
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import ClassVar

from tests.http_server import read_body, serve

# Faults of a request. With "lost" and "late 500" the request has succeeded on the server.
FAULTS = ("500", "503", "cut", "lost", "late 500", "half", "slow")
# "stale" repeats an earlier list response, which S3 itself no longer does.
STALE = "stale"
_SLOW_SECONDS = 0.05


class FaultyProxy:
    """A proxy that injects one of the chosen faults into requests with a probability."""

    def __init__(self, backend: int, *, rate: float, kinds: tuple[str, ...], seed: int) -> None:
        self.backend = backend
        self.rate = rate
        self.kinds = kinds
        self.requests: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.lists: dict[str, bytes] = {}
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def next_fault(self, operation: str) -> str:
        """Return the fault of the next request, or "" for none."""
        with self._lock:
            self.requests[operation] += 1
            if self._random.random() >= self.rate:
                return ""
            fault = self._random.choice(self.kinds)
            self.faults[fault] += 1
            return fault


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: ClassVar[FaultyProxy]

    def _pass_on(self) -> None:
        body = read_body(self)
        is_list = "list-type=" in self.path
        fault = self.proxy.next_fault("LIST" if is_list else self.command)
        if fault in ("500", "503"):
            self._send_response(int(fault), {}, b"")
            return
        if fault == "cut":
            self.close_connection = True
            return
        if fault == "slow":
            time.sleep(_SLOW_SECONDS)
        status, headers, payload = self._forward_request(body)
        if is_list:
            before = self.proxy.lists.setdefault(self.path, payload)
            if fault == STALE:
                payload = before
        if fault == "lost":
            self.close_connection = True
        elif fault == "late 500":
            self._send_response(500, {}, b"")
        elif fault == "half" and len(payload) > 1:
            self._send_response(status, headers, payload, limit=len(payload) // 2)
            self.close_connection = True
        else:
            self._send_response(status, headers, payload)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on  # noqa: N815

    def _forward_request(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.proxy.backend, timeout=30)
        try:
            headers = dict(self.headers)
            headers.pop("Transfer-Encoding", None)
            connection.request(self.command, self.path, body=body, headers=headers)
            response = connection.getresponse()
            headers = dict(response.getheaders())
            return response.status, headers, response.read()
        finally:
            connection.close()

    def _send_response(
        self, status: int, headers: dict[str, str], body: bytes, *, limit: int | None = None
    ) -> None:
        self.send_response(status)
        lengths = [headers[name] for name in headers if name.lower() == "content-length"]
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        length = lengths[0] if self.command == "HEAD" and lengths else str(len(body))
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body if limit is None else body[:limit])

    def log_message(self, format: str, *arguments: object) -> None:
        """Suppress the log."""


@contextlib.contextmanager
def faulty(
    backend: int, *, rate: float, kinds: tuple[str, ...] = FAULTS, seed: int = 1
) -> Iterator[tuple[FaultyProxy, str]]:
    """Run a proxy for a backend port, and yield it with its endpoint."""
    proxy = FaultyProxy(backend, rate=rate, kinds=kinds, seed=seed)
    handler = type("Handler", (_Handler,), {"proxy": proxy})
    with serve(handler) as port:
        yield proxy, f"http://127.0.0.1:{port}"
