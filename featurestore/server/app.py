"""The ASGI application, and the uvicorn server with timeouts for slow connections."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from featurestore import __version__
from featurestore.config import DEFAULT_ENGINE
from featurestore.errors import missing_extra
from featurestore.plugins.engine import find_engine
from featurestore.plugins.remote import RETRIEVAL
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

HEADER_SECONDS = 30.0


def create_app(store: FeatureStore, settings: ServerSettings | None = None) -> FastAPI:
    """Build the ASGI application for a store; run it with ``serve`` or any ASGI server.

    Raises:
        MissingExtra: The server libraries are not installed.
    """
    try:
        from fastapi import Depends, FastAPI
        from fastapi.middleware.trustedhost import TrustedHostMiddleware
        from fastapi.staticfiles import StaticFiles
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "fastapi", "server") from None
    from featurestore.server.account import sign_in_pages
    from featurestore.server.guard import check_form, find_visitor
    from featurestore.server.job_actions import JobRuns
    from featurestore.server.middleware import (
        AddressLimit,
        BodyLimit,
        BrowserGuard,
        EntityTags,
        TimeLimit,
    )
    from featurestore.server.rest import add_error_handlers
    from featurestore.server.vectors import OpenServers

    app = FastAPI(
        title="Feature store",
        version=__version__,
        # FastAPI's documentation pages load scripts from a CDN, which the content security policy
        # forbids.
        docs_url=None,
        redoc_url=None,
        openapi_url=f"{API}/openapi.json",
    )
    app.state.store = _in_process_store(store)
    # Jobs of a Spark store are refused, although app.state.store may read with another engine.
    app.state.jobs_engine = store.engine
    app.state.settings = settings or ServerSettings()
    app.state.views = RegistryViews(store.session.registry)
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
    app.include_router(pages, include_in_schema=False, dependencies=guards)
    static_folder = str(files("featurestore.server").joinpath("static"))
    app.mount("/static", StaticFiles(directory=static_folder), name="static")
    add_error_handlers(app)
    upload_limit = app.state.settings.upload + app.state.settings.body
    # Starlette calls the middleware that is added last first: hosts and origins are checked before
    # limits, and limits before the routes.
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
        import uvicorn
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "uvicorn", "server") from None
    app = create_app(store, settings)
    sys.stdout.write(f"Serving {store.location} at {settings.address}\n")
    if _is_unencrypted(settings):
        sys.stdout.write(
            "warning: passwords and tokens are sent unencrypted; set --tls-certificate and "
            "--tls-key, or terminate TLS in a proxy (--behind-proxy)\n"
        )
    # uvicorn.run blocks until shutdown, and a pipe would not receive the buffered address before.
    sys.stdout.flush()
    uvicorn.run(
        app,
        host=settings.host,
        port=settings.port,
        log_level="warning",
        server_header=False,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
        # Only a proxy may set the client address: clients could otherwise forge the X-Forwarded-For
        # header and evade the sign-in limits.
        proxy_headers=settings.behind_proxy,
        # Row streams may take minutes; without a limit uvicorn would wait for them.
        timeout_graceful_shutdown=5,
        http=timed_protocol(read_seconds=settings.seconds),
        ws="none",
    )
    # uvicorn has stopped accepting requests, so no further run can be queued.
    app.state.job_runs.close()


def _is_unencrypted(settings: ServerSettings) -> bool:
    if settings.certificate is not None or settings.behind_proxy:
        return False
    return not is_loopback(settings.host)


def timed_protocol(*, read_seconds: float, header_seconds: float = HEADER_SECONDS) -> type[Any]:
    """Return a uvicorn protocol class that aborts slow connections.

    Args:
        read_seconds: The time that a client may stop reading once its buffers are full.
        header_seconds: The time for receiving a request header, and for the first request to start.
    """
    # The base class is the httptools or the h11 protocol, depending on the installed libraries.
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    limits = {"read_seconds": read_seconds, "header_seconds": header_seconds}
    return type("TimedProtocol", (_TimedConnection, AutoHTTPProtocol), limits)


class _TimedConnection:
    """Mixin that adds timers to a uvicorn protocol; all methods run in the event loop.

    uvicorn limits the idle time between requests, but neither the time to receive a request nor the
    time to send a response.
    """

    read_seconds: float
    header_seconds: float

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        protocol: Any = self
        self._header_timer = _Timer(protocol.loop, self.header_seconds, self._abort_idle)
        self._read_timer = _Timer(protocol.loop, self.read_seconds, self._abort)

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        self._header_timer.start()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)  # type: ignore[misc]
        # uvicorn creates a cycle when a header is complete; until then the timer continues.
        if self._has_request():
            self._header_timer.stop()
        else:
            self._header_timer.start()

    def pause_writing(self) -> None:
        # The event loop calls this when the send buffer is full, because the client reads too
        # slowly.
        super().pause_writing()  # type: ignore[misc]
        self._read_timer.start()

    def resume_writing(self) -> None:
        super().resume_writing()  # type: ignore[misc]
        self._read_timer.stop()

    def connection_lost(self, error: Exception | None) -> None:
        self._header_timer.stop()
        self._read_timer.stop()
        super().connection_lost(error)  # type: ignore[misc]

    def _has_request(self) -> bool:
        cycle: Any = getattr(self, "cycle", None)
        return cycle is not None and not cycle.response_complete

    def _abort_idle(self) -> None:
        if not self._has_request():
            self._abort()

    def _abort(self) -> None:
        # close() waits until the client has read all buffered bytes, which may never happen.
        protocol: Any = self
        protocol.transport.abort()


class _Timer:
    """A timer that calls a function after some seconds unless it is stopped."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, callback: Callable[[], None]
    ) -> None:
        self._loop, self._seconds, self._callback = loop, seconds, callback
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the timer if it is not running."""
        # A running timer is not restarted, so a client cannot extend it by sending single bytes.
        if self._handle is None:
            self._handle = self._loop.call_later(self._seconds, self._run_callback)

    def stop(self) -> None:
        """Stop the timer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _run_callback(self) -> None:
        self._handle = None
        self._callback()
