"""Limits on size and time of requests, as ASGI middleware."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from featurestore.model.time_limits import time_limit
from featurestore.server.problems import MEDIA_TYPE
from featurestore.server.query_time import TIME_LIMIT_HINT

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


MIN_BYTES_PER_SECOND = 10 << 10


class BodyLimit:
    """Middleware that rejects bodies of more than ``max_bytes`` bytes and bodies that arrive slowly.

    Args:
        app: The next application.
        max_bytes: Maximum size of a body in bytes.
        max_bytes_by_type: Other maximum sizes by content type, for bodies that are streamed to disk.
        seconds: Time for a body to arrive, plus one second per ``MIN_BYTES_PER_SECOND`` bytes.
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
        content_length = headers.get(b"content-length", b"")
        if content_length.isdigit() and int(content_length) > max_bytes:
            await _refuse(send, 413, f"The body of a request has at most {max_bytes:,} bytes.")
            return
        await self._app(scope, _CountedBody(receive, max_bytes, self._seconds), send)


class AddressLimit:
    """Middleware that rejects URLs of more than ``max_bytes`` bytes of path and query."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            size = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
            if size > self._max_bytes:
                await _refuse(send, 414, f"A URL has at most {self._max_bytes:,} bytes.")
                return
        await self._app(scope, receive, send)


class TimeLimit:
    """Middleware that limits the time of requests, except for content types with their own limits."""

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


async def _refuse(send: Send, status: int, detail: str) -> None:
    problem = {
        "type": "about:blank",
        "title": "Request too long",
        "status": status,
        "detail": detail,
    }
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(problem).encode()})


class _CountedBody:
    """Receive callable that counts the bytes of a body and enforces its limits."""

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
            message = await asyncio.wait_for(self._receive(), max(remaining, 0.01))
        except TimeoutError:
            raise HTTPException(408, "The request arrived too slowly") from None
        self._received += len(message.get("body", b""))
        self._is_complete = not message.get("more_body", False)
        if self._received > self._max_bytes:
            raise HTTPException(413, "Request too long")
        return message
