"""Registration of a run's model with the features that its predictions need."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import pyarrow as pa

from featurestore.arrow.arrow_json import type_to_json
from featurestore.errors import (
    FeatureStoreError,
    InvalidArgument,
    ModelDamaged,
    ModelNotFound,
    listing,
)
from featurestore.experiments import catalog as run_catalog
from featurestore.experiments import run_files
from featurestore.experiments.models import catalog, loading, spark_ml
from featurestore.experiments.models.prediction import model_arrays, to_columns
from featurestore.experiments.models.retrieval import retrieval_of
from featurestore.experiments.run import Run
from featurestore.model.registered_model import (
    Arrays,
    ModelDescribed,
    ModelInput,
    ModelOutput,
    ModelSpec,
)
from featurestore.model.times import utc_now
from featurestore.session import Session
from featurestore.storage import files
from featurestore.training.dataset import TrainingDataset
from featurestore.training.reading import split_batches
from featurestore.training.transformations import read_by_hash, resolve_transformations
from featurestore.transform.fitted import Transformations

# Rows of the trial prediction.
_TRIAL_ROWS = 8


@dataclass(frozen=True)
class ModelRequest:
    """The arguments of ``register_model``."""

    name: str
    artifact: str | None
    dataset: TrainingDataset | None
    columns: Sequence[str] | None
    transformed: bool | Transformations | None
    nulls: str | Mapping[str, Any] | None
    arrays: Arrays | None
    method: str
    version: int | None
    trust: bool


def register(run: Run, request: ModelRequest, annotations: ModelDescribed) -> ModelSpec:
    """Try the model of a run on rows of its dataset, then publish it.

    See ``experiments.register_model``. Nothing is written before the trial prediction succeeds.
    """
    path = _artifact(run, request.artifact)
    if files.lies_below(path, run.path):
        run_catalog.verify(run.session, run.record, artifacts=[os.path.relpath(path, run.path)])
    flavor = loading.flavor_of(path)
    description = f"{os.path.basename(path)!r} of run {run.id!r}"
    loading.check_trusted(path, flavor, trust=request.trust, description=description)
    dataset = _dataset(run, request.dataset)
    state = _reader_state(run)
    fitted = _fitted(dataset, request.transformed, state)
    inputs = _inputs(dataset, request, state)
    arrays = request.arrays
    if arrays is None:
        arrays = "matrix" if flavor in ("pickle", "joblib") else "columns"
    manifest = dataset.manifest
    labels = [column.name for column in manifest.columns if column.role == "label"]
    names = [each.name for each in inputs]
    spec = ModelSpec(
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
        features=retrieval_of(run.session, manifest, name=request.name, inputs=names, label=labels),
        inputs=inputs,
        outputs=(),
        label=tuple(labels),
        arrays=arrays,
        method=request.method,  # type: ignore[arg-type]
        transformations=None,
        experiment=run.name,
        run=run.id,
        created=utc_now().isoformat(),
        libraries=_libraries(run),
    )
    if flavor == "spark" and fitted is not None:
        raise InvalidArgument(
            "A pipeline of Spark ML cannot use transformations, and the run read transformed features.",
            hint="transformed=False, and the transformations as stages of the pipeline",
        )
    spec = replace(spec, outputs=_trial_outputs(run.session, spec, path, dataset, fitted))
    content = None
    if fitted is not None:
        content = fitted.to_bytes()
        spec = replace(spec, transformations=fitted.sha256)
    return catalog.publish(
        run.session, spec, annotations, artifact=path, fitted=content, version=request.version
    )


def _artifact(run: Run, artifact: str | None) -> str:
    """Return the path of the model to register: the named one, or the only model of the run."""
    if artifact is not None:
        path = _artifact_path(run, artifact)
        if not files.exists(path) and not files.is_directory(path):
            raise ModelNotFound(
                f"Run {run.id!r} has no {artifact!r}; it has {listing(run.artifacts)}.",
                hint="context.artifact_dir is where a training function saves its model",
            )
        return path
    models, damages = [], []
    for relative in run.artifacts:
        path = os.path.join(run.path, relative)
        try:
            loading.flavor_of(path)
            models.append(relative)
        except ModelDamaged as error:
            damages.append(error)
        except InvalidArgument:  # not a model
            continue
    if damages:
        raise damages[0]
    if len(models) == 1:
        run_files.check_own_files(run.path, models[0])
        return os.path.join(run.path, models[0])
    if models:
        raise ModelNotFound(
            f"Run {run.id!r} left {len(models)} models: {listing(models)}.",
            hint=f"register_model(run, name, artifact={models[0]!r})",
        )
    reason = "It has no artifacts."
    if run.artifacts:
        reason = f"No artifact has a model format: {listing(run.artifacts)}."
    raise ModelNotFound(
        f"Run {run.id!r} has no model to register. {reason}",
        hint="context.save(model) in the training function writes one",
    )


def _artifact_path(run: Run, artifact: str) -> str:
    """Return the path of an artifact: relative to the run, or absolute."""
    if os.path.isabs(artifact):
        return os.path.abspath(artifact)
    run_files.check_own_files(run.path, artifact)
    return files.inside(run.path, artifact)


def _dataset(run: Run, override: TrainingDataset | None) -> TrainingDataset:
    dataset = override or run.dataset
    if dataset is None:
        raise InvalidArgument(
            f"Run {run.id!r} has no training dataset, so the features of its model are unknown.",
            hint="register_model(run, name, dataset=store.get_training_dataset('name'))",
        )
    return dataset


def _reader_state(run: Run) -> Mapping[str, Any]:
    """Return the settings of the run's first reader, empty without readers."""
    for each in run.record.readers:
        return each
    return {}


def _fitted(
    dataset: TrainingDataset, transformed: bool | Transformations | None, state: Mapping[str, Any]
) -> Transformations | None:
    if transformed is None and "transformed" in state:
        if state["transformed"] is None:
            return None
        return read_by_hash(dataset.path, dataset.manifest, state["transformed"])
    if transformed is None and dataset.transformations is not None:
        raise InvalidArgument(
            f"Training dataset {dataset.name!r} has transformations, and the run read it without a "
            "reader or matrix, so it is unknown whether its model needs transformed values.",
            hint="register_model(run, name, transformed=True), or transformed=False for a model "
            "of stored values",
        )
    return resolve_transformations(dataset, transformed)


def _inputs(
    dataset: TrainingDataset, request: ModelRequest, state: Mapping[str, Any]
) -> tuple[ModelInput, ...]:
    """Return the inputs in the order of the reader, with its policy for nulls."""
    columns = request.columns
    if columns is None:
        columns = state.get("columns")
    nulls = request.nulls
    if nulls is None:
        nulls = state.get("nulls", "error")
    manifest = dataset.manifest
    if columns is None:
        columns = [column.name for column in manifest.columns if column.role == "feature"]
    masked: set[str] = set()
    if nulls == "mask":
        for split in manifest.splits:
            masked.update(name for name, count in split.nulls.items() if count)
    inputs = []
    for name in columns:
        column = manifest.column(name)
        if column.role in ("label", "weight"):
            continue
        narrow = column.tf_type == "float32"
        fill = None if isinstance(nulls, str) else nulls.get(name)
        inputs.append(ModelInput(name, column.type, narrow, name in masked, fill))
    if not inputs:
        raise InvalidArgument(f"Training dataset {manifest.name!r} has no inputs.")
    return tuple(inputs)


def _libraries(run: Run) -> Mapping[str, str]:
    """Return the versions of model libraries from the run record."""
    packages = run.record.environment.get("packages", {})
    if not isinstance(packages, Mapping):
        return {}
    libraries = ("keras", "tensorflow", "tf-keras", "scikit-learn", "pyspark", "numpy", "torch")
    return {name: str(packages[name]) for name in libraries if name in packages}


def _trial_outputs(
    session: Session,
    spec: ModelSpec,
    path: str,
    dataset: TrainingDataset,
    fitted: Transformations | None,
) -> tuple[ModelOutput, ...]:
    """Return the outputs of the model, by predicting the first rows of its dataset."""
    names = [each.name for each in spec.inputs]
    split = dataset.splits[0]
    batches = split_batches(dataset.path, dataset.manifest, split, columns=names)
    for batch in islice(batches, 1):
        rows = batch.slice(0, _TRIAL_ROWS)
        if spec.flavor == "spark":
            model_outputs = spark_ml.try_rows(path, spec.method, rows, session.engine)
        else:
            model = loading.load_object(path, spec.flavor)
            model_outputs = _predict(spec, model, _arrays(spec, fitted, rows))
        columns = to_columns(model_outputs, rows.num_rows).items()
        return tuple(ModelOutput(name, type_to_json(column.type)) for name, column in columns)
    raise InvalidArgument(f"Training dataset {dataset.name!r} has no rows to try the model on.")


def _arrays(spec: ModelSpec, fitted: Transformations | None, rows: pa.RecordBatch) -> Any:
    """Return the model input of rows.

    Raises:
        InvalidArgument: Inputs of a matrix are not numbers.
    """
    if spec.arrays == "matrix":
        columns = model_arrays(replace(spec, arrays="columns"), fitted, rows)
        texts = [name for name, values in columns.items() if values.dtype.kind not in "biuf"]
        if texts:
            numeric = [each.name for each in spec.inputs if each.name not in texts]
            raise InvalidArgument(
                f"arrays='matrix' needs numbers. Inputs of other types: {listing(texts)}.",
                hint=f"columns={numeric!r} where the model was fitted without them, "
                "transformations in the dataset that turn them into numbers, or arrays='columns'",
            )
    return model_arrays(spec, fitted, rows)


def _predict(spec: ModelSpec, model: Any, model_input: Any) -> Mapping[str, Any]:
    """Return the outputs of a model, or raise InvalidArgument if it cannot use the input."""
    predict = loading.predictor(model, spec.flavor, method=spec.method)
    try:
        return predict(model_input)
    except FeatureStoreError:
        raise
    except Exception as error:
        text = str(error).strip().split("\n")[0]
        names = [each.name for each in spec.inputs]
        raise InvalidArgument(
            f"The model cannot use the inputs {listing(names)} as {spec.arrays!r}: {text}",
            hint='arrays="matrix" passes one array of (rows, inputs), arrays="columns" one for '
            "each input; columns=[...] sets their order",
        ) from error
