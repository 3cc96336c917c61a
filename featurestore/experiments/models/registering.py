"""register_model: what a run left behind, with what it takes to predict with it later."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import pyarrow as pa

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
from featurestore.model.arrow_json import type_to_json
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
from featurestore.training.transformations import of_dataset, read_by_hash
from featurestore.transform.fitted import Transformations

_TRIED_ROWS = 8


@dataclass(frozen=True)
class ModelRequest:
    """What ``register_model`` was asked."""

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


def register(run: Run, asked: ModelRequest, said: ModelDescribed) -> ModelSpec:
    """Try the model of a run on rows of its dataset, then publish it.

    ``experiments.register_model`` describes the request. Nothing is written before the model has
    answered.
    """
    path = _artifact(run, asked.artifact)
    if files.lies_below(path, run.path):
        run_catalog.verify(run.session, run.record, artifacts=[os.path.relpath(path, run.path)])
    flavor = loading.flavor_of(path)
    what = f"{os.path.basename(path)!r} of run {run.id!r}"
    loading.check_trusted(path, flavor, trust=asked.trust, what=what)
    dataset = _dataset(run, asked.dataset)
    state = _reader_state(run)
    fitted = _fitted(dataset, asked.transformed, state)
    inputs = _inputs(dataset, asked, state)
    arrays = asked.arrays
    if arrays is None:
        arrays = "matrix" if flavor in ("pickle", "joblib") else "columns"
    manifest = dataset.manifest
    labels = [column.name for column in manifest.columns if column.role == "label"]
    names = [each.name for each in inputs]
    spec = ModelSpec(
        name=asked.name,
        version=1,
        flavor=flavor,
        artifact=os.path.basename(path),
        files=(),
        dataset={
            "name": manifest.name,
            "version": manifest.version,
            "manifest": manifest.content_hash,
        },
        features=retrieval_of(run.session, manifest, name=asked.name, inputs=names, label=labels),
        inputs=inputs,
        outputs=(),
        label=tuple(labels),
        arrays=arrays,
        method=asked.method,  # type: ignore[arg-type]
        transformations=None,
        experiment=run.name,
        run=run.id,
        created=utc_now().isoformat(),
        libraries=_libraries(run),
    )
    if flavor == "spark" and fitted is not None:
        raise InvalidArgument(
            "A pipeline of Spark ML takes features as they are, and the run read them transformed.",
            hint="transformed=False, and the transformations as stages of the pipeline",
        )
    spec = replace(spec, outputs=_tried(run.session, spec, path, dataset, fitted))
    content = None
    if fitted is not None:
        content = fitted.to_bytes()
        spec = replace(spec, transformations=fitted.sha256)
    return catalog.publish(
        run.session, spec, said, artifact=path, fitted=content, version=asked.version
    )


def _artifact(run: Run, given: str | None) -> str:
    """Return the path of what is registered: the one model of a run, or the one that is named."""
    if given is not None:
        path = _named_artifact(run, given)
        if not files.exists(path) and not files.is_directory(path):
            raise ModelNotFound(
                f"Run {run.id!r} has no {given!r}; it has {listing(run.artifacts)}.",
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
        except InvalidArgument:  # of no format of models
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
    left = "It left no files."
    if run.artifacts:
        left = f"None of its files has a format of models: {listing(run.artifacts)}."
    raise ModelNotFound(
        f"Run {run.id!r} has no model to register. {left}",
        hint="context.save(model) in the training function writes one",
    )


def _named_artifact(run: Run, given: str) -> str:
    """Return the path of a file or folder: of the run, or anywhere where the path is absolute."""
    if os.path.isabs(given):
        return os.path.abspath(given)
    run_files.check_own_files(run.path, given)
    return files.inside(run.path, given)


def _dataset(run: Run, given: TrainingDataset | None) -> TrainingDataset:
    dataset = given or run.dataset
    if dataset is None:
        raise InvalidArgument(
            f"Run {run.id!r} read no training dataset, so nothing says which features its model "
            "takes.",
            hint="register_model(run, name, dataset=store.get_training_dataset('name'))",
        )
    return dataset


def _reader_state(run: Run) -> Mapping[str, Any]:
    """Return the settings of the first reader that the run had; it may have had none."""
    for each in run.record.readers:
        return each
    return {}


def _fitted(
    dataset: TrainingDataset, given: bool | Transformations | None, state: Mapping[str, Any]
) -> Transformations | None:
    if given is None and "transformed" in state:
        if state["transformed"] is None:
            return None
        return read_by_hash(dataset.path, dataset.manifest, state["transformed"])
    if given is None and dataset.transformations is not None:
        raise InvalidArgument(
            f"Training dataset {dataset.name!r} has transformations, and the run read it neither by "
            "a reader nor as a matrix, so it is not known whether its model takes transformed "
            "values.",
            hint="register_model(run, name, transformed=True), or transformed=False for a model "
            "of stored values",
        )
    return of_dataset(dataset, given)


def _inputs(
    dataset: TrainingDataset, asked: ModelRequest, state: Mapping[str, Any]
) -> tuple[ModelInput, ...]:
    """Return the inputs in the order in which a reader yields them, with its policy for nulls."""
    columns = asked.columns
    if columns is None:
        columns = state.get("columns")
    nulls = asked.nulls
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
    """Return the versions of the libraries that models come from, as the run's record says."""
    packages = run.record.environment.get("packages", {})
    if not isinstance(packages, Mapping):
        return {}
    wanted = ("keras", "tensorflow", "tf-keras", "scikit-learn", "pyspark", "numpy", "torch")
    return {name: str(packages[name]) for name in wanted if name in packages}


def _tried(
    session: Session,
    spec: ModelSpec,
    path: str,
    dataset: TrainingDataset,
    fitted: Transformations | None,
) -> tuple[ModelOutput, ...]:
    """Return the outputs of the model, by asking it for the first rows of its dataset."""
    names = [each.name for each in spec.inputs]
    split = dataset.splits[0]
    batches = split_batches(dataset.path, dataset.manifest, split, columns=names)
    for batch in islice(batches, 1):
        rows = batch.slice(0, _TRIED_ROWS)
        if spec.flavor == "spark":
            answers = spark_ml.try_rows(path, spec.method, rows, session.engine)
        else:
            loaded = loading.load_object(path, spec.flavor)
            answers = _answers(spec, loaded, _arrays(spec, fitted, rows))
        found = []
        for name, column in to_columns(answers, rows.num_rows).items():
            found.append(ModelOutput(name, type_to_json(column.type)))
        return tuple(found)
    raise InvalidArgument(f"Training dataset {dataset.name!r} has no rows to try the model on.")


def _arrays(spec: ModelSpec, fitted: Transformations | None, rows: pa.RecordBatch) -> Any:
    """Return what the model takes of some rows.

    Raises:
        InvalidArgument: Inputs are not numbers, which a matrix needs.
    """
    if spec.arrays == "matrix":
        columns = model_arrays(replace(spec, arrays="columns"), fitted, rows)
        texts = [name for name, values in columns.items() if values.dtype.kind not in "biuf"]
        if texts:
            numeric = [each.name for each in spec.inputs if each.name not in texts]
            raise InvalidArgument(
                f"arrays='matrix' takes numbers, and these inputs are not: {listing(texts)}.",
                hint=f"columns={numeric!r} where the model was fitted without them, "
                "transformations in the dataset that turn them into numbers, or arrays='columns'",
            )
    return model_arrays(spec, fitted, rows)


def _answers(spec: ModelSpec, loaded: Any, given: Any) -> Mapping[str, Any]:
    """Return what a model says of arrays, or say that it cannot take them."""
    predict = loading.predictor(loaded, spec.flavor, method=spec.method)
    try:
        return predict(given)
    except FeatureStoreError:
        raise
    except Exception as error:
        text = str(error).strip().split("\n")[0]
        names = [each.name for each in spec.inputs]
        raise InvalidArgument(
            f"The model cannot take the inputs {listing(names)} as {spec.arrays!r}: {text}",
            hint='arrays="matrix" gives one array of (rows, inputs), arrays="columns" one for '
            "each input; columns=[...] names them in order",
        ) from error
