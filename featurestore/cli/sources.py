"""``featurestore source`` and ``featurestore catalog``: registered sources, and tables in catalogs."""

from __future__ import annotations

from typing import Annotated

import typer

from featurestore.cli.output import argument, option, show_json, show_record, show_rows, show_text
from featurestore.cli.state import OutputFormat, settings, store

app = typer.Typer(no_args_is_help=True)
catalog_app = typer.Typer(no_args_is_help=True)

Name = Annotated[str, argument(help="Name of the source.")]


@app.command("list", epilog="Example: featurestore source list")
def list_sources(context: typer.Context) -> None:
    """List every registered source."""
    rows = [source.to_json() for source in store(context).get_sources()]
    columns = ["name", "kind", "uri", "secret"]
    wide = ["options", "description"]
    show_rows(context, rows, columns=columns, wide=wide, empty="no sources yet")


@app.command(
    epilog="Example: featurestore source add shop postgresql://me@db/shop --secret env:SHOP_PASSWORD"
)
def add(
    context: typer.Context,
    name: Name,
    uri: Annotated[str, argument(help="URI of the source, without a password.")],
    secret: Annotated[
        str | None, option(help="Password: env:NAME, file:path or environment.")
    ] = None,
    option: Annotated[list[str] | None, option(help="KEY=VALUE, repeatable.")] = None,
    description: Annotated[str, typer.Option(help="Description of the source.")] = "",
) -> None:
    """Register a source without connecting to it."""
    added = store(context).add_source(
        name, uri, secret=secret, options=_options(option), description=description
    )
    show_record(context, added.to_json())


def _options(pairs: list[str] | None) -> dict[str, object]:
    options: dict[str, object] = {}
    for pair in pairs or []:
        # Only the first "=" separates: a value such as a delimiter may contain more.
        key, separator, value = pair.partition("=")
        if not separator:
            raise typer.BadParameter(f"{pair!r} is not KEY=VALUE")
        options[key] = value
    return options


@app.command(epilog="Example: featurestore source check shop")
def check(context: typer.Context, name: Name) -> None:
    """Check connection and permissions, show the first rows; exit code 1 if there are problems."""
    report = store(context).check_source(name)
    data = report.to_json()
    data["tables"] = [table.name for table in report.tables]
    show_record(context, data)
    if not report.ok:
        raise typer.Exit(1)


@app.command(epilog="Example: featurestore source read shop --table orders -n 5")
def read(
    context: typer.Context,
    name: Name,
    table: Annotated[str | None, option(help="Table to read.")] = None,
    sql: Annotated[str | None, option(help="Query to run.")] = None,
    path: Annotated[str | None, option(help="Files to read.")] = None,
    at: Annotated[str | None, option(help="Version, time, branch or tag to read.")] = None,
    option: Annotated[
        list[str] | None, option(help="KEY=VALUE, repeatable, such as delimiter=;")
    ] = None,
    rows: Annotated[int, typer.Option("-n", "--rows", help="Number of rows.")] = 10,
) -> None:
    """Show the first rows of a table, a query or files."""
    from featurestore.sources import read_source

    version_or_time = int(at) if at is not None and at.isdigit() else at
    frame = read_source(
        store(context).session,
        name,
        table=table,
        sql=sql,
        path=path,
        at=version_or_time,
        options=_options(option),
    )
    records = frame.head(rows).to_pylist()
    if settings(context).output is OutputFormat.JSON:
        show_json(records)
    else:
        show_rows(context, records, columns=frame.columns, empty="no rows")


@catalog_app.callback()
def catalogs() -> None:
    """Register feature groups in catalogs."""


@catalog_app.command(epilog="Example: featurestore catalog register lake --schema features")
def register(
    context: typer.Context,
    name: Name,
    featuregroup: Annotated[
        list[str] | None, option("--fg", help="Feature group, repeatable; default: all.")
    ] = None,
    schema: Annotated[str, typer.Option(help="Schema in the catalog.")] = "featurestore",
) -> None:
    """Register feature groups as tables of a catalog, or update them."""
    result = store(context).register_in(name, featuregroups=featuregroup or None, schema=schema)
    show_text(context, str(result), data=result.to_json())
