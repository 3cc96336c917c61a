"""``featurestore serve``: the store as a web server, with pages and a REST interface."""

from __future__ import annotations

from typing import Annotated

import typer

from featurestore.cli.state import store

app = typer.Typer()


@app.command(epilog="Example: featurestore serve --port 8787")
def serve(
    context: typer.Context,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535)] = 8787,
    auth: Annotated[
        bool, typer.Option("--auth", help="Require sign-in of people and tokens of programs.")
    ] = False,
    name: Annotated[
        list[str] | None,
        typer.Option(
            help="Host name under which clients reach it, repeatable.", show_default=False
        ),
    ] = None,
    tls_certificate: Annotated[
        str | None, typer.Option(help="File of a TLS certificate.", show_default=False)
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option(help="File of its key.", show_default=False)
    ] = None,
    oidc_issuer: Annotated[
        str | None, typer.Option(help="OpenID Connect provider.", show_default=False)
    ] = None,
    oidc_client: Annotated[str, typer.Option(help="Client id of this server.")] = "featurestore",
    oidc_secret: Annotated[
        str, typer.Option(help="Client secret: env:NAME or file:path.")
    ] = "env:FEATURESTORE_OIDC_SECRET",
    oidc_role: Annotated[
        str | None,
        typer.Option(
            help="Role of new users of the provider; else an admin adds each.", show_default=False
        ),
    ] = None,
    query_seconds: Annotated[
        float, typer.Option(help="Time limit of a page or response.", min=0.1)
    ] = 30.0,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="A proxy on this machine terminates TLS.")
    ] = False,
) -> None:
    """Serve pages for people and a REST interface for programs until Ctrl-C."""
    from featurestore.errors import missing_extra

    try:
        from featurestore.server import Provider, ServerSettings, serve
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "fastapi", "server") from None
    if (tls_certificate is None) != (tls_key is None):
        raise typer.BadParameter("--tls-certificate and --tls-key go together")
    provider = None
    if oidc_issuer is not None:
        provider = Provider(oidc_issuer, oidc_client, oidc_secret, role=oidc_role)
    settings = ServerSettings(
        host=host,
        port=port,
        auth=auth,
        names=tuple(name or ()),
        certificate=tls_certificate,
        key=tls_key,
        behind_proxy=behind_proxy,
        query_seconds=query_seconds,
        provider=provider,
    )
    serve(store(context), settings)
