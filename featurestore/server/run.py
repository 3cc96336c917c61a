"""Run the server with uvicorn, with timeouts of slow connections."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from featurestore.errors import missing_extra
from featurestore.server.access.visitors import check_has_users
from featurestore.server.app import create_app
from featurestore.server.settings import ServerSettings, check_host, is_loopback
from featurestore.store import FeatureStore

HEADER_SECONDS = 30.0


def timed_protocol(*, read_seconds: float, header_seconds: float = HEADER_SECONDS) -> type[Any]:
    """Return a uvicorn protocol class that aborts slow connections.

    Args:
        read_seconds: Time that a client may stop reading once its buffers are full.
        header_seconds: Time for the header of a request, and for the first request to start.
    """
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    limits = {"read_seconds": read_seconds, "header_seconds": header_seconds}
    return type("TimedProtocol", (_TimedConnection, AutoHTTPProtocol), limits)


class _TimedConnection:
    """Mixin with timers for a uvicorn protocol; all methods run in the event loop.

    uvicorn limits how long a connection is idle between requests, but neither how long a request
    takes to arrive nor how long a response takes to be read.
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
        if self._has_request():
            self._header_timer.stop()
        else:
            self._header_timer.start()

    def pause_writing(self) -> None:
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
    """Timer that calls a function after some seconds unless it is stopped."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, callback: Callable[[], None]
    ) -> None:
        self._loop, self._seconds, self._callback = loop, seconds, callback
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the timer if it is not running."""
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


def serve(store: FeatureStore, settings: ServerSettings | None = None) -> None:
    """Serve a store's pages and REST interface until SIGINT or SIGTERM.

    Raises:
        ConfigurationError: The address is reachable from the network without ``auth``.
        NotAllowed: ``auth`` is set, but the store has no users.
        MissingExtra: The libraries of the server are not installed.
    """
    settings = settings or ServerSettings()
    if settings.auth:
        check_has_users(store.session)
    else:
        check_host(settings.host)
    try:
        import uvicorn
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "uvicorn", "server") from None
    app = create_app(store, settings)
    sys.stdout.write(f"{store.location} is at {settings.address}\n")
    if _is_unencrypted(settings):
        sys.stdout.write(
            "warning: passwords and tokens are sent unencrypted; set --tls-certificate and "
            "--tls-key, or terminate TLS in a proxy (--behind-proxy)\n"
        )
    sys.stdout.flush()
    uvicorn.run(
        app,
        host=settings.host,
        port=settings.port,
        log_level="warning",
        server_header=False,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
        proxy_headers=settings.behind_proxy,
        timeout_graceful_shutdown=5,
        http=timed_protocol(read_seconds=settings.seconds),
        ws="none",
    )
    app.state.job_runs.close()


def _is_unencrypted(settings: ServerSettings) -> bool:
    if settings.certificate is not None or settings.behind_proxy:
        return False
    return not is_loopback(settings.host)
