"""The application: pages, the REST interface, static files, and what every answer carries."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING

from featurestore import __version__
from featurestore.config import DEFAULT_ENGINE
from featurestore.errors import missing_extra
from featurestore.plugins.engine import find_engine
from featurestore.plugins.remote import RETRIEVAL
from featurestore.registry.cut import Views
from featurestore.server.access.provider import ProviderClient
from featurestore.server.headers import API
from featurestore.server.job_runs import JobRuns
from featurestore.server.origins import known_hosts
from featurestore.server.settings import SPARK, ServerSettings, is_loopback
from featurestore.store import FeatureStore

if TYPE_CHECKING:
    from fastapi import FastAPI


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
    from featurestore.server.browser_guard import BrowserGuard
    from featurestore.server.etags import Tags
    from featurestore.server.failures import answer_errors
    from featurestore.server.guard import check_form, find_visitor
    from featurestore.server.limits import AddressLimit, BodyLimit, TimeLimit
    from featurestore.server.pages import router as pages
    from featurestore.server.pages.sign_in import router as sign_in

    app = FastAPI(
        title="Feature store",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=f"{API}/openapi.json",
    )
    app.state.store = _embedded(store)
    app.state.jobs_engine = store.engine
    app.state.settings = settings or ServerSettings()
    app.state.views = Views(store.session.registry)
    app.state.job_runs = JobRuns()
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
    larger = app.state.settings.upload + app.state.settings.body
    app.add_middleware(
        BodyLimit,
        most=app.state.settings.body,
        larger={RETRIEVAL.encode(): larger},
        seconds=max(app.state.settings.query_seconds, 1.0),
    )
    app.add_middleware(
        TimeLimit, seconds=app.state.settings.query_seconds, but=(RETRIEVAL.encode(),)
    )
    app.add_middleware(AddressLimit, most=app.state.settings.url)
    app.add_middleware(Tags)
    app.add_middleware(BrowserGuard)
    # Who can make a browser resolve a name of theirs to this machine still cannot read from it.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=_hosts(app.state.settings))
    return app


def _embedded(store: FeatureStore) -> FeatureStore:
    """Return a store whose rows are read in this process, so that no page starts Spark."""
    if store.engine != SPARK:
        return store
    return FeatureStore(replace(store.session, engine=find_engine(DEFAULT_ENGINE)))


def _hosts(settings: ServerSettings) -> list[str]:
    """Return the names under which the server answers.

    Beyond this machine people sign in, and a page of theirs is read by nobody without their cookie.
    """
    if settings.names or is_loopback(settings.host):
        return known_hosts(settings.host, settings.names)
    return ["*"]
