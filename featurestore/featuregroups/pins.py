"""Pins: the Delta versions of a group that training datasets were made from."""

from __future__ import annotations

import os
from dataclasses import dataclass

from featurestore.errors import StorageError
from featurestore.model.manifest import MANIFEST_FILE
from featurestore.registry import training_datasets
from featurestore.session import TRAININGDATASETS, Session
from featurestore.storage import files


@dataclass(frozen=True, order=True)
class PinnedVersion:
    """A training dataset that was made from a Delta version of a group."""

    dataset: str
    dataset_version: int
    delta_version: int


def pinned_by(session: Session, name: str, version: int) -> list[PinnedVersion]:
    """Return what pins a group: by the registry, and by every manifest on disk, should the registry lag behind."""
    with session.registry.reading() as connection:
        known = {
            PinnedVersion(*each) for each in training_datasets.pinning(connection, name, version)
        }
    return sorted(known | _in_manifests(session, name, version))


def _in_manifests(session: Session, name: str, version: int) -> set[PinnedVersion]:
    root = os.path.join(session.location, TRAININGDATASETS)
    found = set()
    for dataset in files.list_directory(root):
        for folder in files.list_directory(os.path.join(root, dataset)):
            manifest = os.path.join(root, dataset, folder, MANIFEST_FILE)
            if not files.exists(manifest):
                continue
            data = files.read_json(manifest)
            if not isinstance(data, dict):
                raise StorageError(
                    f"The file {manifest!r} is no manifest.", hint="restore it from a copy"
                )
            found |= {
                PinnedVersion(dataset, int(data["version"]), int(source["delta_version"]))
                for source in data.get("sources", ())
                if source.get("featuregroup") == name and source.get("version") == version
            }
    return found
