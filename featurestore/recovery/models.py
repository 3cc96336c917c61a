"""Recovery of registered models: register, forget, remove and claim versions."""

from __future__ import annotations

import os

from sqlalchemy.engine import Connection

from featurestore.errors import ModelDamaged, ModelExists
from featurestore.model.arguments import check_version
from featurestore.model.json_object import MalformedJson
from featurestore.model.paths import StorePaths, parse_version_directory
from featurestore.model.registered_model import (
    DESCRIBED_FILE,
    MODEL_FILE,
    ModelAnnotations,
    ModelSpec,
)
from featurestore.recovery.liveness import versions_in_flight
from featurestore.registry.artifacts import models
from featurestore.registry.rows import lock
from featurestore.storage import files

REGISTER, REMOVE = "enter", "leave"


def model_file(directory: str) -> str:
    """Return the path of the model file of a version."""
    return os.path.join(directory, MODEL_FILE)


def is_model(directory: str) -> bool:
    """Return True if a version's directory has a model file."""
    return files.exists(model_file(directory))


def read(directory: str, name: str, version: int) -> ModelSpec:
    """Return the model of the directory of a version.

    Raises:
        ModelDamaged: The model is damaged, or another model.
    """
    path = model_file(directory)
    if not files.exists(path):
        raise ModelDamaged(f"{directory!r} has no {MODEL_FILE}.", hint="restore the directory")
    spec = ModelSpec.from_bytes(files.read_bytes(path), path=path)
    if (spec.name, spec.version) != (name, version):
        raise ModelDamaged(
            f"{directory!r} contains the model {spec.name!r} version {spec.version}.",
            hint="restore the directory",
        )
    return spec


def read_annotations(directory: str) -> ModelAnnotations:
    """Return the annotations of the model of a directory, empty without a file."""
    path = os.path.join(directory, DESCRIBED_FILE)
    if not files.exists(path):
        return ModelAnnotations()
    try:
        return ModelAnnotations.from_json(files.read_json(path))
    except MalformedJson as error:
        raise ModelDamaged(f"{path!r} is damaged: {error}.", hint="remove it") from error


def write_annotations(directory: str, annotations: ModelAnnotations) -> None:
    """Replace the annotations of a model."""
    files.write_json(os.path.join(directory, DESCRIBED_FILE), {**vars(annotations)})


def register(connection: Connection, directory: str, name: str, version: int) -> None:
    """Register the model of a directory."""
    models.add(connection, read(directory, name, version), read_annotations(directory))


def forget(connection: Connection, name: str, version: int) -> None:
    """Remove a version of a model from the registry."""
    models.remove(connection, name, version)


def remove_files(paths: StorePaths, name: str, version: int) -> None:
    """Remove a version, first the file without which the directory is not a model."""
    directory = paths.model(name, version)
    files.remove(model_file(directory), below=paths.location)
    files.remove(directory, below=paths.location)


def claim(connection: Connection, location: str, name: str, version: int | None) -> int:
    """Claim a version for registration by this process, and return it.

    ``version`` None claims the next one.

    Raises:
        ModelExists: The version exists, or another process is writing it.
    """
    if version is not None:
        check_version(version)
    lock(connection, f"model/{name}")
    used_versions = {*models.versions(connection, name), *models.used_versions(connection, name)}
    for kind in (REGISTER, REMOVE):
        used_versions.update(versions_in_flight(connection, location, kind, name))
    paths = StorePaths(location)
    entries = map(parse_version_directory, files.list_directory(paths.model_versions(name)))
    used_versions.update(entry for entry in entries if entry is not None)
    candidate = max(used_versions, default=0) + 1 if version is None else version
    if candidate in used_versions:
        raise ModelExists(
            f"Version {candidate} of model {name!r} exists or is being written.",
            hint="omit version= to create the next one",
        )
    return candidate
