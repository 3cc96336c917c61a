"""Limits of requests: one that is longer than it may be is not read to its end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from featurestore.server.problems import MEDIA_TYPE

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodyLimit:
    """Refuses requests whose body is longer than ``most`` bytes, whether they say so or not.

    ``larger``: by content type, where another limit holds: of what is written down as it comes.
    """

    def __init__(self, app: ASGIApp, *, most: int, larger: Mapping[bytes, int]) -> None:
        self._app = app
        self._most = most
        self._larger = larger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        most = self._larger.get(headers.get(b"content-type", b""), self._most)
        said = headers.get(b"content-length", b"")
        if said.isdigit() and int(said) > most:
            await self._refuse(send, most)
            return
        await self._app(scope, _Counted(receive, most), send)

    async def _refuse(self, send: Send, most: int) -> None:
        told = {
            "type": "about:blank",
            "title": "Request too long",
            "status": 413,
            "detail": f"A request has at most {most:,} bytes.",
        }
        headers = [(b"content-type", MEDIA_TYPE.encode()), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(told).encode()})


class _Counted:
    """A request's body, counted as it comes."""

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive = receive
        self._left = most

    async def __call__(self) -> Message:
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise HTTPException(413, "Request too long")
        return message
