"""Middleware: the size of URLs, entity tags, security headers and cross-site checks."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse

from featurestore.server.rest import MEDIA_TYPE
from featurestore.server.settings import HEADERS, is_cross_site

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_TAGGED = ("application/json", "text/html")


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
