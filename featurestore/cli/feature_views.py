"""``featurestore fv``: feature views."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from featurestore.cli.output import show_record, show_rows
from featurestore.cli.state import store

app = typer.Typer(help="Feature views.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name of the feature view.", show_default=False)]
Version = Annotated[
    int | None, typer.Option(help="Version; the latest when left out.", show_default=False)
]


@app.command("list", epilog="Example: featurestore fv list")
def list_views(context: typer.Context) -> None:
    """List every version of every feature view."""
    rows = [_overview(view) for view in store(context).get_feature_views()]
    columns = ["name", "version", "labels", "label", "features", "created"]
    show_rows(context, rows, columns=columns, empty="no feature views yet")


@app.command(epilog="Example: featurestore fv show late_flights --version 1")
def show(context: typer.Context, name: Name, version: Version = None) -> None:
    """Show features, groups and joins of a feature view, and its training datasets."""
    view = store(context).get_feature_view(name, version=version)
    joins = [
        {
            "features": [feature.reference for feature in step.features],
            "join_key": step.join_key,
            "join": step.join,
        }
        for step in view.spec.steps
    ]
    datasets = [
        f"{dataset_name} version {number}" for dataset_name, number in view.training_datasets()
    ]
    details = {
        **_overview(view),
        "label_time": view.label_time,
        "featuregroups": view.featuregroups,
        "joins": joins,
        "tags": view.tags,
        "description": view.description,
        "training_datasets": datasets,
        "problems": view.problems,
    }
    show_record(context, details)


def _overview(view: Any) -> dict[str, Any]:
    return {
        "name": view.name,
        "version": view.version,
        "labels": view.labels,
        "label": list(view.label),
        "features": view.features,
        "created": view.spec.created,
    }
