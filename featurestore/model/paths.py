"""Names of directories and files in a store, and checks of stored paths."""

from __future__ import annotations

import re

FEATUREGROUPS = "featuregroups"
TRAININGDATASETS = "trainingdatasets"
FEATUREVIEWS = "featureviews"
SOURCES = "sources"
ONLINE_STORES = "online_stores"
EXPERIMENTS = "experiments"
MODELS = "models"
STAGING = "_staging"
ACCESS_FILE = "access.json"
# The file of a published version.
MANIFEST_FILE = "manifest.json"
VIEW_FILE = "view.json"
MODEL_FILE = "model.json"
LOGS = "_logs"
OWNERS = "_owners"
ERASURES = "_erasures"
ORIGINS = "_origins"

_VERSION_DIRECTORY = re.compile(r"v([1-9][0-9]{0,8})")


def parse_version_directory(directory: str) -> int | None:
    """Return the version in a directory name.

    Returns None if it is not a version directory.

    >>> parse_version_directory("v12"), parse_version_directory("v1_quarantine"), parse_version_directory("v01")
    (12, None, None)
    """
    match = _VERSION_DIRECTORY.fullmatch(directory)
    return None if match is None else int(match[1])


def is_relative_path(text: object) -> bool:
    """Return whether a stored path is below a directory: no root, no ``..``, no ``.``.

    >>> is_relative_path("train/parquet-00000-of-00001.parquet"), is_relative_path("../elsewhere")
    (True, False)
    """
    # A backslash separates directories on Windows, and no path may contain a null character.
    if not isinstance(text, str) or "\0" in text or "\\" in text:
        return False
    return all(name not in ("", ".", "..") for name in text.split("/"))
