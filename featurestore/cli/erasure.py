"""``featurestore erasure``: reports and erasure of the data of entities, and certificates."""

from __future__ import annotations

import shlex
from typing import Annotated, Literal

import typer

from featurestore.cli.output import argument, option, show_report, show_rows
from featurestore.cli.state import store
from featurestore.errors import InvalidArgument
from featurestore.storage import files, storage_for
from featurestore.storage.location import local_directory

app = typer.Typer(no_args_is_help=True)

Keys = Annotated[
    list[str],
    argument(help="Keys of one entity: column=value; with several keys, rows must match all."),
]
Columns = Annotated[
    list[str] | None,
    option(
        "--column",
        help="A column with another name than its key: orders.buyer=user; may be repeated.",
    ),
]
Datasets = Annotated[
    str, typer.Option(help="export: write training datasets without the rows; keep: list them.")
]
_COLUMNS = ["area", "item", "detail", "action"]


@app.command(epilog="Example: featurestore erasure report user=u-7731")
def report(
    context: typer.Context, keys: Keys, column: Columns = None, datasets: Datasets = "export"
) -> None:
    """List all places with data of an entity, without a change."""
    erasure_report = store(context).erase(
        _parse_pairs(keys), columns=_parse_pairs(column or []), datasets=_parse_datasets(datasets)
    )
    rows = [finding.to_json() for finding in erasure_report.findings]
    rows += [
        {"area": "models", "item": model, "detail": "trained on these rows", "action": "list"}
        for model in erasure_report.models
    ]
    rows += [
        {"area": "not searched", "item": location, "detail": "", "action": "list"}
        for location in erasure_report.not_searched
    ]
    show_rows(context, rows, columns=_COLUMNS, empty="no data of this entity")


@app.command(epilog="Example: featurestore erasure run user=u-7731 --certificate erased.json")
def run(
    context: typer.Context,
    keys: Keys,
    column: Columns = None,
    datasets: Datasets = "export",
    certificate: Annotated[str | None, option(help="File for the certificate.")] = None,
) -> None:
    """Erase all data of an entity; exit code 1 if an item could not be changed."""
    if certificate is not None and storage_for(certificate).exists(certificate):
        raise InvalidArgument(
            f"The file {certificate!r} already exists.", hint="--certificate erased2.json"
        )
    erased = store(context).erase(
        _parse_pairs(keys),
        columns=_parse_pairs(column or []),
        datasets=_parse_datasets(datasets),
        dry_run=False,
    )
    if certificate is not None and erased.certificate is not None:
        files.write_json(local_directory(certificate), erased.certificate)
    show_report(context, erased, ok=erased.complete)


@app.command(epilog="Example: featurestore erasure verify erased.json")
def verify(
    context: typer.Context, certificate: Annotated[str, argument(help="File with the certificate.")]
) -> None:
    """Search the store for an erased entity; exit code 1 if data or the certificate are not as certified."""
    path = local_directory(certificate)
    content = storage_for(path).read_bytes(path)
    check = store(context).verify_erasure(content)
    show_report(context, check, ok=check.ok)


def _parse_pairs(texts: list[str]) -> dict[str, str]:
    """Parse arguments of the form name=value, with distinct names.

    >>> _parse_pairs(["user=a=b"])
    {'user': 'a=b'}
    """
    pairs: dict[str, str] = {}
    for text in texts:
        name, mark, value = text.partition("=")
        if not mark or not name or not value:
            raise InvalidArgument(
                f"{text!r} is not of the form name=value.",
                hint="featurestore erasure report user=u-7731",
            )
        if name in pairs:
            raise InvalidArgument(
                f"{name!r} has two values: {pairs[name]!r} and {value!r}.",
                hint=f"featurestore erasure report {shlex.quote(f'{name}={pairs[name]}')}",
            )
        pairs[name] = value
    return pairs


def _parse_datasets(text: str) -> Literal["export", "keep"]:
    if text == "keep":
        return "keep"
    if text == "export":
        return "export"
    raise InvalidArgument(f"Unknown --datasets {text!r}.", hint="--datasets keep")
