"""The manifest file of a training dataset: written last, checked whenever it is read."""

from __future__ import annotations

import os

from featurestore.errors import TrainingDatasetNotFound, WriteConflict
from featurestore.model.manifest import MANIFEST_FILE, Manifest
from featurestore.storage import files
from featurestore.storage.selection import storage_for


def manifest_path(directory: str) -> str:
    """Return the path of the manifest of a dataset's directory."""
    return os.path.join(directory, MANIFEST_FILE)


def is_finished(directory: str) -> bool:
    """Return True if a directory holds a dataset: an export writes the manifest last."""
    return files.exists(manifest_path(directory))


def read_manifest(directory: str) -> Manifest:
    """Return the manifest of a dataset's directory.

    Raises:
        TrainingDatasetNotFound: The manifest does not exist, so the dataset is not finished; or a
            newer release wrote it.
        DatasetDamaged: The manifest was changed or truncated.
    """
    path = manifest_path(directory)
    if not files.exists(path):
        raise TrainingDatasetNotFound(
            f"{directory!r} is not a training dataset: it has no {MANIFEST_FILE}.",
            hint="give the directory of one version, such as <location>/trainingdatasets/<name>/v1",
        )
    return Manifest.from_bytes(files.read_bytes(path), path=path)


def write_manifest(directory: str, manifest: Manifest) -> None:
    """Write the manifest, which makes the directory a dataset.

    Raises:
        WriteConflict: At a URI, another export has published its manifest.
    """
    path = manifest_path(directory)
    if not storage_for(path).needs_claims:
        files.write_atomically(path, manifest.to_bytes())
    elif not files.write_new(path, manifest.to_bytes()):
        raise WriteConflict(
            f"{directory!r} has a manifest already: another export published this version.",
            hint="export again; leave version= out to make the next one",
        )
