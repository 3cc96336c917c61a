"""``metrics``, ``serve`` and ``registry``: measure, serve and re-index a store."""

from __future__ import annotations

from typing import Annotated

import typer

from featurestore.cli.output import option, show_record, show_text
from featurestore.cli.state import settings, store

app = typer.Typer()
registry_app = typer.Typer(no_args_is_help=True)


@app.command(epilog="Example: featurestore metrics > /var/lib/node_exporter/featurestore.prom")
def metrics(context: typer.Context) -> None:
    """Print metrics of rows, commits, runs, monitors and alerts in the Prometheus text format."""
    text = store(context).get_metrics()
    show_text(context, text, data={"text": text})


@app.command(epilog="Example: featurestore serve --port 8787")
def serve(
    context: typer.Context,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535)] = 8787,
    auth: Annotated[
        bool, typer.Option("--auth", help="Require users to sign in and programs to send tokens.")
    ] = False,
    name: Annotated[
        list[str] | None, option(help="Host name that clients use for this server, repeatable.")
    ] = None,
    tls_certificate: Annotated[str | None, option(help="TLS certificate file.")] = None,
    tls_key: Annotated[str | None, option(help="Private key file of the certificate.")] = None,
    oidc_issuer: Annotated[
        str | None, option(help="Issuer URL of an OpenID Connect provider.")
    ] = None,
    oidc_client: Annotated[str, typer.Option(help="Client id of this server.")] = "featurestore",
    oidc_secret: Annotated[
        str, typer.Option(help="Client secret: env:NAME or file:path.")
    ] = "env:FEATURESTORE_OIDC_SECRET",
    oidc_role: Annotated[
        str | None,
        option(help="Role of new users of the provider; if unset, an admin must add each user."),
    ] = None,
    query_seconds: Annotated[
        float, typer.Option(help="Time limit of a page or response in seconds.", min=0.1)
    ] = 30.0,
    requests_per_person: Annotated[
        int, typer.Option(help="Requests of one person that run at the same time.", min=1)
    ] = 8,
    connections: Annotated[
        int, typer.Option(help="Open connections, at most; idle ones are closed first.", min=1)
    ] = 512,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="A proxy on this machine terminates TLS.")
    ] = False,
    trust_models: Annotated[
        bool,
        typer.Option("--trust-models", help="Predict with models that run code, such as pickles."),
    ] = False,
) -> None:
    """Serve web pages and a REST interface until Ctrl-C."""
    from featurestore.errors import missing_extra

    try:
        from featurestore.server import Provider, ServerSettings, serve
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "fastapi", "server") from None
    if (tls_certificate is None) != (tls_key is None):
        raise typer.BadParameter("--tls-certificate and --tls-key must be used together")
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
        trust_models=trust_models,
        query_seconds=query_seconds,
        requests_per_person=requests_per_person,
        connections=connections,
        provider=provider,
    )
    serve(store(context), settings)


@registry_app.command(epilog="Example: featurestore registry rebuild")
def rebuild(context: typer.Context) -> None:
    """Rebuild the registry from the Delta tables and manifests; list what they do not contain."""
    from featurestore.jobs.recovery import restore_runs
    from featurestore.recovery.rebuild import rebuild as rebuild_registry

    location, url = _location_and_registry(context)
    show_record(context, vars(rebuild_registry(location, url=url, restore=restore_runs)))


@registry_app.command(epilog="Example: featurestore registry upgrade")
def upgrade(context: typer.Context) -> None:
    """Upgrade the registry to this release's revision, as opening the store does."""
    from featurestore.registry import open_registry
    from featurestore.registry.opening import inspect, revision

    location, url = _location_and_registry(context)
    # Opening the registry upgrades it, so the earlier revision is read first.
    earlier_revision = inspect(location, url=url)
    registry = open_registry(location, url=url)
    try:
        show_record(context, {"before": earlier_revision, "now": revision(registry)})
    finally:
        registry.close()


def _location_and_registry(context: typer.Context) -> tuple[str, str | None]:
    from featurestore import config
    from featurestore.storage import storage_for
    from featurestore.storage.location import location_of

    options = settings(context)
    resolved = config.resolve(
        location=options.location, engine=options.engine, registry=options.registry
    )
    directory = location_of(resolved.location)
    storage_for(directory).ensure_writable(directory)
    return directory, resolved.registry
