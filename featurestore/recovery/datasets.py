"""Training datasets as their manifests tell of them: registered, forgotten, removed, claimed."""

from __future__ import annotations

import logging

from sqlalchemy.engine import Connection

from featurestore.errors import DatasetDamaged, StorageError, TrainingDatasetExists
from featurestore.model.counts import check_version
from featurestore.model.manifest import Manifest
from featurestore.model.paths import StorePaths, version_of
from featurestore.recovery import claims
from featurestore.recovery.owners import versions_in_flight
from featurestore.registry import manifests, reports, tags, training_datasets
from featurestore.registry.locking import lock
from featurestore.storage import files, publication
from featurestore.storage.described import Described, read_described
from featurestore.storage.manifests import is_finished, manifest_path, read_manifest

EXPORT, REMOVE = "export", "remove"
_log = logging.getLogger("featurestore.recovery")


def read(directory: str, name: str, version: int) -> Manifest:
    """Return the manifest of the directory of a version.

    Raises:
        DatasetDamaged: It cannot be read, or is that of another dataset.
        TrainingDatasetNotFound: There is none.
    """
    manifest = read_manifest(directory)
    if (manifest.name, manifest.version) != (name, version):
        raise DatasetDamaged(
            f"{directory!r} holds the manifest of {manifest.name!r} version {manifest.version}.",
            hint="restore the directory; TrainingDataset.open(path) opens it as what it is",
        )
    return manifest


def register(connection: Connection, manifest: Manifest) -> None:
    """Register a finished dataset; nothing happens when it is there."""
    manifests.register(connection, manifest)


def register_found(connection: Connection, directory: str, name: str, version: int) -> None:
    """Register the finished dataset of a directory, with what has been said about it since."""
    manifest = read(directory, name, version)
    register(connection, manifest)
    say(connection, name, version, read_described(directory, manifest))


def say(connection: Connection, name: str, version: int, said: Described) -> None:
    """Bring description and tags of a registered dataset up to what its file says."""
    training_datasets.describe(connection, name, version, said.description)
    tags.replace(connection, training_datasets.KIND, name, version, said.tags)


def forget(connection: Connection, name: str, version: int) -> None:
    """Remove everything that is recorded about a version of a dataset."""
    manifests.remove(connection, name, version)
    reports.remove(connection, training_datasets.KIND, name, version)


def remove_files(paths: StorePaths, name: str, version: int) -> None:
    """Remove a version, the manifest first.

    Without it a directory is no dataset, whatever happens next.
    """
    directory = paths.training_dataset(name, version)
    files.remove(manifest_path(directory), below=paths.location)
    files.remove(directory, below=paths.location)


def release(paths: StorePaths, name: str, version: int) -> None:
    """Let a version that is gone be made again: whoever wrote it has ended."""
    claims.release(paths.training_dataset(name, version), below=paths.location)


def claim(
    connection: Connection, location: str, name: str, version: int | None, *, run: str
) -> int:
    """Make a run of this process the only one that exports a version, and return the version.

    None takes the next one.

    Raises:
        TrainingDatasetExists: The version exists, or another export is writing it.
    """
    if version is not None:
        check_version(version)
    paths = StorePaths(location)
    _lock(connection, name)
    busy = versions_in_flight(connection, location, EXPORT, name)
    busy += versions_in_flight(connection, location, REMOVE, name)
    remove_abandoned(connection, location, name)
    taken = {*busy, *training_datasets.versions(connection, name)}
    taken.update(versions_on_disk(paths, name))
    chosen = max(taken, default=0) + 1 if version is None else version
    while chosen not in taken:
        if claims.claim_once(connection, paths.training_dataset(name, chosen), run):
            return chosen
        # Another registry's export, which has begun since the look.
        taken.add(chosen)
        if version is None:
            chosen += 1
    raise TrainingDatasetExists(
        f"Version {chosen} of training dataset {name!r} exists or is being written.",
        hint="leave version= out to make the next one",
    )


def make_directory(location: str, name: str, version: int) -> None:
    """Make the directory of a claimed version.

    Its intent is recorded by then, so that recovery finds the directory after a crash.
    """
    paths = StorePaths(location)
    publication.make_directory(paths.training_dataset_versions(name))
    publication.make_directory(paths.training_dataset(name, version))


def versions_on_disk(paths: StorePaths, name: str) -> list[int]:
    """Return the versions of a dataset that have a directory or a claim, ascending."""
    found = set()
    for entry in files.list_directory(paths.training_dataset_versions(name)):
        version = version_of(claims.claimed(entry))
        if version is not None:
            found.add(version)
    return sorted(found)


def remove_abandoned(connection: Connection, location: str, name: str) -> list[str]:
    """Remove directories without a manifest that no living export writes; return them.

    Below a URI those of this registry, which knows which of its exports live, and those whose lease
    is silent. One that the system refuses to remove is logged, and its number stays
    taken.
    """
    paths = StorePaths(location)
    removed = []
    for version in versions_on_disk(paths, name):
        directory = paths.training_dataset(name, version)
        if is_finished(directory):
            continue
        if version in versions_in_flight(connection, location, EXPORT, name):
            continue
        if not claims.may_clean(connection, location, directory):
            continue
        if not claims.give_up(directory, certain=False):
            continue
        try:
            was_there = files.remove(directory, below=location)
        except StorageError as error:
            _log.warning("what an ended export left stays: %s", error.message)
        else:
            if was_there:
                removed.append(directory)
    return removed


def _lock(connection: Connection, name: str) -> None:
    """Let no other process claim or clean versions of a dataset until this transaction ends."""
    lock(connection, f"trainingdataset/{name}")


__all__ = [
    "claim",
    "forget",
    "is_finished",
    "make_directory",
    "read",
    "register",
    "remove_abandoned",
    "remove_files",
    "versions_on_disk",
]
