"""Datasets of readers inside ``fit`` and ``evaluate`` of Keras: padding does not count in validation.

Keras divides the loss of a batch by its rows, padding included, and ``metrics=`` count padding. So
a dataset with padding gives ``evaluate`` its real rows, and ``fit`` all of them, since training needs
one static shape.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from featurestore.errors import InvalidArgument, ReaderConfigError
from featurestore.model.callers import calling_frame
from featurestore.readers.evaluation import balanced_over_replicas, has_empty_replica
from featurestore.readers.tensorflow import (
    distribute,
    distribute_unpadded,
    import_tensorflow,
    tf_dataset,
)

if TYPE_CHECKING:
    from featurestore.readers.reader import Reader

_KERAS = ("keras", "tf_keras", "tensorflow")
# Keras 3 builds a model from the first batch before it trains: that is no epoch.
_LOOK = "_maybe_symbolic_build"
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
        ReaderConfigError: The strategy has parameter servers, whose workers know nothing of one
            another: each of them would read all rows.
    """
    if has_parameter_servers(strategy):
        raise ReaderConfigError(
            "Each worker of a ParameterServerStrategy would read all rows of a distributed dataset.",
            hint=_SCHEDULE,
        )
    whole = {"start_epoch": start_epoch, "start_step": start_step}
    again = partial(distribute, reader, strategy, epochs, **whole)
    dataset = again()
    if reader.order.remainder != "pad":
        return _marked(dataset, reader, again=again, evaluated=lambda: dataset)

    def evaluated() -> Any:
        replicas, batch = strategy.num_replicas_in_sync, reader.global_batch_size
        if has_empty_replica(reader, replicas, batch=batch):
            raise ReaderConfigError(
                f"{reader.order.rows:,} rows in batches of {batch:,} leave one of {replicas} "
                "replicas without rows, for which convolutions of TensorFlow fail.",
                hint="reader.evaluate(model), or checkpoint.fit(model, epochs, validation=reader)",
            )
        if start_step:  # the rest of an epoch is that of the reader's own order
            return distribute_unpadded(reader, strategy, epochs, **whole)
        balanced = balanced_over_replicas(reader, replicas, batch=batch)
        return distribute_unpadded(balanced, strategy, epochs, start_epoch=start_epoch)

    return _marked(dataset, reader, again=again, evaluated=evaluated)


def dataset_for_keras(reader: Reader, epochs: int, *, start_epoch: int, start_step: int) -> Any:
    """Return the dataset of one process, without padding where Keras evaluates."""
    again = partial(
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
        return again()
    return _marked(again(), reader, again=again, evaluated=partial(again, unpadded=True))


def _marked(
    dataset: Any, reader: Reader, *, again: Callable[[], Any], evaluated: Callable[[], Any]
) -> Any:
    """Return a dataset that knows its reader.

    Args:
        dataset: That of the strategy, or of this process.
        reader: Whose rows it has.
        again: Makes the same dataset, for a look at its first batch.
        evaluated: Makes the dataset that Keras evaluates in its place.
    """
    kind: Any = type(dataset)
    datasets: list[Any] = []

    class DatasetOfReader(kind):  # type: ignore[misc]
        def __iter__(self) -> Any:
            # Keras does not say what it iterates a dataset for.
            frame = calling_frame(("fit", "evaluate", _LOOK), _KERAS)
            if frame is not None and frame.f_code.co_name == _LOOK:
                return kind.__iter__(again())
            if frame is not None and frame.f_code.co_name == "evaluate":
                if not datasets:
                    datasets.append(evaluated())
                return kind.__iter__(datasets[0])
            if frame is not None:
                refuse_unknown_steps(frame.f_locals)
            return kind.__iter__(self)

        if not hasattr(kind, "map"):

            def map(self, _function: Any) -> None:
                raise ReaderConfigError(
                    "A distributed dataset has no map(), which Keras takes for class_weight=.",
                    hint='dataset.reader("train", ..., class_weights="balanced"), or '
                    "checkpoint.fit(model, epochs, class_weights={0: 1.0, 1: 3.0})",
                )

    dataset.__class__ = DatasetOfReader
    setattr(dataset, _READER, reader)
    return dataset


def reader_of(dataset: Any) -> Reader | None:
    """Return the reader whose rows with padding a dataset has, or that made it for a strategy."""
    return getattr(dataset, _READER, None)


def refuse_undistributed(*, instead: str) -> None:
    """Refuse a dataset of ``tf_dataset`` in one of several workers of a cluster.

    Keras would distribute it again: each step would read a part of the rows of one worker's batch,
    and rows would be dropped or repeated.

    Args:
        instead: What to type where workers reduce over one another.

    Raises:
        ReaderConfigError: Says what to type.
    """
    workers, servers = _cluster_of_process()
    if workers > 1:
        raise ReaderConfigError(
            f"This process is one of {workers} workers, and Keras would distribute "
            "reader.tf_dataset() among them once more.",
            hint=f"{_SCHEDULE}; reader.evaluate(model)" if servers else instead,
        )


def _cluster_of_process() -> tuple[int, int]:
    """Return the workers and parameter servers of the cluster of this process."""
    try:
        cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
        counts = Counter({job: len(tasks) for job, tasks in cluster.items()})
    except (ValueError, AttributeError, TypeError):
        counts = Counter()
    if not counts:
        # Strategies of other cluster resolvers have connected the devices of all tasks.
        names = [device.name for device in import_tensorflow().config.list_logical_devices()]
        tasks = {match[0]: match[1] for match in map(_TASK.match, names) if match}
        counts = Counter(tasks.values())
    return counts["worker"] + counts["chief"], counts["ps"]


def has_parameter_servers(strategy: Any) -> bool:
    """Return whether the workers of a strategy get their variables from parameter servers."""
    kind = import_tensorflow().distribute.ParameterServerStrategy
    return isinstance(strategy, kind)


def refuse_unknown_steps(options: Mapping[str, Any]) -> None:
    """Refuse ``validation_data=`` of a strategy without its number of steps.

    Raises:
        InvalidArgument: Says what to type.
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
