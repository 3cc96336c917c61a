"""Files of a run: metrics, TensorBoard events, saved models, and their checksums."""

from __future__ import annotations

import importlib
import json
import math
import numbers
import os
import re
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from featurestore.errors import (
    InvalidArgument,
    InvalidMetric,
    RunDamaged,
    UntrustedModel,
    missing_extra,
)
from featurestore.model.json_object import JsonMapping
from featurestore.model.run_record import METRICS_FILE, RunRecord, format_metrics_line
from featurestore.storage import files, storage_for
from featurestore.storage.appending import AppendedFile
from featurestore.storage.locks import host_name

TENSORBOARD = "tensorboard"
# No separator and no leading dot: a name must not leave the folder or look like a temporary file.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
ARTIFACTS = "artifacts"
PROJECTOR_FILE = "projector_config.pbtxt"
# The native files of boosters, which need no trust.
_BOOSTER_ENDINGS = {"xgboost": ".ubj", "lightgbm": ".txt"}
TEMPORARY = ".saving-"  # prefix of the directories in which models are written


class Reports:
    """Writer of a run's metrics file and TensorBoard events; only the first worker has one.

    Args:
        directory: The run's directory.
        params: Parameters for TensorBoard's HParams, with the run's id.
    """

    def __init__(self, directory: str, params: JsonMapping) -> None:
        self._lines = AppendedFile(os.path.join(directory, METRICS_FILE))
        self._events = EventFile(os.path.join(directory, TENSORBOARD))
        self._events.write_params(params, trial=os.path.basename(directory))
        self._is_first = True

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append the metrics of a step."""
        # A killed attempt may have left a truncated line, so the first line begins with a newline.
        line = format_metrics_line(step, metrics, time=time.time(), begins=self._is_first)
        if self._is_first:
            self._events.discard_from(step)
        self._is_first = False
        self._lines.write(line.encode())
        self._events.write(step, metrics)

    def close(self) -> None:
        """Close both files."""
        self._lines.close()
        self._events.close()


class EventFile:
    """A TensorBoard event file, written without TensorFlow."""

    def __init__(self, directory: str) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise missing_extra("tensorboard", "experiments") from error
        # TensorBoard reads only files whose names contain "tfevents".
        name = f"events.out.tfevents.{int(time.time())}.{host_name()}.{os.getpid()}"
        self._file = AppendedFile(os.path.join(directory, name))
        self._records: Any = RecordWriter(self._file)
        self._event: Any = Event
        # The first record of an event file must be its version.
        self._append(file_version="brain.Event:2")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write scalar metrics."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._append(step=step, summary=Summary(value=values))

    def discard_from(self, step: int) -> None:
        """Discard events of earlier files from ``step`` on, since the steps are repeated."""
        from tensorboard.compat.proto.event_pb2 import SessionLog

        self._append(step=step, session_log=SessionLog(status=SessionLog.START))

    def write_params(self, params: JsonMapping, *, trial: str) -> None:
        """Write the parameters for the HParams plugin."""
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        hparams = {}
        for name, value in params.items():
            plain = isinstance(value, bool | int | float | str)
            hparams[name] = value if plain else json.dumps(value)
        if hparams:
            self._append(summary=hparams_pb(hparams, trial_id=trial))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append(self, **content: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **content).SerializeToString())


def check_metrics(metrics: JsonMapping, *, location: str) -> dict[str, float]:
    """Validate metrics and return them as finite floats.

    Raises:
        InvalidMetric: A metric is not a number, NaN or infinite.

    >>> check_metrics({"loss": 1}, location="at step 3")
    {'loss': 1.0}
    """
    finite_metrics = {}
    for name, value in metrics.items():
        item = getattr(value, "item", None)
        # Scalars of numpy and PyTorch have ``item``, tensors of TensorFlow only ``numpy``.
        number = item() if item is not None and getattr(value, "ndim", 0) == 0 else value
        if hasattr(number, "numpy"):
            number = number.numpy().item()
        if not isinstance(name, str) or not isinstance(number, numbers.Real):
            raise InvalidMetric(
                f"Metric {name!r} is {type(value).__name__} {location}, not a number.",
                hint="report plain numbers: float(value)",
            )
        if not math.isfinite(number):
            raise InvalidMetric(
                f"Metric {name!r} is {float(number)} {location}.",
                hint="the training diverged: use a smaller learning rate, or inputs without nulls",
            )
        finite_metrics[name] = float(number)
    return finite_metrics


def check_step(step: object) -> int:
    """Validate a step number and return it."""
    index = getattr(step, "__index__", None)
    if index is None or isinstance(step, bool) or index() < 0:
        raise InvalidArgument(f"step={step!r} is not a step number: 0, 1, ...")
    return int(index())


def save_model(model: Any, *, directory: str, name: str, worker: int) -> str:
    """Save a model below a directory, and return the path that the first worker publishes.

    Args:
        model: A model from Keras, PyTorch, JAX, XGBoost, LightGBM, Spark ML or scikit-learn.
        directory: The artifact directory of the run.
        name: The file name, with or without its extension.
        worker: The number of this worker.

    Raises:
        InvalidArgument: The library of the model is unknown, or the file name is invalid.
    """
    storage = storage_for(directory)
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
        # Saving a distributed variable may reduce it over all workers, so each worker must write a
        # copy.
        if model_format.collective:
            with tempfile.TemporaryDirectory(prefix="featurestore-") as discarded:
                model_format.write(model, os.path.join(discarded, file_name))
        return published
    storage.make_directory(directory)
    # Left by a worker that was killed while it saved.
    for stale in temporary_directories(directory):
        storage.remove(stale, below=directory)
    # In the target directory, because a rename is atomic only within one file system.
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=directory) as temporary_directory:
        temporary = os.path.join(temporary_directory, file_name)
        model_format.write(model, temporary)
        if storage.is_directory(published):  # a rename cannot replace a folder
            storage.remove(published, below=directory)
        storage.rename(temporary, published)
    return published


@dataclass(frozen=True)
class ModelFormat:
    """A model file format, with its writer.

    Every worker writes ``collective`` models, because saving them may synchronize workers.
    """

    ending: str
    write: Callable[[Any, str], None]
    collective: bool = False


def format_of(model: Any) -> ModelFormat:
    """Determine the file format for a model.

    Raises:
        InvalidArgument: The library of the model is unknown.
    """
    # Inspect class names instead of importing every supported library.
    libraries = {cls.__module__.split(".")[0] for cls in type(model).__mro__}
    if libraries & {"keras", "tf_keras"} and hasattr(model, "save"):
        return ModelFormat(".keras", lambda model, path: model.save(path), collective=True)
    if "pyspark" in libraries and hasattr(model, "write"):
        return ModelFormat("", _write_spark)
    export = sys.modules.get("torch.export")
    if export is not None and isinstance(model, export.ExportedProgram):
        return ModelFormat(".pt2", export.save)
    jax_export = sys.modules.get("jax.export")
    if jax_export is not None and isinstance(model, jax_export.Exported):
        return ModelFormat(
            ".jax", lambda model, path: storage_for(path).write_atomically(path, model.serialize())
        )
    if _is_torch(model):
        # The state of a sharded module is gathered from all workers.
        return ModelFormat(".pt", _write_torch, collective=True)
    for library, ending in _BOOSTER_ENDINGS.items():
        module = sys.modules.get(library)
        if module is not None and isinstance(model, module.Booster):
            return ModelFormat(ending, lambda model, path: model.save_model(path))
    # Last, since Keras models and boosters have ``predict`` as well.
    if hasattr(model, "predict"):
        return ModelFormat(".joblib", _write_joblib)
    raise InvalidArgument(
        f"context.save cannot write a {type(model).__name__}. It supports Keras models, PyTorch "
        "programs, modules and state dicts, functions of jax.export, boosters, Spark ML models, and "
        "objects with a predict method.",
        hint="with open(os.path.join(context.artifact_dir, 'model.bin'), 'wb') as file: ...",
    )


def _write_torch(model: Any, path: str) -> None:
    torch = importlib.import_module("torch")
    state = model
    if isinstance(model, torch.nn.Module):
        # The wrapper adds the prefix "module." to all keys, so its state would not load into the
        # module.
        wrapped = isinstance(model, torch.nn.parallel.DistributedDataParallel)
        module = model.module if wrapped else model
        state = module.state_dict()
    torch.save(state, path)


def _write_spark(model: Any, path: str) -> None:
    # Spark resolves a path without a scheme in its default file system, which may be HDFS.
    model.write().overwrite().save(Path(path).absolute().as_uri())
    if not storage_for(path).is_directory(path):
        raise InvalidArgument(
            f"Spark wrote the model on executors that cannot access {os.path.dirname(path)!r}.",
            hint="keep the store in a directory that the driver and all executors can access",
        )


def _write_joblib(model: Any, path: str) -> None:
    try:
        joblib = importlib.import_module("joblib")
    except ImportError as error:
        raise missing_extra("joblib", "experiments") from error
    joblib.dump(model, path)


def _is_torch(model: Any) -> bool:
    # A model of PyTorch exists only if PyTorch is loaded, so it need not be imported.
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if isinstance(model, torch.nn.Module):
        return True
    if not isinstance(model, Mapping) or not model:
        return False
    return all(isinstance(tensor, torch.Tensor) for tensor in model.values())


def checksums_below(directory: str, folder: str) -> dict[str, str]:
    """Compute the SHA-256 of a file or of all files in a folder, by path in the run's directory.

    Symbolic links are skipped, since they may lead outside the run.
    """
    storage = storage_for(directory)
    checksums = {}
    top = os.path.join(directory, folder)
    if storage.is_link(top):
        return {}
    if storage.is_file(top):
        return {folder: files.sha256(top)}
    # Skip the incomplete saves of killed workers.
    for path in storage.walk(top, enter=lambda name: not name.startswith(TEMPORARY)):
        if storage.is_file(path) and not storage.is_link(path):
            checksums[_relative(path, directory)] = files.sha256(path)
    return checksums


def final_checksums(directory: str, saved: Mapping[str, str]) -> dict[str, str]:
    """Compute the SHA-256 of the metrics file and all artifacts of a completed run.

    Args:
        directory: The directory of the run.
        saved: The checksums that the first worker computed when it saved models.

    Raises:
        RunDamaged: A saved model is missing or changed, or a ``.keras`` file is damaged.
    """
    checksums = checksums_below(directory, ARTIFACTS)
    for relative, digest in saved.items():
        path = os.path.join(directory, relative)
        if relative not in checksums:
            raise damaged_file(path, "context.save wrote it, but it is missing")
        if checksums[relative] != digest:
            raise damaged_file(path, "it has changed since context.save wrote it")
    for relative in checksums:
        # The function may have written the file without ``context.save``. A ZIP archive has
        # checksums of its own.
        if relative.endswith(".keras"):
            _check_archive(os.path.join(directory, relative))
    return checksums | metrics_checksum(directory)


def metrics_checksum(directory: str) -> dict[str, str]:
    """Compute the SHA-256 of the metrics file by its name; empty before the first report."""
    return checksums_below(directory, METRICS_FILE)


def check_files(directory: str, record: RunRecord, *, below: Sequence[str]) -> None:
    """Verify files of a run against the checksums in its record.

    Args:
        directory: The directory of the run.
        record: The run record; it has no checksums until the run has ended.
        below: The files and folders to check, relative to the directory.

    Raises:
        RunDamaged: A file is missing or differs from its checksum.
    """
    storage = storage_for(directory)
    for relative, digest in record.files.items():
        if not any(relative == name or relative.startswith(f"{name}/") for name in below):
            continue
        # The record is a file that users can edit, so its paths may lead outside.
        path = storage.resolve_inside(directory, relative)
        if not storage.exists(path):
            raise damaged_file(path, "it is missing")
        if files.sha256(path) != digest:
            raise damaged_file(path, "it was shortened or changed since the run ended")


def check_own_files(directory: str, relative: str) -> None:
    """Check that a file, or all files in a folder, are inside the run's directory.

    Raises:
        StorageError: The path, or a path below it, is a symbolic link or leads outside.
    """
    storage = storage_for(directory)
    top = storage.resolve_inside(directory, relative)
    for path in storage.walk(top):
        storage.resolve_inside(directory, _relative(path, directory))


def check_tensorboard(directory: str) -> None:
    """Raise an error if a directory contains a TensorBoard projector configuration.

    The projector serves any local file that ``projector_config.pbtxt`` refers to.

    Raises:
        UntrustedModel: The directory contains a projector configuration.
    """
    for path in storage_for(directory).walk(directory):
        if os.path.basename(path) == PROJECTOR_FILE:
            raise UntrustedModel(
                f"{path!r} refers to files that TensorBoard would serve.",
                hint=f"if you trust its author: tensorboard --logdir {directory}",
            )


def damaged_file(path: str, reason: str) -> RunDamaged:
    """Build the error for a damaged file of a run."""
    return RunDamaged(
        f"The file {path!r} of a run is damaged: {reason}.",
        hint="restore the file from a copy, or run the training again",
    )


def temporary_directories(directory: str) -> Iterator[str]:
    """Yield the directories that interrupted saves left in a folder."""
    for name in storage_for(directory).list_directory(directory):
        if name.startswith(TEMPORARY):
            yield os.path.join(directory, name)


def _check_archive(path: str) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            member = archive.testzip()
    except (OSError, zipfile.BadZipFile) as error:
        raise damaged_file(path, str(error)) from error
    if member is not None:
        raise damaged_file(path, f"the checksum of its member {member!r} does not match")


def _relative(path: str, directory: str) -> str:
    return os.path.relpath(path, directory)
