"""Public functions that return, compare and mirror runs, and the choice of their store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from featurestore.errors import UnsupportedLocation
from featurestore.model.arguments import with_suggestions
from featurestore.storage.selection import storage_for

if TYPE_CHECKING:
    from featurestore.experiments.run import Run, RunComparison
    from featurestore.experiments.study import Study
    from featurestore.session import Session
    from featurestore.store import FeatureStore
    from featurestore.training.dataset import TrainingDataset


def session_of(store: FeatureStore | None, dataset: TrainingDataset | None) -> Session:
    """Return the store that records runs: the argument, the dataset's, or the last connected.

    Raises:
        UnsupportedLocation: The store is not in a directory; the hint shows an alternative.
    """
    session = _resolve_session(store, dataset)
    # Workers append to files and wait for one another by them; an object store has neither.
    if not storage_for(session.location).supports_appending:
        raise UnsupportedLocation(
            f"Runs of experiments need a directory, and the store at {session.location!r} is not in one.",
            hint="store=featurestore.connect('/shared/runs') records the runs in a directory that "
            "all workers see; the dataset remains in its store",
        )
    return session


def _resolve_session(store: FeatureStore | None, dataset: TrainingDataset | None) -> Session:
    from featurestore._current import current_store

    if store is not None:
        return store.session
    # The type of the dataset is checked with the request.
    session: Session | None = getattr(dataset, "session", None)
    if session is not None:
        return session
    return current_store().session


@with_suggestions
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
        name: Only runs of this experiment.
        dataset: Only runs of this training dataset.
        version: Only runs of this version of the dataset.
        state: Only runs in this state.
        trials: Include the trials of studies.
        limit: Maximum number of records to read, before the filter by state.
        store: None: the store last connected.

    >>> from featurestore import experiments
    >>> run = experiments.launch(lambda: {"loss": 0.5}, name="baseline")
    >>> [(run.name, run.state, run.metrics) for run in experiments.get_runs("baseline")]
    [('baseline', 'finished', {'loss': 0.5})]
    """
    from featurestore.experiments import catalog
    from featurestore.experiments.run import Run

    session = session_of(store, None)
    read = None if dataset is None else (dataset, version)
    records = catalog.find(session, name=name, dataset=read, trials=trials, limit=limit)
    runs = [Run(session, record) for record in records]
    return [run for run in runs if state is None or run.state == state]


@with_suggestions
def get_run(run_id: str, *, store: FeatureStore | None = None) -> Run:
    """Return a run by its id.

    Raises:
        RunNotFound: The run does not exist; the newest ones are listed.
        RunDamaged: The record cannot be read.

    >>> from featurestore import experiments
    >>> run = experiments.launch(lambda: {"loss": 0.5}, name="constant")
    >>> experiments.get_run(run.id).metrics
    {'loss': 0.5}
    """
    from featurestore.experiments import catalog
    from featurestore.experiments.run import Run

    session = session_of(store, None)
    return Run(session, catalog.load(session, run_id))


@with_suggestions
def get_study(study_id: str, *, store: FeatureStore | None = None) -> Study:
    """Return a study by its id.

    >>> from featurestore import experiments
    >>> study = experiments.search(
    ...     lambda x: {"y": x}, space={"x": [1, 2]}, metric="y", sampler="grid", name="grids"
    ... )
    >>> experiments.get_study(study.id).best.metrics
    {'y': 2.0}
    """
    from featurestore.experiments import catalog
    from featurestore.experiments.study import Study, check_study

    session = session_of(store, None)
    return Study(session, check_study(catalog.load(session, study_id)))


@with_suggestions
def compare(a: Run | str, b: Run | str, *, store: FeatureStore | None = None) -> RunComparison:
    """Return the differences of two runs: parameters, data, code, packages, metrics.

    >>> from featurestore import experiments
    >>> def train_fn(lr): return {"loss": 1 - lr}
    >>> first, second = [experiments.launch(train_fn, params={"lr": lr}) for lr in (0.5, 0.25)]
    >>> experiments.compare(first, second).params
    {'lr': (0.5, 0.25)}
    """
    from featurestore.experiments.run import compare_runs

    first = get_run(a, store=store) if isinstance(a, str) else a
    second = get_run(b, store=store) if isinstance(b, str) else b
    return compare_runs(first, second)


@with_suggestions
def to_mlflow(
    run: Run | Study | str,
    uri: str,
    *,
    artifacts: Sequence[str] = ("artifacts",),
    store: FeatureStore | None = None,
) -> str:
    """Mirror a run and its trials into MLflow, and return the MLflow run id.

    The mirrored run has parameters, metrics by step, the dataset with its hash, the function, the
    commit and files, and the record as ``run.json``. A repeated call adds what is new. The
    experiment has the same name, and each run the tag ``featurestore.run_id``.

    Args:
        run: The run, its id, or a study.
        uri: A tracking URI of MLflow: the address of a server, or a database.
        artifacts: Folders of the run's directory to upload: "artifacts", "tensorboard",
            "checkpoints", "logs".
        store: None: the store last connected.

    Raises:
        MlflowError: MLflow is unavailable or rejected a request.

    >>> from featurestore import experiments
    >>> run = experiments.launch(lambda: {"loss": 0.5}, name="mirrored")
    >>> experiments.to_mlflow(run, "https://mlflow.example.com")  # doctest: +SKIP
    '0d1c3b5f4a3e4c0f8a6d2b7e9c1f0a53'
    """
    from featurestore.experiments.mlflow_mirror import mirror
    from featurestore.experiments.study import Study

    source_run = get_run(run, store=store) if isinstance(run, str) else run
    if isinstance(source_run, Study):
        source_run = source_run.run
    return mirror(source_run, uri, artifacts=artifacts)
