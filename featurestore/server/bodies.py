"""Request bodies: the route sets the limit, and a response before the end closes the connection."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Literal

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException

from featurestore.errors import LimitExceeded

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MIN_BYTES_PER_SECOND = 10 << 10
_SCOPE_KEY = "featurestore.body"
# What a route parses: nothing or a URL-encoded form, JSON, or a JSON line and Arrow rows.
BodyKind = Literal["form", "json", "rows"]


class RequestBody:
    """A receive callable that counts the bytes of a body and enforces its limits.

    It yields no byte before ``allow``.
    """

    def __init__(self, receive: Receive) -> None:
        self.body_type: BodyKind = "form"
        self.is_complete = False
        self._receive = receive
        self._max_bytes = 0
        self._received = 0
        self._deadline = 0.0

    def allow(self, body_type: BodyKind, *, declared: str, max_bytes: int, seconds: float) -> None:
        """Allow the route to read a body.

        Args:
            body_type: What the route parses.
            declared: The header ``Content-Length``; a body without it is counted on receipt.
            max_bytes: The maximum size of the body in bytes.
            seconds: The time for the body to arrive, plus one second per ``MIN_BYTES_PER_SECOND``
                bytes.

        Raises:
            LimitExceeded: The declared length exceeds the limit.
        """
        # int() of a long text is slow; 20 digits exceed each limit.
        if declared.isdecimal() and int(declared[:20]) > max_bytes:
            raise _too_long(max_bytes)
        self.body_type = body_type
        self._max_bytes = max_bytes
        self._deadline = time.monotonic() + seconds

    async def __call__(self) -> Message:
        if self.is_complete:  # the next message is the disconnect
            return await self._receive()
        remaining = self._deadline + self._received / MIN_BYTES_PER_SECOND - time.monotonic()
        try:
            # With a timeout of zero, wait_for would cancel even the receipt of data that has
            # arrived.
            message = await asyncio.wait_for(self._receive(), max(remaining, 0.01))
        except TimeoutError:
            raise HTTPException(408, "The request arrived too slowly") from None
        self._received += len(message.get("body", b""))
        self.is_complete = not message.get("more_body", False)
        if self._received > self._max_bytes:
            raise _too_long(self._max_bytes)
        return message


def _too_long(max_bytes: int) -> LimitExceeded:
    return LimitExceeded(f"The request body exceeds the limit of {max_bytes:,} bytes.")


def body_of(request: Request) -> RequestBody:
    """Return the body of a request."""
    body: RequestBody = request.scope[_SCOPE_KEY]
    return body


class Bodies:
    """Middleware that lets routes set the limits of their bodies."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = RequestBody(receive)
        names = [name for name, _ in scope["headers"]]
        has_body = b"content-length" in names or b"transfer-encoding" in names

        async def send_and_close(message: Message) -> None:
            # The rest of the body is not read, so the connection has no further request.
            is_unread = has_body and not body.is_complete
            if message["type"] == "http.response.start" and is_unread:
                MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        scope[_SCOPE_KEY] = body
        await self._app(scope, body, send_and_close)
