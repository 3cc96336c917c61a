"""Evaluation of a model over a split: every row once, without padding, with the keys of the rows.

Losses and metrics of Keras become means over rows: Keras has a ``Mean`` for the loss and, with
several outputs, one for the loss of each output. It adds the loss of a batch times its number of
rows, padding included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from featurestore.errors import InvalidArgument, ReaderConfigError, listing
from featurestore.readers.order import PADDING, Rows
from featurestore.readers.tensorflow import import_tensorflow, keras_module, worker_position

if TYPE_CHECKING:
    import pyarrow as pa

    from featurestore.readers.reader import Reader

_ROW_MEANS = ("sum_over_batch_size", "auto")


def reading_order(reader: Reader, epoch: int) -> Rows:
    """Return the canonical rows of an epoch in the order of one worker, padding included."""
    order = reader.order.epoch(epoch)
    return order.batches(0, reader.steps_per_epoch).reshape(-1)


def remove_padding(reader: Reader, predictions: Any, *, epoch: int) -> npt.NDArray[Any]:
    """Remove the predictions of padding rows."""
    if hasattr(predictions, "detach"):  # a PyTorch tensor, maybe with a gradient or on a device
        predictions = predictions.detach().cpu()
    array = np.asarray(predictions)
    rows = reading_order(reader, epoch)
    real = rows != PADDING
    count = int(real.sum())
    if array.ndim and len(array) == count:
        return array
    if not array.ndim or len(array) != len(rows):
        raise InvalidArgument(
            f"predictions have shape {array.shape}, but an epoch has {count:,} rows"
            f"{f', {len(rows):,} with padding' if len(rows) > count else ''}.",
            hint="reader.unpad(model.predict(reader.tf_dataset()))",
        )
    return array[real]


def reading_keys(reader: Reader, *, epoch: int) -> pa.Table:
    """Return the key columns of the rows of an epoch, in reading order."""
    rows = reading_order(reader, epoch)
    names = list(reader.manifest.key) or [column.name for column in reader.manifest.columns]
    shard_files = reader.files()
    try:
        table = shard_files.read(np.array([0]), np.array([reader.order.rows]), names)
    finally:
        shard_files.close()
    return table.select(names).take(rows[rows != PADDING])


def evaluate(reader: Reader, model: Any, **options: Any) -> dict[str, float]:
    """Return the metrics of a compiled Keras model, or of a function for PyTorch."""
    if not hasattr(model, "evaluate"):
        return _evaluate_by_function(reader, model, options)
    metrics = _evaluate_keras(reader, model, options)
    return {name: float(value) for name, value in metrics.items()}


def _evaluate_keras(reader: Reader, model: Any, options: dict[str, Any]) -> Any:
    """Return the metrics of a compiled Keras model by name."""
    from featurestore.readers.tensorflow import (
        averaged_replicas,
        distribute_unpadded,
        has_parameter_servers,
        keras_module,
        multi_replica_strategy,
        worker_position,
    )

    options = {"verbose": 0, **options, "return_dict": True}
    strategy = multi_replica_strategy(model)
    replicas = 1 if strategy is None else strategy.num_replicas_in_sync
    complete_reader = _every_row_once(reader, replicas=replicas)
    if has_parameter_servers(getattr(model, "distribute_strategy", None)):
        # Each worker would read all rows, and a call repeated after the loss of a worker would
        # count twice: this process computes the metrics.
        return _evaluate_by_steps(model, complete_reader.tf_dataset(worker=0, workers=1), options)
    is_keras_3 = keras_module(model).__name__ == "keras"
    without_rows = complete_reader.order.rows < replicas
    if strategy is not None and (without_rows or (is_keras_3 and worker_position(strategy)[1] > 1)):
        # Keras also runs replicas without rows, and Keras 3 cannot build a model from batches
        # distributed over several workers.
        with averaged_replicas(model, strategy):
            dataset = distribute_unpadded(complete_reader, strategy)
            return _evaluate_by_steps(model, dataset, options, run=strategy.run)
    if is_keras_3:
        weighing_callback = short_batch_callback(model, complete_reader, replicas=replicas)
        options["callbacks"] = [weighing_callback, *(options.get("callbacks") or ())]
    if strategy is None:
        return model.evaluate(complete_reader.tf_dataset(worker=0, workers=1), **options)
    # The replicas share the rows, and Keras sums their metrics. A dataset of one worker would be
    # distributed again by Keras, and each worker would see only some of its rows.
    options["steps"] = complete_reader.steps_per_epoch
    with averaged_replicas(model, strategy):
        return model.evaluate(distribute_unpadded(complete_reader, strategy), **options)


def _evaluate_by_function(
    reader: Reader, function: Any, options: Mapping[str, Any]
) -> dict[str, float]:
    # A PyTorch module is callable, too, but returns predictions and not metrics.
    if not callable(function) or hasattr(function, "state_dict") or options:
        raise InvalidArgument(
            "evaluate() takes a compiled Keras model, or a function from an element of torch_loader "
            f"to metrics of each row; this is {type(function).__name__}.",
            hint='reader.evaluate(lambda features, label: {"right": '
            "model(features).argmax(1) == label})",
        )
    from featurestore.readers.torch import evaluate_by_function, process_rank

    _, ranks = process_rank()
    return evaluate_by_function(_every_row_once(reader, replicas=ranks), function)


def _evaluate_by_steps(
    model: Any, dataset: Any, options: Mapping[str, Any], *, run: Callable[..., Any] | None = None
) -> Any:
    """Return the metrics of a model after ``test_step`` with each element of a dataset.

    Args:
        model: A compiled model.
        dataset: Elements as for ``model.evaluate``.
        options: Options of ``model.evaluate``.
        run: Runs a function on each replica; None calls it directly.

    Raises:
        InvalidArgument: An option needs the loop of Keras.
    """
    from featurestore.readers.tensorflow import import_tensorflow

    unknown = sorted(set(options) - {"verbose", "return_dict"})
    if unknown:
        raise InvalidArgument(
            f"evaluate() of a model of this strategy does not take {listing(unknown)}.",
            hint="reader.evaluate(model)",
        )
    tf = import_tensorflow()

    def on_replica(element: Any) -> None:
        if tf.nest.flatten(element)[0].shape[0] != 0:  # the mean of no rows is NaN
            model.test_step(element)

    def step(element: Any) -> None:
        if run is None:
            on_replica(element)
        else:
            run(on_replica, args=(element,))

    if not model.run_eagerly:
        # Traced for each number of rows: Keras 3 weighs the losses of outputs only with static
        # shapes.
        step = tf.function(step)
    model.reset_metrics()
    with model.distribute_strategy.scope():
        for element in dataset:
            step(element)
    return model.get_metrics_result()


def _every_row_once(reader: Reader, *, replicas: int) -> Reader:
    """Return a reader of the same rows, padded for several replicas, else with a short last batch."""
    if replicas > 1:
        each = -(-reader.global_batch_size // replicas)
        while _leaves_replica_empty(reader.order.rows, replicas, each):
            each += 1
        return balanced_over_replicas(reader, replicas, batch=each * replicas)
    order = replace(reader.order, remainder="keep", shuffle=False)
    return replace(reader, order=order, settings={**reader.settings, "remainder": "keep"})


def balanced_over_replicas(reader: Reader, replicas: int, *, batch: int) -> Reader:
    """Return a reader of the same rows that assigns an equal share of an epoch to each replica.

    In canonical order the rows of the last batch all belong to the first replicas. The others would
    have empty batches, for which convolutions of oneDNN fail.
    """
    order = replace(
        reader.order, remainder="pad", shuffle=True, global_batch_size=batch, lanes=replicas
    )
    return replace(reader, order=order, settings={**reader.settings, "remainder": "pad"})


def has_empty_replica(reader: Reader, replicas: int, *, batch: int) -> bool:
    """Return True if a replica has an empty batch even with equal shares."""
    rows = reader.order.rows
    return rows < replicas or _leaves_replica_empty(rows, replicas, batch // replicas)


def _leaves_replica_empty(rows: int, replicas: int, each: int) -> bool:
    # Shares differ by one row. The last row of the larger ones must not start another batch.
    return rows >= replicas and rows % replicas != 0 and (rows // replicas) % each == 0


def refuse_metrics_over_padding(reader: Reader, model: Any) -> None:
    """Refuse a model whose metrics would count the padding of a reader.

    Keras applies sample weights to the loss and to ``weighted_metrics=``, but not to ``metrics=``.
    """
    names = []
    for attribute in ("_compile_metrics", "compiled_metrics"):
        for each in getattr(getattr(model, attribute, None), "_user_metrics", None) or ():
            names.append(getattr(each, "name", each))
    if reader.order.remainder == "pad" and names:
        raise ReaderConfigError(
            f'metrics= of the model ({listing(names)}) would count the padding of remainder="pad".',
            hint=f"model.compile(..., weighted_metrics=[{', '.join(map(repr, names))}])",
        )


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
