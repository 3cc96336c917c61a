"""Readers in ``fit`` and ``evaluate`` of Keras: datasets, validation, history, resumable callbacks.

Keras divides the loss of a batch by its rows, padding included, and ``metrics=`` count padding. So
a padded dataset yields only real rows to ``evaluate``, and all rows to ``fit``, since training needs
one static shape.
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
from typing import TYPE_CHECKING, Any

import numpy as np

from featurestore.errors import InvalidArgument, ReaderConfigError
from featurestore.model.arguments import calling_frame
from featurestore.readers.evaluation import balanced_over_replicas, has_empty_replica
from featurestore.readers.tensorflow import (
    distribute,
    distribute_unpadded,
    has_parameter_servers,
    import_tensorflow,
    keras_module,
    tf_dataset,
)

if TYPE_CHECKING:
    from featurestore.readers.reader import Reader

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
# Keras 3 builds a model from the first batch before training; this iteration is not an epoch.
_SYMBOLIC_BUILD = "_maybe_symbolic_build"
_READER = "_featurestore_reader"
_TASK = re.compile("/job:([^/]+)/replica:[0-9]+/task:[0-9]+")
_SCHEDULE = (
    "for batch in reader.batches(epoch): coordinator.schedule(train_step, args=(batch,)); "
    "in a run of experiments: context.schedule(train_step, epochs=5)"
)


def distribute_for_keras(
    reader: Reader, strategy: Any, epochs: int, *, start_epoch: int, start_step: int
) -> Any:
    """Return the distributed dataset of a strategy, without padding where Keras evaluates.

    Raises:
        ReaderConfigError: The strategy has parameter servers, whose workers are independent: each
            worker would read all rows.
    """
    if has_parameter_servers(strategy):
        raise ReaderConfigError(
            "Each worker of a ParameterServerStrategy would read all rows of a distributed dataset.",
            hint=_SCHEDULE,
        )
    start = {"start_epoch": start_epoch, "start_step": start_step}
    make_dataset = partial(distribute, reader, strategy, epochs, **start)
    dataset = make_dataset()
    if reader.order.remainder != "pad":
        return _attach_reader(
            dataset, reader, make_dataset=make_dataset, make_evaluation_dataset=lambda: dataset
        )

    def make_evaluation_dataset() -> Any:
        replicas, batch = strategy.num_replicas_in_sync, reader.global_batch_size
        if has_empty_replica(reader, replicas, batch=batch):
            raise ReaderConfigError(
                f"{reader.order.rows:,} rows in batches of {batch:,} leave one of {replicas} "
                "replicas without rows, for which convolutions of TensorFlow fail.",
                hint="reader.evaluate(model), or checkpoint.fit(model, epochs, validation=reader)",
            )
        if start_step:  # a partial epoch must follow the reader's order
            return distribute_unpadded(reader, strategy, epochs, **start)
        balanced_reader = balanced_over_replicas(reader, replicas, batch=batch)
        return distribute_unpadded(balanced_reader, strategy, epochs, start_epoch=start_epoch)

    return _attach_reader(
        dataset, reader, make_dataset=make_dataset, make_evaluation_dataset=make_evaluation_dataset
    )


def dataset_for_keras(reader: Reader, epochs: int, *, start_epoch: int, start_step: int) -> Any:
    """Return the dataset of one process, without padding where Keras evaluates."""
    make_dataset = partial(
        tf_dataset,
        reader,
        epochs,
        worker=0,
        workers=1,
        start_epoch=start_epoch,
        start_step=start_step,
        replicas=1,
    )
    if reader.order.remainder != "pad":
        return make_dataset()
    return _attach_reader(
        make_dataset(),
        reader,
        make_dataset=make_dataset,
        make_evaluation_dataset=partial(make_dataset, unpadded=True),
    )


def _attach_reader(
    dataset: Any,
    reader: Reader,
    *,
    make_dataset: Callable[[], Any],
    make_evaluation_dataset: Callable[[], Any],
) -> Any:
    """Attach a reader to a dataset, and change what Keras iterates.

    Args:
        dataset: The dataset of a strategy or of this process.
        reader: The reader of the dataset.
        make_dataset: Creates an equal dataset, from which Keras 3 builds a model.
        make_evaluation_dataset: Creates the dataset that Keras evaluates instead.
    """
    kind: Any = type(dataset)
    evaluation_datasets: list[Any] = []

    class DatasetOfReader(kind):  # type: ignore[misc]
        def __iter__(self) -> Any:
            # Keras has no argument for the purpose of an iteration: the calling frame shows it.
            frame = calling_frame(("fit", "evaluate", _SYMBOLIC_BUILD), _KERAS)
            if frame is not None and frame.f_code.co_name == _SYMBOLIC_BUILD:
                return kind.__iter__(make_dataset())
            if frame is not None and frame.f_code.co_name == "evaluate":
                if not evaluation_datasets:
                    evaluation_datasets.append(make_evaluation_dataset())
                return kind.__iter__(evaluation_datasets[0])
            if frame is not None:
                refuse_unknown_steps(frame.f_locals)
            return kind.__iter__(self)

        if not hasattr(kind, "map"):

            def map(self, _function: Any) -> None:
                raise ReaderConfigError(
                    "A distributed dataset has no map(), which Keras needs for class_weight=.",
                    hint='dataset.reader("train", ..., class_weights="balanced"), or '
                    "checkpoint.fit(model, epochs, class_weights={0: 1.0, 1: 3.0})",
                )

    dataset.__class__ = DatasetOfReader
    setattr(dataset, _READER, reader)
    return dataset


def attached_reader(dataset: Any) -> Reader | None:
    """Return the reader that is attached to a dataset, if any."""
    return getattr(dataset, _READER, None)


def refuse_undistributed(*, hint: str) -> None:
    """Refuse a dataset of ``tf_dataset`` in one of several workers of a cluster.

    Keras would distribute it again: each step would read only some rows of a worker's batch, and
    rows would be dropped or repeated.

    Args:
        hint: The hint for workers of an all-reduce strategy.

    Raises:
        ReaderConfigError: The cluster has several workers.
    """
    workers, servers = _cluster_of_process()
    if workers > 1:
        raise ReaderConfigError(
            f"This process is one of {workers} workers, and Keras would distribute "
            "reader.tf_dataset() among them again.",
            hint=f"{_SCHEDULE}; reader.evaluate(model)" if servers else hint,
        )


def _cluster_of_process() -> tuple[int, int]:
    """Return the numbers of workers and parameter servers in the cluster of this process."""
    try:
        cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
        counts = Counter({job: len(tasks) for job, tasks in cluster.items()})
    except (ValueError, AttributeError, TypeError):
        counts = Counter()
    if not counts:
        # Strategies with other cluster resolvers have connected to the devices of all tasks.
        names = [device.name for device in import_tensorflow().config.list_logical_devices()]
        tasks = {match[0]: match[1] for match in map(_TASK.match, names) if match}
        counts = Counter(tasks.values())
    return counts["worker"] + counts["chief"], counts["ps"]


def refuse_unknown_steps(options: Mapping[str, Any]) -> None:
    """Refuse a distributed ``validation_data=`` without its number of steps.

    Raises:
        InvalidArgument: ``validation_steps=`` is missing.
    """
    data = options.get("validation_data")
    distributed = isinstance(data, import_tensorflow().distribute.DistributedDataset)
    if distributed and options.get("validation_steps") is None:
        steps = "validation_steps=checks.steps_per_epoch"
        raise InvalidArgument(
            "validation_data= is a distributed dataset, whose number of steps Keras cannot know.",
            hint=f"checkpoint.fit(model, epochs, validation=checks), or model.fit(..., {steps}), "
            "where checks is the reader",
        )


def take_validation_reader(validation: Any, options: dict[str, Any]) -> Any:
    """Return the validation reader, and remove it from the options of ``fit``.

    ``validation_data=`` from a reader's ``distribute``, with all its steps, is that reader.

    Raises:
        InvalidArgument: There are two validation datasets, or the steps of one are unknown.
    """
    data = options.get("validation_data")
    if validation is not None and data is not None:
        raise InvalidArgument(
            "validation= and validation_data= exclude each other.",
            hint="fit(model, epochs, validation=reader)",
        )
    reader = attached_reader(data)
    if reader is None:
        refuse_unknown_steps(options)
        return getattr(validation, "reader", validation)
    if options.get("validation_steps") not in (None, reader.steps_per_epoch):
        return None
    options.pop("validation_data")
    options.pop("validation_steps", None)
    return reader


def validation_callback(model: Any, validation: Reader, *, frequency: int = 1) -> Any:
    """Return a Keras callback that adds the metrics of ``validation.evaluate`` to the epoch's logs.

    It must be the first callback, so that the others see ``val_loss`` and its siblings.
    """
    keras = keras_module(model)

    class ValidationCallback(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        _supports_tf_logs = True  # get the logs themselves and not a copy for this callback

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if (epoch + 1) % frequency == 0 and logs is not None:
                figures = validation.evaluate(self.model)
                logs.update({f"val_{name}": value for name, value in figures.items()})

    return ValidationCallback()


def wrap_for_fit(model: Any, callback: Any, *, begins: bool, ends: Callable[[], bool]) -> Any:
    """Return a wrapper of a callback for one of several fits of one training.

    Args:
        model: The model that is fitted.
        callback: The callback to wrap.
        begins: Whether this fit is the first.
        ends: Returns True if this fit is the last.
    """
    keras = keras_module(model)

    def hook(name: str) -> Callable[..., None]:
        def call(self: Any, *arguments: Any, **keywords: Any) -> None:
            if name == "on_train_begin" and not begins:
                return
            if name == "on_train_end" and not ends():
                return
            getattr(callback, name)(*arguments, **keywords)

        return call

    def set_model(self: Any, model: Any) -> None:
        callback.set_model(model)

    def set_params(self: Any, params: Any) -> None:
        callback.set_params(params)

    methods: dict[str, Any] = {name: hook(name) for name in _HOOKS}
    methods |= {"set_model": set_model, "set_params": set_params}
    methods["_supports_tf_logs"] = getattr(callback, "_supports_tf_logs", False)
    wrapper: Any = type("Continued", (keras.callbacks.Callback,), methods)()
    return wrapper


def merged_history(model: Any, histories: Sequence[Any]) -> Any:
    """Return one Keras ``History`` of consecutive fits."""
    merged = keras_module(model).callbacks.History()
    merged.set_model(model)
    merged.epoch, merged.history = [], {}
    for each in histories:
        merged.epoch.extend(each.epoch)
        for name, values in each.history.items():
            merged.history.setdefault(name, []).extend(values)
        merged.params = each.params
    return merged


def callback_states(callbacks: Sequence[Any]) -> bytes:
    """Return the state of callbacks as an ``.npz`` file."""
    states: list[dict[str, Any]] = []
    arrays: dict[str, Any] = {}
    for number, callback in enumerate(callbacks):
        kind = _saved_class(callback)
        state = {}
        for name in _COUNTERS if kind else ():
            value = vars(callback).get(name)
            if isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
                state[name] = float(value).hex()
        weights = vars(callback).get(_BEST_WEIGHTS) if kind else None
        for index, array in enumerate(weights or ()):
            arrays[f"{number}-{index:06d}"] = np.asarray(array)
        states.append({"kind": kind, "state": state})
    content = io.BytesIO()
    np.savez(content, states=np.frombuffer(json.dumps(states).encode(), np.uint8), **arrays)
    return content.getvalue()


def restore_callbacks(callbacks: Sequence[Any], content: bytes) -> bool:
    """Restore the state of callbacks; return True if one of the callbacks had stopped the training.

    Callbacks whose class or position differs from the saved one start without a state.
    """
    stopped = False
    with np.load(io.BytesIO(content), allow_pickle=False) as saved:
        states = json.loads(saved["states"].tobytes())
        for number, callback in enumerate(callbacks):
            if number >= len(states) or states[number]["kind"] != (_saved_class(callback) or None):
                continue
            for name, text in states[number]["state"].items():
                value = float.fromhex(text)
                is_integer = name in _COUNTERS and name != "best" and math.isfinite(value)
                setattr(callback, name, int(value) if is_integer else value)
            names = sorted(name for name in saved.files if name.startswith(f"{number}-"))
            if names:
                setattr(callback, _BEST_WEIGHTS, [saved[name] for name in names])
            stopped |= getattr(callback, "stopped_epoch", 0) > 0
    return stopped


def _saved_class(callback: Any) -> str | None:
    """Return the class name of a callback whose state can be saved, else None."""
    for each in type(callback).__mro__:
        if each.__name__ in _SAVED_CLASSES and each.__module__.split(".")[0] in (
            "keras",
            "tf_keras",
        ):
            return each.__name__
    return None
