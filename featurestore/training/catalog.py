"""Training datasets of a store: registered, found, removed."""

from __future__ import annotations

import os
import warnings
from contextlib import suppress

from featurestore.errors import DatasetDamaged, FeatureStoreError
from featurestore.model.manifest import MANIFEST_FILE, Manifest
from featurestore.registry import manifests, reports, training_datasets
from featurestore.registry.training_datasets import KIND, RegisteredDataset
from featurestore.session import TRAININGDATASETS, Session
from featurestore.storage import files
from featurestore.storage.manifests import is_finished, read_manifest
from featurestore.training.claim import clean, versions_in
from featurestore.training.dataset import TrainingDataset
from featurestore.training.staging import remove_dead


def register(session: Session, manifest: Manifest, *, path: str) -> None:
    """Put a finished dataset into the registry; nothing happens when it is there."""
    with session.registry.transaction() as connection:
        manifests.register(connection, manifest, path=path)


def get(session: Session, name: str, version: int | None) -> TrainingDataset:
    """Return a version of a dataset, None: the latest. TrainingDatasetNotFound lists what there is."""
    if isinstance(name, str):
        heal(session, name)
    with session.registry.reading() as connection:
        found = training_datasets.get(connection, name, version)
    return _open(session, found)


def every(session: Session) -> list[TrainingDataset]:
    """Return every version of every dataset, by name and version."""
    for name in files.list_directory(os.path.join(session.location, TRAININGDATASETS)):
        with suppress(FeatureStoreError):
            heal(session, name)
    with session.registry.reading() as connection:
        found = training_datasets.every(connection)
    opened = []
    for each in found:
        try:
            opened.append(_open(session, each))
        except FeatureStoreError as error:
            # One damaged dataset must not hide the others.
            warnings.warn(
                f"The training dataset {each.name} version {each.version} is left out: {error.message}",
                stacklevel=2,
            )
    return opened


def heal(session: Session, name: str) -> None:
    """Register finished versions of a dataset whose export died between the manifest and the registry."""
    parent = os.path.join(session.location, TRAININGDATASETS, name)
    with session.registry.reading() as connection:
        known = set(training_datasets.versions(connection, name))
    for version in versions_in(parent):
        directory = os.path.join(parent, f"v{version}")
        if version not in known and is_finished(directory):
            register(session, read_manifest(directory), path=directory)


def last_version(session: Session, name: str) -> int:
    """Return the highest registered version of a dataset, 0 when there is none."""
    with session.registry.reading() as connection:
        return max(training_datasets.versions(connection, name), default=0)


def remove(session: Session, name: str, version: int) -> None:
    """Delete a version: its manifest first, so that what remains after a kill is no dataset."""
    with session.registry.reading() as connection:
        found = training_datasets.get(connection, name, version)
    directory = session.training_dataset_path(found.name, found.version)
    files.remove(os.path.join(directory, MANIFEST_FILE), below=session.location)
    with session.registry.transaction() as connection:
        manifests.remove(connection, name, version)
        reports.remove(connection, KIND, name, version)
    files.remove(directory, below=session.location)


def clean_all(session: Session) -> list[str]:
    """Remove what killed exports left, of every dataset, and their staged rows; return the directories."""
    parent = os.path.join(session.location, TRAININGDATASETS)
    removed = [
        each for name in files.list_directory(parent) for each in clean(os.path.join(parent, name))
    ]
    return [*removed, *remove_dead(session)]


def _open(session: Session, found: RegisteredDataset) -> TrainingDataset:
    directory = session.training_dataset_path(found.name, found.version)
    manifest = read_manifest(directory)
    if (manifest.name, manifest.version) != (found.name, found.version):
        raise DatasetDamaged(
            f"{directory!r} holds the manifest of {manifest.name!r} version {manifest.version}.",
            hint="restore the directory; TrainingDataset.open(path) opens it as what it is",
        )
    return TrainingDataset(directory, manifest, session)
