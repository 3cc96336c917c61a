"""Run the server until it receives a signal."""

from __future__ import annotations

import sys

from featurestore.errors import missing_extra
from featurestore.server.access.visitors import check_has_users
from featurestore.server.app import create_app
from featurestore.server.connections import timed_protocol
from featurestore.server.settings import ServerSettings, check_host, is_loopback
from featurestore.store import FeatureStore


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
