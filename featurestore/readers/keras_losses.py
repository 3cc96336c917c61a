"""Keras losses and metrics as means over rows, without padding and across short batches.

Keras has a ``Mean`` for the loss and, with several outputs, one for the loss of each output. It adds
the loss of a batch times its number of rows, padding included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from featurestore.readers.order import PADDING
from featurestore.readers.tensorflow import import_tensorflow, keras_module, worker_position

if TYPE_CHECKING:
    from featurestore.readers.reader import Reader

_ROW_MEANS = ("sum_over_batch_size", "auto")


def padding_callback(model: Any, *, steps: int, padding: int) -> Any:
    """Return a Keras callback that removes the padding of an epoch from the means of its losses.

    All padding is in the last step. Weight penalties do not depend on rows: the penalty of the last
    step counts for its real rows. Activity penalties are part of the loss of a batch.

    Args:
        model: The model that is fitted.
        steps: Steps of each epoch.
        padding: Padding rows of the last step, over all workers.
    """
    keras = keras_module(model)

    class PaddingCallback(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        penalty = 0.0

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch + _steps_per_execution(self.model) >= steps:
                self.penalty = _penalty_of_variables(self.model)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            # Correct the sums of one worker only, because Keras adds those of all workers.
            if batch + 1 != steps or worker_position(_model_strategy(self.model))[0] > 0:
                return
            for number, mean in enumerate(_means_over_rows(self.model)):
                total = _local_values(self.model, mean.total)[0]
                count = _local_values(self.model, mean.count)[0]
                if float(count) > 0:  # 0: a custom train_step with its own means
                    count.assign_sub(padding)
                    total.assign_sub(padding * self.penalty if number == 0 else 0.0)

    return PaddingCallback()


def short_batch_callback(model: Any, reader: Reader, *, replicas: int) -> Any:
    """Return a Keras 3 callback for ``evaluate`` that weighs the last batch by its rows.

    Keras does not weigh the losses of several outputs if the batch size is not static.
    """
    keras = keras_module(model)
    last = reader.steps_per_epoch - 1
    size = reader.global_batch_size // replicas
    order = reader.order.epoch(0)

    def last_rows(replica: int) -> int:
        rows = order.batch(last, worker=replica, workers=replicas)
        return int((rows != PADDING).sum())

    class ShortBatchCallback(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == last:
                self.before = [float(total) for _, total, _ in self.means_of_replicas()]

        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch != last:
                return
            for before, mean in zip(self.before, self.means_of_replicas(), strict=True):
                replica, total, count = mean
                rows = last_rows(replica)
                total.assign(size * before + rows * (float(total) - before))
                count.assign(size * last + rows)

        def means_of_replicas(self) -> list[tuple[int, Any, Any]]:
            means: list[tuple[int, Any, Any]] = []
            for mean in _means_and_losses(self.model)[1]:
                totals = _local_values(self.model, mean.total)
                counts = _local_values(self.model, mean.count)
                first = worker_position(_model_strategy(self.model))[0] * len(totals)
                for replica, total_and_count in enumerate(zip(totals, counts, strict=True), first):
                    means.append((replica, *total_and_count))
            return means

    return ShortBatchCallback()


@dataclass
class MetricSums:
    """The sums of metric states over several parts of an epoch."""

    model: Any
    _sums: list[Any] = field(default_factory=list)

    def take(self) -> None:
        """Add the state of the metrics to the sums and reset the metrics."""
        values = [np.asarray(local.numpy()) for local in self._variables()]
        if self._sums and len(self._sums) == len(values):
            values = [sum_ + value for sum_, value in zip(self._sums, values, strict=True)]
        self._sums = values
        self.model.reset_metrics()

    def put_back(self) -> None:
        """Add the sums to the state of the metrics, which then covers the complete epoch."""
        variables = self._variables()
        if len(variables) == len(self._sums):
            for local, value in zip(variables, self._sums, strict=True):
                local.assign_add(value)
        self._sums = []

    def _variables(self) -> list[Any]:
        local_variables: list[Any] = []
        for metric in self.model.metrics:
            for variable in metric.variables:
                local_variables.extend(_local_values(self.model, variable))
        return local_variables


def _means_over_rows(model: Any) -> list[Any]:
    """Return the loss means that are divided by rows, the total loss first.

    Losses with another reduction do not depend on padding.
    """
    total, outputs, losses = _means_and_losses(model)
    divided = [getattr(loss, "reduction", None) in _ROW_MEANS for loss in losses]
    if total is None or not all(divided):
        return []
    return [total, *outputs]


def _means_and_losses(model: Any) -> tuple[Any, Sequence[Any], Sequence[Any]]:
    """Return the mean of the total loss, the means of the outputs' losses, and the loss functions."""
    if keras_module(model).__name__ == "tf_keras":
        container = getattr(model, "compiled_loss", None)
        means = [] if container is None else container.metrics
        if container is None or not means:
            return None, [], []
        functions = [each for each in container._losses if each is not None]
        return means[0], means[1:], functions
    container = getattr(model, "_compile_loss", None)
    if container is None or not container.built:
        return None, [], []
    functions = [each.loss for each in container._flat_losses if each.loss is not None]
    return model._loss_tracker, list(container.metrics), functions


def _local_values(model: Any, variable: Any) -> Sequence[Any]:
    """Return the local variables of a metric, one for each replica of this process."""
    # Keras 3 wraps the variables of TensorFlow.
    inner = variable if callable(variable.value) else variable.value
    local_values: Sequence[Any] = _model_strategy(model).experimental_local_results(inner)
    return local_values


def _model_strategy(model: Any) -> Any:
    strategy = getattr(model, "distribute_strategy", None)
    return import_tensorflow().distribute.get_strategy() if strategy is None else strategy


def _penalty_of_variables(model: Any) -> float:
    tf = import_tensorflow()
    losses = getattr(model, "losses", ())
    return sum(float(each) for each in losses if not tf.is_symbolic_tensor(each))


def _steps_per_execution(model: Any) -> int:
    for name in ("steps_per_execution", "_steps_per_execution"):
        steps = getattr(model, name, None)
        if steps is not None:
            return int(steps.numpy() if hasattr(steps, "numpy") else steps)
    return 1
