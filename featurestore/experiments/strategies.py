"""Strategies of ``tf.distribute`` by the kind of run, and what Keras tells while it fits."""

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
    total = reader.steps_per_epoch
    earlier = MetricSums(model)

    class ReportCallback(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.made = start[0] * total + start[1]

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.made += 1
            epoch_ends = self.made % total == 0
            if not epoch_ends and self.made % save_every:
                return
            # What Keras hands over is the sum over all replicas; the metrics themselves are means.
            found = self.model.get_metrics_result()
            told = {key: float(value) for key, value in found.items()}
            # A run that goes on at this checkpoint counts from here, so this one does, too. What
            # Keras says of the epoch is of all its steps.
            if epoch_ends:
                earlier.put_back()
            else:
                earlier.take()
            context.report(self.made, **told)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            told = {}
            for key, value in dict(logs or {}).items():
                if key.startswith("val_"):
                    told[key] = float(value)
            if told:
                context.report(self.made, **told)

    return ReportCallback()
