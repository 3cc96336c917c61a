"""The manifest's file of a training dataset: written last, read whole, checked at every opening."""

from __future__ import annotations

import os

from featurestore.errors import TrainingDatasetNotFound, WriteConflict
from featurestore.model.manifest import MANIFEST_FILE, Manifest
from featurestore.storage import files
from featurestore.storage.location import is_uri


def manifest_path(directory: str) -> str:
    """Return the path of the manifest of a dataset's directory."""
    return os.path.join(directory, MANIFEST_FILE)


def is_finished(directory: str) -> bool:
    """Tell whether a version's directory holds a dataset: an export writes the manifest last."""
    return files.exists(manifest_path(directory))


def read_manifest(directory: str) -> Manifest:
    """Return the manifest of a dataset's directory.

    Raises:
        TrainingDatasetNotFound: There is no manifest, so no finished dataset; or a newer release
            wrote it.
        DatasetDamaged: The manifest is not what was written.
    """
    path = manifest_path(directory)
    if not files.exists(path):
        raise TrainingDatasetNotFound(
            f"{directory!r} is not a training dataset: it has no {MANIFEST_FILE}.",
            hint="give the directory of one version, such as <location>/trainingdatasets/<name>/v1",
        )
    return Manifest.from_bytes(files.read_bytes(path), path=path)


def write_manifest(directory: str, manifest: Manifest) -> None:
    """Write the manifest: from now on the directory is a dataset.

    Raises:
        WriteConflict: Below a URI there is one already, of another export.
    """
    path = manifest_path(directory)
    if not is_uri(directory):
        files.write_atomically(path, manifest.to_bytes())
    elif not files.write_new(path, manifest.to_bytes()):
        raise WriteConflict(
            f"{directory!r} has a manifest already: another export published this version.",
            hint="export again; leave version= out to make the next one",
        )
