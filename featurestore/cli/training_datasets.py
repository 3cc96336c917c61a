"""``featurestore td``: training datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from featurestore.cli import output
from featurestore.cli.output import DefinitionFile, Limit, PageNumber
from featurestore.cli.state import require_version, split_version, store
from featurestore.errors import InvalidArgument
from featurestore.model.manifest import format_source, read_text

if TYPE_CHECKING:
    from featurestore.store import FeatureStore
    from featurestore.training.dataset import TrainingDataset

app = typer.Typer(no_args_is_help=True)

Name = Annotated[
    str, output.argument(help="Name of the training dataset: the latest version, or name@v2.")
]
VersionedName = Annotated[str, output.argument(help="Name and version: name@v2.")]


@app.command(epilog="Example: featurestore td create late_flights.toml")
def create(context: typer.Context, file: DefinitionFile) -> None:
    """Create a training dataset, or its next version, from a definition file.

    The file is TOML: name, view or featuregroup, and the arguments of create_training_dataset.
    """
    from featurestore.cli.definitions import create_dataset

    dataset = create_dataset(store(context), file)
    output.show_record(context, {**dataset._summary(), "path": dataset.path})


@app.command("list", epilog="Example: featurestore td list")
def list_datasets(context: typer.Context, limit: Limit = None, page: PageNumber = 1) -> None:
    """List every version of every training dataset."""
    output.show_page(
        context,
        store(context).get_training_datasets,
        lambda dataset: {**dataset._summary(), "stale": dataset.stale or None},
        limit=limit,
        page=page,
        columns=["name", "version", "rows", "splits"],
        optional=["stale"],
        wide=["data_format", "reproducible", "created", "description"],
        empty="no training datasets yet",
    )


@app.command(epilog="Example: featurestore td show late_flights@v1")
def show(context: typer.Context, name: Name) -> None:
    """Show splits, shards, columns, sources, hashes and transformations of a training dataset."""
    dataset = open_dataset(store(context), name)
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
    output.show_record(context, details, tables=tables)


@app.command(epilog="Example: featurestore td verify late_flights --recompute")
def verify(
    context: typer.Context,
    name: Name,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Also run the plan again and compare bytes.")
    ] = False,
) -> None:
    """Read every file and compare with the manifest; exit code 1 if anything differs."""
    report = open_dataset(store(context), name).verify(recompute=recompute)
    output.show_report(context, report, ok=report.ok)


@app.command(epilog="Example: featurestore td diff late_flights@v1 late_flights@v2")
def diff(
    context: typer.Context,
    dataset: Annotated[str, output.argument(metavar="LEFT", help="A dataset: name or name@v2.")],
    other_dataset: Annotated[
        str | None,
        output.argument(
            metavar="RIGHT",
            help="The dataset to compare with. Without it, LEFT is compared with the version "
            "before it.",
        ),
    ] = None,
) -> None:
    """Show the changes between two datasets; exit code 1 if rows or columns differ."""
    connected = store(context)
    first, second = open_dataset(connected, dataset), None
    if other_dataset is None:
        second = first
        earlier_versions = [
            dataset.version
            for dataset in connected.get_training_datasets()
            if dataset.name == second.name and dataset.version < second.version
        ]
        if not earlier_versions:
            raise InvalidArgument(
                f"Training dataset {second.name!r} has no version before {second.version}.",
                command="featurestore td diff LEFT RIGHT",
            )
        first = connected.get_training_dataset(second.name, version=max(earlier_versions))
    else:
        second = open_dataset(connected, other_dataset)
    report = first.diff(second)
    output.show_report(context, report, ok=report.same)


@app.command(epilog="Example: featurestore td clean")
def clean(context: typer.Context) -> None:
    """Remove the files of killed exports; keep running exports and finished datasets."""
    from featurestore.training.catalog import clean_all

    removed = clean_all(store(context).session)
    rows = [{"removed": path} for path in removed]
    output.show_rows(context, rows, columns=["removed"], empty="nothing to remove")


@app.command(epilog="Example: featurestore td delete late_flights@v1")
def delete(
    context: typer.Context,
    name: VersionedName,
    force: Annotated[
        bool, typer.Option("--force", help="Delete even if registered models were trained on it.")
    ] = False,
) -> None:
    """Delete one version of a training dataset."""
    dataset_name, version = require_version(context, name)
    store(context).delete_training_dataset(dataset_name, version=version, force=force)
    output.show_record(context, {"deleted": f"{dataset_name} version {version}"})


def open_dataset(connected: FeatureStore, text: str) -> TrainingDataset:
    """Return the dataset with a name such as ``late_flights`` or ``late_flights@v1``."""
    name, version = split_version(text)
    return connected.get_training_dataset(name, version=version)
