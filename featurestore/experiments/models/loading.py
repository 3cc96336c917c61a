"""Models read from files, by flavor, and what each answers for a batch of arrays.

A file of Keras is data unless its configuration names code (``keras_files``). SavedModel, pickles and pipelines
of Spark ML are programs: whoever writes their files decides what runs, so a caller has to allow it.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import zipfile
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from featurestore.errors import (
    InvalidArgument,
    MissingExtra,
    ModelDamaged,
    UntrustedModel,
    listing,
)
from featurestore.experiments.models import keras_files, spark_ml
from featurestore.model.registered_model import Flavor, ModelSpec
from featurestore.storage import files

# Rows that a library computes at a time, whatever batches an engine hands over.
PREDICT_ROWS = 8192
_LEAST_ROWS = 32

# Gives the answers, by output name ("" for the only one), for what a model takes.
Predict = Callable[[Any], Mapping[str, npt.NDArray[Any]]]

_SAFE = ("keras", "tf_keras")
_EXTRAS = {"keras": "tensorflow", "tf_keras": "keras2", "tensorflow": "tensorflow"}
_PICKLED = {".pkl": "pickle", ".pickle": "pickle", ".joblib": "joblib"}


def flavor_of(path: str) -> Flavor:
    """Return the flavor of a file or folder; nothing of it is executed.

    Raises:
        InvalidArgument: It is of no known format.
    """
    name = os.path.basename(path)
    ending = os.path.splitext(name)[1]
    if ending == ".keras" and files.is_file(path):
        return _keras_flavor(path)
    if ending in _PICKLED and files.is_file(path):
        return _PICKLED[ending]  # type: ignore[return-value]
    if files.is_file(os.path.join(path, "saved_model.pb")):
        return "tensorflow"
    if spark_ml.is_pipeline(path):
        return "spark"
    raise InvalidArgument(
        f"{name!r} is no model of a known format.",
        hint="model.save('model.keras'), a SavedModel folder, model.pkl or model.joblib, "
        "or the folder of a PipelineModel of Spark ML",
    )


def _keras_flavor(path: str) -> Flavor:
    """Return which Keras wrote a file."""
    try:
        with zipfile.ZipFile(files.opened(path)) as archive:
            written = json.loads(archive.read("metadata.json"))
        version = str(written["keras_version"])
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
        raise ModelDamaged(f"{path!r} is no file that Keras wrote: {error}") from error
    return "tf_keras" if version.startswith("2.") else "keras"


def check_trusted(path: str, flavor: str, *, trust: bool, what: str) -> None:
    """Raise unless a file is data, or the caller allows its code to run.

    Raises:
        UntrustedModel: Nothing was built or imported.
        ModelDamaged: It is not a file that Keras wrote.
    """
    if trust:
        return
    if flavor in _SAFE:
        _library(flavor)
        code = keras_files.code_in(path, flavor)
        if not code:
            return
        raise UntrustedModel(
            f"{what} holds more than layers of Keras: {listing(code)}. Loading it may run code.",
            hint="trust=True where you know who wrote it",
        )
    raise UntrustedModel(
        f"{what} is of the format {flavor!r}: loading it runs code that its files hold.",
        hint="trust=True where you know who wrote them; model.save('model.keras') needs none",
    )


def load_object(path: str, flavor: str) -> Any:
    """Return the model of a file that ``check_trusted`` allows to be loaded.

    Raises:
        MissingExtra: Its library is not installed.
    """
    if flavor in _SAFE:
        library = _library(flavor)
        safe = not keras_files.code_in(path, flavor)  # otherwise the caller trusts it
        return library.models.load_model(path, compile=False, safe_mode=safe)
    if flavor == "tensorflow":
        return _library("tensorflow").saved_model.load(path)
    if flavor == "spark":
        return spark_ml.load(path)
    if flavor == "joblib":
        return importlib.import_module("joblib").load(path)
    return pickle.loads(files.read_bytes(path))


def check_files(directory: str, spec: ModelSpec) -> None:
    """Make sure that the files of a model are those that were registered.

    Raises:
        ModelDamaged: Names the file.
    """
    for each in spec.files:
        path = files.inside(directory, each.path)
        if not files.exists(path) or files.sha256(path) != each.sha256:
            raise ModelDamaged(
                f"{path!r} is not the file that was registered as model {spec.name!r} version "
                f"{spec.version}.",
                hint="restore it from a copy, or register the run's model again",
            )


@lru_cache(maxsize=2)
def loaded(directory: str, content: bytes) -> Predict:
    """Return the answers of a model, which is loaded once in each process.

    Args:
        directory: The directory of its version.
        content: Its ``model.json``, so that another model of the same place is loaded anew.
    """
    spec = ModelSpec.from_bytes(content, path=directory)
    check_files(directory, spec)
    path = files.inside(directory, spec.artifact)
    return predictor(load_object(path, spec.flavor), spec.flavor, method=spec.method)


def predictor(model: Any, flavor: str, *, method: str) -> Predict:
    """Return what calls a model with a batch of arrays."""
    if flavor in _SAFE:
        return lambda given: _in_parts(model, given)
    if flavor == "tensorflow":
        return _signature(model)
    answer = getattr(model, method, None)
    if answer is None:
        raise InvalidArgument(
            f"A {type(model).__name__} has no {method!r}.", hint='method="predict"'
        )
    return lambda given: _named(answer(given))


def _in_parts(model: Any, given: Any) -> Mapping[str, npt.NDArray[Any]]:
    """Return what ``model.predict`` gives, computed in parts of few different sizes.

    A call of ``predict`` costs a fifth of a second beside its work, most of it for the last batch,
    whose size is new; ``predict_on_batch`` runs the same function. The last part is filled up with
    its last row to a power of two.
    """
    arrays = given if isinstance(given, dict) else {"": given}
    rows = len(next(iter(arrays.values())))
    parts: dict[str, list[npt.NDArray[Any]]] = {}
    for start in range(0, rows, PREDICT_ROWS):
        stop = min(rows, start + PREDICT_ROWS)
        size = max(_LEAST_ROWS, 1 << (stop - start - 1).bit_length())
        part = {}
        for name, values in arrays.items():
            last = np.repeat(values[stop - 1 : stop], size - (stop - start), axis=0)
            part[name] = np.concatenate([values[start:stop], last])
        answers = _named(model.predict_on_batch(part if isinstance(given, dict) else part[""]))
        for name, values in answers.items():
            parts.setdefault(name, []).append(values[: stop - start])
    return {name: np.concatenate(found) for name, found in parts.items()}


def _signature(model: Any) -> Predict:
    library, called = _library("tensorflow"), model.signatures["serving_default"]

    _, taken = called.structured_input_signature

    def predict(given: Any) -> Mapping[str, npt.NDArray[Any]]:
        tensors = {}
        for name, values in given.items():
            tensors[name] = library.constant(values)
            if name in taken:  # a signature converts nothing by itself, as Keras does
                tensors[name] = library.cast(tensors[name], taken[name].dtype)
        found = {name: values.numpy() for name, values in called(**tensors).items()}
        return found if len(found) > 1 else _named(next(iter(found.values())))

    return predict


def _named(answers: Any) -> Mapping[str, npt.NDArray[Any]]:
    """Return the outputs of a model by name; the only one has none."""
    if isinstance(answers, Mapping):
        return {str(name): np.asarray(values) for name, values in answers.items()}
    if isinstance(answers, list | tuple) and answers and isinstance(answers[0], np.ndarray):
        return {str(index): values for index, values in enumerate(answers)}
    return {"": np.asarray(answers)}


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        extra = _EXTRAS[name]
        raise MissingExtra(
            f"This model needs {name}.", hint=f"pip install 'featurestore[{extra}]'"
        ) from error
