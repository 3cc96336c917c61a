"""Recovery of training datasets: registration, removal and claims of versions."""

from __future__ import annotations

import logging

from sqlalchemy.engine import Connection

from featurestore.errors import DatasetDamaged, StorageError, TrainingDatasetExists
from featurestore.model.arguments import check_version
from featurestore.model.manifest import Manifest
from featurestore.model.paths import StorePaths, parse_version_directory
from featurestore.recovery import claims
from featurestore.recovery.liveness import versions_in_flight
from featurestore.registry import artifacts, training_datasets
from featurestore.registry.rows import lock
from featurestore.storage import files
from featurestore.storage.manifests import (
    is_finished,
    manifest_path,
    read_annotations,
    read_manifest,
)

EXPORT, REMOVE = "export", "remove"
_log = logging.getLogger("featurestore.recovery")


def read(directory: str, name: str, version: int) -> Manifest:
    """Read the manifest in a version directory.

    Raises:
        DatasetDamaged: The manifest is damaged or belongs to another dataset.
        TrainingDatasetNotFound: The directory has no manifest.
    """
    manifest = read_manifest(directory)
    if (manifest.name, manifest.version) != (name, version):
        raise DatasetDamaged(
            f"{directory!r} contains the manifest of {manifest.name!r} version {manifest.version}.",
            hint="restore the directory; TrainingDataset.open(path) opens it as that dataset",
        )
    return manifest


def register(connection: Connection, manifest: Manifest) -> None:
    """Register a finished dataset unless it is already registered."""
    training_datasets.register(connection, manifest)


def register_from_files(connection: Connection, directory: str, name: str, version: int) -> None:
    """Register the finished dataset in a directory, including its annotations."""
    manifest = read(directory, name, version)
    register(connection, manifest)
    register_annotations(connection, directory, manifest)


def register_annotations(connection: Connection, directory: str, manifest: Manifest) -> None:
    """Update description and tags of a registered dataset from its newest annotations.

    The lock makes the last registration that of the newest annotations.
    """
    name, version = manifest.name, manifest.version
    training_datasets.lock_version(connection, name, version)
    if training_datasets.find(connection, name, version) is None:  # removed meanwhile
        return
    annotations = read_annotations(directory, manifest)
    training_datasets.describe(connection, name, version, annotations.description)
    artifacts.replace_tags(connection, training_datasets.KIND, name, version, annotations.tags)


def unregister(connection: Connection, name: str, version: int) -> None:
    """Remove a dataset version from the registry."""
    training_datasets.remove(connection, name, version)


def remove_files(paths: StorePaths, name: str, version: int) -> None:
    """Remove the files of a version, starting with the manifest.

    After a crash, a directory without a manifest is not mistaken for a dataset.
    """
    directory = paths.training_dataset(name, version)
    files.remove(manifest_path(directory), below=paths.location)
    files.remove(directory, below=paths.location)


def release(paths: StorePaths, name: str, version: int) -> None:
    """Release the claim of a deleted version."""
    claims.release(paths.training_dataset(name, version), below=paths.location)


def claim(
    connection: Connection, location: str, name: str, version: int | None, *, run: str
) -> int:
    """Claim a version for an export, by default the next free version, and return it.

    Raises:
        TrainingDatasetExists: The version exists, or another export is writing it.
    """
    if version is not None:
        check_version(version)
    paths = StorePaths(location)
    lock(connection, f"trainingdataset/{name}")
    in_flight = versions_in_flight(connection, location, EXPORT, name)
    in_flight += versions_in_flight(connection, location, REMOVE, name)
    # Abandoned directories are removed before the used versions are listed, so that their numbers
    # are free on a local file system.
    remove_abandoned_exports(connection, location, name)
    used_versions = {*in_flight, *training_datasets.versions(connection, name)}
    used_versions.update(versions_on_disk(paths, name))
    candidate = max(used_versions, default=0) + 1 if version is None else version
    while candidate not in used_versions:
        if claims.claim_once(connection, paths.training_dataset(name, candidate), run):
            return candidate
        # Another registry has claimed this version in the meantime.
        used_versions.add(candidate)
        if version is None:
            candidate += 1
    raise TrainingDatasetExists(
        f"Version {candidate} of training dataset {name!r} exists or is being written.",
        hint="omit version= to create the next one",
    )


def make_directory(location: str, name: str, version: int) -> None:
    """Create the directory of a claimed version.

    The intent must be recorded before, so that recovery finds the directory after a crash.
    """
    paths = StorePaths(location)
    files.make_directory(paths.training_dataset_versions(name), durable=True)
    files.make_directory(paths.training_dataset(name, version), durable=True)


def versions_on_disk(paths: StorePaths, name: str) -> list[int]:
    """Return the dataset versions with a directory or a claim object, in ascending order."""
    entries = files.list_directory(paths.training_dataset_versions(name))
    versions = {parse_version_directory(claims.version_entry_name(entry)) for entry in entries}
    return sorted(version for version in versions if version is not None)


def remove_abandoned_exports(connection: Connection, location: str, name: str) -> list[str]:
    """Remove directories of exports that ended without a manifest, and return their paths.

    In an object store, only directories claimed by this registry or with an expired lease are
    removed. If a removal fails, a warning is logged and the version number remains in use.
    """
    paths = StorePaths(location)
    removed = []
    for version in versions_on_disk(paths, name):
        directory = paths.training_dataset(name, version)
        if is_finished(directory):
            continue
        if version in versions_in_flight(connection, location, EXPORT, name):
            continue
        if not claims.can_remove_incomplete(connection, location, directory):
            continue
        # No intent shows which process wrote the directory, so it may be alive on another machine.
        if not claims.revoke(directory, is_certainly_dead=False):
            continue
        try:
            existed = files.remove(directory, below=location)
        except StorageError as error:
            _log.warning("could not remove the files of an interrupted export: %s", error.message)
        else:
            if existed:
                removed.append(directory)
    return removed


__all__ = [
    "claim",
    "unregister",
    "is_finished",
    "make_directory",
    "read",
    "register",
    "remove_abandoned_exports",
    "remove_files",
    "versions_on_disk",
]
