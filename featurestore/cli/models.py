"""``featurestore model``: registered models."""

from __future__ import annotations

from typing import Annotated

import typer

from featurestore.cli.output import show_record, show_rows
from featurestore.cli.state import store

app = typer.Typer(help="Registered models.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name of the model.", show_default=False)]
Version = Annotated[
    int | None, typer.Option(help="Version; the latest when left out.", show_default=False)
]


@app.command("list", epilog="Example: featurestore model list --name late_flights")
def list_models(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Option(help="Versions of one model only.", show_default=False)
    ] = None,
) -> None:
    """List every version of every model."""
    from featurestore import experiments

    rows = [model.to_json() for model in experiments.get_models(name, store=store(context))]
    columns = ["name", "version", "stage", "flavor", "dataset", "run"]
    wide = ["outputs", "description", "tags", "created"]
    show_rows(context, rows, columns=columns, wide=wide, empty="no models yet")


@app.command(epilog="Example: featurestore model show late_flights --version 1")
def show(context: typer.Context, name: Name, version: Version = None) -> None:
    """Show a model: its features, inputs, predictions, run and dataset."""
    from featurestore import experiments

    show_record(context, experiments.get_model(name, version, store=store(context)).to_json())
