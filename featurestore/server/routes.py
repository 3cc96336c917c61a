"""Routes: each requires sign-in, decides how its body is read, and waits for a turn.

The order is: headers, sign-in, body, turn, work. A request is refused before the next step begins.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import anyio
from fastapi import APIRouter, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from featurestore.errors import InvalidArgument
from featurestore.model.runtime import time_limit
from featurestore.plugins.remote import RETRIEVAL
from featurestore.server.access.sign_in import network_of
from featurestore.server.access.visitors import Visitor
from featurestore.server.bodies import BodyKind, body_of
from featurestore.server.bounds import check_json
from featurestore.server.guard import MAX_FORM_BYTES, find_visitor
from featurestore.server.settings import ServerSettings
from featurestore.server.turns import Turns

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_TIME_LIMIT_HINT = (
    "request fewer rows, or increase the time limit: featurestore serve --query-seconds"
)
_TURN_KEY = "featurestore.turn"
_WRITES = "writes"
# Headers that two programs could read differently if they are repeated.
_SINGLE_HEADERS = ("content-type", "content-length", "authorization")
# Requests that run at the same time, for all persons together: pages and JSON; row streams and
# writes, which may wait for slow clients; sign-in with a provider.
_PAGES, _STREAMS, _PUBLIC = 32, 64, 16
# Threads for all these requests. Sign-in has its own, so that it does not wait for pages.
THREADS = _PAGES + _STREAMS + _PUBLIC
_SIGN_IN_THREADS = 4
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class RequestTurns:
    """The queues of a server, and the threads in which visitors are authenticated."""

    def __init__(self, settings: ServerSettings) -> None:
        def turns(running: int, per_person: int) -> Turns:
            return Turns(
                running=running,
                per_person=per_person,
                waiting=4 * per_person,
                seconds=settings.query_seconds,
            )

        self.pages = turns(_PAGES, settings.requests_per_person)
        self.streams = turns(_STREAMS, settings.requests_per_person)
        self.public = turns(_PUBLIC, 4)
        self.sign_in_threads = anyio.CapacityLimiter(_SIGN_IN_THREADS)


class BoundedRoute(APIRoute):
    """A route that requires sign-in if the server has it."""

    def get_route_handler(self) -> Handler:
        """Return the handler of FastAPI after all checks and a turn."""
        handle = super().get_route_handler()
        body_type = self._body_kind()
        is_write = _WRITES in self.tags

        async def handle_in_turn(request: Request) -> Response:
            check_headers(request)
            visitor = await self.authenticate(request)
            try:
                await _receive_body(request, body_type)
                turns = self.turns(request, is_long=is_write or body_type == "rows")
                if turns is not None:
                    await _take_turn(request, turns, visitor)
                settings: ServerSettings = request.app.state.settings
                # Row streams have a limit for each chunk; an upload takes as long as its rows.
                seconds = None if body_type == "rows" else settings.query_seconds
                if is_write and body_type == "json":
                    seconds = settings.seconds
                with time_limit(seconds, hint=_TIME_LIMIT_HINT):
                    return await handle(request)
            except ClientDisconnect:
                # No client reads the response; without it, the log would have a traceback.
                raise HTTPException(400, "The client disconnected") from None

        return handle_in_turn

    def _body_kind(self) -> BodyKind:
        """Return what the route parses, by its declaration."""
        if self.body_field is not None:
            return "json"
        request_body = (self.openapi_extra or {}).get("requestBody", {})
        return "rows" if RETRIEVAL in request_body.get("content", {}) else "form"

    async def authenticate(self, request: Request) -> Visitor | None:
        """Return the visitor; None without sign-in."""
        threads = request.app.state.turns.sign_in_threads
        return await anyio.to_thread.run_sync(find_visitor, request, limiter=threads)

    def turns(self, request: Request, *, is_long: bool) -> Turns | None:
        """Return the queue in which requests wait, or None."""
        queues: RequestTurns = request.app.state.turns
        return queues.streams if is_long else queues.pages


class PublicRoute(BoundedRoute):
    """A route without sign-in."""

    async def authenticate(self, request: Request) -> Visitor | None:
        """Return None."""
        return None

    def turns(self, request: Request, *, is_long: bool) -> Turns | None:
        """Return the queue of requests without sign-in."""
        queues: RequestTurns = request.app.state.turns
        return queues.public


class UnqueuedRoute(PublicRoute):
    """A route without sign-in whose handler bounds its own work."""

    def turns(self, request: Request, *, is_long: bool) -> Turns | None:
        """Return None."""
        return None


class Router(APIRouter):
    """A router whose routes are bounded."""

    def __init__(self, *, route_class: type[BoundedRoute] = BoundedRoute, **options: Any) -> None:
        super().__init__(route_class=route_class, **options)


def check_headers(request: Request) -> None:
    """Refuse repeated headers, since a proxy may read another value than this server.

    Raises:
        InvalidArgument: A header is repeated.
    """
    for name in _SINGLE_HEADERS:
        if len(request.headers.getlist(name)) > 1:
            raise InvalidArgument(f"The request has several headers {name!r}.")


def address_of(request: Request) -> str:
    """Return the address of the client, which a trusted proxy may state."""
    return "" if request.client is None else request.client.host


async def _receive_body(request: Request, body_type: BodyKind) -> None:
    """Receive a form or JSON completely, so that a slow client does not occupy a turn."""
    settings: ServerSettings = request.app.state.settings
    max_bytes = {
        "form": min(MAX_FORM_BYTES, settings.body),
        "json": settings.body,
        "rows": settings.upload + settings.body,
    }
    declared = request.headers.get("content-length", "")
    seconds = max(settings.query_seconds, 1.0)
    body_of(request).allow(
        body_type, declared=declared, max_bytes=max_bytes[body_type], seconds=seconds
    )
    if body_type == "rows" or request.method in ("GET", "HEAD"):
        return
    content = await request.body()
    if body_type == "json":
        check_json(content)


async def _take_turn(request: Request, turns: Turns, visitor: Visitor | None) -> None:
    """Wait for a turn, which ends after the response."""
    person = network_of(address_of(request)) if visitor is None else visitor.name
    await turns.take(person)
    request.scope[_TURN_KEY].append((turns, person))


class EndTurns:
    """Middleware that ends the turn of a request after its response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        running_turns: list[tuple[Turns, str]] = []
        scope[_TURN_KEY] = running_turns
        try:
            await self._app(scope, receive, send)
        finally:
            for turns, person in running_turns:
                turns.end(person)
