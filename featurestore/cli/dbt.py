"""``featurestore dbt``: import of dbt projects, and exposures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from featurestore.cli.output import argument, option, show_report, show_text
from featurestore.cli.state import store

app = typer.Typer(no_args_is_help=True)


@app.command(
    "import",
    epilog="Example: featurestore dbt import target/manifest.json --source warehouse "
    "--select tag:features",
)
def import_(
    context: typer.Context,
    manifest: Annotated[Path, argument(help="Manifest: target/manifest.json.")],
    source: Annotated[str, option(help="Source of dbt's database.")],
    select: Annotated[
        list[str] | None,
        option(help="Selector of dbt, repeatable; default: all tables with a key."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only show the changes; exit code 1 if there are any.")
    ] = False,
    remove: Annotated[
        bool,
        typer.Option("--remove", help="Delete the groups of nodes that dbt no longer has."),
    ] = False,
) -> None:
    """Define feature groups over the tables of a dbt project, and show what changed."""
    connected, selectors = store(context), select or None
    if check:
        result = connected.plan_dbt_project(manifest, source=source, select=selectors)
        is_current = result.is_current and not (remove and result.removed)
        show_report(context, result, ok=is_current)
        return
    result = connected.add_dbt_project(manifest, source=source, select=selectors, remove=remove)
    show_report(context, result, ok=True)


@app.command(epilog="Example: featurestore dbt exposures models/featurestore_exposures.yml")
def exposures(
    context: typer.Context,
    path: Annotated[Path, argument(help="YAML file in the dbt project.")],
    owner: Annotated[str, typer.Option(help="Owner of objects without one.")] = "featurestore",
) -> None:
    """Write the training datasets, views and models that use dbt tables as exposures."""
    names = store(context).write_dbt_exposures(path, owner=owner)
    text = "\n".join([f"{path}: {len(names)} exposures", *names])
    show_text(context, text, data={"path": str(path), "exposures": names})
