"""Model evaluation over a split, in which every row counts exactly once and padding never does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from featurestore.errors import InvalidArgument, ReaderConfigError, listing
from featurestore.readers.batches import WorkerSteps
from featurestore.readers.columns import NumpyArray, Tensor
from featurestore.readers.order import PADDING, Rows
from featurestore.readers.plan import ReadPlan
from featurestore.readers.tensorflow import (
    KerasModel,
    Strategy,
    TfDataset,
    import_tensorflow,
)
from featurestore.readers.transformed import refuse_bytes_labels

if TYPE_CHECKING:
    import pyarrow as pa


def reading_order(plan: ReadPlan, epoch: int) -> Rows:
    """Return the canonical row numbers of an epoch as a single worker reads them, with padding."""
    order = plan.order.epoch(epoch)
    return order.batches(0, plan.steps_per_epoch).reshape(-1)


def remove_padding(plan: ReadPlan, predictions: Any, *, epoch: int) -> NumpyArray:
    """Remove the predictions of padding rows."""
    if hasattr(predictions, "detach"):  # a PyTorch tensor, maybe with a gradient or on a device
        predictions = predictions.detach().cpu()
    array = np.asarray(predictions)
    rows = reading_order(plan, epoch)
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


def reading_keys(plan: ReadPlan, *, epoch: int) -> pa.Table:
    """Return the key columns of the rows of an epoch, in reading order."""
    rows = reading_order(plan, epoch)
    names = list(plan.manifest.key) or [column.name for column in plan.manifest.columns]
    shard_files = plan.files()
    try:
        table = shard_files.read(np.array([0]), np.array([plan.order.rows]), names)
    finally:
        shard_files.close()
    return table.select(names).take(rows[rows != PADDING])


def evaluate(
    plan: ReadPlan,
    model: KerasModel,
    *,
    after_batch: Callable[[], None] | None = None,
    **options: Any,
) -> dict[str, float]:
    """Evaluate a compiled Keras model, or a metric function for PyTorch, and return the metrics.

    ``after_batch`` is called after each batch of a Keras model.
    """
    if not hasattr(model, "evaluate"):
        return _evaluate_by_function(plan, model, options)
    metrics = _evaluate_keras(plan, model, options, after_batch=after_batch)
    return {name: float(value) for name, value in metrics.items()}


def _evaluate_keras(
    plan: ReadPlan,
    model: KerasModel,
    options: dict[str, Any],
    *,
    after_batch: Callable[[], None] | None,
) -> Any:
    """Evaluate a compiled Keras model and return its metrics by name."""
    from featurestore.readers.keras_losses import weight_losses_by_rows
    from featurestore.readers.tensorflow import (
        average_replicas,
        distribute,
        has_parameter_servers,
        keras_module,
        multi_replica_strategy,
        tf_dataset,
        worker_position,
    )

    refuse_bytes_labels(plan.manifest, plan.columns)
    if plan.weighing is not None and plan.weighing.masked_labels:
        refuse_metrics_over_padding(plan, model)
    weight_losses_by_rows(model)
    options = {"verbose": 0, **options, "return_dict": True}
    strategy = multi_replica_strategy(model)
    replicas = 1 if strategy is None else strategy.num_replicas_in_sync
    complete_plan = _evaluation_plan(plan, replicas=replicas)
    if has_parameter_servers(getattr(model, "distribute_strategy", None)):
        # Compute the metrics in this process only. Otherwise each worker would read all rows, and a
        # call that is repeated after the loss of a worker would count rows twice.
        dataset = tf_dataset(complete_plan, WorkerSteps())
        return _evaluate_by_steps(model, dataset, options, after_batch=after_batch)
    is_keras_3 = keras_module(model).__name__ == "keras"
    without_rows = complete_plan.order.rows < replicas
    if strategy is not None and (without_rows or (is_keras_3 and worker_position(strategy)[1] > 1)):
        # Keras also runs replicas that have no rows, and Keras 3 cannot build a model from batches
        # that are distributed over several workers.
        with average_replicas(model, strategy):
            dataset = distribute(complete_plan, strategy, WorkerSteps(), unpadded=True)
            return _evaluate_by_steps(
                model, dataset, options, run=strategy.run, after_batch=after_batch
            )
    if after_batch is not None:
        batch_callback = keras_module(model).callbacks.LambdaCallback(
            on_test_batch_end=lambda batch, logs: after_batch()
        )
        options["callbacks"] = [batch_callback, *(options.get("callbacks") or ())]
    if strategy is None:
        return model.evaluate(tf_dataset(complete_plan, WorkerSteps()), **options)
    # The replicas share the rows, and Keras sums their metrics. Keras would distribute a
    # single-worker dataset again, so that each worker would see only some of its rows.
    options["steps"] = complete_plan.steps_per_epoch
    with average_replicas(model, strategy):
        dataset = distribute(complete_plan, strategy, WorkerSteps(), unpadded=True)
        return model.evaluate(dataset, **options)


def _evaluate_by_function(
    plan: ReadPlan, function: Any, options: Mapping[str, Any]
) -> dict[str, float]:
    """Evaluate with a function that returns metrics per row, as for PyTorch."""
    # A PyTorch module is also callable, but returns predictions rather than metrics.
    if not callable(function) or hasattr(function, "state_dict") or options:
        raise InvalidArgument(
            "evaluate() takes a compiled Keras model, or a function that maps an element of "
            f"torch_loader to metrics per row, not {type(function).__name__}.",
            hint='reader.evaluate(lambda features, label: {"right": '
            "model(features).argmax(1) == label})",
        )
    from featurestore.readers.torch import evaluate_by_function, process_rank

    _, ranks = process_rank()
    return evaluate_by_function(_evaluation_plan(plan, replicas=ranks), function)


def _evaluate_by_steps(
    model: KerasModel,
    dataset: TfDataset,
    options: Mapping[str, Any],
    *,
    run: Callable[..., Any] | None = None,
    after_batch: Callable[[], None] | None = None,
) -> Any:
    """Call ``test_step`` for each dataset element and return the resulting metrics.

    Args:
        model: A compiled model.
        dataset: Elements as for ``model.evaluate``.
        options: Options of ``model.evaluate``.
        run: Runs a function on each replica; None calls it directly.
        after_batch: Called after each element.

    Raises:
        InvalidArgument: An option needs the loop of Keras.
    """
    from featurestore.readers.tensorflow import import_tensorflow

    unknown = sorted(set(options) - {"verbose", "return_dict"})
    if unknown:
        raise InvalidArgument(
            f"evaluate() with this strategy does not support {listing(unknown)}.",
            hint="reader.evaluate(model)",
        )
    tf = import_tensorflow()

    def on_replica(element: Tensor) -> None:
        if tf.nest.flatten(element)[0].shape[0] != 0:  # the mean of no rows is NaN
            model.test_step(element)

    def step(element: Tensor) -> None:
        if run is None:
            on_replica(element)
        else:
            run(on_replica, args=(element,))

    if not model.run_eagerly:
        # Trace the function for each batch size, so that it can skip batches without rows.
        step = tf.function(step)
    model.reset_metrics()
    with model.distribute_strategy.scope():
        for element in dataset:
            step(element)
            if after_batch is not None:
                after_batch()
    return model.get_metrics_result()


def _evaluation_plan(plan: ReadPlan, *, replicas: int) -> ReadPlan:
    """Return an evaluation plan, padded for several replicas, else with a short last batch."""
    if replicas > 1:
        replica_batch = -(-plan.order.global_batch_size // replicas)
        # TensorFlow convolutions fail on empty batches.
        while _leaves_replica_empty(plan.order.rows, replicas, replica_batch):
            replica_batch += 1
        return balance_over_replicas(plan, replicas, batch=replica_batch * replicas)
    order = replace(plan.order, remainder="keep", shuffle=False)
    return plan.with_order(order)


def balance_over_replicas(plan: ReadPlan, replicas: int, *, batch: int) -> ReadPlan:
    """Return a plan of the same rows that distributes them evenly over the replicas.

    In canonical order, the rows of the last batch would all go to the first replicas. The others
    would get empty batches, for which oneDNN convolutions fail.
    """
    order = replace(
        plan.order, remainder="pad", shuffle=True, global_batch_size=batch, lanes=replicas
    )
    return plan.with_order(order)


def has_empty_replica(plan: ReadPlan, replicas: int, *, batch: int) -> bool:
    """Return whether a replica gets an empty batch even if rows are distributed evenly."""
    rows = plan.order.rows
    return rows < replicas or _leaves_replica_empty(rows, replicas, batch // replicas)


def _leaves_replica_empty(rows: int, replicas: int, replica_batch: int) -> bool:
    # Row counts of replicas differ by at most one. The additional row of some replicas must not
    # start another batch.
    return rows >= replicas and rows % replicas != 0 and (rows // replicas) % replica_batch == 0


def refuse_metrics_over_padding(plan: ReadPlan, model: KerasModel) -> None:
    """Refuse a model whose metrics would include padding rows, or rows without label.

    Keras applies sample weights to the loss and to ``weighted_metrics=``, but not to ``metrics=``.
    """
    names = []
    # The attribute names of Keras 3 and of tf_keras; neither has a public one.
    for attribute in ("_compile_metrics", "compiled_metrics"):
        for metric in getattr(getattr(model, attribute, None), "_user_metrics", None) or ():
            names.append(getattr(metric, "name", metric))
    if not names:
        return
    if plan.weighing is not None and plan.weighing.masked_labels:
        raise ReaderConfigError(
            f"metrics= of the model ({listing(names)}) would include the rows without label.",
            hint=f"model.compile(..., weighted_metrics=[{', '.join(map(repr, names))}])",
        )
    if plan.order.remainder == "pad":
        raise ReaderConfigError(
            f'metrics= of the model ({listing(names)}) would include the padding rows of remainder="pad".',
            hint=f"model.compile(..., weighted_metrics=[{', '.join(map(repr, names))}])",
        )


@dataclass
class MetricSums:
    """Metric states summed over several ``fit`` calls of one epoch."""

    model: KerasModel
    _sums: list[Any] = field(default_factory=list)

    def accumulate(self) -> None:
        """Add the current metric states to the sums, then reset the metrics."""
        values = [np.asarray(local.numpy()) for local in self._variables()]
        if self._sums and len(self._sums) == len(values):
            values = [sum_ + value for sum_, value in zip(self._sums, values, strict=True)]
        self._sums = values
        self.model.reset_metrics()

    def restore(self) -> None:
        """Add the sums to the metric states, which then cover the complete epoch."""
        variables = self._variables()
        if len(variables) == len(self._sums):
            for local, value in zip(variables, self._sums, strict=True):
                local.assign_add(value)
        self._sums = []

    def _variables(self) -> list[Any]:
        """Return the local copies of all metric variables, one for each replica of this process."""
        strategy: Strategy = getattr(self.model, "distribute_strategy", None)
        if strategy is None:
            strategy = import_tensorflow().distribute.get_strategy()
        local_variables: list[Any] = []
        for metric in self.model.metrics:
            for variable in metric.variables:
                # Keras 3 wraps TensorFlow variables.
                inner = variable if callable(variable.value) else variable.value
                local_variables.extend(strategy.experimental_local_results(inner))
        return local_variables
