"""What browsers are told and refused: headers on each answer, and no form that another site made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse

from featurestore.server.headers import HEADERS
from featurestore.server.origins import comes_from_elsewhere

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BrowserGuard:
    """Adds the headers that keep a page to itself, and refuses forms of other sites."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def add(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        app = self._app
        if comes_from_elsewhere(scope["method"], Headers(scope=scope)):
            app = PlainTextResponse("A page of another site sent this.", 403)
        await app(scope, receive, add)
