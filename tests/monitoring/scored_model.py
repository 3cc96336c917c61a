"""A registered model, its stored predictions, and the labels that arrived later."""

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
from featurestore.model.times import Window
from featurestore.monitoring.metrics import Metrics, area_under_curve
from featurestore.monitoring.profile import Estimate, Profile
from featurestore.store import FeatureStore
from tests.monitoring.conftest import A_DAY, DAY, START

TIME = pa.timestamp("us", tz="UTC")


class Sigmoid:
    """A model with one input whose file is code."""

    def predict(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return 1 / (1 + np.exp(-x[:, 0].astype(np.float64)))


def trips(first: int, days: int) -> pa.Table:
    """Return the model input of each trip: a number."""
    tables = []
    for day in range(first, first + days):
        times = [START + day * DAY + number * timedelta(minutes=10) for number in range(A_DAY)]
        speed = np.random.default_rng([day, 1]).normal(0.0, 1.5, A_DAY)
        ids = range(day * A_DAY, (day + 1) * A_DAY)
        columns = {"id": pa.array(ids, pa.int64()), "at": pa.array(times, TIME), "speed": speed}
        tables.append(pa.table(columns))
    return pa.concat_tables(tables)


def outcomes(
    table: pa.Table, *, decayed: bool = False, after: timedelta = timedelta(0)
) -> pa.Table:
    """Return whether each trip was late, by its speed or at random; known ``after`` the trip."""
    rng = np.random.default_rng(table.num_rows)
    chance = Sigmoid().predict(table["speed"].to_numpy()[:, np.newaxis])
    if decayed:
        chance = rng.permutation(chance)
    late = (rng.random(table.num_rows) < chance).astype(float)
    known_times = [time + after for time in table["at"].to_pylist()]
    return pa.table(
        {
            "id": table["id"],
            "at": table["at"],
            "known": pa.array(known_times, TIME),
            "late": pa.array(late),
        }
    )


def registered(store: FeatureStore, name: str = "late") -> Any:
    """Return a model that was registered from a run on a dataset of the store's trips."""
    frame = store.get_features(["trips.speed"], labels=rows_of_days(store, "outcomes", 0, 2))
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


def rows_of_days(store: FeatureStore, group: str, first: int, days: int) -> pa.Table:
    """Return some days of rows of a label group, without their created times."""
    result = store.get_featuregroup(group, dataframe_type="arrow").drop_columns(["known"])
    start, end = START + first * DAY, START + (first + days) * DAY
    times = np.array([time.timestamp() for time in result["at"].to_pylist()])
    inside = (times >= start.timestamp()) & (times < end.timestamp())
    return result.filter(pa.array(inside))


def count_pairs(prediction: np.ndarray, label: np.ndarray) -> dict[str, float]:
    """Return the result of the query on predictions as pairs."""
    above = prediction[label == 1][:, None] - prediction[label == 0][None, :]
    won = (above > 0) + (above == 0) / 2
    return {
        "yes": float((label == 1).sum()),
        "no": float((label == 0).sum()),
        "won": float(won.sum()),
        "won_squares": float((won.sum(axis=1) ** 2).sum()),
        "lost_squares": float((won.sum(axis=0) ** 2).sum()),
    }


def drawn(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return predictions and labels with an AUC of about 0.76."""
    label = (rng.random(rows) < 0.3).astype(float)
    return np.round(rng.normal(label, 1.0), 1), label


def profile(number: int, metrics: Metrics) -> Profile:
    """Return a daily profile with metrics only."""
    window = Window(START + number * DAY, START + (number + 1) * DAY)
    return Profile(window, 1, 1, 1, {}, {}, metrics=metrics.values, estimates=metrics.estimates)


def measured(rng: np.random.Generator, name: str, rows: int, *, worse: bool = False) -> Metrics:
    """Return the AUC, a share or a mean over a number of rows."""
    if name == "auc":
        prediction, label = drawn(rng, rows)
        if worse:
            prediction = rng.permutation(prediction)
        row = count_pairs(prediction, label)
        if not row["yes"] or not row["no"]:
            return Metrics({name: None})
        estimate = area_under_curve(row)
    else:
        values = (rng.random(rows) < (0.7 if worse else 0.9)).astype(float)
        if name == "mae":
            values = rng.exponential(1.5 if worse else 1.0, rows)
        estimate = Estimate("mean", rows, values.sum(), (values**2).sum())
    return Metrics({name: estimate.value}, {name: estimate})
