"""Recovery of training datasets: registration, removal and claims of versions."""

from __future__ import annotations

import logging

from sqlalchemy.engine import Connection

from featurestore.errors import DatasetDamaged, StorageError, TrainingDatasetExists
from featurestore.model.manifest import Manifest
from featurestore.model.paths import MANIFEST_FILE
from featurestore.recovery import claims
from featurestore.recovery.liveness import versions_in_flight
from featurestore.recovery.versioned import VersionedObjects
from featurestore.registry import artifacts, training_datasets
from featurestore.storage import StorePaths, storage_for
from featurestore.storage.manifests import read_annotations, read_manifest

_log = logging.getLogger("featurestore.recovery")


class DatasetVersions(VersionedObjects[Manifest]):
    """Exports; a version is published by its manifest."""

    table = training_datasets.TABLE
    creation, removal = "export", "remove"
    folder = "training_datasets"
    file_name = MANIFEST_FILE
    exists_error = TrainingDatasetExists
    registered_from = content = "manifest"
    unpublished = "it has no manifest"
    is_revocable = True

    def read(self, directory: str, name: str, version: int) -> Manifest:
        manifest = read_manifest(directory)
        if (manifest.name, manifest.version) != (name, version):
            raise DatasetDamaged(
                f"{directory!r} contains the manifest of {manifest.name!r} version "
                f"{manifest.version}.",
                hint="restore the directory; TrainingDataset.open(path) opens it as that dataset",
            )
        return manifest

    def register(self, connection: Connection, directory: str, name: str, version: int) -> Manifest:
        manifest = self.read(directory, name, version)
        training_datasets.register(connection, manifest)
        self.register_annotations(connection, directory, manifest)
        return manifest

    def register_annotations(
        self, connection: Connection, directory: str, manifest: Manifest
    ) -> None:
        """Update description and tags of a registered dataset from its newest annotations.

        The lock makes the last registration that of the newest annotations.
        """
        name, version = manifest.name, manifest.version
        self.table.lock_version(connection, name, version)
        if training_datasets.find(connection, name, version) is None:  # removed meanwhile
            return
        annotations = read_annotations(directory, manifest)
        training_datasets.describe(connection, name, version, annotations.description)
        object_kind = self.table.object_kind
        artifacts.replace_tags(connection, object_kind, name, version, annotations.tags)

    def make_directory(self, paths: StorePaths, name: str, version: int) -> None:
        """Create the directory of a claimed version.

        The intent must be recorded before, so that recovery finds the directory after a crash.
        """
        storage = paths.storage
        storage.make_directory(self._folder(paths, name), durable=True)
        storage.make_directory(self.directory(paths, name, version), durable=True)

    def remove_abandoned(self, connection: Connection, location: str, name: str) -> list[str]:
        """Remove directories of exports that ended without a manifest, and return their paths.

        In an object store, only directories claimed by this registry or with an expired lease are
        removed. If a removal fails, a warning is logged and the version number remains in use.
        """
        paths = StorePaths(location)
        removed = []
        for version in self.versions_on_disk(paths, name):
            directory = self.directory(paths, name, version)
            if (
                self.is_published(directory)
                or version in versions_in_flight(connection, location, self.creation, name)
                or not claims.can_remove_incomplete(connection, location, directory)
                # No intent shows which process wrote the directory, so it may be alive on another
                # machine.
                or not claims.revoke(directory, is_certainly_dead=False)
            ):
                continue
            try:
                existed = storage_for(directory).remove(directory, below=location)
            except StorageError as error:
                message = "could not remove the files of an interrupted export: %s"
                _log.warning(message, error.message)
            else:
                if existed:
                    removed.append(directory)
        return removed

    def _used_versions(self, connection: Connection, paths: StorePaths, name: str) -> set[int]:
        # Abandoned directories are removed first, so that their numbers are free on a local file
        # system.
        self.remove_abandoned(connection, paths.location, name)
        return super()._used_versions(connection, paths, name)

    def _claim_directory(self, connection: Connection, directory: str, run: str) -> bool:
        return claims.claim_once(connection, directory, run)


DATASETS = DatasetVersions()
