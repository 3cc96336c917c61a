"""Calls that run a training function many times: searches, ablations, cross-validations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from featurestore.experiments.stores import session_of
from featurestore.model.arguments import answering

if TYPE_CHECKING:
    from featurestore.experiments.ablation import Ablation
    from featurestore.experiments.progress import Listener
    from featurestore.experiments.study import Study
    from featurestore.experiments.validation import CrossValidation
    from featurestore.plugins.launcher import Launcher
    from featurestore.store import FeatureStore
    from featurestore.training.dataset import TrainingDataset


TrainFn = Callable[..., Any]


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
        progress: As of ``launch``; the lines are those of the trials under way.

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

    session = session_of(store, dataset)
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
def ablate(
    train_fn: TrainFn,
    *,
    dataset: TrainingDataset,
    metric: str,
    features: str | Sequence[Any] | Mapping[str, Sequence[str]] | None = "each",
    layers: Sequence[str] | None = None,
    direction: str = "max",
    repeats: int = 3,
    parallel: int = 1,
    params: Mapping[str, Any] | None = None,
    name: str | None = None,
    on: str | Launcher = "local",
    retries: int = 2,
    seed: int = 0,
    environment: Mapping[str, str] | None = None,
    store: FeatureStore | None = None,
    progress: bool | Listener | None = None,
) -> Ablation:
    """Train without each component in turn, and tell by how much the metric is worse.

    ``context.reader`` leaves features out (``context.inputs`` and ``reader.inputs`` name those that
    are read), and ``context.keeps("layer")`` says whether a layer belongs to the model. No dataset
    is made.

    Args:
        train_fn: As of ``launch``; it returns or reports ``metric``.
        dataset: What is read.
        metric: The metric that counts.
        features: "each" input alone, "groups": all inputs of a feature group together, lists of
            inputs, or ``{name: inputs}``; None: none.
        layers: Names of layers.
        direction: "max" or "min": which values are better.
        repeats: How many seeds, from ``seed`` on; each is compared with the whole model of its own.
        parallel: How many workers at once.
        params: As of ``launch``, and so are the others.
        name: As of ``launch``.
        on: As of ``launch``.
        retries: As of ``search``.
        seed: The first seed.
        environment: As of ``launch``.
        store: As of ``launch``.
        progress: As of ``launch``.

    >>> from featurestore import experiments
    >>> def train_fn(context):
    ...     reader = context.reader("train", global_batch_size=4)
    ...     return {"auc": 0.6 + 0.1 * ("temp" in reader.inputs)}
    >>> dataset = store.get_training_dataset("late_flights")
    >>> print(experiments.ablate(train_fn, dataset=dataset, metric="auc", repeats=2))
    auc of the whole: 0.7; worse without
      temp   +0.1  [+0.1, +0.1]
      seats  +0  [+0, +0]
    """
    from featurestore.experiments.ablation import ablate as run_ablation
    from featurestore.experiments.launching import LaunchRequest

    asked = LaunchRequest(
        train_fn,
        "ablation",
        dataset=dataset,
        params=params or {},
        name=name,
        on=on,
        retries=retries,
        seed=seed,
        environment=environment or {},
        progress=progress,
    )
    return run_ablation(
        session_of(store, dataset),
        asked,
        features=features,
        layers=layers,
        metric=metric,
        direction=direction,
        repeats=repeats,
        parallel=parallel,
    )


@answering
def cross_validate(
    train_fn: TrainFn,
    *,
    dataset: TrainingDataset,
    folds: int = 5,
    split: str = "train",
    held_out: str = "validation",
    parallel: int = 1,
    params: Mapping[str, Any] | None = None,
    name: str | None = None,
    on: str | Launcher = "local",
    retries: int = 2,
    seed: int = 0,
    environment: Mapping[str, str] | None = None,
    store: FeatureStore | None = None,
    progress: bool | Listener | None = None,
) -> CrossValidation:
    """Train once for each fold on the rows of the others, and return the metrics of all.

    Folds are equal ranges of the row hash. ``context.reader(split)`` reads the rows of the other
    folds, ``context.reader(held_out)`` those of the fold; no file is written.

    Args:
        train_fn: As of ``launch``.
        dataset: What is read.
        folds: How many.
        split: The split that is cut into folds.
        held_out: The name by which the function reads the fold that is left out; where the dataset
            has a split of this name the fold stands in for it.
        parallel: How many workers at once.
        params: As of ``launch``, and so are the others.
        name: As of ``launch``.
        on: As of ``launch``.
        retries: As of ``search``.
        seed: As of ``launch``.
        environment: As of ``launch``.
        store: As of ``launch``.
        progress: As of ``launch``.

    >>> from featurestore import experiments
    >>> def train_fn(context):
    ...     reader = context.reader("validation", global_batch_size=1, remainder="keep")
    ...     return {"rows": reader.steps_per_epoch}
    >>> dataset = store.get_training_dataset("late_flights")
    >>> experiments.cross_validate(train_fn, dataset=dataset, folds=2).mean
    {'rows': 2.0}
    """
    from featurestore.experiments.launching import LaunchRequest
    from featurestore.experiments.validation import cross_validate as run_folds

    asked = LaunchRequest(
        train_fn,
        "cross_validation",
        dataset=dataset,
        params=params or {},
        name=name,
        on=on,
        retries=retries,
        seed=seed,
        environment=environment or {},
        progress=progress,
    )
    return run_folds(
        session_of(store, dataset),
        asked,
        folds=folds,
        split=split,
        held_out=held_out,
        parallel=parallel,
    )
