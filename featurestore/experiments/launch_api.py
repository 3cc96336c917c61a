"""Public functions that launch one run: one process, several workers, or all devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from featurestore.experiments.record_api import session_of
from featurestore.model.arguments import with_suggestions

if TYPE_CHECKING:
    from featurestore.experiments.functions import TrainFunction
    from featurestore.experiments.launching import LaunchRequest
    from featurestore.experiments.run import Run
    from featurestore.experiments.status import Listener
    from featurestore.plugins.launcher import Launcher
    from featurestore.store import FeatureStore
    from featurestore.training.dataset import TrainingDataset


@with_suggestions
def launch(
    train_fn: TrainFunction,
    *,
    dataset: TrainingDataset | None = None,
    params: Mapping[str, Any] | None = None,
    name: str | None = None,
    on: str | Launcher = "local",
    retries: int = 0,
    seed: int = 0,
    environment: Mapping[str, str] | None = None,
    store: FeatureStore | None = None,
    progress: bool | Listener | None = None,
) -> Run:
    """Run a training function in one fresh process and return the finished run.

    Args:
        train_fn: A function that accepts ``params``, ``context``, or individual parameters by name.
            It returns a dict of numbers, the final metric values.
        dataset: The training dataset that ``context.reader`` reads.
        params: Numbers, strings, lists and dicts of these, by name.
        name: The experiment name, ``[a-z][a-z0-9_]{0,62}``; None for the function's name.
        on: "local", "spark", or another launcher.
        retries: Maximum number of restarts from the last checkpoint when a process dies.
        seed: Seed of Python, numpy, TensorFlow and the reader's order.
        environment: Environment variables of the process; records contain only their names.
        store: The store that records the run; None for the dataset's store, or else the store last
            connected.
        progress: True shows the last line of each worker's log, None shows it in notebooks and
            terminals only; a function receives these lines.

    Raises:
        InvalidTrainFunction: The function cannot be pickled, or has other arguments.
        RunFailed: The function failed, or its process died more often than ``retries`` allows.

    >>> def train_fn(lr, context):
    ...     reader = context.reader("train", global_batch_size=2)
    ...     for step, batch in reader.steps(epochs=1):
    ...         context.report(step, seats=batch["seats"].mean() * lr)
    >>> from featurestore import experiments
    >>> dataset = store.get_training_dataset("late_flights")
    >>> run = experiments.launch(train_fn, dataset=dataset, params={"lr": 0.1})
    >>> run.state, run.history("seats")
    ('finished', {0: 15.0, 1: 15.0})
    """
    from featurestore.experiments.launching import LaunchRequest

    request = LaunchRequest(
        train_fn,
        "launch",
        dataset=dataset,
        params=params,
        name=name,
        on=on,
        retries=retries,
        seed=seed,
        environment=environment,
        progress=progress,
    )
    return _launch(request, store)


@with_suggestions
def collective_all_reduce(
    train_fn: TrainFunction,
    *,
    workers: int,
    dataset: TrainingDataset | None = None,
    params: Mapping[str, Any] | None = None,
    name: str | None = None,
    on: str | Launcher = "local",
    retries: int = 0,
    seed: int = 0,
    environment: Mapping[str, str] | None = None,
    store: FeatureStore | None = None,
    progress: bool | Listener | None = None,
) -> Run:
    """Run a training function in several workers that sum their gradients.

    ``context.strategy`` is a ``MultiWorkerMirroredStrategy``, and each worker reads its own lanes.
    When a worker is lost, all workers are stopped and restarted from the last checkpoint, up to
    ``retries`` times. With the same number of workers, the losses are bit-identical to those of an
    uninterrupted run.

    Args:
        train_fn: See ``launch``; every worker calls it.
        workers: Number of workers; they divide the reader's lanes.
        dataset: See ``launch``.
        params: See ``launch``.
        name: See ``launch``.
        on: "local": processes on this machine; "spark": tasks of one barrier stage.
        retries: Maximum number of restarts of all workers when one is lost.
        seed: See ``launch``.
        environment: See ``launch``.
        store: See ``launch``.
        progress: See ``launch``.

    >>> def train_fn(context):
    ...     reader = context.reader("train", global_batch_size=2)
    ...     for step, batch in reader.steps(epochs=1):
    ...         context.report(step, rows=len(batch["seats"]))
    >>> from featurestore import experiments
    >>> dataset = store.get_training_dataset("late_flights")
    >>> run = experiments.collective_all_reduce(train_fn, dataset=dataset, workers=2)  # doctest: +SKIP
    >>> run.metrics  # doctest: +SKIP
    {'rows': 1.0}
    """
    from featurestore.experiments.launching import LaunchRequest

    request = LaunchRequest(
        train_fn,
        "collective_all_reduce",
        dataset=dataset,
        params=params,
        name=name,
        on=on,
        workers=workers,
        strategy="multiworker",
        retries=retries,
        seed=seed,
        environment=environment,
        progress=progress,
    )
    return _launch(request, store)


@with_suggestions
def mirrored(
    train_fn: TrainFunction,
    *,
    dataset: TrainingDataset | None = None,
    params: Mapping[str, Any] | None = None,
    name: str | None = None,
    on: str | Launcher = "local",
    retries: int = 0,
    seed: int = 0,
    environment: Mapping[str, str] | None = None,
    store: FeatureStore | None = None,
    progress: bool | Listener | None = None,
) -> Run:
    """Run a training function in one process that uses all devices of the machine.

    ``context.strategy`` is a ``MirroredStrategy``. The arguments are the same as for ``launch``.

    >>> def train_fn(context):
    ...     return {"devices": context.strategy.num_replicas_in_sync}
    >>> from featurestore import experiments
    >>> experiments.mirrored(train_fn).metrics  # doctest: +SKIP
    {'devices': 1.0}
    """
    from featurestore.experiments.launching import LaunchRequest

    request = LaunchRequest(
        train_fn,
        "mirrored",
        dataset=dataset,
        params=params,
        name=name,
        on=on,
        strategy="mirrored",
        retries=retries,
        seed=seed,
        environment=environment,
        progress=progress,
    )
    return _launch(request, store)


@with_suggestions
def parameter_server(
    train_fn: TrainFunction,
    *,
    workers: int,
    servers: int = 1,
    dataset: TrainingDataset | None = None,
    params: Mapping[str, Any] | None = None,
    name: str | None = None,
    on: str | Launcher = "local",
    retries: int = 0,
    seed: int = 0,
    environment: Mapping[str, str] | None = None,
    store: FeatureStore | None = None,
    progress: bool | Listener | None = None,
) -> Run:
    """Run a training function in a chief, with variables on servers and steps on workers.

    ``context.strategy`` is a ``ParameterServerStrategy``: variables created in its scope are stored
    on the servers, and a variable of at least 256 KiB per server is sharded. The chief reads all
    batches, and ``context.schedule`` schedules one function call per batch on any worker. Steps run
    concurrently, so the results depend on their order.

    If a worker dies, the run continues and another worker repeats its step. When a server, the
    chief or the last worker is lost, all processes are stopped and restarted from the last
    checkpoint, up to ``retries`` times.

    Args:
        train_fn: See ``launch``; the chief calls it.
        workers: Number of workers.
        servers: Number of parameter servers.
        dataset: See ``launch``.
        params: See ``launch``.
        name: See ``launch``.
        on: "local": processes on this machine; "spark": tasks of one barrier stage, one for each
            worker and server and one for the chief.
        retries: Maximum number of restarts of all processes.
        seed: See ``launch``.
        environment: See ``launch``.
        store: See ``launch``.
        progress: See ``launch``.

    >>> def train_fn(context):
    ...     import tensorflow as tf
    ...     with context.strategy.scope():
    ...         total = tf.Variable(0.0)
    ...     context.reader("train", global_batch_size=2)
    ...     def add(batch):
    ...         return total.assign_add(tf.reduce_sum(batch["seats"]))
    ...     for step, _ in context.schedule(add, epochs=1):
    ...         context.report(step, total=total)
    >>> from featurestore import experiments
    >>> dataset = store.get_training_dataset("late_flights")
    >>> run = experiments.parameter_server(train_fn, dataset=dataset, workers=2)  # doctest: +SKIP
    """
    from featurestore.experiments.launching import LaunchRequest

    request = LaunchRequest(
        train_fn,
        "parameter_server",
        dataset=dataset,
        params=params,
        name=name,
        on=on,
        workers=workers,
        servers=servers,
        strategy="parameter_server",
        retries=retries,
        seed=seed,
        environment=environment,
        progress=progress,
    )
    return _launch(request, store)


def _launch(request: LaunchRequest, store: FeatureStore | None) -> Run:
    from featurestore.experiments.launching import launch
    from featurestore.experiments.run import Run

    session = session_of(store, request.dataset)
    return Run(session, launch(session, request))
