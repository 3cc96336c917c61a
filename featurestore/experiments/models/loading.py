"""Loading of models by flavor, and checks of their files.

A Keras file is data unless its configuration refers to code (``keras_files``), and so are programs
of PyTorch (``torch_files``) and boosters (``boosters``). SavedModel, pickles, functions of JAX and
Spark ML pipelines run their author's code, so they require trust. A file is read once: the same bytes
are compared with the registered hash, checked and loaded, so the file cannot be replaced between
these steps.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import pickle
import weakref
from functools import lru_cache
from typing import Any

from featurestore.errors import InvalidArgument, MissingExtra, ModelDamaged, UntrustedModel, listing
from featurestore.experiments.models import (
    boosters,
    jax_files,
    keras_files,
    spark_pipelines,
    torch_files,
)
from featurestore.experiments.models.archives import read_archive
from featurestore.experiments.models.predictors import LoadedModel, Predict, make_predictor
from featurestore.model.distributions import install_command
from featurestore.model.registered_model import (
    BOOSTERS,
    KERAS_FLAVORS,
    PICKLE_FLAVORS,
    Flavor,
    ModelFile,
    ModelSpec,
)
from featurestore.storage import files, storage_for
from featurestore.storage.temporary import remove_temporary, temporary_directory

# These need trust only if a file contains code.
SAFE_FLAVORS = (*KERAS_FLAVORS, "torch", *BOOSTERS)
_FILE_FLAVORS = (*SAFE_FLAVORS, "jax", *PICKLE_FLAVORS)
_DATA = {
    "keras": "Keras layers",
    "tf_keras": "Keras layers",
    "torch": "tensors and known operators of PyTorch",
    "xgboost": "trees",
    "lightgbm": "trees",
}
_PICKLED = {".pkl": "pickle", ".pickle": "pickle", ".joblib": "joblib"}


def detect_flavor(path: str) -> Flavor:
    """Detect the flavor of a file or folder without executing code.

    Raises:
        InvalidArgument: The format is unknown.
    """
    storage = storage_for(path)
    name = os.path.basename(path)
    ending = os.path.splitext(name)[1]
    if ending == ".keras" and storage.is_file(path):
        return _keras_flavor(path)
    if ending == ".pt2" and storage.is_file(path):
        return "torch"
    if ending == jax_files.ENDING and storage.is_file(path):
        return "jax"
    if ending in torch_files.STATE_DICT_ENDINGS and storage.is_file(path):
        raise InvalidArgument(
            f"{name!r} cannot predict: a state dict has the tensors of a PyTorch module without its "
            "code, and TorchScript is not supported.",
            hint="program = torch.export.export(module.eval(), (inputs,), "
            "dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)); context.save(program)",
        )
    if ending in _PICKLED and storage.is_file(path):
        return _PICKLED[ending]  # type: ignore[return-value]
    if ending in boosters.ENDINGS and storage.is_file(path):
        library = boosters.detect_booster(next(storage.read_chunks(path), b""))
        if library is not None:
            return library  # type: ignore[return-value]
    if storage.is_file(os.path.join(path, "saved_model.pb")):
        return "tensorflow"
    if spark_pipelines.is_pipeline(path):
        return "spark"
    raise InvalidArgument(
        f"{name!r} does not have a supported model format.",
        hint="model.save('model.keras'), torch.export.save(program, 'model.pt2'), "
        "booster.save_model('model.json') of XGBoost or 'model.txt' of LightGBM, a SavedModel "
        "folder, model.pkl or model.joblib, or the folder of a Spark ML PipelineModel",
    )


def _keras_flavor(path: str) -> Flavor:
    """Detect the Keras version that wrote a file."""
    entries = read_archive(storage_for(path).read_bytes(path), title=repr(path), writer="Keras")
    try:
        version = str(json.loads(entries["metadata.json"])["keras_version"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
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
    content = storage_for(path).read_bytes(path) if flavor in SAFE_FLAVORS else b""
    _check_content(content, flavor, trust=False, title=repr(path), description=description)


def load_object(path: str, flavor: str, *, trust: bool = False) -> LoadedModel:
    """Load the model of a file or folder whose hash is not registered.

    Raises:
        UntrustedModel: The file contains code and ``trust`` is False.
        MissingExtra: The library of the model is not installed.
        ModelDamaged: The file was not written by its library.
    """
    description = repr(os.path.basename(path))
    if flavor in _FILE_FLAVORS:
        return _load_content(
            storage_for(path).read_bytes(path),
            flavor,
            trust=trust,
            title=repr(path),
            description=description,
        )
    _check_content(b"", flavor, trust=trust, title=repr(path), description=description)
    return _load_folder(path, flavor)


def load_registered(directory: str, spec: ModelSpec, *, trust: bool) -> LoadedModel:
    """Load a registered model from the bytes that have the registered hashes.

    Args:
        directory: The directory of the model version.
        spec: The model.
        trust: Allow code in its files.

    Raises:
        UntrustedModel: A file contains code and ``trust`` is False.
        ModelDamaged: A file is missing or changed, or was not written by its library.
    """
    path = storage_for(directory).resolve_inside(directory, spec.artifact)
    description = f"Model {spec.name!r} version {spec.version}"
    if spec.flavor in _FILE_FLAVORS:
        registered_files = [file for file in spec.files if file.path == spec.artifact]
        if len(registered_files) != 1:
            raise _changed_error(path, spec)
        content = _read_registered(directory, spec, registered_files[0])
        return _load_content(
            content, spec.flavor, trust=trust, title=repr(path), description=description
        )
    _check_content(b"", spec.flavor, trust=trust, title=repr(path), description=description)
    if spec.flavor == "spark":
        # Executors of a cluster read the files, too, so a copy of this process would not do.
        check_files(directory, spec)
        return _load_folder(path, spec.flavor)
    copy = temporary_directory()
    try:
        for file in spec.files:
            content = _read_registered(directory, spec, file)
            storage_for(copy).write_atomically(os.path.join(copy, file.path), content)
        model = _load_folder(os.path.join(copy, spec.artifact), spec.flavor)
    except BaseException:
        remove_temporary(copy)
        raise
    # A SavedModel may read its assets later.
    weakref.finalize(model, remove_temporary, copy)
    return model


def _check_content(
    content: bytes, flavor: str, *, trust: bool, title: str, description: str
) -> tuple[bytes, bool]:
    """Return the bytes to load, and whether they are pure data.

    Raises:
        UntrustedModel: The content is code and ``trust`` is False.
        ModelDamaged: The content was not written by its library.
    """
    if flavor not in SAFE_FLAVORS:
        if not trust:
            raise UntrustedModel(
                f"{description} has the format {flavor!r}: loading it runs code from its files.",
                hint="trust=True if you trust its author; model.save('model.keras') needs no trust",
            )
        return content, False
    _import_library(flavor)
    if flavor == "torch":
        code, checked = torch_files.find_code_objects(content, title=title)
    elif flavor in BOOSTERS:
        code, checked = boosters.find_unchecked_parts(content, flavor, title=title)
    else:
        code, checked = keras_files.find_code_objects(content, flavor, title=title)
    if code and not trust:
        raise UntrustedModel(
            f"{description} contains objects other than {_DATA[flavor]}: {listing(code)}. "
            "Loading it may run code.",
            hint="trust=True if you trust its author",
        )
    return checked, not code


def _load_content(
    content: bytes, flavor: str, *, trust: bool, title: str, description: str
) -> LoadedModel:
    """Check the bytes of a file and load them."""
    checked, is_data = _check_content(
        content, flavor, trust=trust, title=title, description=description
    )
    try:
        if flavor == "torch":
            return torch_files.load_program(checked)
        if flavor == "jax":
            return jax_files.load_function(checked)
        if flavor in BOOSTERS:
            return boosters.load_booster(checked, flavor)
        if flavor in KERAS_FLAVORS:
            return _load_network(checked, flavor, is_data=is_data)
        if flavor == "joblib":
            return importlib.import_module("joblib").load(io.BytesIO(checked))
        return pickle.loads(checked)
    except Exception as error:
        # The libraries raise any exception for values that do not fit together.
        if not is_data:
            raise
        reason = str(error).strip().partition("\n")[0][:300]
        raise ModelDamaged(f"{title} cannot be loaded: {reason}") from error


def _load_network(content: bytes, flavor: str, *, is_data: bool) -> LoadedModel:
    """Load a network of Keras, which reads only files, from a private file."""
    directory = temporary_directory()
    try:
        path = os.path.join(directory, "model.keras")
        storage_for(path).write_atomically(path, content)
        # Predictions need neither the optimizer nor losses, which may be functions of the author.
        return _import_library(flavor).models.load_model(path, compile=False, safe_mode=is_data)
    finally:
        remove_temporary(directory)


def _load_folder(path: str, flavor: str) -> LoadedModel:
    if flavor == "spark":
        return spark_pipelines.load_pipeline(path)
    return _import_library("tensorflow").saved_model.load(path)


def check_files(directory: str, spec: ModelSpec) -> None:
    """Verify the files of a model against their registered checksums.

    Raises:
        ModelDamaged: A file is missing, changed, or not registered.
    """
    storage = storage_for(directory)
    for file in spec.files:
        path = storage.resolve_inside(directory, file.path)
        if not storage.exists(path) or files.sha256(path) != file.sha256:
            raise _changed_error(path, spec)
    artifact = storage.resolve_inside(directory, spec.artifact)
    if storage.is_directory(artifact):
        registered_paths = {os.path.join(directory, file.path) for file in spec.files}
        for path in storage.walk(artifact):
            if path not in registered_paths:
                raise _changed_error(path, spec)


def _read_registered(directory: str, spec: ModelSpec, file: ModelFile) -> bytes:
    """Return the content of a file, which has the registered hash."""
    path = storage_for(directory).resolve_inside(directory, file.path)
    storage = storage_for(path)
    content = storage.read_bytes(path) if storage.exists(path) else b""
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise _changed_error(path, spec)
    return content


def _changed_error(path: str, spec: ModelSpec) -> ModelDamaged:
    return ModelDamaged(
        f"{path!r} differs from the file that was registered as model {spec.name!r} version "
        f"{spec.version}.",
        hint="restore it from a copy, or register the run's model again",
    )


@lru_cache(maxsize=2)
def load_predictor(directory: str, content: bytes, *, trust: bool) -> Predict:
    """Load a model once per process, and return its prediction function.

    Args:
        directory: The directory of the model version.
        content: The content of ``model.json``, so that a replaced model is loaded again.
        trust: Allow code in the files of the model.
    """
    spec = ModelSpec.from_bytes(content, path=directory)
    model = load_registered(directory, spec, trust=trust)
    return make_predictor(model, spec.flavor, method=spec.method)


def _import_library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        # Keras needs a backend, and TensorFlow is one.
        command = install_command("tensorflow" if name == "keras" else name)
        raise MissingExtra(f"This model needs {name}.", hint=command) from error
