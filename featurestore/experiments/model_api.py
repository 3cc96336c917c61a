"""Public functions that register and return models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from featurestore.experiments.record_api import session_of
from featurestore.model.arguments import with_suggestions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from featurestore.experiments.models import Model
    from featurestore.experiments.run import Run
    from featurestore.store import FeatureStore
    from featurestore.training.dataset import TrainingDataset
    from featurestore.transform.fitted import Transformations


@with_suggestions
def register_model(
    run: Run | str,
    name: str,
    *,
    artifact: str | None = None,
    dataset: TrainingDataset | None = None,
    columns: Sequence[str] | None = None,
    transformed: bool | Transformations | None = None,
    nulls: Literal["error", "mask"] | Mapping[str, Any] | None = None,
    arrays: Literal["columns", "matrix"] | None = None,
    method: Literal["predict", "predict_proba", "decision_function"] = "predict",
    version: int | None = None,
    stage: Literal["development", "staging", "production", "archived"] = "development",
    description: str = "",
    tags: Mapping[str, str] | None = None,
    trust: bool = False,
    store: FeatureStore | None = None,
) -> Model:
    """Copy the model of a run into the store, with the features that it needs, and return it.

    The model first predicts a few rows of its dataset; a model that cannot is rejected.

    Args:
        run: The run, or its id.
        name: Name of the model.
        artifact: The file or folder, relative to the run's directory; None: its only model.
        dataset: The training dataset of the model; None: the dataset of the run.
        columns: The inputs in order; None: those of the run's reader, else all features.
        transformed: The transformations; None: those of the run's reader, else the dataset's.
        nulls: See ``reader``; None: the setting of the run's reader.
        arrays: "columns": the model takes ``{column: array}``; "matrix": one float32 array of
            (rows, inputs). None: "matrix" for pickles, else "columns".
        method: The prediction method of a pickled model.
        version: The version to create; None: the next one.
        stage: "development", "staging", "production" or "archived".
        description: The purpose of the model.
        tags: Tags to search by.
        trust: Allow files to run code: SavedModel and pickles do.
        store: None: the run's, or the store last connected.

    Raises:
        ModelNotFound: The run has no model, or several.
        UntrustedModel: Loading the model runs code, and ``trust`` is False.
        InvalidArgument: The model cannot predict the features of its dataset.
    """
    from featurestore.experiments.models import Model
    from featurestore.experiments.models.handle import check_stage
    from featurestore.experiments.models.registering import ModelRequest, register
    from featurestore.experiments.record_api import get_run
    from featurestore.model.featuregroup import check_tags
    from featurestore.model.names import check_name
    from featurestore.model.registered_model import ModelAnnotations

    check_name(name, noun="model")
    check_tags(tags or {})
    source_run = get_run(run, store=store) if isinstance(run, str) else run
    request = ModelRequest(
        name, artifact, dataset, columns, transformed, nulls, arrays, method, version, trust
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
        name: The model.
        version: None: the latest version.
        stage: Return the latest version in this stage.
        store: None: the store last connected.

    Raises:
        ModelNotFound: The model or version does not exist; existing ones are listed.
    """
    from featurestore.experiments.models import Model, catalog
    from featurestore.experiments.models.handle import check_stage

    if stage is not None:
        check_stage(stage)
    session = session_of(store, None)
    return Model(session, catalog.get(session, name, version, stage=stage))


@with_suggestions
def get_models(name: str | None = None, *, store: FeatureStore | None = None) -> list[Model]:
    """Return every version of every model, or of one, by name and version.

    >>> from featurestore import experiments
    >>> experiments.get_models()
    []
    """
    from featurestore.experiments.models import Model, catalog

    session = session_of(store, None)
    return [Model(session, spec) for spec in catalog.every(session, name=name)]
