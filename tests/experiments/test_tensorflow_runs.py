"""TensorFlow models under the launchers: fitted, killed, gone on with bit for bit."""

from __future__ import annotations

import os
import signal
from importlib.util import find_spec
from typing import Any

import pytest

from featurestore import experiments
from featurestore.training import TrainingDataset

if find_spec("tensorflow") is None:  # this process does without it
    pytest.skip("TensorFlow is not installed", allow_module_level=True)
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_USE_LEGACY_KERAS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


def fitted(die: bool, context: Any) -> dict[str, float]:
    """Fit a small network with tf_keras; die in the first attempt behind a checkpoint."""
    strategy = context.strategy
    import tf_keras

    reader = context.reader("train", global_batch_size=100)

    class Death(tf_keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if die and context.attempt == 1 and context.worker == 1 and batch == 13:
                os.kill(os.getpid(), signal.SIGKILL)

    with strategy.scope():
        inputs = [tf_keras.Input((1,), name=name) for name in reader.inputs]
        hidden = tf_keras.layers.Dense(8, activation="relu")(tf_keras.layers.Concatenate()(inputs))
        model = tf_keras.Model(inputs, tf_keras.layers.Dense(1)(hidden))
        model.compile(optimizer=tf_keras.optimizers.Adam(0.01), loss="mse")
    histories = context.fit(model, epochs=3, save_every=6, callbacks=[Death()], verbose=0)
    weights = float(sum(abs(array).sum() for array in model.get_weights()))
    return {"weights": weights, "told": histories[-1].history["loss"][-1]}


@pytest.mark.usefixtures("forked_workers")
def test_a_killed_all_reduce_ends_with_the_losses_and_weights_of_a_whole_one(
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
    whole, killed = runs
    assert len(killed.record.attempts) == 2
    assert killed.record.attempts[0]["reason"] == "worker 1 was lost: killed by SIGKILL"
    steps = [6, 12, 16, 18, 24, 30, 32, 36, 42, 48]
    assert list(whole.history("loss")) == steps
    assert killed.history("loss") == whole.history("loss")
    assert killed.metrics == whole.metrics
    # A loss of all workers is their mean, as Keras's own history has it.
    assert whole.metrics["told"] == pytest.approx(whole.history("loss")[48], rel=1e-6)
    losses = list(whole.history("loss").values())
    assert losses[-1] < losses[0]
    assert [state["epoch"] for state in killed.record.readers] == [3]
