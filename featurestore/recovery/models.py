"""Registered models as their files tell of them: registered, forgotten, removed, claimed."""

from __future__ import annotations

import os

from sqlalchemy.engine import Connection

from featurestore.errors import ModelDamaged, ModelExists
from featurestore.model.counts import check_version
from featurestore.model.json_object import MalformedJson
from featurestore.model.paths import StorePaths, version_of
from featurestore.model.registered_model import (
    DESCRIBED_FILE,
    MODEL_FILE,
    ModelDescribed,
    ModelSpec,
)
from featurestore.recovery.owners import versions_in_flight
from featurestore.registry import models
from featurestore.registry.locking import lock
from featurestore.storage import files

ENTER, LEAVE = "enter", "leave"


def model_file(directory: str) -> str:
    """Return the path of the file that makes a directory a model."""
    return os.path.join(directory, MODEL_FILE)


def is_model(directory: str) -> bool:
    """Tell whether a version's directory holds a model."""
    return files.exists(model_file(directory))


def read(directory: str, name: str, version: int) -> ModelSpec:
    """Return the model of the directory of a version.

    Raises:
        ModelDamaged: It cannot be read, or is another model.
    """
    path = model_file(directory)
    if not files.exists(path):
        raise ModelDamaged(f"{directory!r} has no {MODEL_FILE}.", hint="restore the directory")
    spec = ModelSpec.from_bytes(files.read_bytes(path), path=path)
    if (spec.name, spec.version) != (name, version):
        raise ModelDamaged(
            f"{directory!r} holds the model {spec.name!r} version {spec.version}.",
            hint="restore the directory",
        )
    return spec


def read_described(directory: str) -> ModelDescribed:
    """Return what is said about the model of a directory; without a file nothing is."""
    path = os.path.join(directory, DESCRIBED_FILE)
    if not files.exists(path):
        return ModelDescribed()
    try:
        return ModelDescribed.from_json(files.read_json(path))
    except MalformedJson as error:
        raise ModelDamaged(f"{path!r} is damaged: {error}.", hint="remove it") from error


def write_described(directory: str, said: ModelDescribed) -> None:
    """Write what is said about a model, in place of what was said before."""
    files.write_json(os.path.join(directory, DESCRIBED_FILE), {**vars(said)})


def register(connection: Connection, directory: str, name: str, version: int) -> None:
    """Register a model as its files say it."""
    models.add(connection, read(directory, name, version), read_described(directory))


def forget(connection: Connection, name: str, version: int) -> None:
    """Remove everything that is recorded about a version of a model."""
    models.remove(connection, name, version)


def remove_files(paths: StorePaths, name: str, version: int) -> None:
    """Remove a version, its file first: without it a directory is no model."""
    directory = paths.model(name, version)
    files.remove(model_file(directory), below=paths.location)
    files.remove(directory, below=paths.location)


def claim(connection: Connection, location: str, name: str, version: int | None) -> int:
    """Make this process the only one that registers a version, and return it.

    None takes the next one.

    Raises:
        ModelExists: The version exists, or another process is writing it.
    """
    if version is not None:
        check_version(version)
    lock(connection, f"model/{name}")
    taken = {*models.versions(connection, name), *models.remembered(connection, name)}
    for kind in (ENTER, LEAVE):
        taken.update(versions_in_flight(connection, location, kind, name))
    paths = StorePaths(location)
    for entry in files.list_directory(paths.model_versions(name)):
        found = version_of(entry)
        if found is not None:
            taken.add(found)
    chosen = max(taken, default=0) + 1 if version is None else version
    if chosen in taken:
        raise ModelExists(
            f"Version {chosen} of model {name!r} exists or is being written.",
            hint="leave version= out to make the next one",
        )
    return chosen
