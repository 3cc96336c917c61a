"""Running the server until it is told to stop."""

from __future__ import annotations

import sys

from featurestore.errors import missing_extra
from featurestore.server.app import create_app
from featurestore.server.settings import ServerSettings, check_host
from featurestore.store import FeatureStore


def serve(store: FeatureStore, settings: ServerSettings | None = None) -> None:
    """Serve a store's pages and REST interface until SIGINT or SIGTERM.

    Raises:
        ConfigurationError: The address is reachable for others.
        MissingExtra: The server's libraries are not installed.
    """
    settings = settings or ServerSettings()
    check_host(settings.host)
    try:
        import uvicorn
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "uvicorn", "server") from None
    app = create_app(store, settings)
    sys.stdout.write(f"{store.location} is at {settings.address}\n")
    sys.stdout.flush()
    uvicorn.run(
        app,
        host=settings.host,
        port=settings.port,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=5,
    )
