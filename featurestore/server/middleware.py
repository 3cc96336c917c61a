"""Middleware: size and time limits, entity tags, security headers and cross-site checks."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse

from featurestore.errors import QueryEnded
from featurestore.model.runtime import time_limit
from featurestore.plugins.engine import Engine
from featurestore.server.rest import MEDIA_TYPE
from featurestore.server.settings import HEADERS, is_cross_site

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_INTERRUPT_SECONDS = 0.1
TIME_LIMIT_HINT = (
    "request fewer rows, or increase the time limit: featurestore serve --query-seconds"
)
MIN_BYTES_PER_SECOND = 10 << 10
_TAGGED = ("application/json", "text/html")


@contextmanager
def limit_query_time(seconds: float, engine: Engine) -> Iterator[None]:
    """Interrupt the queries in the block after a number of seconds.

    Raises:
        QueryEnded: The time limit was exceeded.
    """
    thread = threading.get_ident()
    finished = threading.Event()
    # Ensures that no later query in this thread is interrupted.
    lock = threading.Lock()

    def watch() -> None:
        """Interrupt the queries of the thread after the time limit."""
        # An interrupt between two queries of the block has no effect, so it is repeated until the
        # block has finished.
        is_finished = finished.wait(seconds)
        while not is_finished:
            with lock:
                if not finished.is_set():
                    engine.interrupt(thread)
            is_finished = finished.wait(_INTERRUPT_SECONDS)

    threading.Thread(target=watch, name="featurestore-query-time", daemon=True).start()
    try:
        with time_limit(seconds, hint=TIME_LIMIT_HINT):
            yield
    except KeyboardInterrupt:  # engines raise this for an interrupted query
        raise QueryEnded(
            f"The query was cancelled after {seconds:g} seconds.",
            hint=TIME_LIMIT_HINT,
        ) from None
    finally:
        with lock:
            finished.set()


class BodyLimit:
    """Middleware that rejects request bodies that are too large or arrive too slowly.

    Args:
        app: The next application.
        max_bytes: The maximum size of a body in bytes.
        max_bytes_by_type: Other size limits by content type, for bodies that are streamed to disk.
        seconds: The time for a body to arrive, plus one second per ``MIN_BYTES_PER_SECOND`` bytes.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_bytes: int,
        max_bytes_by_type: Mapping[bytes, int],
        seconds: float,
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._max_bytes_by_type = max_bytes_by_type
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        max_bytes = self._max_bytes_by_type.get(headers.get(b"content-type", b""), self._max_bytes)
        # A body without a declared length is counted while it is received.
        content_length = headers.get(b"content-length", b"")
        if content_length.isdigit() and int(content_length) > max_bytes:
            await _reject(send, 413, f"The request body exceeds the limit of {max_bytes:,} bytes.")
            return
        await self._app(scope, _CountedBody(receive, max_bytes, self._seconds), send)


class AddressLimit:
    """Middleware that rejects URLs whose path and query exceed ``max_bytes`` bytes."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            size = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
            if size > self._max_bytes:
                await _reject(send, 414, f"The URL exceeds the limit of {self._max_bytes:,} bytes.")
                return
        await self._app(scope, receive, send)


class TimeLimit:
    """Middleware with a time limit for requests, except for content types with their own limits."""

    def __init__(self, app: ASGIApp, *, seconds: float, exempt_types: Collection[bytes]) -> None:
        self._app = app
        self._seconds = seconds
        self._exempt_types = exempt_types

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_limited = scope["type"] == "http"
        # Only POST requests can be uploads or row streams, which are exempt.
        if is_limited and scope["method"] == "POST":
            is_limited = dict(scope["headers"]).get(b"content-type", b"") not in self._exempt_types
        with time_limit(self._seconds if is_limited else None, hint=TIME_LIMIT_HINT):
            await self._app(scope, receive, send)


async def _reject(send: Send, status: int, detail: str) -> None:
    """Send a problem response and close the connection."""
    problem = {
        "type": "about:blank",
        "title": "Request too long",
        "status": status,
        "detail": detail,
    }
    # The body is not read, so the connection cannot be used for another request.
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(problem).encode()})


class _CountedBody:
    """A receive callable that counts the bytes of a body and enforces its limits."""

    def __init__(self, receive: Receive, max_bytes: int, seconds: float) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._received = 0
        self._deadline = time.monotonic() + seconds
        self._is_complete = False

    async def __call__(self) -> Message:
        if self._is_complete:  # the next message is the disconnect
            return await self._receive()
        remaining = self._deadline + self._received / MIN_BYTES_PER_SECOND - time.monotonic()
        try:
            # With a timeout of zero, wait_for would cancel even the receipt of data that has
            # arrived.
            message = await asyncio.wait_for(self._receive(), max(remaining, 0.01))
        except TimeoutError:
            raise HTTPException(408, "The request arrived too slowly") from None
        self._received += len(message.get("body", b""))
        self._is_complete = not message.get("more_body", False)
        if self._received > self._max_bytes:
            raise HTTPException(413, "Request too long")
        return message


class EntityTags:
    """Middleware that adds an ETag to JSON and HTML responses and returns 304 if it matches.

    Streams and files are not changed.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        known_tags = Headers(scope=scope).get("if-none-match", "")
        await self._app(scope, receive, _BufferedResponse(send, known_tags))


class _BufferedResponse:
    """A send callable that buffers a JSON or HTML response until its body is complete."""

    def __init__(self, send: Send, known_tags: str) -> None:
        self._send = send
        self._known_tags = known_tags
        self._start: Message | None = None
        self._body = bytearray()

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_tagged(message):
            self._start = message
        elif self._start is None or message["type"] != "http.response.body":
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._finish(self._start)

    async def _finish(self, start: Message) -> None:
        """Send the response with its tag, or 304 if the client has this tag."""
        body = bytes(self._body)
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        headers = MutableHeaders(scope=start)
        headers["etag"] = tag
        # Responses depend on the visitor: shared caches must not store them, and browsers must
        # revalidate. Pages with secrets have already set no-store.
        headers.setdefault("cache-control", "private, no-cache")
        if matches_tag(self._known_tags, tag):
            start["status"] = 304
            # A 304 response has no body.
            del headers["content-length"]
            body = b""
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})


def _is_tagged(start: Message) -> bool:
    media_type = MutableHeaders(scope=start).get("content-type", "").split(";")[0]
    return start["status"] == 200 and media_type in _TAGGED


def matches_tag(header: str, tag: str) -> bool:
    """Return True if an ``If-None-Match`` header contains a tag.

    >>> matches_tag('"a", W/"b"', '"b"'), matches_tag("*", '"b"'), matches_tag("", '"b"')
    (True, True, False)
    """
    # If-None-Match uses the weak comparison of RFC 9110, which ignores the prefix W/.
    tags = [tag_text.strip().removeprefix("W/") for tag_text in header.split(",")]
    return tag in tags or "*" in tags


class BrowserGuard:
    """Middleware that adds security headers and rejects requests from other sites."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        app = self._app
        if is_cross_site(scope["method"], Headers(scope=scope)):
            app = PlainTextResponse("Cross-site requests are not allowed.", 403)
        await app(scope, receive, send_with_headers)
