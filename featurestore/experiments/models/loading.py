"""Loading of models by flavor, and batch prediction on arrays or Spark DataFrames.

A Keras file is data unless its configuration refers to code (``keras_files``), and so is a program
of PyTorch (``torch_files``). SavedModel, pickles and Spark ML pipelines run their author's code, so
they require trust.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import zipfile
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featurestore.errors import (
    InvalidArgument,
    MissingExtra,
    ModelDamaged,
    UntrustedModel,
    listing,
    missing_extra,
)
from featurestore.experiments.models import keras_files, torch_files
from featurestore.experiments.models.conversion import refuse_inexact_integers
from featurestore.ingest import to_relation
from featurestore.model.registered_model import (
    LABEL_TIME,
    MODEL_VERSION,
    PREDICTION,
    Flavor,
    ModelSpec,
)
from featurestore.model.times import from_micros
from featurestore.storage import files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from featurestore.plugins.engine import Engine

# The output column of a transformed DataFrame, by ``register_model(method=)``.
_OUTPUT_COLUMNS = {
    "predict": "prediction",
    "predict_proba": "probability",
    "decision_function": "rawPrediction",
}


# Number of rows per prediction call, independent of the engine's batch size.
PREDICT_ROWS = 8192
_MIN_ROWS = 32

# Maps a model input to predictions by output name ("" for a single output).
Predict = Callable[[Any], Mapping[str, npt.NDArray[Any]]]

_KERAS_FLAVORS = ("keras", "tf_keras")
# These need trust only if a file contains code.
SAFE_FLAVORS = (*_KERAS_FLAVORS, "torch")
_EXTRAS = {
    "keras": "tensorflow",
    "tf_keras": "keras2",
    "tensorflow": "tensorflow",
    "torch": "torch",
}
_DATA = {
    "keras": "Keras layers",
    "tf_keras": "Keras layers",
    "torch": "tensors and known operators of PyTorch",
}
_PICKLED = {".pkl": "pickle", ".pickle": "pickle", ".joblib": "joblib"}


def detect_flavor(path: str) -> Flavor:
    """Detect the flavor of a file or folder without executing code.

    Raises:
        InvalidArgument: The format is unknown.
    """
    name = os.path.basename(path)
    ending = os.path.splitext(name)[1]
    if ending == ".keras" and files.is_file(path):
        return _keras_flavor(path)
    if ending == ".pt2" and files.is_file(path):
        return "torch"
    if ending in torch_files.STATE_DICT_ENDINGS and files.is_file(path):
        raise InvalidArgument(
            f"{name!r} cannot predict: a state dict has the tensors of a PyTorch module without its "
            "code, and TorchScript is not supported.",
            hint="program = torch.export.export(module.eval(), (inputs,), "
            "dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)); context.save(program)",
        )
    if ending in _PICKLED and files.is_file(path):
        return _PICKLED[ending]  # type: ignore[return-value]
    if files.is_file(os.path.join(path, "saved_model.pb")):
        return "tensorflow"
    if is_pipeline(path):
        return "spark"
    raise InvalidArgument(
        f"{name!r} does not have a supported model format.",
        hint="model.save('model.keras'), torch.export.save(program, 'model.pt2'), a SavedModel "
        "folder, model.pkl or model.joblib, or the folder of a Spark ML PipelineModel",
    )


def _keras_flavor(path: str) -> Flavor:
    """Detect the Keras version that wrote a file."""
    try:
        with zipfile.ZipFile(files.open_complete(path)) as archive:
            metadata = json.loads(archive.read("metadata.json"))
        version = str(metadata["keras_version"])
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
        raise ModelDamaged(f"{path!r} was not written by Keras: {error}") from error
    return "tf_keras" if version.startswith("2.") else "keras"


def check_trusted(path: str, flavor: str, *, trust: bool, description: str) -> None:
    """Raise an error unless the file is pure data or the caller trusts its code.

    Raises:
        UntrustedModel: The file contains code and ``trust`` is False.
        ModelDamaged: The file was not written by its library.
    """
    if trust:
        return
    if flavor in SAFE_FLAVORS:
        _import_library(flavor)
        code = _find_code_objects(path, flavor)
        if not code:
            return
        raise UntrustedModel(
            f"{description} contains objects other than {_DATA[flavor]}: {listing(code)}. "
            "Loading it may run code.",
            hint="trust=True if you trust its author",
        )
    raise UntrustedModel(
        f"{description} has the format {flavor!r}: loading it runs code from its files.",
        hint="trust=True if you trust its author; model.save('model.keras') needs no trust",
    )


def load_object(path: str, flavor: str) -> Any:
    """Load the model from a file that has passed ``check_trusted``.

    Raises:
        MissingExtra: The library of the model is not installed.
    """
    if flavor in SAFE_FLAVORS:
        library = _import_library(flavor)
        is_safe = not _find_code_objects(path, flavor)  # unsafe only after ``check_trusted``
        if flavor == "torch":
            return torch_files.load_program(path, is_safe=is_safe)
        # Predictions need neither the optimizer nor losses, which may be functions of the author.
        return library.models.load_model(path, compile=False, safe_mode=is_safe)
    if flavor == "tensorflow":
        return _import_library("tensorflow").saved_model.load(path)
    if flavor == "spark":
        return load(path)
    if flavor == "joblib":
        return importlib.import_module("joblib").load(path)
    return pickle.loads(files.read_bytes(path))


def _find_code_objects(path: str, flavor: str) -> list[str]:
    if flavor == "torch":
        return torch_files.find_code_objects(path)
    return keras_files.find_code_objects(path, flavor)


def check_files(directory: str, spec: ModelSpec) -> None:
    """Verify the files of a model against their registered checksums.

    Raises:
        ModelDamaged: A file is missing or changed.
    """
    for file in spec.files:
        path = files.resolve_inside(directory, file.path)
        if not files.exists(path) or files.sha256(path) != file.sha256:
            raise ModelDamaged(
                f"{path!r} differs from the file that was registered as model {spec.name!r} version "
                f"{spec.version}.",
                hint="restore it from a copy, or register the run's model again",
            )


@lru_cache(maxsize=2)
def load_predictor(directory: str, content: bytes) -> Predict:
    """Load a model once per process, and return its prediction function.

    Args:
        directory: The directory of the model version.
        content: The content of ``model.json``, so that a replaced model is loaded again.
    """
    spec = ModelSpec.from_bytes(content, path=directory)
    # Check in each process, immediately before the files are loaded.
    check_files(directory, spec)
    path = files.resolve_inside(directory, spec.artifact)
    return make_predictor(load_object(path, spec.flavor), spec.flavor, method=spec.method)


def make_predictor(model: Any, flavor: str, *, method: str) -> Predict:
    """Return the prediction function of a model."""
    if flavor in _KERAS_FLAVORS:
        return lambda model_input: _predict_in_batches(model, model_input)
    if flavor == "torch":
        return torch_files.make_predictor(model)
    if flavor == "tensorflow":
        return _signature_predictor(model)
    predict_method = getattr(model, method, None)
    if predict_method is None:
        raise InvalidArgument(
            f"A {type(model).__name__} has no method {method!r}.", hint='method="predict"'
        )
    return lambda model_input: _named_outputs(predict_method(model_input))


def _predict_in_batches(model: Any, model_input: Any) -> Mapping[str, npt.NDArray[Any]]:
    """Return the predictions of ``model.predict``, computed in batches of a few distinct sizes.

    Each ``predict`` call has an overhead of 0.2 seconds, mostly because the last batch has a new
    size; ``predict_on_batch`` runs the same function without it. The last batch is padded to a
    power of two by repeating its last row.
    """
    arrays = model_input if isinstance(model_input, dict) else {"": model_input}
    rows = len(next(iter(arrays.values())))
    outputs: dict[str, list[npt.NDArray[Any]]] = {}
    for start in range(0, rows, PREDICT_ROWS):
        stop = min(rows, start + PREDICT_ROWS)
        size = max(_MIN_ROWS, 1 << (stop - start - 1).bit_length())
        padded_arrays = {}
        for name, values in arrays.items():
            padding = np.repeat(values[stop - 1 : stop], size - (stop - start), axis=0)
            padded_arrays[name] = np.concatenate([values[start:stop], padding])
        batch_outputs = _named_outputs(
            model.predict_on_batch(
                padded_arrays if isinstance(model_input, dict) else padded_arrays[""]
            )
        )
        for name, values in batch_outputs.items():
            outputs.setdefault(name, []).append(values[: stop - start])
    return {name: np.concatenate(chunks) for name, chunks in outputs.items()}


def _signature_predictor(model: Any) -> Predict:
    """Return the prediction function of a SavedModel, which calls its default signature."""
    library, signature = _import_library("tensorflow"), model.signatures["serving_default"]

    _, input_specs = signature.structured_input_signature

    def predict(model_input: Any) -> Mapping[str, npt.NDArray[Any]]:
        tensors = {}
        for name, values in model_input.items():
            tensors[name] = library.constant(values)
            if name in input_specs:  # unlike Keras, a signature does not convert types
                dtype = input_specs[name].dtype
                refuse_inexact_integers(name, values, np.dtype(dtype.as_numpy_dtype))
                tensors[name] = library.cast(tensors[name], dtype)
        outputs = {name: values.numpy() for name, values in signature(**tensors).items()}
        return outputs if len(outputs) > 1 else _named_outputs(next(iter(outputs.values())))

    return predict


def _named_outputs(outputs: Any) -> Mapping[str, npt.NDArray[Any]]:
    """Return the outputs of a model by name; a single output has the name ""."""
    if isinstance(outputs, Mapping):
        return {str(name): np.asarray(values) for name, values in outputs.items()}
    if isinstance(outputs, list | tuple) and outputs and isinstance(outputs[0], np.ndarray):
        return {str(index): values for index, values in enumerate(outputs)}
    return {"": np.asarray(outputs)}


def _import_library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        extra = _EXTRAS[name]
        raise MissingExtra(
            f"This model needs {name}.", hint=f"pip install 'featurestore[{extra}]'"
        ) from error


def is_pipeline(path: str) -> bool:
    """Return True for a folder written by ``PipelineModel.save``, without executing code."""
    return all(files.is_directory(os.path.join(path, each)) for each in ("metadata", "stages"))


def load(path: str) -> Any:
    """Load the pipeline from a folder, in the Spark session of this process."""
    return _import_spark_library("pyspark.ml").PipelineModel.load(Path(path).absolute().as_uri())


def add_predictions(pipeline: Any, rows: Any, method: str) -> Any:
    """Transform a DataFrame and add the column ``prediction``.

    Raises:
        InvalidArgument: The pipeline cannot transform the rows, or lacks the output column.
    """
    try:
        transformed = pipeline.transform(rows)
    except _import_spark_library("pyspark.errors").PySparkException as error:
        reason = str(error).strip().split("\n")[0]
        raise InvalidArgument(
            f"The pipeline cannot transform the columns {listing(rows.columns)}: {reason}",
            hint="fit it on the features of the training dataset: "
            "store.get_training_dataset(name).read('train').to_spark()",
        ) from error
    name = _OUTPUT_COLUMNS[method]
    if name not in transformed.columns:
        added = [each for each in transformed.columns if each not in rows.columns]
        raise InvalidArgument(
            f"The pipeline has no output column {name!r}. Available: {listing(added)}."
        )
    column = transformed[name]
    if method != "predict":
        # Probabilities are vectors of Spark ML, a type that does not exist outside Spark.
        column = _import_spark_library("pyspark.ml.functions").vector_to_array(column)
    return transformed.withColumn(PREDICTION, column)


def predict_sample(
    path: str, method: str, batch: pa.RecordBatch, engine: Engine
) -> Mapping[str, Any]:
    """Predict a few sample rows with a pipeline, and return numpy arrays.

    Raises:
        InvalidArgument: The engine is not Spark.
    """
    rows = engine.to_spark(to_relation(pa.Table.from_batches([batch]), engine=engine))
    predictions = [row[PREDICTION] for row in add_predictions(load(path), rows, method).collect()]
    return {"": np.asarray(predictions)}


def score_rows(
    path: str, spec: ModelSpec, rows: Any, *, label_columns: Sequence[str], label_time: int | None
) -> Any:
    """Return a DataFrame of the label columns with predictions and the model version.

    Args:
        path: The pipeline folder.
        spec: The model.
        rows: A DataFrame of labels with features.
        label_columns: The columns of the labels.
        label_time: Time (microseconds since 1970) of rows without a time column.
    """
    functions = _import_spark_library("pyspark.sql.functions")
    scored_rows = add_predictions(load(path), rows, spec.method).select(*label_columns, PREDICTION)
    scored_rows = scored_rows.withColumn(MODEL_VERSION, functions.lit(spec.version).cast("long"))
    if label_time is not None:
        scored_rows = scored_rows.withColumn(LABEL_TIME, functions.lit(from_micros(label_time)))
    return scored_rows


def _import_spark_library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise missing_extra("pyspark", "spark") from error
