"""One worker that fits and evaluates models: python losses_program.py STRATEGY OUT CELLS.

STRATEGY is "none", "mirrored" (two logical processors) or "multiworker". CELLS is a list of JSON
objects with the library, the path of the dataset and the settings of a model and a reader. The
first and last weights of each model, the History, the metrics of evaluation and the error, if any,
go to OUT.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras  # Keras 3, in the same process
import numpy as np
import tensorflow as tf
import tf_keras

from featurestore.training.dataset import TrainingDataset

strategy_name, out = sys.argv[1], Path(sys.argv[2])
tf.config.threading.set_intra_op_parallelism_threads(1)
if strategy_name == "mirrored":
    processor = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        processor, [tf.config.LogicalDeviceConfiguration()] * 2
    )
if strategy_name == "multiworker":
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
elif strategy_name == "mirrored":
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
else:
    strategy = tf.distribute.get_strategy()


def model_of(cell: dict[str, Any]) -> Any:
    """Return a linear model of two layers with a penalty on the weights of the first."""
    library: Any = keras if cell["library"] == "keras" else tf_keras
    library.utils.set_random_seed(3)
    library.mixed_precision.set_global_policy(cell["precision"])
    layers = library.layers
    with strategy.scope():
        inputs = {name: library.Input((), name=name) for name in "ab"}
        hidden = layers.Concatenate()([layers.Reshape((1,))(column) for column in inputs.values()])
        hidden = layers.Dense(3, kernel_regularizer="l2", bias_initializer="ones")(hidden)
        names = "yz"[: cell["outputs"]]
        heads = {name: layers.Dense(1, name=name, dtype="float32")(hidden) for name in names}
        model = library.Model(inputs, heads if len(heads) > 1 else heads["y"])
        model.compile(
            library.optimizers.SGD(cell["rate"]),
            loss=dict.fromkeys(heads, "mse") if len(heads) > 1 else "mse",
            steps_per_execution=cell["steps_per_execution"],
        )
    return model


def weights_of(model: Any) -> list[Any]:
    return [np.asarray(array, np.float64).tolist() for array in model.get_weights()]


def outcome_of(cell: dict[str, Any], number: int) -> dict[str, Any]:
    """Fit and evaluate a model."""
    model = model_of(cell)
    outcome: dict[str, Any] = {"cell": cell, "first": weights_of(model)}
    reader = TrainingDataset.open(cell["dataset"]).reader(
        "train", global_batch_size=cell["batch"], seed=1, remainder=cell["remainder"]
    )
    checkpoint = reader.checkpoint(
        out.parent / f"checkpoints-{strategy_name}-{number}",
        objects={},
        strategy=None if strategy_name == "none" else strategy,
    )
    try:
        history = checkpoint.fit(model, cell["epochs"], verbose=0)
        outcome["history"] = history.history
    except Exception as error:
        outcome["error"] = f"{type(error).__name__}: {error}"
    outcome["last"] = weights_of(model)
    outcome["evaluation"] = reader.evaluate(model)
    # The first worker has published its last checkpoint, since all workers have evaluated.
    outcome["position"] = checkpoint.position_of()
    return outcome


cells = json.loads(sys.argv[3])
out.write_text(json.dumps([outcome_of(cell, number) for number, cell in enumerate(cells)]))
