"""Public functions that run many trials: searches, ablations, cross-validations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from featurestore.experiments.record_api import session_of
from featurestore.model.arguments import with_suggestions

if TYPE_CHECKING:
    from featurestore.experiments.functions import TrainFunction
    from featurestore.experiments.planned import Ablation, CrossValidation
    from featurestore.experiments.status import Listener
    from featurestore.experiments.study import Study
    from featurestore.plugins.launcher import Launcher
    from featurestore.store import FeatureStore
    from featurestore.training.dataset import TrainingDataset


@with_suggestions
def search(
    train_fn: TrainFunction,
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
    """Search for the best parameters of a training function and return the study.

    Each worker runs many trials and never waits for other workers. A worker that dies is replaced,
    and its trial continues from its last checkpoint. An error in the function fails only its trial.
    With ``parallel=1``, equal seeds give equal trials, even after an interruption.

    Args:
        train_fn: See ``launch``. It reports or returns ``metric``.
        space: ``{parameter: list, uniform(...), loguniform(...), integers(...), choice(...)}``.
        metric: The metric to optimize.
        trials: Number of trials; None for all combinations of a grid.
        parallel: Number of concurrent workers.
        sampler: "tpe", "random", "grid", "evolution", or an Optuna sampler.
        stop: "asha" and "median" stop trials that report worse values than others at the same step
            (``context.report`` raises ``Stopped``); or an Optuna pruner; None stops no trial.
        direction: "max" or "min".
        dataset: See ``launch``.
        params: Further parameters that are the same in all trials.
        name: See ``launch``.
        on: See ``launch``.
        retries: Maximum number of retries of a trial whose worker died.
        seed: Seed of the sampler and of every trial.
        environment: See ``launch``.
        store: See ``launch``.
        progress: See ``launch``; one line per running trial.

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
    from featurestore.experiments.study import SearchDesign, Study, StudyRequest
    from featurestore.experiments.study import search as run_search

    session = session_of(store, dataset)
    launch_request = LaunchRequest(
        train_fn,
        "search",
        dataset=dataset,
        params=params,
        name=name,
        on=on,
        retries=retries,
        seed=seed,
        environment=environment,
        progress=progress,
    )
    design = SearchDesign(space, trials, sampler, stop, metric, direction)
    request = StudyRequest(launch_request, parallel, design)
    return Study(session, run_search(session, request))


@with_suggestions
def ablate(
    train_fn: TrainFunction,
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
    """Train without each component in turn and measure how much worse the metric becomes.

    ``context.reader`` omits the ablated features (``context.inputs`` and ``reader.inputs`` contain
    the remaining ones), and ``context.keeps("layer")`` is False for an ablated layer. No dataset is
    written.

    Args:
        train_fn: See ``launch``; it returns or reports ``metric``.
        dataset: The training dataset.
        metric: The metric to compare.
        features: "each" ablates every input separately, "groups" all inputs of each feature group
            together; or lists of inputs, or ``{name: inputs}``; None ablates no features.
        layers: Names of layers.
        direction: "max" if higher values are better, "min" if lower values are.
        repeats: Number of seeds, starting at ``seed``; each is compared with the full model of the
            same seed.
        parallel: Number of concurrent workers.
        params: See ``launch``.
        name: See ``launch``.
        on: See ``launch``.
        retries: See ``search``.
        seed: The first seed.
        environment: See ``launch``.
        store: See ``launch``.
        progress: See ``launch``.

    >>> from featurestore import experiments
    >>> def train_fn(context):
    ...     reader = context.reader("train", global_batch_size=4)
    ...     return {"auc": 0.6 + 0.1 * ("temp" in reader.inputs)}
    >>> dataset = store.get_training_dataset("late_flights")
    >>> print(experiments.ablate(train_fn, dataset=dataset, metric="auc", repeats=2))
    auc of the full model: 0.7; degradation without:
      temp   +0.1  [+0.1, +0.1]
      seats  +0  [+0, +0]
    """
    from featurestore.experiments.launching import LaunchRequest
    from featurestore.experiments.planned import AblationDesign
    from featurestore.experiments.planned import ablate as run_ablation
    from featurestore.experiments.study import StudyRequest

    launch_request = LaunchRequest(
        train_fn,
        "ablation",
        dataset=dataset,
        params=params,
        name=name,
        on=on,
        retries=retries,
        seed=seed,
        environment=environment,
        progress=progress,
    )
    design = AblationDesign(features, layers, metric, direction, repeats)
    request = StudyRequest(launch_request, parallel, design)
    return run_ablation(session_of(store, dataset), request)


@with_suggestions
def cross_validate(
    train_fn: TrainFunction,
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
    """Train once per fold on the rows of the other folds, and return all metrics.

    Folds are equal ranges of the row hash. ``context.reader(split)`` reads the rows of the other
    folds, ``context.reader(held_out)`` the rows of the held-out fold; no files are written.

    Args:
        train_fn: See ``launch``.
        dataset: The training dataset.
        folds: Number of folds.
        split: The split to divide into folds.
        held_out: The split name for reading the held-out fold; it hides a dataset split with the
            same name.
        parallel: Number of concurrent workers.
        params: See ``launch``.
        name: See ``launch``.
        on: See ``launch``.
        retries: See ``search``.
        seed: See ``launch``.
        environment: See ``launch``.
        store: See ``launch``.
        progress: See ``launch``.

    >>> from featurestore import experiments
    >>> def train_fn(context):
    ...     reader = context.reader("validation", global_batch_size=1, remainder="keep")
    ...     return {"rows": reader.steps_per_epoch}
    >>> dataset = store.get_training_dataset("late_flights")
    >>> experiments.cross_validate(train_fn, dataset=dataset, folds=2).mean
    {'rows': 2.0}
    """
    from featurestore.experiments.launching import LaunchRequest
    from featurestore.experiments.planned import FoldDesign
    from featurestore.experiments.planned import cross_validate as run_folds
    from featurestore.experiments.study import StudyRequest

    launch_request = LaunchRequest(
        train_fn,
        "cross_validation",
        dataset=dataset,
        params=params,
        name=name,
        on=on,
        retries=retries,
        seed=seed,
        environment=environment,
        progress=progress,
    )
    request = StudyRequest(launch_request, parallel, FoldDesign(folds, split, held_out))
    return run_folds(session_of(store, dataset), request)
