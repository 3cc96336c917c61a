"""The ASGI application, and how it is served."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING

from featurestore import __version__
from featurestore.config import DEFAULT_ENGINE
from featurestore.errors import missing_extra
from featurestore.plugins.engine import find_engine
from featurestore.registry.filtered import RegistryViews
from featurestore.server.access.provider import ProviderClient
from featurestore.server.access.visitors import require_users
from featurestore.server.settings import (
    API,
    SPARK,
    ServerSettings,
    check_host,
    is_loopback,
    known_hosts,
)
from featurestore.store import FeatureStore

if TYPE_CHECKING:
    from fastapi import APIRouter, FastAPI


def create_app(store: FeatureStore, settings: ServerSettings | None = None) -> FastAPI:
    """Build the ASGI application for a store; run it with ``serve`` or any ASGI server.

    Raises:
        MissingExtra: The server libraries are not installed.
    """
    try:
        from anyio import CapacityLimiter, to_thread
        from fastapi import Depends, FastAPI
        from fastapi.middleware.trustedhost import TrustedHostMiddleware
        from fastapi.staticfiles import StaticFiles
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "fastapi", "server") from None
    from featurestore.server.access.sign_in import PasswordThreads
    from featurestore.server.account import sign_in_pages, unqueued_pages
    from featurestore.server.bodies import Bodies
    from featurestore.server.guard import check_form, find_visitor
    from featurestore.server.home import LostObjects
    from featurestore.server.job_actions import JobRuns
    from featurestore.server.middleware import AddressLimit, BrowserGuard, EntityTags
    from featurestore.server.rest import add_error_handlers
    from featurestore.server.routes import THREADS, EndTurns, RequestTurns
    from featurestore.server.vectors import OpenServers

    @asynccontextmanager
    async def add_threads(_: FastAPI) -> AsyncIterator[None]:
        """Let Starlette use a thread for each request that has a turn."""
        to_thread.current_default_thread_limiter().total_tokens = THREADS
        yield

    app = FastAPI(
        title="Feature store",
        version=__version__,
        # FastAPI's documentation pages load scripts from a CDN, which the content security policy
        # forbids.
        docs_url=None,
        redoc_url=None,
        openapi_url=f"{API}/openapi.json",
        lifespan=add_threads,
    )
    app.state.store = _in_process_store(store)
    # Jobs of a Spark store are refused, although app.state.store may read with another engine.
    app.state.jobs_engine = store.engine
    app.state.settings = settings or ServerSettings()
    app.state.views = RegistryViews(store.session.registry)
    app.state.losses = LostObjects(store.session)
    app.state.turns = RequestTurns(app.state.settings)
    app.state.passwords = PasswordThreads()
    app.state.health_thread = CapacityLimiter(1)
    app.state.job_runs = JobRuns()
    app.state.vector_servers = OpenServers()
    app.state.provider = None
    if app.state.settings.provider is not None:
        app.state.provider = ProviderClient(store.session, app.state.settings.provider)
    api, pages = _routers()
    guards = [Depends(find_visitor), Depends(check_form)]
    app.include_router(api, prefix=API, dependencies=guards)
    # Visitors must reach these pages before they are signed in, so they have no guards.
    app.include_router(sign_in_pages, include_in_schema=False)
    app.include_router(unqueued_pages, include_in_schema=False)
    app.include_router(pages, include_in_schema=False, dependencies=guards)
    static_folder = str(files("featurestore.server").joinpath("static"))
    app.mount("/static", StaticFiles(directory=static_folder), name="static")
    add_error_handlers(app)
    # Starlette calls the middleware that is added last first: hosts and origins are checked before
    # limits, and limits before the routes.
    app.add_middleware(EndTurns)
    app.add_middleware(Bodies)
    app.add_middleware(AddressLimit, max_bytes=app.state.settings.url)
    # Entity tags are inside the guard, so a 304 response has the security headers too.
    app.add_middleware(EntityTags)
    app.add_middleware(BrowserGuard)
    # Prevents DNS rebinding: unknown host names that resolve to this machine are rejected.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=_allowed_hosts(app.state.settings))
    return app


def _routers() -> tuple[APIRouter, APIRouter]:
    """Return the routes of the REST interface and of the pages."""
    from fastapi import APIRouter, Depends

    from featurestore.server import (
        account,
        admin,
        erasures,
        experiments,
        featuregroup_pages,
        featuregroups,
        home,
        job_actions,
        jobs,
        lineage_page,
        models,
        rows,
        search,
        training_datasets,
        vectors,
        writes,
    )
    from featurestore.server.guard import require_any_role

    api = APIRouter()
    for router in (
        home.api,
        search.api,
        lineage_page.api,
        featuregroups.api,
        training_datasets.api,
        jobs.api,
        experiments.api,
        rows.api,
        erasures.api,
        vectors.api,
        writes.api,
    ):
        api.include_router(router)

    pages = APIRouter()
    for router in (
        home.pages,
        search.pages,
        featuregroup_pages.pages,
        training_datasets.pages,
        search.view_pages,
        jobs.pages,
        job_actions.pages,
        jobs.monitor_pages,
        experiments.pages,
        models.pages,
        lineage_page.pages,
        search.basket_pages,
        home.metrics_router,
        account.audit_pages,
        admin.pages,
    ):
        pages.include_router(router, dependencies=[Depends(require_any_role)])
    # Users without a role can sign out and change their password.
    pages.include_router(account.pages)
    return api, pages


def _in_process_store(store: FeatureStore) -> FeatureStore:
    """Return a store that reads rows in this process, so that pages do not start Spark."""
    if store.engine != SPARK:
        return store
    return FeatureStore(replace(store.session, engine_source=find_engine(DEFAULT_ENGINE)))


def _allowed_hosts(settings: ServerSettings) -> list[str]:
    """Return the host names that the server accepts.

    A network server without configured names accepts all host names: it requires sign-in, and pages
    cannot be read without the cookie.
    """
    if settings.names or is_loopback(settings.host):
        return known_hosts(settings.host, settings.names)
    return ["*"]


def serve(store: FeatureStore, settings: ServerSettings | None = None) -> None:
    """Serve the pages and REST interface of a store until SIGINT or SIGTERM.

    Raises:
        ConfigurationError: The address is reachable from the network without ``auth``.
        NotAllowed: ``auth`` is set, but the store has no users.
        MissingExtra: The server libraries are not installed.
    """
    settings = settings or ServerSettings()
    if settings.auth:
        # Without users no one could sign in.
        require_users(store.session)
    else:
        check_host(settings.host)
    try:
        from featurestore.server.listening import run_server
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "uvicorn", "server") from None
    app = create_app(store, settings)
    sys.stdout.write(f"Serving {store.location} at {settings.address}\n")
    is_encrypted = settings.certificate is not None or settings.behind_proxy
    if not is_encrypted and not is_loopback(settings.host):
        sys.stdout.write(
            "warning: passwords and tokens are sent unencrypted; set --tls-certificate and "
            "--tls-key, or terminate TLS in a proxy (--behind-proxy)\n"
        )
    # The server blocks until shutdown, and a pipe would not receive the buffered address before.
    sys.stdout.flush()
    run_server(app, settings)
    # The server has stopped accepting requests, so no further run can be queued.
    app.state.job_runs.close()
