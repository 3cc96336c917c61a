"""``init`` and ``doctor``: a store to begin with, and what this machine has for it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from featurestore.cli import checks
from featurestore.cli.output import show_record, show_rows
from featurestore.cli.state import settings

app = typer.Typer()


@app.command(epilog="Example: featurestore init my-store")
def init(
    context: typer.Context,
    directory: Annotated[
        str | None, typer.Argument(help="Directory of the store; else --location.")
    ] = None,
    config: Annotated[
        bool, typer.Option(help="Write featurestore.toml here, unless there is one.")
    ] = True,
) -> None:
    """Make a store: its directory, its registry, and a featurestore.toml that names it."""
    from featurestore import config as configuration
    from featurestore.store import connect

    options = settings(context)
    store = context.with_resource(
        connect(directory or options.location, engine=options.engine, registry=options.registry)
    )
    file = Path.cwd() / configuration.CONFIG_FILE
    written = config and not file.exists()
    if written:
        file.write_text(
            f"location = {checks.toml_text(store.location)}\nengine = {checks.toml_text(store.engine)}\n"
        )
    show_record(
        context,
        {
            "location": store.location,
            "engine": store.engine,
            "config": str(file) if file.exists() else None,
        },
    )


@app.command(epilog="Example: featurestore doctor --output json")
def doctor(context: typer.Context) -> None:
    """Check this machine: Python, libraries, Java, location, registry, engines, formats."""
    found = checks.run(settings(context))
    show_rows(context, [vars(each) for each in found], columns=["check", "state", "detail", "hint"])
    if any(each.state == checks.PROBLEM for each in found):
        raise typer.Exit(1)
