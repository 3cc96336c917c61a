"""Modes of Keras ``fit``: strategies, and executions of several steps."""

from __future__ import annotations

from typing import Any

from featurestore.errors import ReaderConfigError
from featurestore.readers.tensorflow import keras_module, multi_replica_strategy, worker_position


def refuse_fit(model: Any) -> None:
    """Refuse a model that Keras cannot fit under its strategy.

    Raises:
        ReaderConfigError: ``fit`` of Keras 3 does not support several workers, and with several
            replicas no ``steps_per_execution`` above 1.
    """
    strategy = multi_replica_strategy(model)
    if strategy is None or keras_module(model).__name__ == "tf_keras":
        return
    _, workers = worker_position(strategy)
    if workers > 1:
        raise ReaderConfigError(
            f"fit() of Keras 3 does not support a strategy with {workers} workers.",
            hint="import tf_keras as keras",
        )
    steps = _steps_per_execution(model)
    if steps > 1:
        raise ReaderConfigError(
            f"fit() of Keras 3 does not support steps_per_execution={steps} with "
            f"{strategy.num_replicas_in_sync} replicas.",
            hint="model.steps_per_execution = 1",
        )


def overruns_epochs(model: Any, steps: int) -> bool:
    """Return whether ``fit`` would read steps of the next epoch in the last execution of an epoch.

    Keras 3 runs ``steps_per_execution`` steps at once until the dataset ends.

    Args:
        model: A compiled model.
        steps: Steps of each epoch.
    """
    if keras_module(model).__name__ == "tf_keras":
        return False
    return steps % _steps_per_execution(model) > 0


def count_steps(epoch_start: int, steps: int, steps_per_epoch: int) -> int:
    """Return the number of steps of a training after some steps of an epoch.

    Keras 3 also counts steps of the last execution that exceed the epoch.

    Args:
        epoch_start: Steps of the training at the start of the epoch, or at the step of the epoch
            from which it resumes.
        steps: Steps since then, as Keras counts them.
        steps_per_epoch: Steps of a complete epoch.
    """
    epoch_end = (epoch_start // steps_per_epoch + 1) * steps_per_epoch
    return min(epoch_start + steps, epoch_end)


def _steps_per_execution(model: Any) -> int:
    """Return the number of steps that a model of Keras 3 runs at once."""
    return getattr(model, "steps_per_execution", None) or 1
