"""Calls that register models and find them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from featurestore.experiments.stores import session_of
from featurestore.model.arguments import answering

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from featurestore.experiments.models import Model
    from featurestore.experiments.run import Run
    from featurestore.store import FeatureStore
    from featurestore.training.dataset import TrainingDataset
    from featurestore.transform.fitted import Transformations


@answering
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
    """Copy the model of a run into the store with the features that it needs, and return it.

    The model is asked for a few rows of its dataset first: one that does not take them is refused.

    Args:
        run: The run, or its id.
        name: Name of the model.
        artifact: The file or folder, relative to the run's directory; None: its only model.
        dataset: What it was trained on; None: what the run read.
        columns: The inputs in order; None: those of the run's reader, else all features.
        transformed: The transformations; None: those of the run's reader, else the dataset's.
        nulls: As of ``reader``; None: as the run's reader had it.
        arrays: "columns": the model takes ``{column: array}``; "matrix": one float32 array of
            (rows, inputs). None: "matrix" for pickles, else "columns".
        method: What a pickled model is asked by.
        version: The version to make; None: the next one.
        stage: "development", "staging", "production" or "archived".
        description: What it is for.
        tags: Texts to find it by.
        trust: Allow files to run code: SavedModel and pickles do.
        store: None: the run's, or the store last connected.

    Raises:
        ModelNotFound: The run left no model behind, or several.
        UntrustedModel: Loading it runs code, and ``trust`` is False.
        InvalidArgument: The model does not take the features of its dataset.
    """
    from featurestore.experiments.models import Model
    from featurestore.experiments.models.handle import check_stage
    from featurestore.experiments.models.registering import ModelRequest, register
    from featurestore.experiments.record_calls import get_run
    from featurestore.model.featuregroup import check_tags
    from featurestore.model.names import check_name
    from featurestore.model.registered_model import ModelDescribed

    check_name(name, noun="model")
    check_tags(tags or {})
    found = get_run(run, store=store) if isinstance(run, str) else run
    asked = ModelRequest(
        name, artifact, dataset, columns, transformed, nulls, arrays, method, version, trust
    )
    said = ModelDescribed(check_stage(stage), description, dict(tags or {}))
    return Model(found.session, register(found, asked, said))


@answering
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
        stage: The latest in this stage.
        store: None: the store last connected.

    Raises:
        ModelNotFound: There is none; what there is is listed.
    """
    from featurestore.experiments.models import Model, catalog
    from featurestore.experiments.models.handle import check_stage

    if stage is not None:
        check_stage(stage)
    session = session_of(store, None)
    return Model(session, catalog.get(session, name, version, stage=stage))


@answering
def get_models(name: str | None = None, *, store: FeatureStore | None = None) -> list[Model]:
    """Return every version of every model, or of one, by name and version.

    >>> from featurestore import experiments
    >>> experiments.get_models()
    []
    """
    from featurestore.experiments.models import Model, catalog

    session = session_of(store, None)
    return [Model(session, spec) for spec in catalog.every(session, name=name)]
