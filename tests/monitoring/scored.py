"""A registered model, the predictions that ``score`` wrote, and the labels that came true."""

from __future__ import annotations

import os
import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featurestore import experiments
from featurestore.experiments import catalog
from featurestore.experiments.run import Run
from featurestore.model.run_record import RunDataset, RunRecord
from featurestore.store import FeatureStore
from tests.monitoring.conftest import A_DAY, DAY, START

TIME = pa.timestamp("us", tz="UTC")


class Sigmoid:
    """A model of one input whose file is code."""

    def predict(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return 1 / (1 + np.exp(-x[:, 0].astype(np.float64)))


def trips(first: int, days: int) -> pa.Table:
    """Return what a model sees of each trip: a number."""
    parts = []
    for day in range(first, first + days):
        at = [START + day * DAY + number * timedelta(minutes=10) for number in range(A_DAY)]
        speed = np.random.default_rng([day, 1]).normal(0.0, 1.5, A_DAY)
        ids = range(day * A_DAY, (day + 1) * A_DAY)
        columns = {"id": pa.array(ids, pa.int64()), "at": pa.array(at, TIME), "speed": speed}
        parts.append(pa.table(columns))
    return pa.concat_tables(parts)


def outcomes(of: pa.Table, *, decayed: bool = False, after: timedelta = timedelta(0)) -> pa.Table:
    """Return whether each trip was late, as its speed says, or at random; known ``after`` it."""
    rng = np.random.default_rng(of.num_rows)
    chance = Sigmoid().predict(of["speed"].to_numpy()[:, np.newaxis])
    if decayed:
        chance = rng.permutation(chance)
    late = (rng.random(of.num_rows) < chance).astype(float)
    known = [time + after for time in of["at"].to_pylist()]
    return pa.table(
        {"id": of["id"], "at": of["at"], "known": pa.array(known, TIME), "late": pa.array(late)}
    )


def registered(store: FeatureStore, name: str = "late") -> Any:
    """Return a model that was registered from a run on a dataset of the store's trips."""
    frame = store.get_features(["trips.speed"], labels=asked(store, "outcomes", 0, 2))
    dataset = store.create_training_dataset(
        frame, "late_trips", label="late", shards=1, progress=False
    )
    record = RunRecord(
        id="20130101-000000-000001",
        name="late",
        kind="launch",
        state="finished",
        created=START.isoformat(),
        dataset=RunDataset(
            dataset.name, dataset.version, dataset.manifest.content_hash, dataset.path
        ),
    )
    catalog.save(store.session, record)
    run = Run(store.session, record)
    os.makedirs(os.path.join(run.path, "artifacts"))
    Path(run.path, "artifacts", "model.pkl").write_bytes(pickle.dumps(Sigmoid()))
    return experiments.register_model(run, name, trust=True)


def asked(store: FeatureStore, group: str, first: int, days: int) -> pa.Table:
    """Return the rows of some days of a group of labels, without when they were known."""
    found = store.get_featuregroup(group, dataframe_type="arrow").drop_columns(["known"])
    start, end = START + first * DAY, START + (first + days) * DAY
    times = np.array([time.timestamp() for time in found["at"].to_pylist()])
    inside = (times >= start.timestamp()) & (times < end.timestamp())
    return found.filter(pa.array(inside))
