"""Protection of browsers: security headers and rejection of cross-site requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse

from featurestore.server.headers import HEADERS
from featurestore.server.origins import is_cross_site

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


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
