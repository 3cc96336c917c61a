"""Training functions that run in the process of the test, with the record of a launched run."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from featurestore.experiments import catalog
from featurestore.experiments.context import Context
from featurestore.experiments.run import Run
from featurestore.experiments.tasks import Task
from featurestore.model.run_record import RunDataset, RunRecord
from featurestore.store import FeatureStore
from featurestore.training import TrainingDataset

_run_numbers = itertools.count()


def run_here(
    store: FeatureStore, dataset: TrainingDataset, function: Callable[[Context], Any]
) -> Run:
    """Call a training function, and return its finished run."""
    manifest_hash = dataset.manifest.content_hash
    record = RunRecord(
        id=f"20240102-000000-{next(_run_numbers):06x}",
        name="in_process",
        kind="launch",
        state="finished",
        created="2024-01-02T00:00:00+00:00",
        dataset=RunDataset(dataset.name, dataset.version, manifest_hash, dataset.path),
    )
    catalog.save(store.session, record)
    directory = Run(store.session, record).path
    context = Context(Task(directory, dataset={"path": dataset.path, "manifest": manifest_hash}))
    function(context)
    context.close()
    states = (*(reader.state() for reader in context.readers), *context.matrices)
    record = RunRecord.from_bytes(replace(record, readers=states).to_bytes())
    catalog.save(store.session, record)
    return Run(store.session, record)
