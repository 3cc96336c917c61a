"""``featurestore td``: training datasets."""

from __future__ import annotations

from typing import Annotated

import typer

from featurestore.cli.output import (
    Limit,
    PageNumber,
    get_page,
    show_record,
    show_rows,
    show_text,
)
from featurestore.cli.state import store
from featurestore.errors import InvalidArgument
from featurestore.model.manifest import format_source, read_text

app = typer.Typer(help="Training datasets.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name of the training dataset.", show_default=False)]
Version = Annotated[
    int | None, typer.Option(help="Version; default: the latest.", show_default=False)
]


@app.command("list", epilog="Example: featurestore td list")
def list_datasets(context: typer.Context, limit: Limit = None, page: PageNumber = 1) -> None:
    """List every version of every training dataset."""
    connected = store(context)
    datasets_page = get_page(
        context,
        lambda limit, offset: connected.get_training_datasets(limit=limit, offset=offset),
        limit=limit,
        page=page,
    )
    rows = [
        {**dataset._summary(), "stale": dataset.stale or None} for dataset in datasets_page.items
    ]
    show_rows(
        context,
        rows,
        columns=["name", "version", "rows", "splits"],
        optional=["stale"],
        wide=["data_format", "reproducible", "created", "description"],
        empty="no training datasets yet",
        next_page=datasets_page.next,
    )


@app.command(epilog="Example: featurestore td show late_flights --version 1")
def show(context: typer.Context, name: Name, version: Version = None) -> None:
    """Show splits, shards, columns, sources, hashes and transformations of a training dataset."""
    dataset = store(context).get_training_dataset(name, version=version)
    manifest = dataset.manifest
    columns, losses = [], {}
    for column in manifest.columns:
        columns.append(f"{column.name} ({column.role}, {column.tf_type})")
        if column.loss is not None:
            losses[column.name] = column.loss
    shards, labels = {}, {}
    for split in manifest.splits:
        shards[split.name] = [shard.path for shard in split.shards]
        labels[split.name] = split.label_counts
    details = {
        **dataset._summary(),
        "path": dataset.path,
        "content_hash": manifest.content_hash,
        "plan_hash": manifest.plan_hash,
        "seed": manifest.seed,
        "key": list(manifest.key),
        "split_rule": manifest.split_rule,
        "sources": list(map(format_source, manifest.sources)),
        "read": list(map(read_text, manifest.reads)),
        "windows": list(map(str, manifest.windows)),
        "columns": columns,
        "losses": losses,
        "shards": shards,
        "labels": labels,
        "label_proportions": dataset.label_proportions,
        "layout": manifest.layout.get("kind"),
        "layout_because": manifest.layout.get("reason"),
        "not_reproducible_because": manifest.reproducible_reason,
    }
    fitted = dataset.transformations
    tables = {} if fitted is None else {"transformations": fitted.records()}
    show_record(context, details, tables=tables)


@app.command(epilog="Example: featurestore td verify late_flights --recompute")
def verify(
    context: typer.Context,
    name: Name,
    version: Version = None,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Also run the plan again and compare bytes.")
    ] = False,
) -> None:
    """Read every file and compare with the manifest; exit code 1 if anything differs."""
    report = store(context).get_training_dataset(name, version=version).verify(recompute=recompute)
    show_text(context, str(report), data=report.to_json())
    if not report.ok:
        raise typer.Exit(1)


@app.command(epilog="Example: featurestore td diff late_flights --versions 1 2")
def diff(
    context: typer.Context,
    name: Name,
    versions: Annotated[
        tuple[int, int], typer.Option(help="The two versions; default: the last two.")
    ] = (0, 0),
    other_name: Annotated[
        str | None,
        typer.Option("--other", help="Another dataset to compare with.", show_default=False),
    ] = None,
) -> None:
    """Show the changes between two datasets; exit code 1 if rows or columns differ."""
    connected = store(context)
    first_version, second_version = versions
    # Versions start at 1, so (0, 0) means that the option is missing.
    if versions == (0, 0):
        second_version = connected.get_latest_training_dataset_version(other_name or name)
        first_version = (
            connected.get_latest_training_dataset_version(name)
            if other_name
            else second_version - 1
        )
        if first_version < 1:
            raise InvalidArgument(
                f"Training dataset {name!r} has only one version.",
                hint="--versions 1 2, or --other",
            )
    dataset = connected.get_training_dataset(name, version=first_version)
    report = dataset.diff(
        connected.get_training_dataset(other_name or name, version=second_version)
    )
    show_text(context, str(report), data=report.to_json())
    if not report.same:
        raise typer.Exit(1)


@app.command(epilog="Example: featurestore td clean")
def clean(context: typer.Context) -> None:
    """Remove the files of killed exports; keep running exports and finished datasets."""
    from featurestore.training.catalog import clean_all

    removed = clean_all(store(context).session)
    show_rows(
        context,
        [{"removed": each} for each in removed],
        columns=["removed"],
        empty="nothing to remove",
    )


@app.command(epilog="Example: featurestore td delete late_flights --version 1")
def delete(
    context: typer.Context,
    name: Name,
    version: Annotated[int, typer.Option(help="The version to delete.", show_default=False)],
    force: Annotated[
        bool,
        typer.Option("--force", help="Delete even if registered models were trained on it."),
    ] = False,
) -> None:
    """Delete one version of a training dataset."""
    store(context).delete_training_dataset(name, version=version, force=force)
    show_record(context, {"deleted": f"{name} version {version}"})
