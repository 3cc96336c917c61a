"""Strategies of ``tf.distribute`` by kind of run, and the reporting callback of Keras."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from featurestore.experiments import parameter_servers
from featurestore.experiments.teams import PARAMETER_SERVER
from featurestore.readers.keras_losses import MetricSums

if TYPE_CHECKING:
    from featurestore.experiments.context import Context
    from featurestore.experiments.reading import RunReader


def make_strategy(kind: str) -> Any:
    """Return the strategy of a kind of run, as ``LaunchRequest.strategy`` names it."""
    if kind == PARAMETER_SERVER:
        return parameter_servers.make_strategy()
    tf = importlib.import_module("tensorflow")
    if kind == "multiworker":
        return tf.distribute.MultiWorkerMirroredStrategy()
    if kind == "mirrored":
        return tf.distribute.MirroredStrategy()
    return tf.distribute.get_strategy()


def report_callback(
    context: Context, model: Any, reader: RunReader, *, save_every: int, start: tuple[int, int]
) -> Any:
    """Return a Keras callback that reports the means of the steps since the last checkpoint."""
    name = "keras"
    if any(each.__module__.split(".")[0] == "tf_keras" for each in type(model).__mro__):
        name = "tf_keras"
    keras = importlib.import_module(name)
    steps_per_epoch = reader.steps_per_epoch
    earlier = MetricSums(model)

    class ReportCallback(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.completed_steps = start[0] * steps_per_epoch + start[1]

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.completed_steps += 1
            epoch_ends = self.completed_steps % steps_per_epoch == 0
            if not epoch_ends and self.completed_steps % save_every:
                return
            # ``logs`` contain sums over all replicas; the metrics themselves are means.
            metric_values = self.model.get_metrics_result()
            means = {key: float(value) for key, value in metric_values.items()}
            # A run resumed from this checkpoint counts from here, so the sums restart. The epoch
            # metrics of Keras cover all steps of the epoch.
            if epoch_ends:
                earlier.put_back()
            else:
                earlier.take()
            context.report(self.completed_steps, **means)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            values = dict(logs or {}).items()
            validation = {key: float(value) for key, value in values if key.startswith("val_")}
            if validation:
                context.report(self.completed_steps, **validation)

    return ReportCallback()
