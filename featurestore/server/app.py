"""The application: pages, the REST interface, static files, and what every answer carries."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import TYPE_CHECKING

from featurestore import __version__
from featurestore.errors import FeatureStoreError, missing_extra
from featurestore.server.problems import MEDIA_TYPE, problem, status_of
from featurestore.server.settings import ServerSettings
from featurestore.store import FeatureStore

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response

_log = logging.getLogger("featurestore.server")
API = "/api/v1"
# Everything comes from this server; nothing is written into a page as script or style.
POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def create_app(store: FeatureStore, settings: ServerSettings | None = None) -> FastAPI:
    """Return the application over a store; ``serve`` runs it, and any ASGI server can.

    Raises:
        MissingExtra: The server's libraries are not installed.
    """
    try:
        from fastapi import FastAPI
        from fastapi.middleware.trustedhost import TrustedHostMiddleware
        from fastapi.staticfiles import StaticFiles
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "fastapi", "server") from None
    from featurestore.server.api import router as api
    from featurestore.server.origins import known_hosts
    from featurestore.server.pages import router as pages

    app = FastAPI(
        title="Feature store",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=f"{API}/openapi.json",
    )
    app.state.store = store
    app.state.settings = settings or ServerSettings()
    app.include_router(api, prefix=API)
    app.include_router(pages, include_in_schema=False)
    static = str(files("featurestore.server").joinpath("static"))
    app.mount("/static", StaticFiles(directory=static), name="static")
    _answer_errors(app)
    _add_headers(app)
    # Who can make a browser resolve a name of theirs to this machine still cannot read from it.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=known_hosts(app.state.settings.host))
    return app


def _answer_errors(app: FastAPI) -> None:
    """Answer errors as a problem object under the REST interface and as a page elsewhere."""
    from fastapi import HTTPException
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse
    from starlette.exceptions import HTTPException as RoutingError

    from featurestore.server.pages.rendering import error_page

    def answer(request: Request, status: int, told: dict[str, object]) -> Response:
        if request.url.path.startswith(API):
            answered: Response = JSONResponse(told, status_code=status, media_type=MEDIA_TYPE)
        else:
            answered = error_page(request, status, told)
        # What nobody foresaw is answered outside of what adds them to all other answers.
        answered.headers.update(HEADERS)
        return answered

    def of_the_library(request: Request, error: Exception) -> Response:
        assert isinstance(error, FeatureStoreError)
        return answer(request, status_of(error), problem(error))

    def of_routing(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException | RoutingError)
        told: dict[str, object] = {
            "type": "about:blank",
            "title": str(error.detail),
            "status": error.status_code,
            "detail": f"{request.method} {request.url.path}: {error.detail}",
        }
        return answer(request, error.status_code, told)

    def of_arguments(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        wrong = []
        for each in error.errors():
            wrong.append(f"{'.'.join(map(str, each['loc']))}: {each['msg']}")
        told: dict[str, object] = {
            "type": "about:blank",
            "title": "Wrong argument",
            "status": 422,
            "detail": "; ".join(wrong),
        }
        return answer(request, 422, told)

    def unexpected(request: Request, error: Exception) -> Response:
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        told: dict[str, object] = {
            "type": "about:blank",
            "title": "Internal error",
            "status": 500,
            "detail": "The server failed at this; its log says where.",
        }
        return answer(request, 500, told)

    app.add_exception_handler(FeatureStoreError, of_the_library)
    app.add_exception_handler(RoutingError, of_routing)
    app.add_exception_handler(RequestValidationError, of_arguments)
    app.add_exception_handler(Exception, unexpected)


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
