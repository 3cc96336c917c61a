"""``featurestore features`` and ``fv``: search features, join them to labels, feature views."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlencode

import typer

from featurestore.cli import output
from featurestore.cli.output import DefinitionFile, Limit, PageNumber
from featurestore.cli.state import OutputFormat, settings, split_version, store
from featurestore.errors import InvalidArgument, UnsupportedRemotely, listing

if TYPE_CHECKING:
    from featurestore.featuregroups.discovery import Match
    from featurestore.retrieval import FeatureFrame
    from featurestore.views import FeatureView

app = typer.Typer(no_args_is_help=True)
view_app = typer.Typer(no_args_is_help=True)

ViewName = Annotated[
    str, output.argument(help="Name of the feature view: the latest version, or name@v2.")
]
_FILES = (".parquet", ".csv")


@app.command(epilog="Example: featurestore features search wind")
def search(
    context: typer.Context,
    text: Annotated[
        str, output.argument(help="Text to find in names, descriptions, tags and windows.")
    ],
    limit: Limit = None,
    page: PageNumber = 1,
) -> None:
    """Search names, descriptions, tags and features, ignoring case."""
    connected = store(context)

    def matches(*, limit: int | None, offset: int) -> list[Match]:
        end = None if limit is None else offset + limit
        # search() has no offset, so the matches of earlier pages are read and skipped.
        return connected.search(text, limit=end)[offset:]

    output.show_page(
        context,
        matches,
        vars,
        limit=limit,
        page=page,
        columns=["reference", "version", "where", "text"],
        empty=f"no matches for {text!r}",
    )


@app.command(
    epilog="Example: featurestore features get weather.temp planes.seats --labels questions -n 5"
)
def get(
    context: typer.Context,
    features: Annotated[
        list[str],
        typer.Argument(
            help="feature, group.feature, group@v2.feature, 'group.f as g', 'group.f|sum|7d'."
        ),
    ],
    labels: Annotated[str | None, typer.Option(help="A group, or a .parquet or .csv file.")] = None,
    label_time: Annotated[
        str | None, typer.Option(help="Time column of the labels, or one time for all labels.")
    ] = None,
    join_key: Annotated[
        list[str] | None, typer.Option(help="left_column=key_column, repeatable.")
    ] = None,
    inner: Annotated[
        bool, typer.Option("--inner", help="Drop labels that lack a row in some group.")
    ] = False,
    as_of: Annotated[str | None, typer.Option(help="Read the store as of a time.")] = None,
    include_keys: Annotated[
        bool, typer.Option("--include-keys", help="Without labels: add key and time.")
    ] = False,
    rows: Annotated[int, typer.Option("-n", "--rows", help="Number of rows to show.")] = 20,
    out: Annotated[
        Path | None, typer.Option(help="Write all rows to this .parquet or .csv file.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the plan without reading rows.")
    ] = False,
) -> None:
    """Join features to labels as of each label's time, and show or write the rows."""
    connected = store(context)
    join_type: Literal["left", "inner"] = "inner" if inner else "left"
    frame: FeatureFrame = connected.get_features(
        features,
        labels=_read_labels(labels),
        label_time=label_time,
        join_key=_parse_pairs(join_key),
        join=join_type,
        as_of=as_of,
        include_keys=include_keys,
    )
    # The frame of a served store has no plan; the basket page of the server displays one.
    if explain and frame.plan is None:
        raise UnsupportedRemotely(
            f"The server at {connected.location} does not return plans.",
            hint=f"{connected.location}/basket?{urlencode([('feature', feature) for feature in features])}",
        )
    if explain:
        output.show_text(
            context, str(frame.plan), data=None if frame.plan is None else frame.plan.to_json()
        )
    elif out is not None:
        row_count = _write_rows(frame, out)
        dropped = {"dropped": frame.dropped(row_count)} if frame.drops else {}
        output.show_record(context, {"rows": row_count, **dropped, "path": str(out)})
    elif settings(context).output is OutputFormat.JSON:
        output.show_json(frame.head(rows).to_pylist())
    else:
        frame.show(rows)


def _read_labels(text: str | None) -> Any:
    """Read labels from a file, or return the name of a group."""
    if text is None or not text.endswith(_FILES):
        return text
    if not Path(text).is_file():
        raise InvalidArgument(
            f"The label file {text!r} does not exist.", hint="--labels name selects a feature group"
        )
    if text.endswith(".csv"):
        from pyarrow import csv

        return csv.read_csv(text)
    from pyarrow import parquet

    return parquet.read_table(text)


def _parse_pairs(join_key: list[str] | None) -> dict[str, str] | None:
    """Parse left_column=key_column pairs."""
    if not join_key:
        return None
    pairs = dict(text.split("=", 1) for text in join_key if "=" in text)
    if len(pairs) != len(join_key):
        raise InvalidArgument(
            f"--join-key {listing(join_key)} is not left_column=key_column.",
            hint="--join-key departure=origin",
        )
    return pairs


def _write_rows(frame: FeatureFrame, path: Path) -> int:
    """Write all rows in batches, and return the row count."""
    # An unsupported suffix is rejected before any rows are read.
    if path.suffix not in _FILES:
        raise InvalidArgument(
            f"--out {str(path)!r} is neither .parquet nor .csv.", hint="--out rows.parquet"
        )
    rows = 0
    with _open_writer(path, frame) as writer:
        # The result may exceed the memory of this machine.
        for batch in frame.to_batches():
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def _open_writer(path: Path, frame: FeatureFrame) -> Any:
    """Open a CSV or Parquet writer for the schema of a frame."""
    if path.suffix == ".csv":
        from pyarrow import csv

        return csv.CSVWriter(str(path), frame.schema)
    from pyarrow import parquet

    return parquet.ParquetWriter(str(path), frame.schema)


@view_app.command("create", epilog="Example: featurestore fv create late_flights.toml")
def create(context: typer.Context, file: DefinitionFile) -> None:
    """Create a feature view, or its next version, from a definition file.

    The file is TOML: name, features, and optionally labels, label, label_time, description, tags.
    """
    from featurestore.cli.definitions import create_view

    output.show_record(context, _overview(create_view(store(context), file)))


@view_app.command("list", epilog="Example: featurestore fv list")
def list_views(context: typer.Context, limit: Limit = None, page: PageNumber = 1) -> None:
    """List every version of every feature view."""
    output.show_page(
        context,
        store(context).get_feature_views,
        _overview,
        limit=limit,
        page=page,
        columns=["name", "version", "labels", "label", "features", "created"],
        empty="no feature views yet",
    )


@view_app.command("show", epilog="Example: featurestore fv show late_flights@v1")
def show_view(context: typer.Context, name: ViewName) -> None:
    """Show features, groups and joins of a feature view, and its training datasets."""
    view_name, version = split_version(name)
    view = store(context).get_feature_view(view_name, version=version)
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
    output.show_record(context, details)


def _overview(view: FeatureView) -> dict[str, object]:
    return {
        "name": view.name,
        "version": view.version,
        "labels": view.labels,
        "label": list(view.label),
        "features": view.features,
        "created": view.spec.created,
    }
