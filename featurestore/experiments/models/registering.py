"""Registration of a run's model together with the features that it needs for predictions."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

from featurestore.errors import InvalidArgument, ModelDamaged, ModelNotFound, did_you_mean, listing
from featurestore.experiments import catalog as run_catalog
from featurestore.experiments import run_files
from featurestore.experiments.models import catalog, loading, spark_pipelines, torch_files
from featurestore.experiments.models.conversion import FRAME, ModelNulls, recorded_form
from featurestore.experiments.models.predictors import LoadedModel, default_arrays, stated_columns
from featurestore.experiments.models.recorded_inputs import RecordedInputs, find_recorded
from featurestore.experiments.models.training_inputs import resolve_inputs
from featurestore.experiments.models.trial import Trial
from featurestore.experiments.run import Run
from featurestore.model.feature_view import FeatureViewSpec
from featurestore.model.json_object import JsonMapping, JsonObject
from featurestore.model.manifest import Manifest
from featurestore.model.names import FeatureReference
from featurestore.model.on_demand import OnDemandFeature, find_plan_features
from featurestore.model.registered_model import (
    DATAFRAMES,
    FITTED_FLAVORS,
    Arrays,
    Flavor,
    ModelAnnotations,
    ModelSpec,
)
from featurestore.model.requests import ViewRequest
from featurestore.model.times import utc_now
from featurestore.model.window_features import WindowFeature, window_from_json
from featurestore.session import Session
from featurestore.storage import storage_for
from featurestore.training.dataset import TrainingDataset
from featurestore.transform.fitted import Transformations
from featurestore.views.definition import define

# The distributions whose versions a model states.
_LIBRARIES = (
    *("keras", "tensorflow", "tf-keras", "scikit-learn", "pyspark", "numpy", "torch", "jax"),
    *("xgboost", "xgboost-cpu", "lightgbm"),
)


@dataclass(frozen=True)
class ModelRequest:
    """The arguments of ``register_model``."""

    name: str
    artifact: str | None
    dataset: TrainingDataset | None
    columns: Sequence[str] | None
    transformed: bool | Transformations | None
    nulls: ModelNulls | None
    arrays: Arrays | None
    method: str
    reader: int | None
    version: int | None
    trust: bool


def register(run: Run, request: ModelRequest, annotations: ModelAnnotations) -> ModelSpec:
    """Check that the model can predict rows of its dataset, then publish it.

    See ``experiments.register_model``. Nothing is written before the trial prediction succeeds.
    """
    path = _resolve_artifact(run, request.artifact)
    # The record has checksums only of files in the run's directory.
    if storage_for(path).is_below(path, run.path):
        run_catalog.verify(run.session, run.record, artifacts=[os.path.relpath(path, run.path)])
    flavor = loading.detect_flavor(path)
    description = f"{os.path.basename(path)!r} of run {run.id!r}"
    # Before the trial prediction, which loads the model and may run its code.
    loading.check_trusted(path, flavor, trust=request.trust, description=description)
    dataset = request.dataset or run.dataset
    if dataset is None:
        raise InvalidArgument(
            f"Run {run.id!r} has no training dataset, so the features of its model are unknown.",
            hint="register_model(run, name, dataset=store.get_training_dataset('name'))",
        )
    model = None  # Spark loads its pipelines later
    if flavor != "spark":
        model = loading.load_object(path, flavor, trust=request.trust)
    recorded = find_recorded(run.record.readers, os.path.relpath(path, run.path))
    arrays = _resolve_arrays(run, request, recorded, model, flavor)
    stated = _stated_columns(path, model, flavor, dataset, arrays)
    if stated is None and recorded is not None:
        stated = recorded.columns
    spec = _start_spec(run, request, dataset, path, flavor=flavor, arrays=arrays)
    trial = Trial(run.session, path, model, dataset, run.record.readers, recorded)
    training = resolve_inputs(
        dataset,
        request,
        run.record.readers,
        flavor=flavor,
        stated=stated,
        is_equal=None if recorded is None else partial(trial.is_equal, spec),
    )
    fitted = training.fitted
    if flavor == "spark" and fitted is not None:
        raise InvalidArgument(
            "A Spark ML pipeline cannot use transformations, but the run read transformed features.",
            hint="transformed=False, and the transformations as stages of the pipeline",
        )
    features = build_retrieval(
        run.session,
        dataset.manifest,
        name=request.name,
        inputs=training.names,
        label=list(spec.label),
    )
    complete = trial.complete
    if arrays in DATAFRAMES and request.arrays is None and recorded is None:
        complete = trial.complete_frames
    sha256 = None if fitted is None else fitted.sha256
    return catalog.publish(
        run.session,
        replace(complete(spec, training), features=features, transformations=sha256),
        annotations,
        artifact=path,
        fitted=None if fitted is None else fitted.to_bytes(),
        version=request.version,
    )


def _start_spec(
    run: Run,
    request: ModelRequest,
    dataset: TrainingDataset,
    path: str,
    *,
    flavor: Flavor,
    arrays: Arrays,
) -> ModelSpec:
    """Return the model without inputs, outputs and features.

    ``publish`` sets the version and the files.
    """
    manifest = dataset.manifest
    packages = run.record.environment.get("packages", {})
    if not isinstance(packages, Mapping):
        packages = {}
    return ModelSpec(
        name=request.name,
        version=1,
        flavor=flavor,
        artifact=os.path.basename(path),
        files=(),
        dataset={
            "name": manifest.name,
            "version": manifest.version,
            "manifest": manifest.content_hash,
        },
        features=FeatureViewSpec(request.name, 1, ()),
        inputs=(),
        outputs=(),
        label=tuple(column.name for column in manifest.columns if column.role == "label"),
        arrays=arrays,
        method=request.method,  # type: ignore[arg-type]
        experiment=run.name,
        run=run.id,
        created=utc_now().isoformat(),
        libraries={name: str(packages[name]) for name in _LIBRARIES if name in packages},
    )


def _resolve_arrays(
    run: Run,
    request: ModelRequest,
    recorded: RecordedInputs | None,
    model: LoadedModel,
    flavor: Flavor,
) -> Arrays:
    """Return the form of the inputs: the requested, recorded, or usual one of the model."""
    if request.arrays is not None:
        if request.arrays not in get_args(Arrays):
            raise InvalidArgument(
                f"arrays={request.arrays!r} is not one of {listing(get_args(Arrays))}.",
                hint=did_you_mean(request.arrays, get_args(Arrays), write="arrays={!r}"),
            )
        return request.arrays
    if recorded is not None:
        return recorded.arrays
    states = run.record.readers
    if request.reader is not None and request.reader in range(len(states)):
        states = (states[request.reader],)
    forms = {recorded_form(state) for state in states}
    if forms == {FRAME} and flavor in FITTED_FLAVORS and stated_columns(model, flavor):
        return "pandas"
    return default_arrays(model, flavor)


def _resolve_artifact(run: Run, artifact: str | None) -> str:
    """Return the path of the model to register: the requested one, or the only model of the run."""
    if artifact is not None:
        if os.path.isabs(artifact):
            path = os.path.abspath(artifact)
        else:
            run_files.check_own_files(run.path, artifact)
            path = storage_for(run.path).resolve_inside(run.path, artifact)
        if not storage_for(path).exists(path) and not storage_for(path).is_directory(path):
            raise ModelNotFound(
                f"Run {run.id!r} has no artifact {artifact!r}. Available: {listing(run.artifacts)}.",
                hint="a training function saves its model in context.artifact_dir",
            )
        return path
    return _only_model(run)


def _only_model(run: Run) -> str:
    """Return the path of the only artifact of a run that has the format of a model."""
    models, damages, refusals = [], [], []
    for relative in run.artifacts:
        path = os.path.join(run.path, relative)
        try:
            loading.detect_flavor(path)
            models.append(relative)
        except ModelDamaged as error:
            damages.append(error)
        except InvalidArgument as error:  # not a model
            if relative.endswith(torch_files.STATE_DICT_ENDINGS):
                refusals.append(error)
    # A damaged model must not lead to the registration of another one.
    if damages:
        raise damages[0]
    if len(models) == 1:
        run_files.check_own_files(run.path, models[0])
        return os.path.join(run.path, models[0])
    if models:
        raise ModelNotFound(
            f"Run {run.id!r} has {len(models)} models: {listing(models)}.",
            hint=f"register_model(run, name, artifact={models[0]!r})",
        )
    if refusals:  # they name the reason
        raise refusals[0]
    reason = "It has no artifacts."
    if run.artifacts:
        reason = f"No artifact has a model format: {listing(run.artifacts)}."
    raise ModelNotFound(
        f"Run {run.id!r} has no model to register. {reason}",
        hint="call context.save(model) in the training function",
    )


def _stated_columns(
    path: str, model: LoadedModel, flavor: Flavor, dataset: TrainingDataset, arrays: Arrays
) -> tuple[str, ...] | None:
    """Return the columns that a model states; ``model`` is None for the files of Spark."""
    if flavor == "spark":
        stated = spark_pipelines.stated_columns(path)
        if stated is not None:
            # Spark skips stages of labels if there are no labels.
            labels = {column.name for column in dataset.manifest.columns if column.role == "label"}
            stated = tuple(name for name in stated if name not in labels)
        return stated
    if arrays == "matrix" and flavor not in FITTED_FLAVORS:
        # The only input of the network is named, not its columns.
        return None
    return stated_columns(model, flavor)


def build_retrieval(
    session: Session, manifest: Manifest, *, name: str, inputs: Collection[str], label: list[str]
) -> FeatureViewSpec:
    """Return the features of a training dataset that a model needs, with group versions.

    Each ``get_features`` call is a step. Columns of the labels remain label columns; filters and
    samples of the training rows do not apply.

    Raises:
        FeatureNotFound, FeatureGroupNotFound: A group was deleted.
    """
    steps: list[JsonMapping] = []
    if manifest.plan is not None:
        # On-demand features read other features, which are not in ``inputs``, so with them no
        # feature is dropped.
        needed = None if find_plan_features(manifest.plan) else set(inputs)
        _add_steps(manifest.plan, steps, needed)
    request = ViewRequest(
        name=name,
        features=steps,
        label=label,
        label_time=None if manifest.plan is None else _label_time(manifest.plan),
    )
    return define(session, request)


def _label_time(plan: JsonMapping) -> str | None:
    """Return the name of the label time in a JSON plan, if any."""
    root_plan = plan
    # The labels, and so their time, belong to the first of the chained calls.
    while root_plan.get("left_plan") is not None:
        root_plan = root_plan["left_plan"]
    time = root_plan.get("left_time")
    return None if time is None else str(time)


def _add_steps(plan: JsonMapping, steps: list[JsonMapping], needed: set[str] | None) -> None:
    """Append the steps of a JSON plan after the steps of its input plan.

    Join columns of a later step are inputs of the earlier steps.
    """
    joins = [*plan.get("windows", ()), *plan["joins"]]
    if needed is not None:
        needed = set(needed)
        for join in joins:
            needed.update(left_column for left_column, _ in join["on"])
    if plan.get("left_plan") is not None:
        _add_steps(plan["left_plan"], steps, needed)
    features: list[str | WindowFeature | OnDemandFeature] = []
    join_key: dict[str, dict[str, str]] = {}
    for join in joins:
        source, join_features = join["source"], []
        for output in join["outputs"]:
            # An inner join also selects rows, so it is kept even if none of its features is an
            # input.
            if needed is None or output["name"] in needed or plan["how"] == "inner":
                join_features.append(_to_requested_feature(join, output))
        if join_features:
            features += join_features
            group = f"{source['featuregroup']}@v{source['version']}"
            join_key[group] = dict(join["on"])
    for feature in plan.get("on_demand", ()):
        features.append(OnDemandFeature.from_json(JsonObject.from_value(feature)))
    if features:
        steps.append({"features": features, "join_key": join_key, "join": plan["how"]})


def _to_requested_feature(join: JsonMapping, output: JsonMapping) -> str | WindowFeature:
    """Convert a join output back to a ``get_features`` argument."""
    source = join["source"]
    reference = FeatureReference(output["column"], source["featuregroup"], source["version"], None)
    if "function" not in output:
        if output["name"] != output["column"]:
            reference = replace(reference, alias=output["name"])
        return str(reference)
    key = [right for _, right in join["on"]]
    return window_from_json(
        JsonObject.from_value({**output, "feature": str(reference), "key": key})
    )
