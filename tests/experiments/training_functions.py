"""Training functions for tests: linear regression in numpy, and misbehaving processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from featurestore.store import FeatureStore
    from featurestore.training import TrainingDataset


def sums_of(store: FeatureStore) -> TrainingDataset:
    """Create a dataset of 2,000 rows with label 1 x0 + 2 x1 + 3 x2 and little of x3."""
    numbers = np.random.default_rng(10).random((2000, 4)).astype(np.float32)
    columns = {f"x{index}": numbers[:, index] for index in range(4)}
    # Summed in a fixed order, since the bits of a matrix product depend on the processor.
    weights = np.array([1, 2, 3, 0.01], dtype=np.float32)
    label = sum(weights[index] * numbers[:, index] for index in range(4))
    return store.create_training_dataset(
        pa.table({**columns, "y": label}), "sums", label="y", splits={"train": 0.8, "test": 0.2}
    )


def regression(params: dict[str, Any], context: Any) -> dict[str, float]:
    """Fit a line by gradient descent; die at the configured steps of first attempts."""
    reader = context.reader("train", global_batch_size=40)
    weights = np.zeros(len(reader.inputs))
    last = np.zeros(1)
    checkpoint = context.checkpoint({"weights": weights, "last": last})
    print(f"attempt {context.attempt} begins at", reader.epoch, reader.step, flush=True)
    for step, batch in reader.steps(epochs=params.get("epochs", 2)):
        inputs = np.stack([batch[name] for name in reader.inputs], axis=1).astype(np.float64)
        error = inputs @ weights - batch["y"]
        weights -= params.get("lr", 0.1) * (inputs.T @ error) / len(error)
        last[0] = (error**2).mean()
        context.report(step, loss=last[0])
        if step % 10 == 9:
            checkpoint.save()
        deaths = params.get("deaths", {}).get(str(context.worker), [])
        if context.attempt <= len(deaths) and deaths[context.attempt - 1] == step:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(params.get("pause", 0))
    return {"final": last[0]}


def one_worker_begins_late(context: Any) -> None:
    """Delay the last worker of the second attempt until the first worker has finished."""
    reader = context.reader("train", global_batch_size=40)
    ended = os.path.join(context.directory, "ended")
    while (context.attempt, context.worker) == (2, 1) and not os.path.exists(ended):
        time.sleep(0.02)
    checkpoint = context.checkpoint()
    print(f"attempt {context.attempt} begins at", reader.epoch, reader.step, flush=True)
    for step, _ in reader.steps(epochs=1):
        if step % 5 == 4:
            checkpoint.save()
        if (context.attempt, context.worker, step) == (1, 0, 12):
            os.kill(os.getpid(), signal.SIGKILL)
    if context.worker == 0:
        open(ended, "w").close()


def with_grandchildren(context: Any) -> None:
    """Start long-running child processes, write their ids, and wait."""
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    child = subprocess.Popen(sleeper)
    lost = subprocess.Popen(sleeper, start_new_session=True)
    with open(os.path.join(context.directory, f"pids-{context.worker}"), "w") as file:
        file.write(f"{os.getpid()} {child.pid} {lost.pid}\n")
    time.sleep(600)
