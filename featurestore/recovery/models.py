"""Recovery of registered models: registration, removal and claims of versions."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy.engine import Connection

from featurestore.errors import ModelDamaged, ModelExists
from featurestore.model.arguments import check_version
from featurestore.model.json_object import seal
from featurestore.model.paths import MODEL_FILE, StorePaths, parse_version_directory
from featurestore.model.registered_model import (
    DESCRIBED_FILE,
    ModelAnnotations,
    ModelSpec,
)
from featurestore.recovery.liveness import versions_in_flight
from featurestore.registry.artifacts import models
from featurestore.registry.rows import lock
from featurestore.storage import files, revisions

REGISTER, REMOVE = "enter", "leave"


def model_file(directory: str) -> str:
    """Return the path of the model file in a version directory."""
    return os.path.join(directory, MODEL_FILE)


def is_model(directory: str) -> bool:
    """Return True if a version directory contains a model file."""
    return files.exists(model_file(directory))


def read(directory: str, name: str, version: int) -> ModelSpec:
    """Read the model specification in a version directory.

    Raises:
        ModelDamaged: The model is missing, damaged, or has another name or version.
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
    """Read the annotations in a version directory; they are empty if the file does not exist."""
    path = _annotations_path(directory)
    with _translate_damage(path):
        return _parse_annotations(revisions.read_json(path))


def change_annotations(
    directory: str, change: Callable[[ModelAnnotations], ModelAnnotations], *, below: str
) -> None:
    """Change the annotations of a model; ``change`` gets the newest ones, see ``revisions``."""
    path = _annotations_path(directory)
    with _translate_damage(path):
        revisions.change_json(
            path, lambda content: {**vars(change(_parse_annotations(content)))}, below=below
        )


def write_annotations(directory: str, annotations: ModelAnnotations) -> None:
    """Write the annotations file of a model version that is not published yet."""
    files.write_atomically(_annotations_path(directory), seal(vars(annotations)))


def _annotations_path(directory: str) -> str:
    return os.path.join(directory, DESCRIBED_FILE)


def _translate_damage(path: str) -> AbstractContextManager[None]:
    return revisions.translate_damage(path, ModelDamaged, "remove it")


def _parse_annotations(content: Any) -> ModelAnnotations:
    return ModelAnnotations() if content is None else ModelAnnotations.from_json(content)


def register(connection: Connection, directory: str, name: str, version: int) -> None:
    """Register the model in a version directory."""
    models.add(connection, read(directory, name, version), read_annotations(directory))


def register_annotations(connection: Connection, directory: str, name: str, version: int) -> None:
    """Update stage and tags of a registered model from its newest annotations.

    The lock makes the last registration that of the newest annotations.
    """
    models.lock_version(connection, name, version)
    models.annotate(connection, name, version, read_annotations(directory))


def unregister(connection: Connection, name: str, version: int) -> None:
    """Remove a model version from the registry."""
    models.remove(connection, name, version)


def remove_files(paths: StorePaths, name: str, version: int) -> None:
    """Remove the files of a version, starting with the model file.

    After a crash, a directory without a model file is not mistaken for a model.
    """
    directory = paths.model(name, version)
    files.remove(model_file(directory), below=paths.location)
    files.remove(directory, below=paths.location)


def claim(connection: Connection, location: str, name: str, version: int | None) -> int:
    """Claim a version for registration, by default the next free version, and return it.

    Raises:
        ModelExists: The version exists, or another process is writing it.
    """
    if version is not None:
        check_version(version)
    lock(connection, f"model/{name}")
    # Numbers of deleted versions with stored predictions are not used again, because the
    # predictions refer to them.
    used_versions = {*models.versions(connection, name), *models.used_versions(connection, name)}
    for operation in (REGISTER, REMOVE):
        used_versions.update(versions_in_flight(connection, location, operation, name))
    paths = StorePaths(location)
    # Directories without a registration are left by crashes or by a lost registry.
    entries = map(parse_version_directory, files.list_directory(paths.model_versions(name)))
    used_versions.update(entry for entry in entries if entry is not None)
    candidate = max(used_versions, default=0) + 1 if version is None else version
    if candidate in used_versions:
        raise ModelExists(
            f"Version {candidate} of model {name!r} exists or is being written.",
            hint="omit version= to create the next one",
        )
    return candidate
