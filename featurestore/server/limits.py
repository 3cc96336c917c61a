"""Limits of requests: one that is longer than it may be is not read to its end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from featurestore.model.time_limits import time_limit
from featurestore.server.problems import MEDIA_TYPE
from featurestore.server.query_time import WAIT_LONGER

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


SLOWEST = 10 << 10


class BodyLimit:
    """Refuses requests whose body is longer than ``most`` bytes, or does not arrive in time.

    ``larger``: by content type, where another length holds, of bodies that are written to disk as
    they arrive. ``seconds``: the time for a body, and for one second more ``SLOWEST`` bytes.
    """

    def __init__(
        self, app: ASGIApp, *, most: int, larger: Mapping[bytes, int], seconds: float
    ) -> None:
        self._app = app
        self._most = most
        self._larger = larger
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        most = self._larger.get(headers.get(b"content-type", b""), self._most)
        said = headers.get(b"content-length", b"")
        if said.isdigit() and int(said) > most:
            await _refuse(send, 413, f"A request has at most {most:,} bytes.")
            return
        await self._app(scope, _Counted(receive, most, self._seconds), send)


class AddressLimit:
    """Refuses addresses of more than ``most`` bytes, path and query together."""

    def __init__(self, app: ASGIApp, *, most: int) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            size = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
            if size > self._most:
                await _refuse(send, 414, f"An address has at most {self._most:,} bytes.")
                return
        await self._app(scope, receive, send)


class TimeLimit:
    """Limits the time of every request but those of some content types, which have limits of their own."""

    def __init__(self, app: ASGIApp, *, seconds: float, but: Collection[bytes]) -> None:
        self._app = app
        self._seconds = seconds
        self._but = but

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_limited = scope["type"] == "http"
        # Only uploads and streams of rows are exempt: the method tells them from pages.
        if is_limited and scope["method"] == "POST":
            is_limited = dict(scope["headers"]).get(b"content-type", b"") not in self._but
        with time_limit(self._seconds if is_limited else None, hint=WAIT_LONGER):
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


class _Counted:
    """A request's body, counted as it arrives."""

    def __init__(self, receive: Receive, most: int, seconds: float) -> None:
        self._receive = receive
        self._most = most
        self._received = 0
        self._end = time.monotonic() + seconds
        self._is_whole = False

    async def __call__(self) -> Message:
        if self._is_whole:  # what comes now is the end of the connection
            return await self._receive()
        left = self._end + self._received / SLOWEST - time.monotonic()
        try:
            message = await asyncio.wait_for(self._receive(), max(left, 0.01))
        except TimeoutError:
            raise HTTPException(408, "The request came too slowly") from None
        self._received += len(message.get("body", b""))
        self._is_whole = not message.get("more_body", False)
        if self._received > self._most:
            raise HTTPException(413, "Request too long")
        return message
