"""Registration of a run's model together with the features that it needs for predictions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import pyarrow as pa

from featurestore.arrow.schemas import type_to_json
from featurestore.errors import (
    FeatureStoreError,
    InvalidArgument,
    ModelDamaged,
    ModelNotFound,
    listing,
)
from featurestore.experiments import catalog as run_catalog
from featurestore.experiments import run_files
from featurestore.experiments.models import catalog, loading, spark_pipelines, torch_files
from featurestore.experiments.models.conversion import (
    check_output_types,
    to_columns,
)
from featurestore.experiments.models.input_rows import to_model_input
from featurestore.experiments.models.retrieval import build_retrieval
from featurestore.experiments.models.stated_columns import FITTED_FLAVORS, stated_columns
from featurestore.experiments.models.training_inputs import resolve_inputs
from featurestore.experiments.run import Run
from featurestore.model.registered_model import (
    Arrays,
    Flavor,
    ModelAnnotations,
    ModelOutput,
    ModelSpec,
)
from featurestore.model.times import utc_now
from featurestore.session import Session
from featurestore.storage import files
from featurestore.training.dataset import TrainingDataset
from featurestore.training.reading import split_batches
from featurestore.transform.fitted import Transformations

# Number of rows for the trial prediction.
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
    reader: int | None
    version: int | None
    trust: bool


def register(run: Run, request: ModelRequest, annotations: ModelAnnotations) -> ModelSpec:
    """Check that the model can predict rows of its dataset, then publish it.

    See ``experiments.register_model``. Nothing is written before the trial prediction succeeds.
    """
    path = _resolve_artifact(run, request.artifact)
    # The record has checksums only of files in the run's directory.
    if files.is_below(path, run.path):
        run_catalog.verify(run.session, run.record, artifacts=[os.path.relpath(path, run.path)])
    flavor = loading.detect_flavor(path)
    description = f"{os.path.basename(path)!r} of run {run.id!r}"
    # Before the trial prediction, which loads the model and may run its code.
    loading.check_trusted(path, flavor, trust=request.trust, description=description)
    dataset = _resolve_dataset(run, request.dataset)
    model = None  # Spark loads its pipelines later
    if flavor != "spark":
        model = loading.load_object(path, flavor, trust=request.trust)
    arrays = request.arrays or loading.default_arrays(model, flavor)
    stated = _stated_columns(path, model, flavor, dataset, arrays)
    training = resolve_inputs(dataset, request, run.record.readers, flavor=flavor, stated=stated)
    inputs, fitted = training.inputs, training.fitted
    manifest = dataset.manifest
    labels = [column.name for column in manifest.columns if column.role == "label"]
    names = [each.name for each in inputs]
    spec = ModelSpec(
        name=request.name,
        # ``publish`` sets the version and the files.
        version=1,
        flavor=flavor,
        artifact=os.path.basename(path),
        files=(),
        dataset={
            "name": manifest.name,
            "version": manifest.version,
            "manifest": manifest.content_hash,
        },
        features=build_retrieval(
            run.session, manifest, name=request.name, inputs=names, label=labels
        ),
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
            "A Spark ML pipeline cannot use transformations, but the run read transformed features.",
            hint="transformed=False, and the transformations as stages of the pipeline",
        )
    spec = replace(spec, outputs=_trial_outputs(run.session, spec, path, model, dataset, fitted))
    content = None
    if fitted is not None:
        content = fitted.to_bytes()
        spec = replace(spec, transformations=fitted.sha256)
    return catalog.publish(
        run.session, spec, annotations, artifact=path, fitted=content, version=request.version
    )


def _resolve_artifact(run: Run, artifact: str | None) -> str:
    """Return the path of the model to register: the requested one, or the only model of the run."""
    if artifact is not None:
        if os.path.isabs(artifact):
            path = os.path.abspath(artifact)
        else:
            run_files.check_own_files(run.path, artifact)
            path = files.resolve_inside(run.path, artifact)
        if not files.exists(path) and not files.is_directory(path):
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


def _resolve_dataset(run: Run, override: TrainingDataset | None) -> TrainingDataset:
    dataset = override or run.dataset
    if dataset is None:
        raise InvalidArgument(
            f"Run {run.id!r} has no training dataset, so the features of its model are unknown.",
            hint="register_model(run, name, dataset=store.get_training_dataset('name'))",
        )
    return dataset


def _stated_columns(
    path: str, model: Any, flavor: Flavor, dataset: TrainingDataset, arrays: Arrays
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


def _libraries(run: Run) -> Mapping[str, str]:
    """Return the versions of the model libraries from the run record."""
    packages = run.record.environment.get("packages", {})
    if not isinstance(packages, Mapping):
        return {}
    libraries = ("keras", "tensorflow", "tf-keras", "scikit-learn", "pyspark", "numpy", "torch")
    return {name: str(packages[name]) for name in libraries if name in packages}


def _trial_outputs(
    session: Session,
    spec: ModelSpec,
    path: str,
    model: Any,
    dataset: TrainingDataset,
    fitted: Transformations | None,
) -> tuple[ModelOutput, ...]:
    """Predict the first rows of the dataset and return the outputs of the model."""
    names = [each.name for each in spec.inputs]
    split = dataset.splits[0]
    batches = split_batches(dataset.path, dataset.manifest, split, columns=names)
    for batch in islice(batches, 1):
        rows = batch.slice(0, _TRIAL_ROWS)
        if spec.flavor == "spark":
            model_outputs = spark_pipelines.predict_sample(path, spec.method, rows, session.engine)
        else:
            model_outputs = _predict(spec, model, _to_model_input(spec, fitted, rows))
        columns = to_columns(model_outputs, rows.num_rows)
        check_output_types(columns)
        return tuple(
            ModelOutput(name, type_to_json(column.type)) for name, column in columns.items()
        )
    raise InvalidArgument(
        f"Training dataset {dataset.name!r} has no rows for the trial prediction."
    )


def _to_model_input(spec: ModelSpec, fitted: Transformations | None, rows: pa.RecordBatch) -> Any:
    """Convert rows to the model input.

    Raises:
        InvalidArgument: The inputs of a matrix are not numbers.
    """
    if spec.arrays == "matrix":
        columns = to_model_input(replace(spec, arrays="columns"), fitted, rows)
        non_numeric = [name for name, values in columns.items() if values.dtype.kind not in "biuf"]
        if non_numeric:
            numeric = [each.name for each in spec.inputs if each.name not in non_numeric]
            raise InvalidArgument(
                f"arrays='matrix' requires numeric inputs. Inputs of other types: {listing(non_numeric)}.",
                hint=f"columns={numeric!r} if the model was fitted without them, dataset "
                "transformations that convert them to numbers, or arrays='columns'",
            )
    return to_model_input(spec, fitted, rows)


def _predict(spec: ModelSpec, model: Any, model_input: Any) -> Mapping[str, Any]:
    """Predict with the model; raise InvalidArgument if it does not accept the input."""
    predict = loading.make_predictor(model, spec.flavor, method=spec.method)
    try:
        return predict(model_input)
    except FeatureStoreError:
        # It already has a message for the user.
        raise
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        names = [each.name for each in spec.inputs]
        hint = (
            'arrays="matrix" passes one array of shape (rows, inputs), arrays="columns" one '
            "array per input; columns=[...] sets their order"
        )
        if spec.flavor == "torch":
            hint += "; export with dynamic_shapes for any number of rows"
        raise InvalidArgument(
            f"The model cannot use the inputs {listing(names)} as {spec.arrays!r}: {reason}",
            hint=hint,
        ) from error
