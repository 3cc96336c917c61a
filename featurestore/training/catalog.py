"""Training datasets of a store: registered, found, removed."""

from __future__ import annotations

import os

from featurestore.model.manifest import MANIFEST_FILE, Manifest
from featurestore.registry import manifests, reports, training_datasets
from featurestore.registry.training_datasets import KIND, RegisteredDataset
from featurestore.session import TRAININGDATASETS, Session
from featurestore.storage import files
from featurestore.training.claim import clean, is_finished, versions_in
from featurestore.training.dataset import TrainingDataset, load_manifest
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
        heal(session, name)
    with session.registry.reading() as connection:
        found = training_datasets.every(connection)
    return [_open(session, each) for each in found]


def heal(session: Session, name: str) -> None:
    """Register finished versions of a dataset whose export died between the manifest and the registry."""
    parent = os.path.join(session.location, TRAININGDATASETS, name)
    with session.registry.reading() as connection:
        known = set(training_datasets.versions(connection, name))
    for version in versions_in(parent):
        directory = os.path.join(parent, f"v{version}")
        if version not in known and is_finished(directory):
            register(session, load_manifest(directory), path=directory)


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
    return TrainingDataset(directory, load_manifest(directory), session)
