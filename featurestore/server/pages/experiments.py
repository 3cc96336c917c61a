"""Pages of experiment runs: list, details, comparison."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from featurestore.errors import InvalidArgument
from featurestore.experiments.run import compare_runs
from featurestore.server.context import Settings, Store
from featurestore.server.drawing.curves import curves
from featurestore.server.pages.paging import PageNumber, load_page
from featurestore.server.pages.rendering import csv_file, page
from featurestore.server.records import experiments as records
from featurestore.server.records.experiments import Metrics, RunFilter

router = APIRouter(prefix="/experiments")
_MAX_TRIALS = 200
_COMPARED_PARTS = ("params", "settings", "dataset", "code", "environment")


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
    """Show runs with parameters and metrics, newest first."""
    run_filter = RunFilter(name.strip(), dataset.strip(), version)
    current_page = load_page(
        lambda limit, offset: records.find(store, run_filter, limit=limit, offset=offset),
        number=number,
        size=settings.page,
    )
    table = records.run_table(current_page.items)
    if format == "csv":
        return _table_file("runs", table)
    return page(
        request,
        "experiments.html",
        title="Experiments",
        current_page=current_page,
        table=table,
        names=records.experiment_names(store),
        run_filter=run_filter,
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
    """Show the differences of two runs, and their metrics in common charts."""
    run_ids = list(dict.fromkeys(run or []))
    if len(run_ids) != 2:
        raise InvalidArgument(
            f"A comparison needs two runs, got {len(run_ids)}.", hint="/experiments?name=NAME"
        )
    first, second = records.get(store, run_ids[0]), records.get(store, run_ids[1])
    series = [(each.id, records.metrics(each)) for each in (first, second)]
    if format == "csv":
        return _series_file(f"{first.id}-{second.id}", series)
    return page(
        request,
        "run_compare.html",
        title=f"{first.id} and {second.id}",
        runs=[first, second],
        comparison=compare_runs(first, second),
        compared=_COMPARED_PARTS,
        pictures=_pictures(series),
    )


@router.get("/{run_id}")
def run_page(request: Request, store: Store, run_id: str, format: str = "html") -> Response:
    """Show parameters, metrics and files of a run."""
    run = records.get(store, run_id)
    series = [(run.id, records.metrics(run))]
    if format == "csv":
        return _series_file(run.id, series)
    trials = records.run_table(records.find(store, RunFilter(parent=run.id), limit=_MAX_TRIALS))
    return page(
        request,
        "run.html",
        title=run.id,
        run=run,
        record=run.record,
        pictures=_pictures(series),
        trials=trials,
        most=_MAX_TRIALS,
        models=records.models_from_run(store, run),
    )


def _pictures(series: list[tuple[str, Metrics]]) -> dict[str, object]:
    """Return a chart for each metric of the runs."""
    pictures: dict[str, object] = {}
    for name in dict.fromkeys(name for _, metrics in series for name in metrics):
        picture = curves(name, [(run, metrics.get(name, {})) for run, metrics in series])
        if picture:
            pictures[name] = picture
    return pictures


def _series_file(name: str, series: list[tuple[str, Metrics]]) -> Response:
    """Return a CSV file with a row for each reported value."""
    rows = [
        [run, metric, step, value]
        for run, metrics in series
        for metric, values in metrics.items()
        for step, value in values.items()
    ]
    return csv_file(f"{name}-metrics", ["run", "metric", "step", "value"], rows)
