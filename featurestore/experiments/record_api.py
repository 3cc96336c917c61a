"""Public functions for runs, studies and models: get, compare, mirror to MLflow, register."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from featurestore.errors import UnsupportedLocation, UnsupportedRemotely
from featurestore.model.arguments import with_suggestions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from featurestore.experiments.models import Model
    from featurestore.experiments.run import Run, RunComparison
    from featurestore.experiments.study import Study
    from featurestore.session import Session
    from featurestore.store import FeatureStore
    from featurestore.training.dataset import TrainingDataset
    from featurestore.transform.fitted import Transformations


def session_of(store: FeatureStore | None, dataset: TrainingDataset | None) -> Session:
    """Resolve the store that records runs: the argument, the dataset's, or the last connected one.

    Raises:
        UnsupportedLocation: The store is not in a directory; the hint shows an alternative.
        UnsupportedRemotely: The store is served.
    """
    session = _resolve_session(store, dataset)
    if session.location.startswith(("http://", "https://")):
        raise UnsupportedRemotely(
            "Experiments and models need the files of the store, which "
            f"{session.location} does not serve.",
            hint=f"curl {session.location}/api/v1/models/NAME/predict -H 'Content-Type: "
            "application/json' -d '{\"entities\": [{...}]}' predicts on the server",
        )
    # Workers append to files and lock them, which object stores do not support.
    if not session.storage.supports_appending:
        raise UnsupportedLocation(
            f"Experiments require a store in a directory; {session.location!r} is not a directory.",
            hint="store=featurestore.connect('/shared/runs') records the runs in a directory that "
            "all workers can access; the dataset remains in its store",
        )
    return session


def _resolve_session(store: FeatureStore | None, dataset: TrainingDataset | None) -> Session:
    from featurestore._current import current_store

    if store is not None:
        return store.session
    # The dataset type is checked later, with the launch request.
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
    offset: int = 0,
    store: FeatureStore | None = None,
) -> list[Run]:
    """Return runs, newest first.

    Args:
        name: Only runs of this experiment.
        dataset: Only runs of this training dataset.
        version: Only runs of this dataset version.
        state: Only runs in this state.
        trials: Include the trials of studies.
        limit: Maximum number of records to read, before the state filter is applied.
        offset: The number of records to skip, before the state filter is applied.
        store: The store; None for the store last connected.

    >>> from featurestore import experiments
    >>> run = experiments.launch(lambda: {"loss": 0.5}, name="baseline")
    >>> [(run.name, run.state, run.metrics) for run in experiments.get_runs("baseline")]
    [('baseline', 'finished', {'loss': 0.5})]
    """
    from featurestore.experiments import catalog
    from featurestore.experiments.run import Run

    session = session_of(store, None)
    dataset_key = None if dataset is None else (dataset, version)
    records = catalog.find(
        session, name=name, dataset=dataset_key, trials=trials, limit=limit, offset=offset
    )
    runs = [Run(session, record) for record in records]
    return [run for run in runs if state is None or run.state == state]


@with_suggestions
def get_run(run_id: str, *, store: FeatureStore | None = None) -> Run:
    """Return a run by its id.

    Raises:
        RunNotFound: The run does not exist; the error lists the newest runs.
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
    """Compare two runs: parameters, data, code, packages and metrics.

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

    The mirrored run has the parameters, the metrics by step, the dataset with its hash, the
    function, the commit and the files, and the record as ``run.json``. A repeated call only adds
    new values. The experiment name is the same, and each run is tagged ``featurestore.run_id``.

    Args:
        run: The run, its id, or a study.
        uri: An MLflow tracking URI: a server address or a database.
        artifacts: Folders of the run's directory to upload: "artifacts", "tensorboard",
            "checkpoints", "logs".
        store: The store; None for the store last connected.

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


@with_suggestions
def register_model(
    run: Run | str,
    name: str,
    *,
    artifact: str | None = None,
    dataset: TrainingDataset | None = None,
    columns: Sequence[str] | None = None,
    transformed: bool | Transformations | None = None,
    nulls: Literal["error", "mask", "nan"] | Mapping[str, Any] | None = None,
    arrays: Literal["columns", "matrix", "pandas", "polars"] | None = None,
    method: Literal["predict", "predict_proba", "decision_function"] = "predict",
    reader: int | None = None,
    version: int | None = None,
    stage: Literal["development", "staging", "production", "archived"] = "development",
    description: str = "",
    tags: Mapping[str, str] | None = None,
    trust: bool = False,
    store: FeatureStore | None = None,
) -> Model:
    """Copy the model of a run into the store, together with the features that it needs.

    The model must first predict a few rows of its dataset; otherwise it is rejected. If the function
    called ``context.save(model, inputs=rows)``, it must predict what it predicted in the run.

    Args:
        run: The run, or its id.
        name: Name of the model.
        artifact: The file or folder, relative to the run's directory; None for the only model.
        dataset: The training dataset of the model; None for the dataset of the run.
        columns: The inputs in order; None for the columns that the model states, or else the
            reader's columns, or else all features.
        transformed: The transformations; None for those of the run's reader, or else the dataset's.
        nulls: See ``reader``; "nan" passes NaN, in a DataFrame the missing value of the dtype. None
            for what the run read: the setting of its reader, NaN for ``matrix`` and ``read``; then
            the nulls of a column that had none in the training dataset are refused.
        arrays: "columns": the model takes ``{column: array}``; "matrix": it takes one float32 array
            of shape (rows, inputs); "pandas" or "polars": it takes a DataFrame with the dtypes of
            the training. None: the form of ``context.save(inputs=)``, or the usual one of the model.
        method: The prediction method of a pickled model.
        reader: The position in ``run.record.readers`` of the reader or matrix that the model was
            trained with, needed if they differ and the model does not state its columns.
        version: The version to create; None for the next version.
        stage: "development", "staging", "production" or "archived".
        description: The purpose of the model.
        tags: Tags for searching.
        trust: Allow loading files that run code, such as SavedModel and pickles.
        store: The store; None for the run's store, or the store last connected.

    Raises:
        ModelNotFound: The run has no model, or more than one.
        UntrustedModel: Loading the model runs code, and ``trust`` is False.
        InvalidArgument: The model cannot predict from the features of its dataset, states other
            columns than the run read, or the readers of the run differ.
    """
    from featurestore.experiments.models import Model
    from featurestore.experiments.models.catalog import check_stage
    from featurestore.experiments.models.registering import ModelRequest, register
    from featurestore.model.featuregroup import check_tags
    from featurestore.model.names import check_name
    from featurestore.model.registered_model import ModelAnnotations

    check_name(name, noun="model")
    check_tags(tags or {})
    source_run = get_run(run, store=store) if isinstance(run, str) else run
    request = ModelRequest(
        name=name,
        artifact=artifact,
        dataset=dataset,
        columns=columns,
        transformed=transformed,
        nulls=nulls,
        arrays=arrays,
        method=method,
        reader=reader,
        version=version,
        trust=trust,
    )
    annotations = ModelAnnotations(check_stage(stage), description, dict(tags or {}))
    return Model(source_run.session, register(source_run, request, annotations))


@with_suggestions
def get_model(
    name: str,
    version: int | None = None,
    *,
    stage: str | None = None,
    store: FeatureStore | None = None,
) -> Model:
    """Return a registered model.

    Args:
        name: The model name.
        version: The version; None for the latest version.
        stage: Return the latest version in this stage.
        store: The store; None for the store last connected.

    Raises:
        ModelNotFound: The model or version does not exist; the error lists the existing ones.
    """
    from featurestore.experiments.models import Model
    from featurestore.experiments.models import catalog as models
    from featurestore.experiments.models.catalog import check_stage

    if stage is not None:
        check_stage(stage)
    session = session_of(store, None)
    return Model(session, models.get(session, name, version, stage=stage))


@with_suggestions
def get_models(
    name: str | None = None,
    *,
    limit: int | None = None,
    offset: int = 0,
    store: FeatureStore | None = None,
) -> list[Model]:
    """Return all versions of all models, or of one model, by name and version.

    Args:
        name: Only versions of this model.
        limit: The maximum number of results; None: all.
        offset: The number of results to skip.
        store: The store; None for the store last connected.

    >>> from featurestore import experiments
    >>> experiments.get_models()
    []
    """
    from featurestore.experiments.models import Model
    from featurestore.experiments.models import catalog as models

    session = session_of(store, None)
    specs = models.every(session, name=name, limit=limit, offset=offset)
    return [Model(session, spec) for spec in specs]
