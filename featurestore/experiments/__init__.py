"""Experiments: training functions run, searched, taken apart and compared; their runs kept.

``from featurestore import experiments``. Each run has a directory in the store with its record
``run.json``, checkpoints, logs and events for TensorBoard; the registry indexes them. The store is
the one that the dataset comes from, else the one last connected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from featurestore.errors import Stopped
from featurestore.experiments.spaces import choice, integers, loguniform, uniform
from featurestore.model.arguments import answering

if TYPE_CHECKING:
    from featurestore.experiments.comparison import RunComparison
    from featurestore.experiments.progress import Listener
    from featurestore.experiments.run import Run
    from featurestore.experiments.study import Study
    from featurestore.plugins.launcher import Launcher
    from featurestore.session import Session
    from featurestore.store import FeatureStore
    from featurestore.training.dataset import TrainingDataset

__all__ = [
    "Stopped",
    "launch",
    "collective_all_reduce",
    "mirrored",
    "search",
    "uniform",
    "loguniform",
    "integers",
    "choice",
    "get_runs",
    "get_run",
    "get_study",
    "compare",
]

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
def search(
    train_fn: TrainFn,
    *,
    space: Mapping[str, Any],
    metric: str,
    trials: int | None = None,
    parallel: int = 1,
    sampler: Any = "tpe",
    stop: Any = None,
    direction: str = "max",
    dataset: TrainingDataset | None = None,
    params: Mapping[str, Any] | None = None,
    name: str | None = None,
    on: str | Launcher = "local",
    retries: int = 2,
    seed: int = 0,
    environment: Mapping[str, str] | None = None,
    store: FeatureStore | None = None,
    progress: bool | Listener | None = None,
) -> Study:
    """Run a training function with many parameters and return the study of its trials.

    Workers live for many trials and never wait for one another. A worker that dies is replaced, and
    its trial goes on at its last checkpoint; an error of the function fails its trial alone. With
    ``parallel=1`` equal seeds give equal trials, also after an interruption.

    Args:
        train_fn: As of ``launch``. It reports or returns ``metric``.
        space: ``{parameter: list, uniform(...), loguniform(...), integers(...), choice(...)}``.
        metric: The metric that counts.
        trials: How many; None: all combinations of a grid.
        parallel: How many workers at once.
        sampler: "tpe", "random", "grid", "evolution", or a sampler of Optuna.
        stop: "asha" and "median" give up trials that report worse than others at the same step
            (``context.report`` raises ``Stopped``); a pruner of Optuna; None: none is given up.
        direction: "max" or "min".
        dataset: As of ``launch``, and so are the others.
        params: Further parameters, the same in every trial.
        name: As of ``launch``.
        on: As of ``launch``.
        retries: How often a trial whose worker died is tried again.
        seed: Of the sampler, and of every trial.
        environment: As of ``launch``.
        store: As of ``launch``.
        progress: As of ``launch``.

    Raises:
        InvalidMetric: A trial finished without the metric.
        RunFailed: No trial finished.

    >>> from featurestore import experiments
    >>> def train_fn(lr, units):
    ...     return {"loss": (lr - 0.1) ** 2 + units}
    >>> space = {"lr": [0.1, 0.2], "units": [8, 16]}
    >>> study = experiments.search(
    ...     train_fn, space=space, metric="loss", direction="min", sampler="grid"
    ... )
    >>> study.best.params, len(study.runs)
    ({'lr': 0.1, 'units': 8}, 4)
    """
    from featurestore.experiments.launching import LaunchRequest
    from featurestore.experiments.searching import SearchRequest
    from featurestore.experiments.searching import search as run_search
    from featurestore.experiments.study import Study

    session = _session(store, dataset)
    asked = LaunchRequest(
        train_fn,
        "search",
        dataset=dataset,
        params=params or {},
        name=name,
        on=on,
        retries=retries,
        seed=seed,
        environment=environment or {},
        progress=progress,
    )
    request = SearchRequest(
        asked, space, trials, parallel, sampler, stop, metric=metric, direction=direction
    )
    return Study(session, run_search(session, request))


@answering
def get_study(study_id: str, *, store: FeatureStore | None = None) -> Study:
    """Return a study by its id, to look at it or to go on with it.

    >>> from featurestore import experiments
    >>> study = experiments.search(
    ...     lambda x: {"y": x}, space={"x": [1, 2]}, metric="y", sampler="grid", name="grids"
    ... )
    >>> experiments.get_study(study.id).best.metrics
    {'y': 2.0}
    """
    from featurestore.experiments import catalog
    from featurestore.experiments.study import Study, check_study

    session = _session(store, None)
    return Study(session, check_study(catalog.load(session, study_id)))


@answering
def get_runs(
    name: str | None = None,
    *,
    dataset: str | None = None,
    version: int | None = None,
    state: str | None = None,
    trials: bool = False,
    limit: int | None = None,
    store: FeatureStore | None = None,
) -> list[Run]:
    """Return runs, newest first.

    Args:
        name: Of one experiment only.
        dataset: That read this training dataset.
        version: That version of it.
        state: In this state.
        trials: Also the trials of studies.
        limit: At most so many are looked at.
        store: None: the store last connected.

    >>> from featurestore import experiments
    >>> run = experiments.launch(lambda: {"loss": 0.5}, name="constant")
    >>> [(run.name, run.state, run.metrics) for run in experiments.get_runs("constant")]
    [('constant', 'finished', {'loss': 0.5})]
    """
    from featurestore.experiments import catalog
    from featurestore.experiments.run import Run

    session = _session(store, None)
    read = None if dataset is None else (dataset, version)
    records = catalog.find(session, name=name, dataset=read, trials=trials, limit=limit)
    runs = [Run(session, record) for record in records]
    return [run for run in runs if state is None or run.state == state]


@answering
def get_run(run_id: str, *, store: FeatureStore | None = None) -> Run:
    """Return a run by its id.

    Raises:
        RunNotFound: There is none; the newest are listed.
        RunDamaged: Its record cannot be read.

    >>> from featurestore import experiments
    >>> run = experiments.launch(lambda: {"loss": 0.5}, name="constant")
    >>> experiments.get_run(run.id).metrics
    {'loss': 0.5}
    """
    from featurestore.experiments import catalog
    from featurestore.experiments.run import Run

    session = _session(store, None)
    return Run(session, catalog.load(session, run_id))


@answering
def compare(a: Run | str, b: Run | str, *, store: FeatureStore | None = None) -> RunComparison:
    """Return what differs between two runs: parameters, data, code, packages, metrics.

    >>> from featurestore import experiments
    >>> def train_fn(lr): return {"loss": 1 - lr}
    >>> first, second = [experiments.launch(train_fn, params={"lr": lr}) for lr in (0.5, 0.25)]
    >>> experiments.compare(first, second).params
    {'lr': (0.5, 0.25)}
    """
    from featurestore.experiments.comparison import compare_runs

    first = get_run(a, store=store) if isinstance(a, str) else a
    second = get_run(b, store=store) if isinstance(b, str) else b
    return compare_runs(first, second)


def _launch(kind: str, train_fn: TrainFn, **asked: Any) -> Run:
    from featurestore.experiments.launching import LaunchRequest, launch
    from featurestore.experiments.run import Run

    session = _session(asked.pop("store"), asked["dataset"])
    asked["params"] = asked["params"] or {}
    asked["environment"] = asked["environment"] or {}
    return Run(session, launch(session, LaunchRequest(train_fn, kind, **asked)))


def _session(store: FeatureStore | None, dataset: TrainingDataset | None) -> Session:
    """Return the store that keeps runs: the given one, the dataset's, or the last connected."""
    from featurestore._current import current_store

    if store is not None:
        return store.session
    if dataset is not None and getattr(dataset, "session", None) is not None:
        assert dataset.session is not None
        return dataset.session
    return current_store().session
