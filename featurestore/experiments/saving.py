"""Saving models in a run: all workers write, and the first publishes its file by a rename.

Under ``MultiWorkerMirroredStrategy`` a save reads variables that are reduced over all workers, so
every worker has to take part. The files of all workers but the first are discarded.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from featurestore.errors import InvalidArgument, missing_extra
from featurestore.experiments import run_files
from featurestore.storage import files

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class ModelFormat:
    """A file format of models, with its writer.

    Every worker writes ``collective`` models, because saving them may synchronize workers.
    """

    ending: str
    write: Callable[[Any, str], None]
    collective: bool = False


def save_model(model: Any, *, directory: str, name: str, worker: int) -> str:
    """Write a model below a directory, and return the path that the first worker publishes.

    Args:
        model: A model of Keras, PyTorch, Spark ML or scikit-learn.
        directory: The folder of the run's artifacts.
        name: The name of the file, with or without its extension.
        worker: The number of this worker.

    Raises:
        InvalidArgument: The library of the model is unknown, or the file name is invalid.
    """
    model_format = format_of(model)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"name={name!r} is not a valid file name.", hint='context.save(model, name="model")'
        )
    file_name = name
    if not name.endswith(model_format.ending):
        file_name += model_format.ending
    published = os.path.join(directory, file_name)
    if worker > 0:
        if model_format.collective:
            with tempfile.TemporaryDirectory(prefix="featurestore-") as discarded:
                model_format.write(model, os.path.join(discarded, file_name))
        return published
    files.make_directory(directory)
    for stale in run_files.temporary_directories(directory):
        files.remove(stale, below=directory)
    with tempfile.TemporaryDirectory(
        prefix=run_files.TEMPORARY, dir=directory
    ) as temporary_directory:
        temporary = os.path.join(temporary_directory, file_name)
        model_format.write(model, temporary)
        if files.is_directory(published):  # a rename cannot replace a folder
            files.remove(published, below=directory)
        files.rename(temporary, published)
    return published


def format_of(model: Any) -> ModelFormat:
    """Return the file format of a model.

    Raises:
        InvalidArgument: The library of the model is unknown.
    """
    libraries = {each.__module__.split(".")[0] for each in type(model).__mro__}
    if libraries & {"keras", "tf_keras"} and hasattr(model, "save"):
        return ModelFormat(".keras", _write_keras, collective=True)
    if "pyspark" in libraries and hasattr(model, "write"):
        return ModelFormat("", _write_spark)
    if _is_torch(model):
        # The state of a sharded module is gathered from all workers.
        return ModelFormat(".pt", _write_torch, collective=True)
    if hasattr(model, "predict"):
        return ModelFormat(".joblib", _write_joblib)
    raise InvalidArgument(
        f"context.save cannot write a {type(model).__name__}. It supports models of Keras, "
        "modules and state dicts of PyTorch, models of Spark ML, and objects with a predict method.",
        hint="with open(os.path.join(context.artifact_dir, 'model.bin'), 'wb') as file: ...",
    )


def _write_keras(model: Any, path: str) -> None:
    model.save(path)


def _write_torch(model: Any, path: str) -> None:
    torch = importlib.import_module("torch")
    state = model
    if isinstance(model, torch.nn.Module):
        wrapped = isinstance(model, torch.nn.parallel.DistributedDataParallel)
        module = model.module if wrapped else model
        state = module.state_dict()
    torch.save(state, path)


def _write_spark(model: Any, path: str) -> None:
    model.write().overwrite().save(Path(path).absolute().as_uri())
    if not files.is_directory(path):
        raise InvalidArgument(
            f"Spark wrote the model on executors that do not see {os.path.dirname(path)!r}.",
            hint="keep the store in a directory that the driver and all executors see",
        )


def _write_joblib(model: Any, path: str) -> None:
    try:
        joblib = importlib.import_module("joblib")
    except ImportError as error:
        raise missing_extra("joblib", "experiments") from error
    joblib.dump(model, path)


def _is_torch(model: Any) -> bool:
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if isinstance(model, torch.nn.Module):
        return True
    if not isinstance(model, Mapping) or not model:
        return False
    return all(isinstance(each, torch.Tensor) for each in model.values())
