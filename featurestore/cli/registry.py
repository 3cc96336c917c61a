"""``featurestore registry``: the index, brought up to date or written anew."""

from __future__ import annotations

import typer

from featurestore import config
from featurestore.cli.output import show_record
from featurestore.cli.state import settings
from featurestore.storage import files

app = typer.Typer(help="The index of the store.", no_args_is_help=True)


@app.command(epilog="Example: featurestore registry rebuild")
def rebuild(context: typer.Context) -> None:
    """Write the registry anew from the Delta tables and manifests; says what these do not know."""
    from featurestore.jobs.recovery import restore_runs
    from featurestore.recovery.rebuild import rebuild as rebuild_registry

    location, url = _place(context)
    show_record(context, vars(rebuild_registry(location, url=url, restore=restore_runs)))


@app.command(epilog="Example: featurestore registry upgrade")
def upgrade(context: typer.Context) -> None:
    """Bring the registry to this release's revision, as opening the store does."""
    from featurestore.registry import open_registry
    from featurestore.registry.database import inspect, revision

    location, url = _place(context)
    before = inspect(location, url=url)
    registry = open_registry(location, url=url)
    try:
        show_record(context, {"before": before, "now": revision(registry)})
    finally:
        registry.close()


def _place(context: typer.Context) -> tuple[str, str | None]:
    options = settings(context)
    resolved = config.resolve(
        location=options.location, engine=options.engine, registry=options.registry
    )
    directory = files.location_of(resolved.location)
    files.ensure_writable(directory)
    return directory, resolved.registry
