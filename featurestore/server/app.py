"""The application: pages, the REST interface, static files, and what every answer carries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import TYPE_CHECKING

from featurestore import __version__
from featurestore.errors import missing_extra
from featurestore.registry.cut import Views
from featurestore.server.access.provider import ProviderClient
from featurestore.server.headers import API, HEADERS
from featurestore.server.origins import known_hosts
from featurestore.server.settings import ServerSettings, is_loopback
from featurestore.store import FeatureStore

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response


def create_app(store: FeatureStore, settings: ServerSettings | None = None) -> FastAPI:
    """Return the application over a store; ``serve`` runs it, and any ASGI server can.

    Raises:
        MissingExtra: The server's libraries are not installed.
    """
    try:
        from fastapi import Depends, FastAPI
        from fastapi.middleware.trustedhost import TrustedHostMiddleware
        from fastapi.staticfiles import StaticFiles
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "fastapi", "server") from None
    from featurestore.server.api import router as api
    from featurestore.server.failures import answer_errors
    from featurestore.server.guard import check_form, find_visitor
    from featurestore.server.limits import BodyLimit
    from featurestore.server.pages import router as pages
    from featurestore.server.pages.sign_in import router as sign_in

    app = FastAPI(
        title="Feature store",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=f"{API}/openapi.json",
    )
    app.state.store = store
    app.state.settings = settings or ServerSettings()
    app.state.views = Views(store.session.registry)
    app.state.provider = None
    if app.state.settings.provider is not None:
        app.state.provider = ProviderClient(store.session, app.state.settings.provider)
    guards = [Depends(find_visitor), Depends(check_form)]
    app.include_router(api, prefix=API, dependencies=guards)
    app.include_router(sign_in, include_in_schema=False)
    app.include_router(pages, include_in_schema=False, dependencies=guards)
    static = str(files("featurestore.server").joinpath("static"))
    app.mount("/static", StaticFiles(directory=static), name="static")
    answer_errors(app)
    app.add_middleware(BodyLimit, most=app.state.settings.body)
    _add_headers(app)
    # Who can make a browser resolve a name of theirs to this machine still cannot read from it.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=_hosts(app.state.settings))
    return app


def _hosts(settings: ServerSettings) -> list[str]:
    """Return the names under which the server answers.

    Beyond this machine people sign in, and a page of theirs is read by nobody without their cookie.
    """
    if settings.names or is_loopback(settings.host):
        return known_hosts(settings.host, settings.names)
    return ["*"]


def _add_headers(app: FastAPI) -> None:
    """Add the headers that keep a page to itself, and tags by which answers are not sent again."""
    from fastapi.responses import PlainTextResponse

    from featurestore.server.etags import tag_answer
    from featurestore.server.origins import comes_from_elsewhere

    @app.middleware("http")
    async def add(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        if comes_from_elsewhere(request.method, request.headers):
            response: Response = PlainTextResponse("A page of another site sent this.", 403)
        else:
            response = await tag_answer(request, await call_next(request))
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response
