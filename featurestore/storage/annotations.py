"""Description and tags of a finished training dataset, which may change unlike its manifest.

They are in a file next to the manifest, so that a store can be moved and its registry rebuilt.
Without the file the values of the manifest apply.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from featurestore.errors import DatasetDamaged
from featurestore.model.json_object import JsonObject, MalformedJson
from featurestore.model.manifest import Manifest
from featurestore.storage import files

ANNOTATIONS_FILE = "described.json"


@dataclass(frozen=True)
class Annotations:
    """Description and tags of a training dataset."""

    description: str
    tags: Mapping[str, str]


def read_annotations(directory: str, manifest: Manifest) -> Annotations:
    """Return the annotations of the dataset in a directory.

    Raises:
        DatasetDamaged: The file is damaged.
    """
    path = os.path.join(directory, ANNOTATIONS_FILE)
    if not files.exists(path):
        return Annotations(manifest.description, manifest.tags)
    try:
        data = JsonObject.from_value(files.read_json(path))
        return Annotations(data.text("description"), data.object("tags").each(JsonObject.text))
    except MalformedJson as error:
        raise DatasetDamaged(
            f"{path!r} is damaged: {error}.",
            hint="remove it; then the values of the manifest apply",
        ) from error


def write_annotations(directory: str, annotations: Annotations) -> None:
    """Write the annotations of a dataset and replace earlier ones."""
    path = os.path.join(directory, ANNOTATIONS_FILE)
    data = {"description": annotations.description, "tags": dict(annotations.tags)}
    files.write_json(path, data)
