"""Recovery of registered models: registration, removal and claims of versions."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy.engine import Connection

from featurestore.errors import ModelDamaged, ModelExists
from featurestore.model.json_object import seal
from featurestore.model.paths import MODEL_FILE
from featurestore.model.registered_model import (
    DESCRIBED_FILE,
    ModelAnnotations,
    ModelSpec,
)
from featurestore.recovery.versioned import VersionedObjects
from featurestore.registry.artifacts import models
from featurestore.storage import StorePaths, revisions, storage_for


class RegisteredModels(VersionedObjects[ModelSpec]):
    """Model files with their artifacts; predictions may refer to a version."""

    table = models
    creation, removal = "enter", "leave"
    folder = "models"
    file_name = MODEL_FILE
    exists_error = ModelExists
    registered_from = "files"
    unpublished = f"it has no {MODEL_FILE}"

    def read(self, directory: str, name: str, version: int) -> ModelSpec:
        path = self.published_file(directory)
        storage = storage_for(path)
        if not storage.exists(path):
            raise ModelDamaged(f"{directory!r} has no {MODEL_FILE}.", hint="restore the directory")
        spec = ModelSpec.from_bytes(storage.read_bytes(path), path=path)
        if (spec.name, spec.version) != (name, version):
            raise ModelDamaged(
                f"{directory!r} contains the model {spec.name!r} version {spec.version}.",
                hint="restore the directory",
            )
        return spec

    def register(
        self, connection: Connection, directory: str, name: str, version: int
    ) -> ModelSpec:
        spec = self.read(directory, name, version)
        models.add(connection, spec, read_annotations(directory))
        return spec

    def register_annotations(
        self, connection: Connection, directory: str, name: str, version: int
    ) -> None:
        """Update stage and tags of a registered model from its newest annotations.

        The lock makes the last registration that of the newest annotations.
        """
        self.table.lock_version(connection, name, version)
        models.annotate(connection, name, version, read_annotations(directory))

    def _used_versions(self, connection: Connection, paths: StorePaths, name: str) -> set[int]:
        # Numbers of deleted versions with stored predictions are not used again, because the
        # predictions refer to them.
        used_versions = super()._used_versions(connection, paths, name)
        return used_versions.union(models.used_versions(connection, name))

    def _claim_directory(self, connection: Connection, directory: str, run: str) -> bool:
        # Of several registries, the first that publishes its model file succeeds.
        return True


MODELS = RegisteredModels()


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
    storage_for(directory).write_atomically(_annotations_path(directory), seal(vars(annotations)))


def _annotations_path(directory: str) -> str:
    return os.path.join(directory, DESCRIBED_FILE)


def _translate_damage(path: str) -> AbstractContextManager[None]:
    return revisions.translate_damage(path, ModelDamaged, "remove it")


def _parse_annotations(content: Any) -> ModelAnnotations:
    return ModelAnnotations() if content is None else ModelAnnotations.from_json(content)
