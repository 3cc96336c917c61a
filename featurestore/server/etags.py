"""Entity tags: a client with the current response receives 304 instead of the body."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_TAGGED = ("application/json", "text/html")


class EntityTags:
    """Middleware that adds an ETag to JSON and HTML responses and returns 304 if it matches.

    Streams and files are passed through.
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
    """Send callable that buffers a taggable response until its body is complete."""

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
        body = bytes(self._body)
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        headers = MutableHeaders(scope=start)
        headers["etag"] = tag
        headers.setdefault("cache-control", "private, no-cache")
        if matches_tag(self._known_tags, tag):
            start["status"] = 304
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
    tags = [tag_text.strip().removeprefix("W/") for tag_text in header.split(",")]
    return tag in tags or "*" in tags
