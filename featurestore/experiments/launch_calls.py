"""Calls that run a training function once: one process, several of them, all devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from featurestore.experiments.stores import session_of
from featurestore.model.arguments import answering

if TYPE_CHECKING:
    from featurestore.experiments.progress import Listener
    from featurestore.experiments.run import Run
    from featurestore.plugins.launcher import Launcher
    from featurestore.store import FeatureStore
    from featurestore.training.dataset import TrainingDataset


TrainFn = Callable[..., Any]


@answering
def launch(
    train_fn: TrainFn,
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
        train_fn: Gets what it takes, by name: ``params``, ``context``, and each parameter. What it
            returns, a dict of numbers, are the last values of its metrics.
        dataset: What ``context.reader`` reads.
        params: Numbers, texts, lists and objects of such, by name.
        name: The experiment, ``[a-z][a-z0-9_]{0,62}``; None: the function's name.
        on: "local", "spark", or another launcher.
        retries: How often a process that dies is started again, from its last checkpoint.
        seed: Of Python, numpy, TensorFlow and the reader's order.
        environment: Environment variables of the process; records hold their names only.
        store: Where runs are kept; None: the dataset's store, else the one last connected.
        progress: True shows the last line of each worker's log, None does so in notebooks and
            terminals; a function is called with these lines.

    Raises:
        InvalidTrainFunction: It cannot be sent to a process, or takes other arguments.
        RunFailed: It failed, or its process died more often than it may.

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
    return _launch(
        "launch",
        train_fn,
        dataset=dataset,
        params=params,
        name=name,
        on=on,
        retries=retries,
        seed=seed,
        environment=environment,
        store=store,
        progress=progress,
    )


@answering
def collective_all_reduce(
    train_fn: TrainFn,
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
    """Run a training function in several workers that sum their gradients, to its end.

    ``context.strategy`` is a ``MultiWorkerMirroredStrategy``, and each worker reads its own lanes.
    All workers run or none: when one is lost all are stopped and, up to ``retries`` times, started
    again at the last checkpoint. With as many workers as before the losses are those of a run
    without interruption, bit for bit.

    Args:
        train_fn: As of ``launch``; every worker calls it.
        workers: How many; they divide the reader's lanes.
        dataset: As of ``launch``, and so are the others.
        params: As of ``launch``.
        name: As of ``launch``.
        on: "local": processes of this machine; "spark": tasks of one barrier stage.
        retries: How often all are started again when one is lost.
        seed: As of ``launch``.
        environment: As of ``launch``.
        store: As of ``launch``.
        progress: As of ``launch``.

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
    return _launch(
        "collective_all_reduce",
        train_fn,
        dataset=dataset,
        params=params,
        name=name,
        on=on,
        workers=workers,
        strategy="multiworker",
        retries=retries,
        seed=seed,
        environment=environment,
        store=store,
        progress=progress,
    )


@answering
def mirrored(
    train_fn: TrainFn,
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
    """Run a training function in one process that uses all devices of its machine.

    ``context.strategy`` is a ``MirroredStrategy``. Arguments are those of ``launch``.

    >>> def train_fn(context):
    ...     return {"devices": context.strategy.num_replicas_in_sync}
    >>> from featurestore import experiments
    >>> experiments.mirrored(train_fn).metrics  # doctest: +SKIP
    {'devices': 1.0}
    """
    return _launch(
        "mirrored",
        train_fn,
        dataset=dataset,
        params=params,
        name=name,
        on=on,
        strategy="mirrored",
        retries=retries,
        seed=seed,
        environment=environment,
        store=store,
        progress=progress,
    )


@answering
def parameter_server(
    train_fn: TrainFn,
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
    """Run a training function in a chief, whose variables lie on servers and whose steps on workers.

    ``context.strategy`` is a ``ParameterServerStrategy``: variables that are made in its scope lie
    on the servers, those of 256 KiB and more for each server in parts. The chief reads every batch,
    and ``context.schedule`` has some worker call a function with it, so that each batch is
    scheduled once. Steps run beside one another: results depend on their order.

    A worker that dies is done without, and its step is made again on another one. When a server,
    the chief or the last worker is lost, all are stopped and, up to ``retries`` times, started
    again at the last checkpoint.

    Args:
        train_fn: As of ``launch``; the chief calls it.
        workers: How many compute.
        servers: How many keep variables.
        dataset: As of ``launch``, and so are the others.
        params: As of ``launch``.
        name: As of ``launch``.
        on: "local": processes of this machine; "spark": tasks of one barrier stage, one for each
            worker and server and one for the chief.
        retries: How often all are started again.
        seed: As of ``launch``.
        environment: As of ``launch``.
        store: As of ``launch``.
        progress: As of ``launch``.

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
    return _launch(
        "parameter_server",
        train_fn,
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
        store=store,
        progress=progress,
    )


def _launch(kind: str, train_fn: TrainFn, **asked: Any) -> Run:
    from featurestore.experiments.launching import LaunchRequest, launch
    from featurestore.experiments.run import Run

    session = session_of(asked.pop("store"), asked["dataset"])
    asked["params"] = asked["params"] or {}
    asked["environment"] = asked["environment"] or {}
    return Run(session, launch(session, LaunchRequest(train_fn, kind, **asked)))
