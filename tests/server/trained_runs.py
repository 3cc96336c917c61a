"""Two runs of an experiment that read a training dataset, a study, and a model of the first run."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from featurestore import experiments
from featurestore.experiments import catalog
from featurestore.experiments.run import Run
from featurestore.model.run_record import RunDataset, RunRecord, format_metrics_line
from featurestore.store import FeatureStore


class Steady:
    """A model that predicts the same value for every row."""

    def predict(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.full(len(x), 0.5)


def train(store: FeatureStore, dataset: str, name: str, *, text: str = "sgd") -> list[str]:
    """Return the ids of two runs over version 1 of a dataset; both report a loss per step."""
    read = store.get_training_dataset(dataset, version=1)
    noted = RunDataset(read.name, read.version, read.manifest.content_hash, read.path)
    run_ids = []
    for number, rate in enumerate((0.1, 0.01), 1):
        record = RunRecord(
            id=f"2024030{number}-120000-{name.replace('_', '-')}",
            name=name,
            kind="launch",
            state="finished",
            created=f"2024-03-0{number}T12:00:00+00:00",
            started=f"2024-03-0{number}T12:00:01+00:00",
            ended=f"2024-03-0{number}T12:00:31+00:00",
            params={"rate": rate, "optimizer": text},
            metrics={"loss": rate / 3},
            dataset=noted,
        )
        run = _save(store, record)
        for step in range(1, 4):
            _report(run, step, {"loss": rate / step, text[:20]: float("nan")})
        run_ids.append(run.id)
    study = RunRecord(
        id=f"20240303-120000-{name.replace('_', '-')}",
        name=name,
        kind="search",
        state="finished",
        created="2024-03-03T12:00:00+00:00",
        dataset=noted,
    )
    _save(store, study)
    trial = {"kind": "trial", "created": "2024-03-03T12:00:01+00:00", "params": {"rate": 0.5}}
    arguments = {**vars(study), **trial, "id": f"{study.id}-0", "parent": study.id, "number": 0}
    _save(store, RunRecord(**arguments))
    artifacts = Path(catalog.run_directory(store.session, catalog.load(store.session, run_ids[0])))
    os.makedirs(artifacts / "artifacts")
    (artifacts / "artifacts" / "model.pkl").write_bytes(pickle.dumps(Steady()))
    for _ in range(2):
        experiments.register_model(
            run_ids[0], name, trust=True, description=text, tags={"use": text}, store=store
        )
    return run_ids


def _save(store: FeatureStore, record: RunRecord) -> Run:
    catalog.save(store.session, record)
    return Run(store.session, record)


def _report(run: Run, step: int, metrics: dict[str, float]) -> None:
    with open(os.path.join(run.path, "metrics.jsonl"), "a") as file:
        file.write(format_metrics_line(step, metrics, time=1.7e9 + step, begins=False))
