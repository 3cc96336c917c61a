"""Runs of experiments: what each was given and reported, and two of them beside each other."""

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
    """Which runs a list has: of an experiment, of a dataset, or trials of a study."""

    name: str = ""
    dataset: str = ""
    version: int | None = None
    parent: str | None = None


@dataclass(frozen=True)
class RunTable:
    """Runs with the parameters and metrics that at least one of them has."""

    runs: list[Run]
    params: list[str]
    metrics: list[str]

    def rows(self) -> list[list[object]]:
        """Return a row for each run, without text for what it lacks."""
        found = []
        for run in self.runs:
            row = list(told(run).values())
            for names, values in ((self.params, run.params), (self.metrics, run.metrics)):
                row += [values.get(name) for name in names]
            found.append(row)
        return found


def find(store: FeatureStore, wanted: RunFilter, *, limit: int, offset: int = 0) -> list[Run]:
    """Return runs, the newest first; the trials of a study by their number."""
    session = store.session
    dataset = (wanted.dataset, wanted.version) if wanted.dataset else None
    found = catalog.find(
        session,
        name=wanted.name or None,
        dataset=dataset,
        parent=wanted.parent,
        limit=limit,
        offset=offset,
    )
    return [Run(session, record) for record in found]


def get(store: FeatureStore, run_id: str) -> Run:
    """Return a run; RunNotFound lists the newest."""
    return Run(store.session, catalog.load(store.session, run_id))


def names(store: FeatureStore) -> list[str]:
    """Return the names of experiments."""
    with store.session.registry.reading() as connection:
        return index.names(connection)


def table(runs: Sequence[Run]) -> RunTable:
    """Return runs as a table."""
    return RunTable(
        list(runs),
        _names(runs, lambda run: run.params),
        _names(runs, lambda run: run.metrics),
    )


def _names(runs: Iterable[Run], of: Callable[[Run], Mapping[str, object]]) -> list[str]:
    found: dict[str, None] = {}
    for run in runs:
        found.update(dict.fromkeys(of(run)))
    return list(found)


def told(run: Run) -> dict[str, Any]:
    """Return what a list says of a run, without its parameters and metrics."""
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
    """Return each metric that a run reported, by step."""
    found: Metrics = {}
    for each in catalog.read_metrics(run.path):
        found.setdefault(each.name, {})[each.step] = each.value
    return found


def models_of(store: FeatureStore, run: Run) -> list[tuple[str, int]]:
    """Return name and version of the models that were made of a run."""
    with store.session.registry.reading() as connection:
        return models.of_run(connection, run.id)


def used(store: FeatureStore, name: str, version: int) -> list[tuple[str, int]]:
    """Return name and version of the models that were trained on a dataset."""
    with store.session.registry.reading() as connection:
        return models.of_dataset(connection, name, version)
