"""TensorFlow models under the launchers: fit, kill and bit-identical resume."""

from __future__ import annotations

import os
import signal
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from featurestore import experiments
from featurestore.errors import ReaderConfigError, RunFailed
from featurestore.storage.files import sha256
from featurestore.training import TrainingDataset

if find_spec("tensorflow") is None:  # this process does not import it
    pytest.skip("TensorFlow is not installed", allow_module_level=True)
pytestmark = [pytest.mark.services, pytest.mark.tensorflow, pytest.mark.slow]

ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_USE_LEGACY_KERAS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


BATCH = 96  # the last of 17 steps has padding


def fitted(die: bool, context: Any) -> dict[str, float]:
    """Fit a small tf_keras network; die after a checkpoint in the first attempt."""
    strategy = context.strategy
    import tf_keras

    reader = context.reader("train", global_batch_size=BATCH, remainder="pad")

    class Death(tf_keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if die and context.attempt == 1 and context.worker == 1 and batch == 13:
                os.kill(os.getpid(), signal.SIGKILL)

    with strategy.scope():
        inputs = [tf_keras.Input((1,), name=name) for name in reader.inputs]
        hidden = tf_keras.layers.Dense(8, activation="relu")(tf_keras.layers.Concatenate()(inputs))
        model = tf_keras.Model(inputs, tf_keras.layers.Dense(1)(hidden))
        model.compile(optimizer=tf_keras.optimizers.Adam(0.01), loss="mse")
    history = context.fit(model, epochs=3, save_every=6, callbacks=[Death()], verbose=0)
    with pytest.raises(ReaderConfigError, match=r"context\.fit\(model, epochs=2"):
        reader.tf_dataset()
    arrays = model.get_weights()
    if context.worker == 0:
        np.savez(os.path.join(context.artifact_dir, "weights.npz"), *arrays)
    weights = float(sum(abs(array).sum() for array in arrays))
    checks = context.reader("test", global_batch_size=BATCH)
    figures = {f"test_{name}": value for name, value in checks.evaluate(model).items()}
    return {"weights": weights, "told": history.history["loss"][-1], **figures}


@pytest.mark.usefixtures("forked_workers")
def test_killed_all_reduce_equals_uninterrupted_run(
    sums: TrainingDataset,
) -> None:
    runs = []
    for die in (False, True):
        runs.append(
            experiments.collective_all_reduce(
                fitted,
                workers=2,
                dataset=sums,
                params={"die": die},
                retries=1,
                environment=ENVIRONMENT,
                progress=False,
            )
        )
    reference, killed = runs
    assert len(killed.record.attempts) == 2
    assert killed.record.attempts[0]["reason"] == "worker 1 was lost: killed by SIGKILL"
    steps = [6, 12, 17, 18, 24, 30, 34, 36, 42, 48, 51]
    assert list(reference.history("loss")) == steps
    assert killed.history("loss") == reference.history("loss")
    assert killed.metrics == reference.metrics
    # The loss of the last epoch is over all its rows, the reports over parts of them.
    losses = list(reference.history("loss").values())
    total = sums.num_rows("train")
    counts = [2 * BATCH, 6 * BATCH, 6 * BATCH, total - 14 * BATCH]
    mean = sum(loss * count for loss, count in zip(losses[-4:], counts, strict=True)) / total
    assert reference.metrics["told"] == pytest.approx(mean, rel=1e-6)
    assert losses[-1] < losses[0]
    rows = sums.read("test").to_pandas()
    with np.load(os.path.join(killed.path, "artifacts", "weights.npz")) as saved:
        kernel, bias, top, top_bias = [saved[name].astype(np.float64) for name in saved.files]
    inputs = rows[["x0", "x1", "x2", "x3"]].to_numpy(np.float64)
    predictions = (np.maximum(inputs @ kernel + bias, 0) @ top + top_bias)[:, 0]
    error = float(((predictions - rows["y"]) ** 2).mean())
    assert killed.metrics["test_loss"] == pytest.approx(error, rel=1e-5)
    assert [state["epoch"] for state in killed.record.readers] == [3, 0]


def saved(habit: str, context: Any) -> dict[str, float]:
    """Fit a network with batch normalization on several workers and save it."""
    strategy = context.strategy
    import tf_keras

    reader = context.reader("train", global_batch_size=100)
    with strategy.scope():
        inputs = [tf_keras.Input((1,), name=name) for name in reader.inputs]
        joined = tf_keras.layers.BatchNormalization()(tf_keras.layers.Concatenate()(inputs))
        model = tf_keras.Model(inputs, tf_keras.layers.Dense(1)(joined))
        model.compile(optimizer=tf_keras.optimizers.Adam(0.01), loss="mse")
    context.fit(model, epochs=1, verbose=0)
    if habit == "all":
        context.save(model)
    elif context.worker == 0:
        model.save(os.path.join(context.artifact_dir, "model.keras"))
    if habit == "first":
        return {}
    return {"weights": float(sum(abs(array).sum() for array in model.get_weights()))}


@pytest.mark.usefixtures("forked_workers")
def test_model_of_two_workers_is_saved_once(sums: TrainingDataset) -> None:
    run = experiments.collective_all_reduce(
        saved,
        workers=2,
        dataset=sums,
        params={"habit": "all"},
        environment=ENVIRONMENT,
        progress=False,
    )
    assert [name for name in run.artifacts if name.startswith("artifacts")] == [
        "artifacts/model.keras"
    ]
    path = os.path.join(run.path, "artifacts", "model.keras")
    assert run.record.files["artifacts/model.keras"] == sha256(path)
    registered = experiments.register_model(run, "sums")
    assert [field.name for field in registered.spec.inputs] == ["x0", "x1", "x2", "x3"]


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize(
    "habit", [pytest.param("first", marks=pytest.mark.soak), "first before weights"]
)
def test_save_by_one_worker_hints_context_save(sums: TrainingDataset, habit: str) -> None:
    options: dict[str, Any] = {"workers": 2, "dataset": sums, "environment": ENVIRONMENT}
    with pytest.raises(RunFailed, match=r"context\.save\(model\) instead of"):
        experiments.collective_all_reduce(
            saved, params={"habit": habit}, retries=3, progress=False, **options
        )
    (run,) = experiments.get_runs("saved")
    assert len(run.record.attempts) == 1
