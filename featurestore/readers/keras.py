"""Integration of readers with Keras ``fit`` and ``evaluate``.

Keras divides the loss of a batch by its number of rows, padding included, and ``metrics=`` count
padding. Therefore a padded dataset yields only real rows to ``evaluate``. It yields all rows to
``fit``, since training needs a static shape.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from featurestore.errors import InvalidArgument, ReaderConfigError
from featurestore.model.arguments import calling_frame
from featurestore.readers import tensorflow
from featurestore.readers.batches import WorkerSteps
from featurestore.readers.evaluation import balance_over_replicas, has_empty_replica
from featurestore.readers.keras_losses import weight_losses_by_rows
from featurestore.readers.plan import ReadPlan
from featurestore.readers.tensorflow import KerasModel, Strategy, TfDataset
from featurestore.readers.transformed import has_bytes_labels, refuse_bytes_labels

# State attributes of EarlyStopping, ReduceLROnPlateau and ModelCheckpoint.
_COUNTERS = (
    "wait",
    "best",
    "best_epoch",
    "stopped_epoch",
    "cooldown_counter",
    "epochs_since_last_save",
    "_batches_seen_since_last_saving",
)
_SAVED_CLASSES = ("EarlyStopping", "ReduceLROnPlateau", "ModelCheckpoint")
_BEST_WEIGHTS = "best_weights"
_HOOKS = (
    "on_epoch_begin",
    "on_epoch_end",
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_test_batch_begin",
    "on_test_batch_end",
    "on_test_begin",
    "on_test_end",
    "on_train_begin",
    "on_train_end",
)
_KERAS = ("keras", "tf_keras", "tensorflow")
# The Keras 3 function that builds a model from the first batch; that iteration is not an epoch.
_SYMBOLIC_BUILD = "_maybe_symbolic_build"
_PLAN = "_featurestore_plan"
_TASK = re.compile("/job:([^/]+)/replica:[0-9]+/task:[0-9]+")
_SCHEDULE = (
    "for batch in reader.batches(epoch): coordinator.schedule(train_step, args=(batch,)); "
    "in a run of experiments: context.schedule(train_step, epochs=5)"
)


def distribute_for_keras(plan: ReadPlan, strategy: Strategy, steps: WorkerSteps) -> TfDataset:
    """Return a distributed dataset that yields no padding to Keras ``evaluate``.

    Raises:
        ReaderConfigError: The strategy has parameter servers. Their workers are independent, so
            each worker would read all rows.
    """
    if tensorflow.has_parameter_servers(strategy):
        raise ReaderConfigError(
            "Each worker of a ParameterServerStrategy would read all rows of a distributed dataset.",
            hint=_SCHEDULE,
        )
    make_dataset = partial(tensorflow.distribute, plan, strategy, steps)
    dataset = make_dataset()
    if plan.order.remainder != "pad":
        return _attach_plan(
            dataset, plan, make_dataset=make_dataset, make_evaluation_dataset=lambda: dataset
        )

    def make_evaluation_dataset() -> TfDataset:
        replicas, batch = strategy.num_replicas_in_sync, plan.order.global_batch_size
        if has_empty_replica(plan, replicas, batch=batch):
            raise ReaderConfigError(
                f"{plan.order.rows:,} rows in batches of {batch:,} leave one of {replicas} "
                "replicas without rows, and TensorFlow convolutions fail on empty batches.",
                hint="reader.evaluate(model), or checkpoint.fit(model, epochs, validation=reader)",
            )
        evaluation_plan = plan
        if not steps.start_step:  # a partial epoch must follow the reader's order
            evaluation_plan = balance_over_replicas(plan, replicas, batch=batch)
        return tensorflow.distribute(evaluation_plan, strategy, steps, unpadded=True)

    return _attach_plan(
        dataset, plan, make_dataset=make_dataset, make_evaluation_dataset=make_evaluation_dataset
    )


def dataset_for_keras(plan: ReadPlan, steps: WorkerSteps) -> TfDataset:
    """Return a single-process dataset that yields no padding to Keras ``evaluate``."""
    make_dataset = partial(tensorflow.tf_dataset, plan, steps)
    dataset = make_dataset()
    if plan.order.remainder == "drop" and not has_bytes_labels(plan.columns):
        return dataset
    make_evaluation_dataset = make_dataset
    if plan.order.remainder == "pad":
        make_evaluation_dataset = partial(make_dataset, unpadded=True)
    return _attach_plan(
        dataset, plan, make_dataset=make_dataset, make_evaluation_dataset=make_evaluation_dataset
    )


def _attach_plan(
    dataset: TfDataset,
    plan: ReadPlan,
    *,
    make_dataset: Callable[[], TfDataset],
    make_evaluation_dataset: Callable[[], TfDataset],
) -> TfDataset:
    """Attach the plan of a reader to a dataset, and select the iterated dataset by the calling Keras function.

    Args:
        dataset: The dataset of a strategy or of this process.
        plan: The plan of its reader.
        make_dataset: Creates an equal dataset, from which Keras 3 builds a model.
        make_evaluation_dataset: Creates the dataset that ``evaluate`` iterates.
    """
    dataset_class: Any = type(dataset)
    evaluation_datasets: list[Any] = []

    class DatasetOfReader(dataset_class):  # type: ignore[misc]
        def __iter__(self) -> Any:
            # Keras does not pass the purpose of an iteration, so find it in the call stack.
            frame = calling_frame(("fit", "evaluate", _SYMBOLIC_BUILD), _KERAS)
            if frame is not None and frame.f_code.co_name == _SYMBOLIC_BUILD:
                return dataset_class.__iter__(make_dataset())
            if frame is not None:
                refuse_bytes_labels(plan.manifest, plan.columns)
                weight_losses_by_rows(frame.f_locals["self"])
            if frame is not None and frame.f_code.co_name == "evaluate":
                # Created on first use: a dataset that only ``fit`` iterates needs no second one.
                if not evaluation_datasets:
                    evaluation_datasets.append(make_evaluation_dataset())
                return dataset_class.__iter__(evaluation_datasets[0])
            if frame is not None:
                refuse_unknown_steps(frame.f_locals)
            return dataset_class.__iter__(self)

        if not hasattr(dataset_class, "map"):

            def map(self, _function: Any) -> None:
                raise ReaderConfigError(
                    "A distributed dataset has no map(), which Keras needs for class_weight=.",
                    hint='dataset.reader("train", ..., class_weights="balanced"), or '
                    "checkpoint.fit(model, epochs, class_weights={0: 1.0, 1: 3.0})",
                )

    # Keras and strategies accept only instances of dataset classes, so the object is changed and
    # not wrapped.
    dataset.__class__ = DatasetOfReader
    setattr(dataset, _PLAN, plan)
    return dataset


def get_attached_plan(dataset: TfDataset) -> ReadPlan | None:
    """Return the plan attached to a dataset, or None."""
    return getattr(dataset, _PLAN, None)


def refuse_undistributed(*, hint: str) -> None:
    """Refuse a ``tf_dataset`` dataset in a cluster with several workers.

    Keras would distribute it again: each step would read only some rows of a worker's batch, and
    rows would be dropped or repeated.

    Args:
        hint: The error hint for workers of an all-reduce strategy.

    Raises:
        ReaderConfigError: The cluster has several workers.
    """
    workers, servers = _cluster_size()
    if workers > 1:
        raise ReaderConfigError(
            f"This process is one of {workers} workers, and Keras would distribute "
            "reader.tf_dataset() among them again.",
            hint=f"{_SCHEDULE}; reader.evaluate(model)" if servers else hint,
        )


def _cluster_size() -> tuple[int, int]:
    """Return the number of workers and of parameter servers in the cluster."""
    try:
        cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
        counts = Counter({job: len(tasks) for job, tasks in cluster.items()})
    except (ValueError, AttributeError, TypeError):
        counts = Counter()
    if not counts:
        # Strategies with other cluster resolvers are already connected to the devices of all tasks.
        names = [
            device.name for device in tensorflow.import_tensorflow().config.list_logical_devices()
        ]
        tasks = {match[0]: match[1] for match in map(_TASK.match, names) if match}
        counts = Counter(tasks.values())
    return counts["worker"] + counts["chief"], counts["ps"]


def refuse_unknown_steps(options: Mapping[str, Any]) -> None:
    """Refuse a distributed ``validation_data=`` dataset without ``validation_steps=``.

    Raises:
        InvalidArgument: ``validation_steps=`` is missing.
    """
    data = options.get("validation_data")
    distributed = isinstance(data, tensorflow.import_tensorflow().distribute.DistributedDataset)
    if distributed and options.get("validation_steps") is None:
        steps = "validation_steps=checks.steps_per_epoch"
        raise InvalidArgument(
            "validation_data= is a distributed dataset, whose number of steps Keras cannot determine.",
            hint=f"checkpoint.fit(model, epochs, validation=checks), or model.fit(..., {steps}), "
            "where checks is the reader",
        )


def pop_validation_plan(validation: Any, options: dict[str, object]) -> ReadPlan | None:
    """Remove the validation dataset from the ``fit`` options and return the plan of its reader.

    A ``validation_data=`` dataset that a reader's ``distribute`` created is replaced by that reader
    if it is used with all of its steps.

    Raises:
        InvalidArgument: There are two validation datasets, or the number of steps is unknown.
    """
    data = options.get("validation_data")
    if validation is not None and data is not None:
        raise InvalidArgument(
            "validation= and validation_data= are mutually exclusive.",
            hint="fit(model, epochs, validation=reader)",
        )
    plan = get_attached_plan(data)
    if plan is None:
        refuse_unknown_steps(options)
        reader = getattr(validation, "reader", validation)  # a reader of a run has a reader
        return None if reader is None else reader.plan
    if options.get("validation_steps") not in (None, plan.steps_per_epoch):
        return None
    options.pop("validation_data")
    options.pop("validation_steps", None)
    return plan


def validation_callback(
    model: KerasModel,
    validation: ReadPlan,
    *,
    frequency: int = 1,
    after_batch: Callable[[], None] | None = None,
) -> Any:
    """Return a Keras callback that adds ``validation.evaluate`` metrics to the epoch logs.

    It must be the first callback, so that the others see ``val_loss`` and the other metrics.
    ``after_batch`` is called after each batch of the validation.
    """
    from featurestore.readers.evaluation import evaluate

    keras = tensorflow.keras_module(model)

    class ValidationCallback(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        _supports_tf_logs = True  # get the logs themselves and not a copy for this callback

        def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
            if (epoch + 1) % frequency == 0 and logs is not None:
                metrics = evaluate(validation, self.model, after_batch=after_batch)
                logs.update({f"val_{name}": value for name, value in metrics.items()})

    return ValidationCallback()


def wrap_for_fit(
    model: KerasModel, callback: Any, *, is_first_fit: bool, is_last_fit: Callable[[], bool]
) -> Any:
    """Wrap a callback for a training run that consists of several ``fit`` calls.

    Args:
        model: The model to fit.
        callback: The callback to wrap.
        is_first_fit: Whether this ``fit`` call is the first.
        is_last_fit: Returns whether this ``fit`` call is the last.
    """
    keras = tensorflow.keras_module(model)

    def hook(name: str) -> Callable[..., None]:
        def call(self: Any, *arguments: Any, **keywords: Any) -> None:
            # Keras calls these hooks in each ``fit``, and callbacks would reset their state.
            if name == "on_train_begin" and not is_first_fit:
                return
            if name == "on_train_end" and not is_last_fit():
                return
            getattr(callback, name)(*arguments, **keywords)

        return call

    def set_model(self: Any, model: KerasModel) -> None:
        callback.set_model(model)

    def set_params(self: Any, params: object) -> None:
        callback.set_params(params)

    methods: dict[str, Any] = {name: hook(name) for name in _HOOKS}
    methods |= {"set_model": set_model, "set_params": set_params}
    methods["_supports_tf_logs"] = getattr(callback, "_supports_tf_logs", False)
    wrapper: Any = type("Continued", (keras.callbacks.Callback,), methods)()
    return wrapper


def merge_histories(model: KerasModel, histories: Sequence[Any]) -> Any:
    """Merge the Keras ``History`` objects of consecutive ``fit`` calls."""
    merged = tensorflow.keras_module(model).callbacks.History()
    merged.set_model(model)
    merged.epoch, merged.history = [], {}
    for history in histories:
        merged.epoch.extend(history.epoch)
        for name, values in history.history.items():
            merged.history.setdefault(name, []).extend(values)
        merged.params = history.params
    return merged


def dump_callback_states(callbacks: Sequence[Any]) -> bytes:
    """Serialize the callback states as an ``.npz`` file."""
    states: list[dict[str, Any]] = []
    arrays: dict[str, Any] = {}
    for number, callback in enumerate(callbacks):
        class_name = _stateful_class_name(callback)
        state = {}
        for name in _COUNTERS if class_name else ():
            value = vars(callback).get(name)
            if isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
                # "best" starts at infinity, which JSON cannot represent. The hexadecimal form keeps
                # all bits.
                state[name] = float(value).hex()
        weights = vars(callback).get(_BEST_WEIGHTS) if class_name else None
        for index, array in enumerate(weights or ()):
            arrays[f"{number}-{index:06d}"] = np.asarray(array)
        states.append({"kind": class_name, "state": state})
    content = io.BytesIO()
    np.savez(content, states=np.frombuffer(json.dumps(states).encode(), np.uint8), **arrays)
    return content.getvalue()


def restore_callback_states(callbacks: Sequence[Any], content: bytes) -> bool:
    """Restore the callback states, and return whether a callback had stopped the training.

    A callback is not restored if its class or position differs from the saved one.
    """
    stopped = False
    with np.load(io.BytesIO(content), allow_pickle=False) as saved:
        states = json.loads(saved["states"].tobytes())
        for number, callback in enumerate(callbacks):
            if number >= len(states) or states[number]["kind"] != (
                _stateful_class_name(callback) or None
            ):
                continue
            for name, hex_value in states[number]["state"].items():
                value = float.fromhex(hex_value)
                is_integer = name in _COUNTERS and name != "best" and math.isfinite(value)
                setattr(callback, name, int(value) if is_integer else value)
            # The indexes have six digits, so the sorted names are in the order of the weights.
            names = sorted(name for name in saved.files if name.startswith(f"{number}-"))
            if names:
                setattr(callback, _BEST_WEIGHTS, [saved[name] for name in names])
            stopped |= getattr(callback, "stopped_epoch", 0) > 0
    return stopped


def _stateful_class_name(callback: Any) -> str | None:
    """Return the Keras class name of a callback whose state can be saved, else None."""
    for base_class in type(callback).__mro__:
        if base_class.__name__ in _SAVED_CLASSES and base_class.__module__.split(".")[0] in (
            "keras",
            "tf_keras",
        ):
            return base_class.__name__
    return None


def refuse_fit(model: KerasModel) -> None:
    """Refuse a model that Keras cannot fit under its strategy.

    Raises:
        ReaderConfigError: ``fit`` of Keras 3 does not support several workers, and with several
            replicas no ``steps_per_execution`` above 1.
    """
    strategy = tensorflow.multi_replica_strategy(model)
    if strategy is None or tensorflow.keras_module(model).__name__ == "tf_keras":
        return
    _, workers = tensorflow.worker_position(strategy)
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


def overruns_epochs(model: KerasModel, steps: int) -> bool:
    """Return whether ``fit`` would read steps of the next epoch in the last execution of an epoch.

    Keras 3 runs ``steps_per_execution`` steps at once until the dataset ends.

    Args:
        model: A compiled model.
        steps: Steps of each epoch.
    """
    if tensorflow.keras_module(model).__name__ == "tf_keras":
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


def _steps_per_execution(model: KerasModel) -> int:
    """Return the number of steps that a model of Keras 3 runs at once."""
    return getattr(model, "steps_per_execution", None) or 1
