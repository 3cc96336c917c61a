"""``featurestore registry``: upgrade the index of a store, or rebuild it."""

from __future__ import annotations

import typer

from featurestore import config
from featurestore.cli.output import show_record
from featurestore.cli.state import settings
from featurestore.storage import files

app = typer.Typer(help="The index of the store.", no_args_is_help=True)


@app.command(epilog="Example: featurestore registry rebuild")
def rebuild(context: typer.Context) -> None:
    """Rebuild the registry from the Delta tables and manifests; list what they do not contain."""
    from featurestore.jobs.recovery import restore_runs
    from featurestore.recovery.rebuild import rebuild as rebuild_registry

    location, url = _location_and_registry(context)
    show_record(context, vars(rebuild_registry(location, url=url, restore=restore_runs)))


@app.command(epilog="Example: featurestore registry upgrade")
def upgrade(context: typer.Context) -> None:
    """Upgrade the registry to this release's revision, as opening the store does."""
    from featurestore.registry import open_registry
    from featurestore.registry.database import inspect, revision

    location, url = _location_and_registry(context)
    earlier_revision = inspect(location, url=url)
    registry = open_registry(location, url=url)
    try:
        show_record(context, {"before": earlier_revision, "now": revision(registry)})
    finally:
        registry.close()


def _location_and_registry(context: typer.Context) -> tuple[str, str | None]:
    options = settings(context)
    resolved = config.resolve(
        location=options.location, engine=options.engine, registry=options.registry
    )
    directory = files.location_of(resolved.location)
    files.ensure_writable(directory)
    return directory, resolved.registry
