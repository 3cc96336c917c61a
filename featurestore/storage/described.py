"""Description and tags of a finished training dataset: they may change, its manifest does not.

They lie in a file of their own beside the manifest, so that a store can be moved and its registry
rebuilt. No file: they are as the manifest has them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from featurestore.errors import DatasetDamaged
from featurestore.model.json_object import JsonObject, MalformedJson
from featurestore.model.manifest import Manifest
from featurestore.storage import files

DESCRIBED_FILE = "described.json"


@dataclass(frozen=True)
class Described:
    """What people say about a training dataset."""

    description: str
    tags: Mapping[str, str]


def read_described(directory: str, manifest: Manifest) -> Described:
    """Return what is said about the dataset of a directory.

    Raises:
        DatasetDamaged: The file is not what was written.
    """
    path = os.path.join(directory, DESCRIBED_FILE)
    if not files.exists(path):
        return Described(manifest.description, manifest.tags)
    try:
        data = JsonObject.from_value(files.read_json(path))
        return Described(data.text("description"), data.object("tags").each(JsonObject.text))
    except MalformedJson as error:
        raise DatasetDamaged(
            f"{path!r} is damaged: {error}.", hint="remove it; the manifest's own words hold then"
        ) from error


def write_described(directory: str, said: Described) -> None:
    """Write what is said about a dataset, in place of what was said before."""
    path = os.path.join(directory, DESCRIBED_FILE)
    files.write_json(path, {"description": said.description, "tags": dict(said.tags)})
