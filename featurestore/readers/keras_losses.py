"""Mean losses of Keras models, in which a batch has the weight of its real rows.

Keras computes the total loss, and with several outputs the loss of each output, with ``Mean``
metrics. It weights a batch by its number of rows, padding included, and Keras 3 gives all batches
the same weight in the losses of several outputs if the batch size is not static. This module
replaces these weights where Keras updates the metrics. Therefore the figures hold for each batch,
precision, strategy and number of steps per execution.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from featurestore.readers.columns import Tensor
from featurestore.readers.tensorflow import KerasModel, import_tensorflow, keras_module

# Reductions whose value is a sum over the rows of a batch, divided by its number of rows.
_ROW_MEANS = frozenset({"sum_over_batch_size", "auto", "mean"})
# The reduction whose value is that sum, divided by the sum of the sample weights.
_WEIGHTED_MEANS = frozenset({"mean_with_sample_weight"})


def weight_losses_by_rows(model: KerasModel) -> None:
    """Let the loss metrics of a compiled model weight each batch by its real rows.

    Losses with the reduction ``mean_with_sample_weight`` weight a batch by its sample weights. The
    metrics of other reductions, and of losses that the model computes itself, remain unchanged.
    Penalties of activities are means over all rows of a batch. ``model.compile`` undoes the change.
    """
    # Keras has no public access to the metrics and functions of a compiled loss.
    if keras_module(model).__name__ == "tf_keras":
        container = getattr(model, "compiled_loss", None)
        is_compiled = hasattr(container, "_total_loss_mean")
    else:
        container = getattr(model, "_compile_loss", None)
        is_compiled = container is not None
    if not is_compiled or getattr(container, "weights_rows", False):
        return
    if keras_module(model).__name__ == "tf_keras":
        _change_tf_keras(container)
    else:
        _change_keras_3(model, container)
    # Functions that were traced before this change use the weights of Keras.
    model.make_train_function(force=True)
    model.make_test_function(force=True)


def _change_tf_keras(container: Any) -> None:
    """Remove padding from the ``Mean`` metrics of a ``LossesContainer``."""
    tf = import_tensorflow()
    base: Any = type(container)

    class RowLosses(base):  # type: ignore[misc]
        weights_rows = True

        def __call__(
            self,
            y_true: Tensor,
            y_pred: Tensor,
            sample_weight: Tensor = None,
            regularization_losses: Tensor = None,
        ) -> Any:
            loss = super().__call__(
                y_true, y_pred, sample_weight, regularization_losses=regularization_losses
            )
            if sample_weight is None or not self.metrics:
                return loss
            weights = tf.nest.flatten(sample_weight)[0]
            # The weight of padding is -0.0.
            is_padding = (weights == 0) & (tf.bitcast(tf.cast(weights, tf.float32), tf.int32) < 0)
            padding = tf.math.count_nonzero(is_padding, dtype=tf.float32)
            losses = [output_loss for output_loss in self._losses if output_loss is not None]
            is_row_mean = [output_loss.reduction in _ROW_MEANS for output_loss in losses]
            total, *outputs = self.metrics
            # Keras has added the loss of the batch times its number of rows, which is right for
            # the sum over rows, and too much for penalties, which do not depend on rows.
            for mean, is_corrected in zip(outputs, is_row_mean, strict=False):
                if is_corrected:
                    mean.count.assign_sub(padding)
            if all(is_row_mean):
                penalties = [tf.cast(value, tf.float32) for value in regularization_losses or ()]
                total.count.assign_sub(padding)
                total.total.assign_sub(padding * tf.add_n([tf.zeros(()), *penalties]))
            return loss

    container.__class__ = RowLosses


@dataclass
class _Batch:
    """The weights of a batch in the traced step of Keras 3.

    Attributes:
        size: Number of rows, padding included.
        rows: Number of real rows; None is all.
        scale: Factor from the mean over all rows to the mean over real rows.
        weights: Sum of the sample weights.
        loss: The loss of the batch over all outputs, without penalties.
    """

    size: Tensor
    rows: Tensor
    scale: Tensor
    weights: Tensor
    loss: Tensor = None


def _change_keras_3(model: KerasModel, container: Any) -> None:
    """Replace the weights of batches in the ``Mean`` metrics of a ``CompileLoss``."""
    keras, tracker = keras_module(model), model._loss_tracker
    container_base: Any = type(container)
    tracker_base: Any = type(tracker)
    # A strategy traces each replica in a thread of its own.
    traced = threading.local()

    class RowLoss(container_base):  # type: ignore[misc]
        weights_rows = True

        def call(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor = None) -> Any:
            traced.batch = batch = _weigh_batch(keras, y_pred, sample_weight)
            traced.updates_outputs = True
            try:
                loss = super().call(y_true, y_pred, sample_weight)
            finally:
                traced.updates_outputs = False
            batch.loss = loss
            return loss

        @property
        def metrics(self) -> Any:
            means = super().metrics
            if not getattr(traced, "updates_outputs", False):
                return means
            reductions = [loss.loss.reduction for loss in self._flat_losses]
            return [
                _OutputMean(mean, traced.batch, frozenset({reduction}))
                for mean, reduction in zip(means, reductions, strict=True)
            ]

    class RowMean(tracker_base):  # type: ignore[misc]
        def update_state(self, values: Tensor, sample_weight: Tensor = None) -> None:
            batch = vars(traced).pop("batch", None)
            if batch is None or batch.loss is None:  # a train_step with a loss of its own
                super().update_state(values, sample_weight=sample_weight)
                return
            replicas = import_tensorflow().distribute.get_strategy().num_replicas_in_sync
            reductions = frozenset(loss.loss.reduction for loss in container._flat_losses)
            data_loss = batch.loss * replicas
            mean, weight = _weighted_mean(batch, reductions, values, data_loss, sample_weight)
            super().update_state(mean, sample_weight=weight)

    container.__class__ = RowLoss
    tracker.__class__ = RowMean


@dataclass(frozen=True)
class _OutputMean:
    """The ``Mean`` of an output's loss, which is updated for one batch."""

    mean: Tensor
    batch: _Batch
    reductions: frozenset[object]

    def update_state(self, value: Tensor, sample_weight: Tensor = None) -> None:
        """Update the metric; ``sample_weight`` is the static batch size or None."""
        mean, weight = _weighted_mean(self.batch, self.reductions, value, value, sample_weight)
        self.mean.update_state(mean, sample_weight=weight)


def _weighted_mean(
    batch: _Batch,
    reductions: frozenset[object],
    value: Tensor,
    data_loss: Tensor,
    sample_weight: Tensor,
) -> tuple[Any, Any]:
    """Return the mean of a batch over its real rows, and the weight of the batch.

    Sums of losses, and losses of several reductions, keep the weight of Keras.

    Args:
        batch: The batch.
        reductions: The reductions of the losses in the value.
        value: The value that Keras computed.
        data_loss: The part of the value that depends on rows; the rest are penalties.
        sample_weight: The weight that Keras gives the batch.
    """
    if reductions <= _WEIGHTED_MEANS:
        return value, batch.weights
    if not reductions <= _ROW_MEANS:
        return value, sample_weight
    if batch.rows is None:
        return value, batch.size
    return value + data_loss * (batch.scale - 1.0), batch.rows


def _weigh_batch(keras: Any, y_pred: Tensor, sample_weight: Tensor) -> _Batch:
    """Return the weights of a batch, before its loss is known."""
    ops, tree = keras.ops, keras.tree
    size = ops.cast(ops.shape(tree.flatten(y_pred)[0])[0], "float32")
    if sample_weight is None:
        return _Batch(size, rows=None, scale=1.0, weights=size)
    weights = ops.cast(tree.flatten(sample_weight)[0], "float32")
    # The weight of padding is -0.0.
    is_padding = ops.logical_and(ops.equal(weights, 0.0), ops.signbit(weights))
    rows = size - ops.sum(ops.cast(is_padding, "float32"))
    # A replica without real rows has the loss 0.
    scale = size / ops.maximum(rows, 1.0)
    return _Batch(size, rows=rows, scale=scale, weights=ops.sum(weights))
