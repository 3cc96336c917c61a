"""Experiment runs: records, REST routes (also for registered models) and pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated

from fastapi import Path, Query, Request
from fastapi.responses import Response

from featurestore.errors import InvalidArgument
from featurestore.experiments import catalog
from featurestore.experiments.run import Run, compare_runs
from featurestore.registry import experiments as index
from featurestore.registry.artifacts import models as model_index
from featurestore.server import models
from featurestore.server.charts import curves
from featurestore.server.guard import Settings, Store
from featurestore.server.rendering import PageNumber, csv_file, load_page, page
from featurestore.server.rest import (
    REFUSALS,
    Items,
    Limit,
    Name,
    Offset,
    Record,
    Version,
    items,
    record,
)
from featurestore.server.routes import Router
from featurestore.store import FeatureStore

Metrics = dict[str, dict[int, float]]
api = Router(tags=["experiments"], responses=REFUSALS)
RunId = Annotated[str, Path(pattern="^[a-z0-9][a-z0-9-]{3,63}$", description="Id of a run.")]
Text = Annotated[str, Query(max_length=63, pattern="^([a-z][a-z0-9_]*)?$")]
pages = Router(prefix="/experiments")
_MAX_TRIALS = 200
_COMPARED_PARTS = ("params", "settings", "dataset", "code", "environment")


@dataclass(frozen=True)
class RunFilter:
    """Filter for runs by experiment, training dataset or parent study."""

    name: str = ""
    dataset: str = ""
    version: int | None = None
    parent: str | None = None


@dataclass(frozen=True)
class RunTable:
    """Runs as a table with a column for each parameter and metric."""

    runs: list[Run]
    params: list[str]
    metrics: list[str]

    def rows(self) -> list[list[object]]:
        """Return one row per run, with None for missing parameters and metrics."""
        table_rows = []
        for run in self.runs:
            row = list(summarize(run).values())
            row += [run.params.get(name) for name in self.params]
            row += [run.metrics.get(name) for name in self.metrics]
            table_rows.append(row)
        return table_rows


def find(store: FeatureStore, run_filter: RunFilter, *, limit: int, offset: int = 0) -> list[Run]:
    """List runs, newest first; the trials of a study are ordered by number."""
    session = store.session
    dataset = (run_filter.dataset, run_filter.version) if run_filter.dataset else None
    run_records = catalog.find(
        session,
        name=run_filter.name or None,
        dataset=dataset,
        parent=run_filter.parent,
        limit=limit,
        offset=offset,
    )
    return [Run(session, record) for record in run_records]


def get(store: FeatureStore, run_id: str) -> Run:
    """Return a run; raise RunNotFound, with the newest runs, if it does not exist."""
    return Run(store.session, catalog.load(store.session, run_id))


def experiment_names(store: FeatureStore) -> list[str]:
    """Return the names of all experiments."""
    with store.session.registry.reading() as connection:
        return index.names(connection)


def run_table(runs: Sequence[Run]) -> RunTable:
    """Convert runs to a table."""
    return RunTable(
        list(runs),
        _column_names(runs, lambda run: run.params),
        _column_names(runs, lambda run: run.metrics),
    )


def _column_names(
    runs: Iterable[Run], values_of: Callable[[Run], Mapping[str, object]]
) -> list[str]:
    column_names: dict[str, None] = {}
    for run in runs:
        column_names.update(dict.fromkeys(values_of(run)))
    return list(column_names)


def summarize(run: Run) -> Record:
    """Return a summary of a run without parameters and metrics."""
    dataset = run.record.dataset
    return {
        "run": run.id,
        "experiment": run.name,
        "kind": run.kind,
        "state": run.state,
        "created": datetime.fromisoformat(run.record.created),
        "seconds": run.seconds,
        "dataset": None if dataset is None else dataset.name,
        "dataset_version": None if dataset is None else dataset.version,
    }


def load_metrics(run: Run) -> Metrics:
    """Return the values of each metric in a run by step."""
    values_by_metric: Metrics = {}
    for entry in catalog.read_metrics(run.path):
        values_by_metric.setdefault(entry.name, {})[entry.step] = entry.value
    return values_by_metric


def models_from_run(store: FeatureStore, run: Run) -> list[tuple[str, int]]:
    """Return name and version of the models registered from a run."""
    with store.session.registry.reading() as connection:
        return model_index.of_run(connection, run.id)


def models_trained_on(
    store: FeatureStore, name: str, version: int, *, limit: int
) -> list[tuple[str, int]]:
    """Return name and version of the first models trained on a dataset."""
    with store.session.registry.reading() as connection:
        return model_index.of_dataset(connection, name, version, limit=limit)


@api.get("/experiments")
def list_runs(
    store: Store, name: Text = "", dataset: Text = "", limit: Limit = 100, offset: Offset = 0
) -> Items:
    """List runs with parameters and metrics, newest first, without trials of studies."""
    run_filter = RunFilter(name, dataset)
    return items(
        partial(find, store, run_filter),
        lambda run: {**summarize(run), "params": run.params, "metrics": run.metrics},
        limit=limit,
        offset=offset,
    )


@api.get("/experiments/{run_id}")
def get_run(store: Store, run_id: RunId) -> Record:
    """Return the record of a run and its metrics by step."""
    run = get(store, run_id)
    return record({**run.to_json(), "reported": load_metrics(run)})


@api.get("/models")
def list_models(store: Store, limit: Limit = 100, offset: Offset = 0) -> Items:
    """List all versions of all models."""
    return items(partial(models.find, store), models.summarize, limit=limit, offset=offset)


@api.get("/models/{name}/{version}")
def get_model(store: Store, name: Name, version: Version) -> Record:
    """Return the training dataset, inputs and outputs of a model."""
    return record(models.get(store, name, version).to_json())


@pages.get("")
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
    """Display runs with parameters and metrics, newest first."""
    run_filter = RunFilter(name.strip(), dataset.strip(), version)
    current_page = load_page(partial(find, store, run_filter), number=number, size=settings.page)
    table = run_table(current_page.items)
    if format == "csv":
        return _table_file("runs", table)
    return page(
        request,
        "experiments.html",
        title="Experiments",
        current_page=current_page,
        table=table,
        names=experiment_names(store),
        run_filter=run_filter,
    )


def _table_file(name: str, table: RunTable) -> Response:
    columns = ["run", "experiment", "kind", "state", "created", "seconds"]
    columns += ["dataset", "dataset_version"]
    columns += [f"params.{param}" for param in table.params]
    columns += [f"metrics.{metric}" for metric in table.metrics]
    return csv_file(name, columns, table.rows())


@pages.get("/compare")
def compare_page(
    request: Request,
    store: Store,
    run: Annotated[list[str] | None, Query()] = None,
    format: str = "html",
) -> Response:
    """Display the differences between two runs, and their metrics in common charts."""
    run_ids = list(dict.fromkeys(run or []))
    if len(run_ids) != 2:
        raise InvalidArgument(
            f"A comparison needs two runs, got {len(run_ids)}.", hint="/experiments?name=NAME"
        )
    first, second = get(store, run_ids[0]), get(store, run_ids[1])
    series = [(run.id, load_metrics(run)) for run in (first, second)]
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


@pages.get("/{run_id}")
def run_page(request: Request, store: Store, run_id: str, format: str = "html") -> Response:
    """Display the parameters, metrics and files of a run."""
    run = get(store, run_id)
    series = [(run.id, load_metrics(run))]
    if format == "csv":
        return _series_file(run.id, series)
    trials = run_table(find(store, RunFilter(parent=run.id), limit=_MAX_TRIALS))
    return page(
        request,
        "run.html",
        title=run.id,
        run=run,
        record=run.record,
        pictures=_pictures(series),
        trials=trials,
        most=_MAX_TRIALS,
        models=models_from_run(store, run),
    )


def _pictures(series: list[tuple[str, Metrics]]) -> dict[str, object]:
    """Draw one chart per metric for the runs."""
    pictures: dict[str, object] = {}
    for name in dict.fromkeys(name for _, metrics in series for name in metrics):
        picture = curves(name, [(run, metrics.get(name, {})) for run, metrics in series])
        if picture:
            pictures[name] = picture
    return pictures


def _series_file(name: str, series: list[tuple[str, Metrics]]) -> Response:
    """Return a CSV file with one row per reported value."""
    rows = [
        [run, metric, step, value]
        for run, metrics in series
        for metric, values in metrics.items()
        for step, value in values.items()
    ]
    return csv_file(f"{name}-metrics", ["run", "metric", "step", "value"], rows)
