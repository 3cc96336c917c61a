"""Scoring: rows per second of store.score compared with model.predict on arrays that are ready.

python benchmarks/scoring.py [--quick]

A Keras network of 10 inputs with 64 and 32 units scores labels in memory; their features lie in a
feature group with event times. Both are timed three times in turn, and the best of each counts.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from report import Report

import featurestore
from featurestore import experiments

HOUR = 3_600_000_000
NAMES = [f"x{index}" for index in range(10)]
REPORT = Report(
    "scoring",
    "A Keras network of 10 inputs; `model.predict` has arrays in memory.",
)


def save_model(context: Any) -> None:
    """Train nothing, and keep a network."""
    import keras

    inputs = {name: keras.Input((1,), name=name) for name in NAMES}
    hidden = keras.layers.Concatenate()(list(inputs.values()))
    for units in (64, 32):
        hidden = keras.layers.Dense(units, activation="relu")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.save(os.path.join(context.artifact_dir, "model.keras"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rows")
    quick = parser.parse_args().quick
    rows = 50_000 if quick else 500_000
    with tempfile.TemporaryDirectory() as folder:
        store = featurestore.connect(Path(folder) / "store")
        is_fast_enough = compare(store, rows)
    REPORT.save(quick=quick)
    return 0 if is_fast_enough else 1


def compare(store: featurestore.FeatureStore, rows: int) -> bool:
    """Print both rates and their ratio; return True if the ratio is at least a half."""
    random = np.random.default_rng(0)
    keys = np.arange(10_000)
    times = pa.array(np.zeros(10_000, dtype=np.int64)).cast(pa.timestamp("us", "UTC"))
    table = {name: random.random(10_000).astype(np.float32) for name in NAMES}
    store.create_featuregroup(
        pa.table({"id": keys, "at": times, **table}), "x", primary_key="id", event_time="at"
    )
    label_times = pa.array(random.integers(400_000, 401_000, rows) * HOUR).cast(
        pa.timestamp("us", "UTC")
    )
    label_ids = random.integers(0, 10_000, rows)
    labels = pa.table(
        {"id": label_ids, "t": label_times, "y": random.random(rows), "row": np.arange(rows)}
    )
    frame = store.get_features([f"x.{name}" for name in NAMES], labels=labels, label_time="t")
    dataset = store.create_training_dataset(frame.filter("id < 100"), "few", label="y")
    run = experiments.launch(save_model, dataset=dataset, name="network")
    model = experiments.register_model(run, "network")
    ready = {name: values[label_ids] for name, values in table.items()}
    network = model.load()
    batch = {name: values[:8192] for name, values in ready.items()}
    network.predict(batch, batch_size=8192, verbose=0)
    scores: dict[str, Any] = {}
    took: dict[str, float] = {}

    def timed(name: str, call: Callable[[], Any]) -> None:
        start = time.perf_counter()
        scores[name] = call()
        took[name] = min(took.get(name, np.inf), time.perf_counter() - start)

    for _ in range(3):
        timed("predict", lambda: network.predict(ready, batch_size=8192, verbose=0)[:, 0])
        timed("score", lambda: store.score(model, labels=labels).to_arrow()["prediction"])
    start = time.perf_counter()
    store.score(model, labels=labels, featuregroup="predictions", key="row")
    write_seconds = time.perf_counter() - start
    if not np.allclose(scores["score"].to_numpy(), scores["predict"], rtol=1e-5, atol=1e-6):
        raise SystemExit("scores differ from what predict says")
    for name, seconds in took.items():
        print(f"{name}: {rows / seconds:,.0f} rows/s")
    print(f"score and write: {rows / write_seconds:,.0f} rows/s")
    ratio = took["predict"] / took["score"]
    print(f"score has {ratio:.2f} of the rows/s of predict on ready arrays (at least 0.5)")
    predict_rate = rows / took["predict"]
    row = f"`store.score` of {rows:,} labels, vs `model.predict`"
    REPORT.compare(row, rows / took["score"], predict_rate, "rows/s", at_least=0.5)
    row = f"`store.score` of {rows:,} labels into a group, vs `model.predict`"
    REPORT.compare(row, rows / write_seconds, predict_rate, "rows/s")
    return ratio >= 0.5


if __name__ == "__main__":
    sys.exit(main())
