"""One worker that evaluates and fits: python evaluation_program.py KIND FOLDER OUT PORTS.

KIND is "multiworker", "mirrored" (two logical processors), "servers" (two parameter servers and two
workers in this process) or "none". FOLDER holds the training datasets ``plain``, ``weighed`` and
``two_labels``. The figures of each case, and the weights of the model as ``get_weights`` gives
them, go to OUT. PORTS are five free ones, for "servers".
"""

from __future__ import annotations

import json
import os
import re
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


def strategy_with_servers() -> Any:
    """Return the strategy of a chief with workers and parameter servers in this process."""
    addresses = [f"127.0.0.1:{port}" for port in sys.argv[4:]]
    cluster = {"chief": addresses[:1], "worker": addresses[1:3], "ps": addresses[3:]}
    spec = tf.train.ClusterSpec(cluster)
    for job in ("worker", "ps"):
        for index in range(2):
            config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=5)
            tf.distribute.Server(
                spec, job_name=job, task_index=index, protocol="grpc", config=config
            )
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        spec, rpc_layer="grpc", task_type="chief", task_id=0
    )
    # Partitions of a few bytes, so that each server has a part of each layer.
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(8, max_shards=2)
    return tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)


def message_of(call: Any) -> str:
    """Return the error of a call that must fail."""
    try:
        return f"no error: {call()!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


strategy_name, folder, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
tf.config.threading.set_intra_op_parallelism_threads(1)
if strategy_name == "mirrored":
    processor = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        processor, [tf.config.LogicalDeviceConfiguration()] * 2
    )
tf_keras.utils.set_random_seed(3)
if strategy_name == "multiworker":
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
elif strategy_name == "mirrored":
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
elif strategy_name == "servers":
    strategy = strategy_with_servers()
else:
    strategy = tf.distribute.get_strategy()


def model_of(name: str, *, rate: float, normalized: bool = True) -> Any:
    layers = tf_keras.layers
    with strategy.scope():
        inputs = {column: tf_keras.Input((), name=column) for column in "ab"}
        hidden = layers.Concatenate()([layers.Reshape((1,))(tensor) for tensor in inputs.values()])
        hidden = layers.Dense(4, activation="tanh")(hidden)
        if normalized:
            hidden = layers.BatchNormalization(momentum=0.5)(hidden)
        outputs: Any = layers.Dense(1, activation="sigmoid", name="y")(hidden)
        losses: Any = "binary_crossentropy"
        if name == "two_labels":
            outputs = {"y": outputs, "z": layers.Dense(1, name="z")(hidden)}
            losses = {"y": losses, "z": "mse"}
        model = tf_keras.Model(inputs, outputs)
        model.compile(tf_keras.optimizers.SGD(rate), loss=losses, weighted_metrics=metrics_of(name))
    return model


def metrics_of(name: str) -> Any:
    metrics = tf_keras.metrics
    positives = [metrics.BinaryAccuracy(name="accuracy"), metrics.TruePositives(name="tp")]
    return {"y": positives} if name == "two_labels" else positives


def weights_of(model: Any) -> list[Any]:
    arrays: list[Any] = []
    for variable, array in zip(model.weights, model.get_weights(), strict=True):
        if re.search("/part_[1-9]", variable.name):  # the next part, on another server
            arrays[-1] = np.concatenate([arrays[-1], array])
        else:
            arrays.append(array)
    return [array.tolist() for array in arrays]


def saved_by(model: Any) -> Path:
    """Save a model from every worker, each to its own path."""
    path = out.with_suffix(".keras")
    model.save(path)
    return path


result: dict[str, Any] = {}
for name in ("plain", "weighed", "two_labels"):
    dataset = TrainingDataset.open(str(folder / name / "v1"))
    model = model_of(name, rate=0.1)
    # The replicas see other rows, so that their moving averages differ.
    train = dataset.reader("train", global_batch_size=40, seed=1)
    if strategy_name != "servers":
        model.fit(train.distribute(strategy), steps_per_epoch=train.steps_per_epoch, verbose=0)
    figures = {}
    for remainder in ("keep", "drop", "pad"):
        reader = dataset.reader("train", global_batch_size=48, seed=1, remainder=remainder)
        figures[remainder] = reader.evaluate(model)
    result[name] = {"figures": figures, "weights": weights_of(model)}

if strategy_name == "servers":
    reader = dataset.reader("train", global_batch_size=40)
    result["refusals"] = [
        message_of(lambda: reader.distribute(strategy)),
        message_of(reader.tf_dataset),
        message_of(lambda: reader.evaluate(model, steps=1)),
        message_of(
            lambda: reader.checkpoint(out.parent, objects={}, strategy=strategy).fit(model, 1)
        ),
    ]
    out.write_text(json.dumps(result))
    os._exit(0)  # servers run until their process ends

# A learning rate of 0, so that all epochs have the figures of the first weights.
dataset = TrainingDataset.open(str(folder / "plain" / "v1"))
model = model_of("plain", rate=0.0)
reader = dataset.reader("train", global_batch_size=48, seed=1, remainder="pad")
checks = dataset.reader("train", global_batch_size=36, remainder="pad")
checkpoint = reader.checkpoint(
    out.parent / f"checkpoints-{strategy_name}",
    objects={"model": model, "optimizer": model.optimizer},
    strategy=None if strategy_name == "none" else strategy,
)
history = checkpoint.fit(
    model, 2, validation=checks, class_weights={0: 1.0, 1: 3.0}, save_every=1, verbose=0
)
restored = model_of("plain", rate=0.0)
reader.checkpoint(
    out.parent / f"checkpoints-{strategy_name}",
    objects={"model": restored, "optimizer": restored.optimizer},
    strategy=None if strategy_name == "none" else strategy,
).restore()
result["fit"] = {
    "history": history.history,
    "epoch": history.epoch,
    "weights": weights_of(model),
    "after": checks.evaluate(model),
    "restored": checks.evaluate(restored),
}

# Without normalization, so that all replicas are the same and losses are those of the weights.
dataset = TrainingDataset.open(str(folder / "two_labels" / "v1"))
model = model_of("two_labels", rate=0.0, normalized=False)
reader = dataset.reader("train", global_batch_size=48, seed=1, remainder="pad")
checks = dataset.reader("train", global_batch_size=36, remainder="pad")
checkpoint = reader.checkpoint(
    out.parent / f"unnormalized-{strategy_name}",
    objects={},
    strategy=None if strategy_name == "none" else strategy,
)
data, steps = checks.distribute(strategy), checks.steps_per_epoch
options = {"steps_per_epoch": reader.steps_per_epoch, "verbose": 0}
stopping = tf_keras.callbacks.EarlyStopping("val_loss", patience=1)
by_checkpoint = checkpoint.fit(model, 5, validation_data=data, callbacks=[stopping], verbose=0)
by_keras = model.fit(
    reader.distribute(strategy, 2),
    epochs=2,
    validation_data=checks.distribute(strategy),
    validation_steps=steps,
    **options,
)
result["outputs"] = {
    "weights": weights_of(model),
    "checkpoint": by_checkpoint.history,
    "keras": by_keras.history,
    "stopped": stopping.stopped_epoch,
    "saved": weights_of(tf_keras.models.load_model(saved_by(model))),
    "evaluate": model.evaluate(data, steps=steps, return_dict=True, verbose=0),
    "class_weight": message_of(
        lambda: model.fit(reader.distribute(strategy), class_weight={0: 1.0, 1: 3.0}, **options)
    ),
    "refusal": message_of(
        lambda: model.fit(reader.distribute(strategy), validation_data=data, **options)
    ),
}

# A custom loop: weighted metrics over batches of one shape.
with strategy.scope():
    loss = tf_keras.metrics.Mean(name="loss")
    accuracy = tf_keras.metrics.BinaryAccuracy(name="accuracy")


def on_replica(features: Any, labels: Any, weight: Any) -> None:
    chance = model(features, training=False)["y"][:, 0]
    y = tf.cast(labels["y"], tf.float32)
    loss.update_state(tf_keras.backend.binary_crossentropy(y, chance), sample_weight=weight)
    accuracy.update_state(y[:, None], chance[:, None], sample_weight=weight)


@tf.function
def test_step(batch: Any) -> None:
    strategy.run(on_replica, args=batch)


for batch in checks.distribute(strategy):
    test_step(batch)
result["outputs"]["loop"] = {metric.name: float(metric.result()) for metric in (loss, accuracy)}

with strategy.scope():
    inputs = {column: keras.Input((), name=column) for column in "ab"}
    hidden = [keras.layers.Reshape((1,))(tensor) for tensor in inputs.values()]
    hidden = keras.layers.Dense(4, activation="tanh")(keras.layers.Concatenate()(hidden))
    hidden = keras.layers.BatchNormalization()(hidden)
    heads = {
        "y": keras.layers.Dense(1, activation="sigmoid", name="y")(hidden),
        "z": keras.layers.Dense(1, name="z")(hidden),
    }
    model = keras.Model(inputs, heads)
    model.compile(
        loss={"y": "binary_crossentropy", "z": "mse"},
        weighted_metrics={"y": [keras.metrics.BinaryAccuracy(name="accuracy")]},
    )
result["keras 3"] = {
    "figures": checks.evaluate(model),
    "weights": [array.tolist() for array in model.get_weights()],
}
if strategy_name == "multiworker":
    result["refusal"] = message_of(reader.tf_dataset)
    no_reader = strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(2))
    result["validation"] = message_of(
        lambda: checkpoint.fit(restored, 3, validation_data=no_reader)
    )
out.write_text(json.dumps(result))
