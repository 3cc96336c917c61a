"""Metadata files of a training dataset: the manifest, and the annotations (description and tags).

The manifest is written last and validated on every read. Annotations may change after the export,
so they are in a second file with revisions, which preserves them when a store is moved or its
registry is rebuilt. Without this file the values in the manifest apply.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from featurestore.errors import DatasetDamaged, TrainingDatasetNotFound, WriteConflict
from featurestore.model.manifest import Manifest
from featurestore.model.paths import MANIFEST_FILE
from featurestore.model.records import Record
from featurestore.storage import revisions, storage_for

ANNOTATIONS_FILE = "described.json"


def manifest_path(directory: str) -> str:
    """Return the path of the manifest in a dataset directory."""
    return os.path.join(directory, MANIFEST_FILE)


def is_finished(directory: str) -> bool:
    """Return True if a directory contains a finished dataset, whose manifest is written last."""
    return storage_for(directory).exists(manifest_path(directory))


def read_manifest(directory: str) -> Manifest:
    """Return the manifest in a dataset directory.

    Raises:
        TrainingDatasetNotFound: The manifest does not exist because the dataset is not finished.
        FormatTooNew: A newer release wrote the manifest.
        DatasetDamaged: The manifest was modified or truncated.
    """
    storage = storage_for(directory)
    path = manifest_path(directory)
    if not storage.exists(path):
        raise TrainingDatasetNotFound(
            f"{directory!r} is not a training dataset: it has no {MANIFEST_FILE}.",
            hint="pass the directory of one version, such as <location>/trainingdatasets/<name>/v1",
        )
    return Manifest.from_bytes(storage.read_bytes(path), path=path)


def write_manifest(directory: str, manifest: Manifest) -> None:
    """Write the manifest, which completes the dataset.

    Raises:
        WriteConflict: Another export has already published its manifest at the URI.
    """
    storage = storage_for(directory)
    path = manifest_path(directory)
    # A local directory has one registry, which gives a version to one export. At a URI, exports of
    # several registries can have the same version, so the first manifest wins.
    if not storage.needs_claims:
        storage.write_atomically(path, manifest.to_bytes())
    elif not storage.write_new(path, manifest.to_bytes()):
        raise WriteConflict(
            f"{directory!r} already has a manifest: another export published this version.",
            hint="export again without version= to create the next version",
        )


@dataclass(frozen=True)
class Annotations(Record):
    """The description and tags of a training dataset."""

    description: str
    tags: Mapping[str, str]


def read_annotations(directory: str, manifest: Manifest) -> Annotations:
    """Return the annotations in a dataset directory.

    Raises:
        DatasetDamaged: The file is damaged.
    """
    path = annotations_path(directory)
    with _translate_damage(path):
        return _parse_annotations(revisions.read_json(path), manifest)


def change_annotations(
    directory: str,
    manifest: Manifest,
    change: Callable[[Annotations], Annotations],
    *,
    below: str,
) -> None:
    """Change the annotations of a dataset; ``change`` gets the newest ones, see ``revisions``."""
    path = annotations_path(directory)

    def change_content(content: Any) -> dict[str, Any]:
        changed = change(_parse_annotations(content, manifest))
        return changed.to_json()

    with _translate_damage(path):
        revisions.change_json(path, change_content, below=below)


def annotations_path(directory: str) -> str:
    """Return the path of the annotations file, whose changes are its revisions."""
    return os.path.join(directory, ANNOTATIONS_FILE)


def _translate_damage(path: str) -> AbstractContextManager[None]:
    hint = "remove it; then the earlier values apply"
    return revisions.translate_damage(path, DatasetDamaged, hint)


def _parse_annotations(content: Any, manifest: Manifest) -> Annotations:
    if content is None:
        # Without a change after the export, the manifest has the current values.
        return Annotations(manifest.description, manifest.tags)
    return Annotations.from_json(content)
