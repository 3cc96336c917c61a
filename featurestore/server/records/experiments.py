"""Records of experiment runs: parameters, metrics and models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from featurestore.experiments import catalog
from featurestore.experiments.run import Run
from featurestore.registry import experiments as index
from featurestore.registry import models
from featurestore.store import FeatureStore

Metrics = dict[str, dict[int, float]]


@dataclass(frozen=True)
class RunFilter:
    """Filter of runs by experiment, training dataset or parent study."""

    name: str = ""
    dataset: str = ""
    version: int | None = None
    parent: str | None = None


@dataclass(frozen=True)
class RunTable:
    """Runs with the names of all their parameters and metrics as columns."""

    runs: list[Run]
    params: list[str]
    metrics: list[str]

    def rows(self) -> list[list[object]]:
        """Return a row for each run, with None for missing parameters and metrics."""
        table_rows = []
        for run in self.runs:
            row = list(summarize(run).values())
            row += [run.params.get(name) for name in self.params]
            row += [run.metrics.get(name) for name in self.metrics]
            table_rows.append(row)
        return table_rows


def find(store: FeatureStore, run_filter: RunFilter, *, limit: int, offset: int = 0) -> list[Run]:
    """Return runs, newest first; trials of a study by number."""
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
    """Return a run; RunNotFound lists the newest runs."""
    return Run(store.session, catalog.load(store.session, run_id))


def experiment_names(store: FeatureStore) -> list[str]:
    """Return the names of experiments."""
    with store.session.registry.reading() as connection:
        return index.names(connection)


def run_table(runs: Sequence[Run]) -> RunTable:
    """Return runs as a table."""
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


def summarize(run: Run) -> dict[str, Any]:
    """Return the summary of a run without parameters and metrics."""
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


def metrics(run: Run) -> Metrics:
    """Return the values of each metric of a run by step."""
    values_by_metric: Metrics = {}
    for entry in catalog.read_metrics(run.path):
        values_by_metric.setdefault(entry.name, {})[entry.step] = entry.value
    return values_by_metric


def models_from_run(store: FeatureStore, run: Run) -> list[tuple[str, int]]:
    """Return name and version of the models registered from a run."""
    with store.session.registry.reading() as connection:
        return models.of_run(connection, run.id)


def models_trained_on(store: FeatureStore, name: str, version: int) -> list[tuple[str, int]]:
    """Return name and version of the models trained on a dataset."""
    with store.session.registry.reading() as connection:
        return models.of_dataset(connection, name, version)
