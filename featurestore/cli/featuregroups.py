"""``featurestore fg``: feature groups."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from featurestore.cli import output
from featurestore.cli.output import Limit, PageNumber
from featurestore.cli.state import OutputFormat, require_version, settings, split_version, store
from featurestore.errors import InvalidArgument, listing

if TYPE_CHECKING:
    import pyarrow as pa

app = typer.Typer(no_args_is_help=True)

Name = Annotated[str, output.argument(help="Name of the group: the latest version, or name@v2.")]
VersionedName = Annotated[str, output.argument(help="Name and version: name@v2.")]
AsOfOption = Annotated[
    str | None, typer.Option(help="A Delta version, or a time such as 2026-01-31T12:00Z.")
]


@app.command("list", epilog="Example: featurestore fg list --output json")
def list_groups(context: typer.Context, limit: Limit = None, page: PageNumber = 1) -> None:
    """List every version of every feature group."""
    output.show_page(
        context,
        store(context).get_featuregroups,
        lambda group: group._summary(),
        limit=limit,
        page=page,
        columns=["name", "version", "rows", "features", "primary_key", "event_time"],
        wide=["delta_version", "description"],
        empty="no feature groups yet",
    )


@app.command(epilog="Example: featurestore fg show weather@v2")
def show(context: typer.Context, name: Name) -> None:
    """Show the definition of a group, its size and its tags."""
    group_name, version = split_version(name)
    details = store(context).featuregroup(group_name, version=version)._details()
    columns = details.pop("columns")
    if settings(context).output is OutputFormat.JSON:
        output.show_json({**details, "columns": columns})
        return
    output.show_record(context, details)
    visible_columns = ["name", "type", "role"]
    if any(column["description"] for column in columns):
        visible_columns.append("description")
    output.show_rows(context, columns, columns=visible_columns)


@app.command(epilog="Example: featurestore fg head weather -n 10")
def head(
    context: typer.Context,
    name: Name,
    rows: Annotated[int, typer.Option("-n", "--rows", help="Number of rows.")] = 5,
    as_of: AsOfOption = None,
) -> None:
    """Show the first rows of a group."""
    group_name, version = split_version(name)
    frame = store(context).get_featuregroup(
        group_name, version=version, as_of=parse_version_or_time(as_of)
    )
    if settings(context).output is OutputFormat.JSON:
        output.show_json(frame.head(rows).to_pylist())
    else:
        frame.show(rows)


@app.command(epilog="Example: featurestore fg history weather")
def history(
    context: typer.Context,
    name: Name,
    limit: Annotated[int, typer.Option("-n", "--limit", help="Number of commits.")] = 100,
    before: Annotated[
        int | None, typer.Option("--before", help="Only commits before this Delta version.")
    ] = None,
) -> None:
    """List the commits of a group's data, newest first."""
    group_name, version = split_version(name)
    commits = store(context).get_featuregroup_history(
        group_name, version=version, limit=limit, before=before
    )
    columns = ["delta_version", "timestamp", "operation", "rows", "rows_in", "rows_out"]
    rows = [vars(commit) for commit in commits]
    output.show_rows(context, rows, columns=columns, wide=["validation", "run_id"])


@app.command(epilog="Example: featurestore fg stats weather")
def stats(context: typer.Context, name: Name, as_of: AsOfOption = None) -> None:
    """Show the statistics of a group's columns."""
    from featurestore.model.statistics_text import describe, format_title, to_records

    delta_version: Any = parse_version_or_time(as_of)
    group_name, version = split_version(name)
    group = store(context).featuregroup(group_name, version=version)
    statistics = group.statistics(delta_version=delta_version)
    if settings(context).output is OutputFormat.JSON:
        output.show_json(statistics.to_json())
    elif settings(context).wide:
        sys.stdout.write(f"{format_title(statistics)}\n")
        rows = to_records(statistics)
        output.show_rows(context, rows, columns=list(rows[0]))
    else:
        sys.stdout.write(describe(statistics, lines=len(statistics.columns)) + "\n")


@app.command(epilog="Example: featurestore fg validate weather")
def validate(context: typer.Context, name: Name) -> None:
    """Check a group's data against its expectations; exit code 1 if some fail."""
    from featurestore.model.validation import format_outcome

    group_name, version = split_version(name)
    report = store(context).validate_featuregroup(group_name, version=version)
    rows = [
        {
            "expectation": result.expectation["type"],
            "column": _columns_of(result.expectation),
            "arguments": dict(result.expectation.get("kwargs", {})),
            "success": result.success,
            "rows": result.rows,
            "unexpected": result.unexpected,
            "warning": result.warning,
            "message": "" if result.success else format_outcome(result),
        }
        for result in report.results
    ]
    if settings(context).output is OutputFormat.JSON:
        output.show_json(report.to_json())
    else:
        output.show_rows(
            context,
            rows,
            columns=["expectation", "column", "success"],
            optional=["message"],
            wide=["rows", "unexpected", "arguments"],
        )
    if not report.success:
        raise typer.Exit(1)


@app.command(
    epilog="Example: featurestore fg explain weather --key origin=JFK --at 2013-01-05T12:00Z"
)
def explain(
    context: typer.Context,
    name: Name,
    key: Annotated[
        list[str], typer.Option(help="column=value, once for each column of the primary key.")
    ],
    at: Annotated[str | None, typer.Option(help="Time; default: now.")] = None,
    window: Annotated[
        str | None, typer.Option(help="Explain an aggregate such as 'group.column|sum|7d'.")
    ] = None,
) -> None:
    """Show the row with the value of a key at a time, and the rows that it supersedes."""
    group_name, version = split_version(name)
    group = store(context).featuregroup(group_name, version=version)
    values = _parse_key(key, group.schema)
    if window is not None:
        window_explanation = group.explain_window(window, key=values, at=at)
        output.show_text(context, str(window_explanation), data=window_explanation)
        return
    explanation = group.explain(key=values, at=at)
    output.show_text(context, str(explanation), data=explanation)


@app.command(
    epilog="Example: featurestore fg compare weather@v1 weather@v2, or weather#3 weather#7"
)
def compare(
    context: typer.Context,
    left: Annotated[str, typer.Argument(help="name, name@v2, or name#7 for Delta version 7.")],
    right: Annotated[
        str, typer.Argument(help="The version to compare with, in the same form as LEFT.")
    ],
) -> None:
    """Compare the statistics of two groups, versions or Delta versions."""
    from featurestore.statistics import compare_statistics

    connected = store(context)

    def statistics(text: str) -> Any:
        name, mark, number = text.partition("#")
        if mark and not number.isdigit():
            raise InvalidArgument(f"{text!r} has no Delta version.", hint="weather#7")
        return connected.featuregroup(name).statistics(delta_version=int(number) if mark else None)

    report = compare_statistics(statistics(left), statistics(right))
    output.show_text(context, str(report), data=report.to_json())


@app.command(epilog="Example: featurestore fg compact weather")
def compact(context: typer.Context, name: Name) -> None:
    """Rewrite small files of a group into large ones."""
    group_name, version = split_version(name)
    commit = store(context).compact_featuregroup(group_name, version=version)
    output.show_record(context, vars(commit))


@app.command(epilog="Example: featurestore fg vacuum weather --retain 7d")
def vacuum(
    context: typer.Context,
    name: Name,
    retain: Annotated[
        str, typer.Option(help="Keep the files of versions younger than this.")
    ] = "30d",
) -> None:
    """Remove data files that no recent version and no training dataset needs."""
    group_name, version = split_version(name)
    removed = store(context).vacuum_featuregroup(group_name, version=version, retain=retain)
    output.show_record(context, {"removed": len(removed), "files": list(removed)})


@app.command(epilog="Example: featurestore fg verify weather")
def verify(
    context: typer.Context,
    name: Name,
    sample: Annotated[
        int | None, typer.Option(help="The number of data files to check; all by default.", min=1)
    ] = None,
) -> None:
    """Read the files of a group and compare them with their checksums; exit code 1 if any differs."""
    group_name, version = split_version(name)
    report = store(context).verify_featuregroup(group_name, version=version, sample=sample)
    output.show_report(context, report, ok=report.ok)


@app.command(epilog="Example: featurestore fg delete weather@v1")
def delete(
    context: typer.Context,
    name: VersionedName,
    force: Annotated[
        bool,
        typer.Option("--force", help="Delete even if training datasets or feature views use it."),
    ] = False,
) -> None:
    """Delete one version of a group with its data, quarantine and statistics."""
    group_name, version = require_version(context, name)
    store(context).delete_featuregroup(group_name, version=version, force=force)
    output.show_text(
        context, f"deleted {name}", data={"deleted": {"name": group_name, "version": version}}
    )


def parse_version_or_time(text: str | None) -> str | int | None:
    """Parse a Delta version or a timestamp for ``as_of=``."""
    return int(text) if text is not None and text.isdigit() else text


def _parse_key(pairs: list[str], schema: pa.Schema) -> dict[str, Any]:
    """Parse column=value pairs to values with the types of the schema."""
    from featurestore.arrow.values import ConversionError, from_text

    key = {}
    for pair in pairs:
        column, mark, value = pair.partition("=")
        if not mark or column not in schema.names:
            raise InvalidArgument(
                f"--key {pair!r} is not column=value. Available: {listing(schema.names)}."
            )
        # Values on the command line are strings, but keys are compared with the types of their
        # columns.
        dtype = schema.field(column).type
        try:
            key[column] = from_text(value, dtype)
        except ConversionError as error:
            raise InvalidArgument(f"--key {pair!r}: {error}.") from error
    return key


def _columns_of(expectation: Mapping[str, Any]) -> object:
    """Return the column or columns that an expectation refers to."""
    arguments = expectation.get("kwargs", {})
    for name in ("column", "columns", "column_list", "column_set"):
        if arguments.get(name):
            return arguments[name]
    return None
