"""The list of runs, the page of one, and two over one another."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from featurestore.errors import InvalidArgument
from featurestore.experiments.comparison import compare_runs
from featurestore.server.context import Settings, Store
from featurestore.server.drawing.curves import curves
from featurestore.server.pages.paging import PageNumber, one_page
from featurestore.server.pages.rendering import csv_file, page
from featurestore.server.records import experiments as records
from featurestore.server.records.experiments import Metrics, RunFilter

router = APIRouter(prefix="/experiments")
_TRIALS = 200
_COMPARED = ("params", "settings", "dataset", "code", "environment")


@router.get("")
def list_page(
    request: Request,
    store: Store,
    settings: Settings,
    name: str = "",
    dataset: str = "",
    version: int | None = None,
    number: PageNumber = 1,
    format: str = "html",
) -> Response:
    """Show runs with their parameters and metrics, the newest first."""
    wanted = RunFilter(name.strip(), dataset.strip(), version)
    found = one_page(
        lambda limit, offset: records.find(store, wanted, limit=limit, offset=offset),
        number=number,
        size=settings.page,
    )
    table = records.table(found.items)
    if format == "csv":
        return _table_file("runs", table)
    return page(
        request,
        "experiments.html",
        title="Experiments",
        found=found,
        table=table,
        names=records.names(store),
        wanted=wanted,
    )


def _table_file(name: str, table: records.RunTable) -> Response:
    columns = ["run", "experiment", "kind", "state", "created", "seconds"]
    columns += ["dataset", "dataset_version"]
    columns += [f"params.{each}" for each in table.params]
    columns += [f"metrics.{each}" for each in table.metrics]
    return csv_file(name, columns, table.rows())


@router.get("/compare")
def compare_page(
    request: Request,
    store: Store,
    run: Annotated[list[str] | None, Query()] = None,
    format: str = "html",
) -> Response:
    """Show what differs between two runs, and their metrics over one another."""
    chosen = list(dict.fromkeys(run or []))
    if len(chosen) != 2:
        raise InvalidArgument(
            f"Two runs can be compared, not {len(chosen)}.", hint="/experiments?name=NAME"
        )
    first, second = records.get(store, chosen[0]), records.get(store, chosen[1])
    series = [(each.id, records.metrics(each)) for each in (first, second)]
    if format == "csv":
        return _series_file(f"{first.id}-{second.id}", series)
    return page(
        request,
        "run_compare.html",
        title=f"{first.id} and {second.id}",
        runs=[first, second],
        comparison=compare_runs(first, second),
        compared=_COMPARED,
        pictures=_pictures(series),
    )


@router.get("/{run_id}")
def run_page(request: Request, store: Store, run_id: str, format: str = "html") -> Response:
    """Show what a run was given and reported, and what it left behind."""
    run = records.get(store, run_id)
    series = [(run.id, records.metrics(run))]
    if format == "csv":
        return _series_file(run.id, series)
    trials = records.table(records.find(store, RunFilter(parent=run.id), limit=_TRIALS))
    return page(
        request,
        "run.html",
        title=run.id,
        run=run,
        record=run.record,
        pictures=_pictures(series),
        trials=trials,
        most=_TRIALS,
        models=records.models_of(store, run),
    )


def _pictures(series: list[tuple[str, Metrics]]) -> dict[str, object]:
    """Return a picture of each metric that a run reported."""
    shown: dict[str, object] = {}
    for name in dict.fromkeys(name for _, found in series for name in found):
        picture = curves(name, [(run, found.get(name, {})) for run, found in series])
        if picture:
            shown[name] = picture
    return shown


def _series_file(name: str, series: list[tuple[str, Metrics]]) -> Response:
    """Return every value that runs reported as a row."""
    rows: list[list[object]] = []
    for run, found in series:
        for metric, values in found.items():
            for step, value in values.items():
                rows.append([run, metric, step, value])
    return csv_file(f"{name}-metrics", ["run", "metric", "step", "value"], rows)
