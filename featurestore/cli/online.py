"""``featurestore online``: online stores, which serve published feature vectors."""

from __future__ import annotations

from datetime import timedelta
from math import ceil
from typing import Annotated

import typer

from featurestore.cli.output import argument, option, show_record, show_rows
from featurestore.cli.state import split_version, store
from featurestore.model.times import parse_duration

app = typer.Typer(no_args_is_help=True)

Name = Annotated[str, argument(help="Name of the online store.")]
View = Annotated[str, argument(help="Name of the feature view: the latest version, or name@v2.")]
Online = Annotated[
    str | None, typer.Option("--online", help="Online store; none: the embedded store.")
]


@app.command("list", epilog="Example: featurestore online list")
def list_online_stores(context: typer.Context) -> None:
    """List the embedded and every registered online store."""
    rows = [online_store.to_json() for online_store in store(context).get_online_stores()]
    columns = ["name", "kind", "uri", "secret"]
    show_rows(context, rows, columns=columns, empty="no online stores yet")


@app.command(
    epilog="Example: featurestore online add cache redis://cache:6379/0 --secret env:CACHE_PASSWORD"
)
def add(
    context: typer.Context,
    name: Name,
    uri: Annotated[str, argument(help="URI of the online store, without a password.")],
    secret: Annotated[
        str | None, option(help="Password: env:NAME, file:path or environment.")
    ] = None,
) -> None:
    """Register an online store without connecting to it."""
    added = store(context).add_online_store(name, uri, secret=secret)
    show_record(context, added.to_json())


@app.command(epilog="Example: featurestore online remove cache")
def remove(context: typer.Context, name: Name) -> None:
    """Remove the registration of an online store; published values remain."""
    store(context).remove_online_store(name)
    show_record(context, {"name": name, "removed": True})


@app.command(epilog="Example: featurestore online check cache")
def check(
    context: typer.Context,
    name: Annotated[str | None, argument(help="Name; none: the embedded store.")] = None,
) -> None:
    """Check connection, permissions and settings; exit code 1 if there is a problem.

    The risks are settings with which the server can lose published values.
    """
    from featurestore.serving.stores import check_online_store

    record = check_online_store(store(context).session, name)
    risks: list[dict[str, str]] = record.pop("risks")
    show_record(context, record, tables={"risks": risks})


@app.command(epilog="Example: featurestore online purge cache --dry-run")
def purge(
    context: typer.Context,
    name: Annotated[str | None, argument(help="Name; none: the embedded store.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the keys.")] = False,
) -> None:
    """Remove published keys that belong to no view: of deleted views and old generations."""
    report = store(context).purge_online_store(name, dry_run=dry_run)
    show_record(context, {**vars(report), "total": report.total})


@app.command(epilog="Example: featurestore online publish late_flights --to cache")
def publish(
    context: typer.Context,
    view: View,
    to: Annotated[str | None, option(help="Online store; none: the embedded store.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Write all values again.")] = False,
) -> None:
    """Publish a feature view to an online store: what changed since the last publication."""
    name, version = split_version(view)
    published = store(context).publish(name, to=to, version=version, full=full)
    show_record(context, {**vars(published), "seconds": round(published.seconds, 1)})


@app.command(epilog="Example: featurestore online lag late_flights --max-behind 1h")
def lag(
    context: typer.Context,
    view: View,
    online: Online = None,
    max_behind: Annotated[
        str | None,
        typer.Option(help="Exit with 1 if a commit is older and not published.", metavar="15min"),
    ] = None,
) -> None:
    """Show the commits of each feature group that an online store does not yet have."""
    limit = None if max_behind is None else parse_duration(max_behind, argument="--max-behind")
    name, version = split_version(view)
    lags = store(context).get_feature_view(name, version=version).online_lag(online=online)
    columns = ["featuregroup", "published", "latest", "commits", "behind", "published_at"]
    rows = []
    for group_lag in lags:
        row = vars(group_lag) | {"commits": group_lag.commits}
        if row["behind"] is not None:
            row["behind"] = timedelta(seconds=ceil(row["behind"].total_seconds()))
        rows.append(row)
    show_rows(context, rows, columns=columns, empty="no feature groups")
    if limit is not None and any(lag.exceeds(limit) for lag in lags):
        raise typer.Exit(1)


@app.command(epilog="Example: featurestore online verify late_flights --online cache")
def verify(
    context: typer.Context,
    view: View,
    online: Online = None,
    sample: Annotated[int, typer.Option(help="Number of entities.", min=1)] = 1000,
    instant: Annotated[str | None, option("--at", help="Instant; none: now.")] = None,
) -> None:
    """Compare served vectors with the retrieval; exit code 1 if one differs."""
    name, version = split_version(view)
    feature_view = store(context).get_feature_view(name, version=version)
    report = feature_view.verify_online(online=online, sample=sample, at=instant)
    rows = [vars(difference) for difference in report.differences]
    columns = ["entity", "feature", "served", "offline", "reason"]
    empty = f"{report.vectors:,} vectors equal the retrieval"
    show_rows(context, rows, columns=columns, empty=empty)
    if not report.ok:
        raise typer.Exit(1)
