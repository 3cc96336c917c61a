"""One worker of the training tests: python worker_program.py MODE DATASET OUT EPOCHS TIMEOUT.

MODE is "keras" (tf_keras fit with checkpoints in OUT/checkpoints) or "custom" (a loop of its own).
Every step appends the rows and the loss of this worker to OUT/worker-N.jsonl; the final weights go
to OUT/weights-N.json. A worker without a step for TIMEOUT seconds reports and exits.

With STALL_AT=n this worker stops after step n. The heartbeat of the first worker is then one hour
ahead, so that the test does not wait and a slow start is not a stall. The worker stops in its main
thread and not in the graph: a blocked thread of TensorFlow could be the one that sends this
worker's part of a reduction, for which the other worker waits.
With STALL_AT=start this worker stops before it creates its strategy.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
import tf_keras

from featurestore.readers.heartbeat import Heartbeat, read_steps
from featurestore.training.dataset import TrainingDataset

mode, dataset_path, out = sys.argv[1], sys.argv[2], Path(sys.argv[3])
epochs, timeout = int(sys.argv[4]), float(sys.argv[5])
tf.config.threading.set_intra_op_parallelism_threads(1)
tf_keras.utils.set_random_seed(7)
tf.config.experimental.enable_op_determinism()
worker = int(json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}}'))["task"]["index"])
journal = out / f"worker-{worker}.jsonl"
asleep = out / "asleep"
stall_at = os.environ.get("STALL_AT", "")
if worker == 0:
    Heartbeat.__init__.__kwdefaults__["clock"] = lambda: time.time() + 3600 * asleep.exists()
if stall_at == "start":
    time.sleep(600)
with Heartbeat(out / "starting", worker=worker, workers=2, timeout=timeout):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()


def note(rows: Any, loss: Any) -> Any:
    with journal.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"rows": rows.tolist(), "loss": float(loss).hex()}) + "\n")
    return rows.dtype.type(0)


class Stall(tf_keras.callbacks.Callback):  # type: ignore[misc]
    """Stops this worker after step STALL_AT."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if stall_at != str(batch + 1):
            return
        # A step that the other worker reports later would have the changed time.
        heartbeats = checkpoint.heartbeat().directory
        while getattr(read_steps(heartbeats, workers=2).get(0), "step", 0) < batch + 1:
            time.sleep(0.01)
        asleep.touch()
        time.sleep(600)


class Model(tf_keras.Model):  # type: ignore[misc]
    """A small network that records the rows and loss of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = tf_keras.layers.Dense(8, activation="relu")
        self.top = tf_keras.layers.Dense(1)

    def call(self, features: Any) -> Any:
        inputs = tf.concat([features["vector"], features["ratio"][:, None]], axis=1)
        return self.top(self.hidden(inputs))[:, 0]

    def step(self, data: Any) -> Any:
        features, label, weight = data
        with tf.GradientTape() as tape:
            error = tf.square(self(features) - tf.cast(label, tf.float32)) * weight
            loss = tf.reduce_sum(error) / reader.global_batch_size
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        rows = tf.where(weight > 0, features["row_id"], tf.constant(-1, tf.int64))
        tf.numpy_function(note, [rows, loss], tf.int64)
        return loss

    def train_step(self, data: Any) -> Any:
        return {"loss": self.step(data)}


columns = ["row_id", "ratio", "vector", "label"]
reader = TrainingDataset.open(dataset_path).reader(
    "train", columns=columns, global_batch_size=12, seed=3, remainder="pad"
)
with strategy.scope():
    model = Model()
    model.compile(optimizer=tf_keras.optimizers.Adam(0.01))
    model({"vector": tf.zeros((2, 4)), "ratio": tf.zeros(2)})
    model.optimizer.build(model.trainable_variables)

if mode == "keras":
    checkpoint = reader.checkpoint(
        out / "checkpoints",
        objects={"model": model, "optimizer": model.optimizer},
        strategy=strategy,
    )
    checkpoint.fit(model, epochs, save_every=5, timeout=timeout, verbose=0, callbacks=[Stall()])
else:

    @tf.function
    def run(iterator: Any) -> Any:
        return strategy.run(model.step, args=(next(iterator),))

    iterator = iter(reader.distribute(strategy, epochs))
    for _ in range(epochs * reader.steps_per_epoch):
        run(iterator)

weights = [[float(value).hex() for value in array.reshape(-1)] for array in model.get_weights()]
(out / f"weights-{worker}.json").write_text(json.dumps(weights))
