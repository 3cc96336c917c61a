"""Running the server until it is told to stop."""

from __future__ import annotations

import sys

from featurestore.errors import missing_extra
from featurestore.server.access.visitors import check_somebody
from featurestore.server.app import create_app
from featurestore.server.connections import protocol_of
from featurestore.server.settings import ServerSettings, check_host, is_loopback
from featurestore.store import FeatureStore


def serve(store: FeatureStore, settings: ServerSettings | None = None) -> None:
    """Serve a store's pages and REST interface until SIGINT or SIGTERM.

    Raises:
        ConfigurationError: The address is reachable for others, and nobody signs in.
        NotAllowed: People sign in, and there is no user.
        MissingExtra: The server's libraries are not installed.
    """
    settings = settings or ServerSettings()
    if settings.auth:
        check_somebody(store.session)
    else:
        check_host(settings.host)
    try:
        import uvicorn
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "uvicorn", "server") from None
    app = create_app(store, settings)
    sys.stdout.write(f"{store.location} is at {settings.address}\n")
    if _in_the_clear(settings):
        sys.stdout.write(
            "passwords and tokens cross the network in the clear: give --tls-certificate and "
            "--tls-key, or let a proxy end TLS (--behind-proxy)\n"
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
        http=protocol_of(read_seconds=settings.seconds),
        ws="none",
    )
    app.state.job_runs.close()


def _in_the_clear(settings: ServerSettings) -> bool:
    if settings.certificate is not None or settings.behind_proxy:
        return False
    return not is_loopback(settings.host)
