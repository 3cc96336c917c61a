"""Tags of answers: who has one already is told so instead of getting it again."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_TAGGED = ("application/json", "text/html")


class Tags:
    """Gives whole answers of the REST interface and pages a tag, or says 304 to who named it.

    Streams and files are passed on as they come.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        named = Headers(scope=scope).get("if-none-match", "")
        await self._app(scope, receive, _Held(send, named))


class _Held:
    """Holds an answer that gets a tag until all of it is there."""

    def __init__(self, send: Send, named: str) -> None:
        self._send = send
        self._named = named
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
        if is_known(self._named, tag):
            start["status"] = 304
            del headers["content-length"]
            body = b""
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})


def _is_tagged(start: Message) -> bool:
    kind = MutableHeaders(scope=start).get("content-type", "").split(";")[0]
    return start["status"] == 200 and kind in _TAGGED


def is_known(named: str, tag: str) -> bool:
    """Tell whether a header names a tag.

    >>> is_known('"a", W/"b"', '"b"'), is_known("*", '"b"'), is_known("", '"b"')
    (True, True, False)
    """
    known = [each.strip().removeprefix("W/") for each in named.split(",")]
    return tag in known or "*" in known
