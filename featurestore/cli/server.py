"""``featurestore serve``: the store at an address, with pages and a REST interface."""

from __future__ import annotations

from typing import Annotated

import typer

from featurestore.cli.state import store

app = typer.Typer()


@app.command(epilog="Example: featurestore serve --port 8787")
def serve(
    context: typer.Context,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at.", min=0, max=65535)] = 8787,
) -> None:
    """Serve pages for people and a REST interface for programs until Ctrl-C."""
    from featurestore.errors import missing_extra

    try:
        from featurestore.server import ServerSettings, serve
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "fastapi", "server") from None
    serve(store(context), ServerSettings(host=host, port=port))
