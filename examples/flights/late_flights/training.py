"""Training under MultiWorkerMirroredStrategy.

One process a worker, each started with its own TF_CONFIG.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

BATCH = 1024
QUIET = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}


def start_workers(
    dataset: str, *, out: str, epochs: int, workers: int = 2
) -> list[subprocess.Popen[str]]:
    """Start the worker processes; TF_CONFIG has the addresses of all, as on a cluster."""
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(workers)]
    processes = []
    for index in range(workers):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        environment = os.environ | QUIET | {"TF_CONFIG": json.dumps(config)}
        command = [
            sys.executable,
            "-m",
            "late_flights.training",
            dataset,
            out,
            str(epochs),
        ]
        with (Path(out) / f"worker-{index}.log").open("w") as log:
            worker = subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT, text=True,
                cwd=Path(__file__).parent.parent,
            )  # fmt: skip
        processes.append(worker)
    return processes


def work(dataset: str, out: str, epochs: int) -> None:
    """Train as one of the workers; the first one saves weights and history."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before any other use of TensorFlow
    from featurestore.training.dataset import TrainingDataset
    from late_flights import network

    training = TrainingDataset.open(dataset)
    options = {"global_batch_size": BATCH, "columns": network.COLUMNS, "nulls": "mask"}
    reader = training.reader("train", seed=7, **options)
    check = training.reader("validation", shuffle=False, remainder="drop", **options)
    with strategy.scope():
        tf.keras.utils.set_random_seed(7)
        model = network.build(training)
    history = model.fit(
        reader.distribute(strategy, epochs=epochs),
        epochs=epochs,
        steps_per_epoch=reader.steps_per_epoch,
        validation_data=check.distribute(strategy, epochs=epochs),
        validation_steps=check.steps_per_epoch,
        verbose=2,
    )
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    if index == 0:
        model.save_weights(f"{out}/weights.h5")
        Path(out, "history.json").write_text(
            json.dumps({k: list(map(float, v)) for k, v in history.history.items()})
        )


def evaluate(dataset: str, *, out: str) -> dict[str, float]:
    """Return AUC, base rate and rows of the test split; TensorFlow stays out of this process."""
    command = [sys.executable, "-m", "late_flights.training", dataset, out, "0"]
    with (Path(out) / "evaluation.log").open("w") as log:
        subprocess.run(
            command,
            env=os.environ | QUIET,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=Path(__file__).parent.parent,
            check=True,
        )
    found: dict[str, float] = json.loads((Path(out) / "evaluation.json").read_text())
    return found


def score(dataset: str, out: str) -> None:
    """Score every row of the test split exactly once, and save AUC, base rate and rows."""
    import numpy as np

    from featurestore.training.dataset import TrainingDataset
    from late_flights import network

    scored = TrainingDataset.open(dataset)
    reader = scored.reader(
        "test",
        global_batch_size=4096,
        shuffle=False,
        remainder="pad",
        columns=network.COLUMNS,
        nulls="mask",
    )
    model = network.build(scored)
    model.load_weights(f"{out}/weights.h5")
    labels, scores = [], []
    for features, label, weight in reader.tf_dataset():
        counted = weight.numpy() > 0  # padding rows weigh nothing
        labels.append(label.numpy()[counted])
        scores.append(model(features, training=False).numpy().reshape(-1)[counted])
    truth, predicted = np.concatenate(labels), np.concatenate(scores)
    found = {
        "auc": network.auc(truth, predicted),
        "base_rate": float(truth.mean()),
        "rows": len(truth),
    }
    Path(out, "evaluation.json").write_text(json.dumps(found))


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("dataset", "out"):
        parser.add_argument(name)
    parser.add_argument("epochs", type=int, help="0 scores the test split instead of training")
    arguments = parser.parse_args()
    if arguments.epochs:
        work(arguments.dataset, arguments.out, arguments.epochs)
    else:
        score(arguments.dataset, arguments.out)
