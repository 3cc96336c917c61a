"""``featurestore dbt``: import of dbt projects, and exposures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from featurestore.cli.output import show_text
from featurestore.cli.state import store

app = typer.Typer(no_args_is_help=True)


@app.command(
    "import",
    epilog="Example: featurestore dbt import target/manifest.json --source warehouse "
    "--select tag:features",
)
def import_(
    context: typer.Context,
    manifest: Annotated[
        Path, typer.Argument(help="Manifest: target/manifest.json.", show_default=False)
    ],
    source: Annotated[str, typer.Option(help="Source of dbt's database.", show_default=False)],
    select: Annotated[
        list[str] | None,
        typer.Option(
            help="Selector of dbt, repeatable; default: all tables with a key.", show_default=False
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only show the changes; exit code 1 if there are any.")
    ] = False,
) -> None:
    """Define feature groups over the tables of a dbt project, and show what changed."""
    connected = store(context)
    call = connected.plan_dbt_project if check else connected.add_dbt_project
    result = call(manifest, source=source, select=select or None)
    show_text(context, str(result), data=result.to_json())
    if check and not result.is_current:
        raise typer.Exit(1)


@app.command(epilog="Example: featurestore dbt exposures models/featurestore_exposures.yml")
def exposures(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(help="YAML file in the dbt project.", show_default=False)],
    owner: Annotated[str, typer.Option(help="Owner of objects without one.")] = "featurestore",
) -> None:
    """Write the training datasets, views and models that use dbt tables as exposures."""
    names = store(context).write_dbt_exposures(path, owner=owner)
    text = "\n".join([f"{path}: {len(names)} exposures", *names])
    show_text(context, text, data={"path": str(path), "exposures": names})
