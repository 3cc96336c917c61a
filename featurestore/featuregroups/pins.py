"""Pins: the Delta versions of a group that training datasets were made from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from featurestore.errors import DatasetDamaged, TrainingDatasetNotFound
from featurestore.model.paths import version_of
from featurestore.registry import training_datasets
from featurestore.session import Session
from featurestore.storage import files
from featurestore.storage.manifests import is_finished, manifest_path, read_manifest


@dataclass(frozen=True, order=True)
class PinnedVersion:
    """A training dataset that was made from a Delta version of a group."""

    dataset: str
    dataset_version: int
    delta_version: int


def pinned_by(session: Session, name: str, version: int) -> list[PinnedVersion]:
    """Return what pins a group.

    By the registry, and by the manifests that the registry does not know yet.

    Raises:
        DatasetDamaged: A manifest that the registry does not know names the group and cannot be
            read.
    """
    with session.registry.reading() as connection:
        registered = {(each.name, each.version) for each in training_datasets.every(connection)}
        pinned = {
            PinnedVersion(*each) for each in training_datasets.pinning(connection, name, version)
        }
    for dataset, number in _finished(session):
        if (dataset, number) not in registered:
            directory = session.training_dataset_path(dataset, number)
            pinned |= _in_manifest(directory, name, version)
    return sorted(pinned)


def _finished(session: Session) -> Iterator[tuple[str, int]]:
    """Yield name and version of every dataset that has a manifest."""
    root = session.paths.training_datasets
    for name in files.list_directory(root):
        for entry in files.list_directory(os.path.join(root, name)):
            version = version_of(entry)
            if version is not None and is_finished(os.path.join(root, name, entry)):
                yield name, version


def _in_manifest(directory: str, name: str, version: int) -> set[PinnedVersion]:
    try:
        manifest = read_manifest(directory)
    except (DatasetDamaged, TrainingDatasetNotFound):
        # What a damaged manifest pins is not known; groups that it does not name are none of it.
        if f'"{name}"'.encode() in files.read_bytes(manifest_path(directory)):
            raise
        return set()
    return {
        PinnedVersion(manifest.name, manifest.version, source["delta_version"])
        for source in manifest.sources
        if (source["featuregroup"], source["version"]) == (name, version)
    }
