"""The ASGI application: pages, REST interface, static files and middleware."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING

from featurestore import __version__
from featurestore.config import DEFAULT_ENGINE
from featurestore.errors import missing_extra
from featurestore.plugins.engine import find_engine
from featurestore.plugins.remote import RETRIEVAL
from featurestore.registry.filtered import Views
from featurestore.server.access.provider import ProviderClient
from featurestore.server.http_security import API, known_hosts
from featurestore.server.job_runs import JobRuns
from featurestore.server.settings import SPARK, ServerSettings, is_loopback
from featurestore.store import FeatureStore

if TYPE_CHECKING:
    from fastapi import FastAPI


def create_app(store: FeatureStore, settings: ServerSettings | None = None) -> FastAPI:
    """Build the ASGI application of a store; ``serve`` or any ASGI server runs it.

    Raises:
        MissingExtra: The libraries of the server are not installed.
    """
    try:
        from fastapi import Depends, FastAPI
        from fastapi.middleware.trustedhost import TrustedHostMiddleware
        from fastapi.staticfiles import StaticFiles
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "fastapi", "server") from None
    from featurestore.server.account import sign_in_pages
    from featurestore.server.guard import check_form, find_visitor
    from featurestore.server.middleware import (
        AddressLimit,
        BodyLimit,
        BrowserGuard,
        EntityTags,
        TimeLimit,
    )
    from featurestore.server.problems import add_error_handlers
    from featurestore.server.routes import api, pages

    app = FastAPI(
        title="Feature store",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=f"{API}/openapi.json",
    )
    app.state.store = _in_process_store(store)
    app.state.jobs_engine = store.engine
    app.state.settings = settings or ServerSettings()
    app.state.views = Views(store.session.registry)
    app.state.job_runs = JobRuns()
    app.state.provider = None
    if app.state.settings.provider is not None:
        app.state.provider = ProviderClient(store.session, app.state.settings.provider)
    guards = [Depends(find_visitor), Depends(check_form)]
    app.include_router(api, prefix=API, dependencies=guards)
    app.include_router(sign_in_pages, include_in_schema=False)
    app.include_router(pages, include_in_schema=False, dependencies=guards)
    static_folder = str(files("featurestore.server").joinpath("static"))
    app.mount("/static", StaticFiles(directory=static_folder), name="static")
    add_error_handlers(app)
    upload_limit = app.state.settings.upload + app.state.settings.body
    app.add_middleware(
        BodyLimit,
        max_bytes=app.state.settings.body,
        max_bytes_by_type={RETRIEVAL.encode(): upload_limit},
        seconds=max(app.state.settings.query_seconds, 1.0),
    )
    app.add_middleware(
        TimeLimit, seconds=app.state.settings.query_seconds, exempt_types=(RETRIEVAL.encode(),)
    )
    app.add_middleware(AddressLimit, max_bytes=app.state.settings.url)
    app.add_middleware(EntityTags)
    app.add_middleware(BrowserGuard)
    # Prevents DNS rebinding: a foreign name that resolves to this machine is rejected.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=_allowed_hosts(app.state.settings))
    return app


def _in_process_store(store: FeatureStore) -> FeatureStore:
    """Return a store that reads rows in this process, so that no page starts Spark."""
    if store.engine != SPARK:
        return store
    return FeatureStore(replace(store.session, engine=find_engine(DEFAULT_ENGINE)))


def _allowed_hosts(settings: ServerSettings) -> list[str]:
    """Return the host names that the server accepts.

    A server on the network without configured names accepts any host: it requires a sign-in, and
    pages cannot be read without the cookie.
    """
    if settings.names or is_loopback(settings.host):
        return known_hosts(settings.host, settings.names)
    return ["*"]
